"""The affinities of interrupts: read, written, and given back what they were.

Source: the kernel's ``core-api/irq/irq-affinity.rst``, ``kernel/irq/proc.c``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.machine.interrupts import Saved, affinity_for
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.linux.kernel_files import read_value, write_value

PROC_IRQ: Final = Path("/proc/irq")
DEFAULT: Final = str(PROC_IRQ / "default_smp_affinity")
"""What an interrupt begins with that is new."""

_ACTIONS: Final = "/sys/kernel/irq/{}/actions"
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

S = TypeVar("S", bound=Saved)


def places() -> list[str]:
    """The files of all interrupts, and of those that come later; raises OSError.

    ``/proc/irq`` has every one; ``/proc/interrupts`` only has those with a handler.
    """
    numbers = sorted(int(one.name) for one in PROC_IRQ.iterdir() if one.name.isdecimal())
    return [*(f"{PROC_IRQ}/{number}/smp_affinity_list" for number in numbers), DEFAULT]


def number_of(place: str) -> str:
    """The interrupt's number; ``default`` for those that come later."""
    return "default" if place == DEFAULT else Path(place).parent.name


def name_of(place: str) -> str:
    """What an interrupt is for, such as ``virtio1-req.0``; "" where nobody says."""
    try:
        return read_value(_ACTIONS.format(number_of(place)))
    except OSError:
        return ""


def affinity(place: str) -> CPUSet:
    """Where an interrupt may come; raises OSError."""
    text = read_value(place)
    try:
        return CPUSet.parse_hex(text) if place == DEFAULT else CPUSet.parse(text)
    except CPUSetError as error:
        raise OSError(errno.EINVAL, str(error), place) from None


def effective(place: str) -> CPUSet | None:
    """Where it is delivered now; it moves when it comes the next time.  None: nobody knows."""
    try:
        return affinity(str(Path(place).with_name("effective_affinity_list"))) or None
    except OSError:
        return None


def set_affinity(place: str, cpus: CPUSet) -> None:
    """Have it come to other CPUs; raises OSError."""
    write_value(place, cpus.hex() if place == DEFAULT else str(cpus))


def noted(known: Iterable[S], new: Iterable[S]) -> tuple[S, ...]:
    """Remember values that are about to be changed; one that is known keeps what it was first."""
    found = {value.place: value for value in known}
    for value in new:
        old = found.get(value.place)
        if old is not None:
            written = tuple(dict.fromkeys((*old.written, *value.written)))
            found[value.place] = replace(old, written=written)
        else:
            found[value.place] = value
    return tuple(found.values())


def wanted(saved: Mapping[str, Saved], away: CPUSet, others: CPUSet) -> list[Saved]:
    """Look at all interrupts: those whose affinity is to be changed, and to what.

    Raises:
        OSError: there is no list of them.
    """
    found = []
    for place in places():
        try:
            now = affinity(place)
        except OSError:
            continue  # it has been freed
        target = affinity_for(now, saved.get(place), away, others)
        if target != now:
            found.append(Saved(place=place, before=now, written=(target,)))
    return found


class Written(Struct, frozen=True):
    """What became of writing affinities: the places, and what the kernel said where it refused."""

    done: tuple[str, ...]
    refused: Mapping[str, OSError]


def write_all(values: Iterable[Saved]) -> Written:
    """Write the last affinity of each; those that are gone are in neither list."""
    done, refused = [], {}
    for value in values:
        try:
            set_affinity(value.place, value.written[-1])
        except OSError as error:
            if Path(value.place).exists():
                refused[value.place] = error
        else:
            done.append(value.place)
    return Written(tuple(done), refused)


def is_fixed(place: str, error: OSError) -> bool:
    """Whether this says that the kernel, or the hardware, lets nobody move an interrupt.

    That is an I/O error, or a file that is read-only for everybody, and refuses root as well.
    """
    return error.errno == errno.EIO or (is_denied(error) and not Path(place).stat().st_mode & 0o222)


def is_denied(error: OSError) -> bool:
    """Whether this is what somebody hears who may not move any."""
    return error.errno in _DENIED


def restore(values: Iterable[Saved], ours: str) -> tuple[str, ...]:
    """Give interrupts back what they had; sentences about those where that is not so.

    What is gone is passed over, and what somebody else has changed since is left; ``ours`` is the
    time for which they were changed, in words.
    """
    notes = []
    for value in values:
        try:
            now = affinity(value.place)
            if now == value.before:
                continue
            if value.is_ours(now):
                set_affinity(value.place, value.before)
            else:
                notes.append(value.left(now, ours))
        except OSError as error:
            # One interrupt that a driver now holds on to must not keep the others.
            if Path(value.place).exists():
                said = error.strerror or error
                notes.append(f"{value.place}: writing {str(value.before)!r}: {said}")
    return tuple(notes)

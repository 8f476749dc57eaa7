"""Processes and threads as ``/proc`` shows them: which one a pid means, and whether it lives.

A pid is used again; a pid with the time of its start is not, until the machine is started anew.
What has ended is None here, or not in the list.  Where the kernel has no file or memory left for
a look, NoRoomError is raised instead: that nothing was read is no sign that somebody has ended.

Source: proc_pid_stat(5), proc_pid_cgroup(5).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.linux.descriptors import gone_or_raise
from pinfold.ports.errors import PortError

PROC: Final = Path("/proc")

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_DEFUNCT: Final = frozenset("ZXx")
_PF_EXITING: Final = 0x00000004
_PF_KTHREAD: Final = 0x00200000
_PF_NO_SETAFFINITY: Final = 0x04000000
_STAT_BYTES: Final = 4096
_LEAST_FIELDS: Final = 39
_LONGEST_NUMBER: Final = 20


class Stat(Struct, frozen=True):
    """A ``stat`` file, of a process or of a thread; ``start`` is in clock ticks since the boot.

    ``threads`` is their number; ``processor`` is the CPU on which it ran last.
    """

    pid: int
    comm: str
    state: str
    parent: int
    group: int
    session: int
    flags: int
    threads: int
    start: int
    processor: int

    def is_same(self, other: Stat | None) -> bool:
        """Whether this is the same process or thread, whatever it did meanwhile."""
        return other is not None and (self.pid, self.start) == (other.pid, other.start)

    @property
    def is_defunct(self) -> bool:
        """Whether this thread has ended; of a process, others may run on."""
        return self.state in _DEFUNCT

    @property
    def is_over(self) -> bool:
        """Whether this thread executes nothing any more: it has ended, or the kernel ends it."""
        return self.state in _DEFUNCT or bool(self.flags & _PF_EXITING)

    @property
    def is_kernel(self) -> bool:
        """Whether it is a thread of the kernel."""
        return bool(self.flags & _PF_KTHREAD)

    @property
    def is_bound(self) -> bool:
        """Whether the kernel lets nobody change where it runs."""
        return bool(self.flags & _PF_NO_SETAFFINITY)


def parse_stat(text: str) -> Stat:
    """Read a ``stat`` file.

    The name is whatever the process has chosen, parentheses, blanks and ends of line included:
    only the last closing parenthesis ends it.

    Raises:
        ValueError: it is no such file.
    """
    opening, closing = text.find("("), text.rfind(")")
    if not 0 < opening < closing:
        raise ValueError("no name in parentheses: this is no stat file")
    fields = text[closing + 1 :].split()
    # The first of these is field 3 of the manual page.
    if len(fields) < _LEAST_FIELDS - 2:
        raise ValueError(f"{len(fields) + 2} fields, at least {_LEAST_FIELDS} are needed")
    return Stat(
        pid=_number(text[:opening].strip()),
        comm=text[opening + 1 : closing],
        state=fields[0],
        parent=_number(fields[1]),
        group=_number(fields[2]),
        session=_number(fields[3]),
        flags=_number(fields[6]),
        threads=_number(fields[17]),
        start=_number(fields[19]),
        processor=_number(fields[36]),
    )


def stat_of(pid: int | str, proc: Path | str = PROC) -> Stat | None:
    """The process or thread (``PID/task/TID``) that has this id now; None when nobody has."""
    path = f"{proc}/{pid}/stat"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, _STAT_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        gone_or_raise(path, error)
        return None
    try:
        return parse_stat(data.decode("utf-8", "replace"))
    except ValueError:
        # It has ended between the two calls.
        return None


def pids(proc: Path | str = PROC) -> list[int]:
    """Every process that can be seen.

    Raises:
        OSError: there is no ``/proc``, or no file to open it with.
    """
    return [int(name) for name in os.listdir(proc) if name.isdigit()]  # noqa: PTH208 - names only


def threads(pid: int, proc: Path | str = PROC) -> list[int]:
    """The threads of a process; none when it is gone."""
    path = f"{proc}/{pid}/task"
    try:
        return [int(name) for name in os.listdir(path)]  # noqa: PTH208 - names are enough
    except OSError as error:
        gone_or_raise(path, error)
        return []


def living_threads(pid: int, proc: Path | str = PROC) -> Iterator[int]:
    """The threads of a process that can still execute anything."""
    for tid in threads(pid, proc):
        if not is_over(f"{pid}/task/{tid}", proc):
            yield tid


def is_over(pid: int | str, proc: Path | str = PROC) -> bool:
    """Whether a thread is gone or executes nothing any more; arguments as :func:`stat_of`."""
    stat = stat_of(pid, proc)
    return stat is None or stat.is_over


def lives(pid: int, proc: Path | str = PROC) -> bool:
    """Whether a process or thread is there and can still execute anything.

    A zombie cannot, nor can one that the kernel has begun to end, however long that takes: neither
    can be moved any more, and cgroup v1 shows both in the root.  A process whose first thread has
    ended lives as long as its others.
    """
    return not is_over(pid, proc) or any(living_threads(pid, proc))


def began(pid: int, proc: Path | str = PROC) -> int | None:
    """When a process began, in clock ticks since the boot; None when it is gone, or a zombie.

    One whose first thread has ended is no zombie as long as others run.
    """
    stat = stat_of(pid, proc)
    if stat is None or (stat.is_defunct and all(tid == pid for tid in threads(pid, proc))):
        return None
    return stat.start


def age(pid: int, proc: Path | str = PROC) -> float | None:
    """Seconds since a process began; None once it has ended."""
    ticks = began(pid, proc)
    if ticks is None:
        return None
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(0.0, now - ticks / os.sysconf("SC_CLK_TCK"))


def parse_cgroups(text: str) -> dict[str, str]:
    """The cgroups in a ``/proc/PID/cgroup`` text by controller, with "" for cgroup v2's.

    Hierarchies of v1 without a controller are under their names, such as ``name=systemd``.  One
    that was removed is where it was.  What is no line of such a file is passed over.
    """
    found: dict[str, str] = {}
    for line in text.split("\n"):
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not path.startswith("/"):
            continue
        for controller in controllers.split(",") if controllers else [""] * (number == "0"):
            found[controller] = path.removesuffix(" (deleted)") or "/"
    return found


def boot_id() -> str:
    """The kernel's name for the time since the machine was started; raises PortError."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError as error:
        raise PortError(f"{_BOOT_ID}: {error.strerror}", "mount /proc") from None


def _number(text: str) -> int:
    if text.isdigit() and text.isascii() and len(text) <= _LONGEST_NUMBER:
        return int(text)
    if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit()):
        raise ValueError(f"{text[:20]!r} is no number")
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"{text[:20]!r}... is too long for a number")
    return int(text)

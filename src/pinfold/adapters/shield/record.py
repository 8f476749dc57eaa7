"""What a shield has changed, written down before it is changed, so that anybody can undo it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.adapters.shield.kernel import Method, ShieldError, failure
from pinfold.core.machine.interrupts import Saved
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.boot_file import BootFile, BootRecord
from pinfold.linux.interrupts import noted
from pinfold.linux.locks import HeldError, locked

RECORD: Final = Path("/run/pinfold/shield.json")
CGROUP: Final = "pinfold-system"
_LOCK_WAIT: Final = 20.0


class Kind(Enum):
    """What a saved value is: a cgroup's CPUs, an interrupt's, the default's, a systemd unit's."""

    CPUSET = "cpuset"
    IRQ = "irq"
    IRQ_DEFAULT = "irq-default"
    UNIT = "unit"


class SavedValue(Saved, frozen=True, kw_only=True):
    """A value that is, or is about to be, changed; ``place`` is a file, or a systemd unit."""

    kind: Kind


class SavedAffinity(Struct, frozen=True):
    """A thread that had an affinity of its own; ``start_time`` tells it from a later namesake."""

    tid: int
    start_time: int
    before: CPUSet


class Shield(BootRecord, frozen=True):
    """A shield as recorded: ``cpus`` are shielded, everything else runs on ``others``.

    ``root`` is the folder of the root cgroup, ``name`` that of our cgroup in it.  ``complete`` is
    false while it is raised, and after a crash.  ``enabled``: the cpuset controller was switched on
    for the root's children.  ``keep``: cgroups (paths from the root) that are left as they are.
    ``past``: what ``others`` has been before.
    """

    cpus: CPUSet
    others: CPUSet
    method: Method
    root: str
    name: str = CGROUP
    complete: bool = False
    irqs: bool = False
    enabled: bool = False
    keep: tuple[str, ...] = ()
    past: tuple[CPUSet, ...] = ()
    values: tuple[SavedValue, ...] = ()
    affinities: tuple[SavedAffinity, ...] = ()

    @property
    def cgroup(self) -> Path:
        """The folder of our cgroup."""
        return Path(self.root, self.name)

    def keeps(self, folder: Path) -> bool:
        """Whether a cgroup is to be left as it is, or holds one that is."""
        return any(Path(self.root, kept.lstrip("/")).is_relative_to(folder) for kept in self.keep)


class Journal:
    """A shield and its file; each change is durable when the method returns."""

    def __init__(self, file: Path, shield: Shield) -> None:
        self._file = _file(file)
        self.shield = shield

    def change(self, **fields: Any) -> None:  # noqa: ANN401 - the fields of Shield
        """Change fields of the record; raises ShieldError."""
        changed = replace(self.shield, **fields)
        self._file.save(changed)
        self.shield = changed

    def about_to_write(self, values: Iterable[SavedValue]) -> None:
        """Note values before they are changed; one that is known keeps what it was at first."""
        changed = noted(self.shield.values, values)
        if changed != self.shield.values:
            self.change(values=changed)

    def about_to_move(self, affinities: Iterable[SavedAffinity]) -> None:
        """Note affinities before the threads are moved."""
        known = {(one.tid, one.start_time) for one in self.shield.affinities}
        new = [one for one in affinities if (one.tid, one.start_time) not in known]
        if new:
            self.change(affinities=(*self.shield.affinities, *new))

    def forget(self) -> None:
        """Remove the file: there is no shield any more; raises ShieldError."""
        self._file.remove()


def read_shield(record: Path = RECORD) -> Shield | None:
    """The shield that was raised since the machine was started, if any; raises ShieldError."""
    return _file(record).load()


def _file(record: Path) -> BootFile[Shield]:
    return BootFile(
        record,
        Shield,
        "record of a shield",
        "remove the file and run pinfold shield --off, which empties the cgroup "
        f"{CGROUP} without it",
        error=ShieldError,
        mode=0o644,
    )


@asynccontextmanager
async def lock(record: Path) -> AsyncIterator[None]:
    """Let nobody else change the shield meanwhile; without a shield nothing is left of the lock.

    Raises:
        ShieldError: somebody else does not end, or the folder cannot be written.
    """
    file = record.with_name(f"{record.name}.lock")

    def opened() -> int:
        return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    async with AsyncExitStack() as stack:
        try:
            record.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            mine = await stack.enter_async_context(locked(file, opened, patience=_LOCK_WAIT))
        except HeldError as held:
            raise ShieldError(
                f"{file}: another process{held.who} is changing the shield", "try again"
            ) from None
        except OSError as error:
            raise failure(file, error) from None
        try:
            yield
        finally:
            mine.leave(record)

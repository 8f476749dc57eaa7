"""The machine's interrupts, as :class:`pinfold.ports.interrupts.Interrupts` has them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from pinfold.adapters.irq.irqbalance import SOCKETS, IrqBalance, Plan, Told
from pinfold.core.machine.interrupts import Saved
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux import interrupts
from pinfold.linux.boot_file import BootFile, BootRecord
from pinfold.linux.processes import boot_id
from pinfold.ports.interrupts import Interrupt, InterruptError, KeptOff

_OURS: Final = "this agent moved it"


class SavedInterrupt(Saved, frozen=True, kw_only=True):
    """An interrupt; ``name`` tells it from a later one that has its number."""

    name: str


class MovedInterrupts(BootRecord, frozen=True, kw_only=True):
    """What was changed since the machine was started: interrupts, and what irqbalance was told."""

    values: tuple[SavedInterrupt, ...] = ()
    told: tuple[Told, ...] = ()


class KernelInterrupts:
    """See :class:`pinfold.ports.interrupts.Interrupts`.

    Args:
        record: the file with what was there before.
        sockets: the folder with irqbalance's sockets.
    """

    def __init__(self, record: Path, sockets: Path = SOCKETS) -> None:
        self._file = BootFile(
            record,
            MovedInterrupts,
            "record of moved interrupts",
            "remove the file; what /proc/irq has then stays until the machine is started anew",
            error=InterruptError,
        )
        self._balance = IrqBalance(sockets)
        self._fixed: dict[str, str] = {}
        self._settled: frozenset[str] = frozenset()
        self._asked: tuple[CPUSet, CPUSet] | None = None

    async def keep_off(self, cpus: CPUSet, others: CPUSet) -> KeptOff:
        """See :class:`pinfold.ports.interrupts.Interrupts`."""
        # Some thousand small files on a large machine: nobody waits for them.
        return await asyncio.to_thread(self._keep_off, cpus, others)

    async def restore(self) -> Sequence[str]:
        """See :class:`pinfold.ports.interrupts.Interrupts`."""
        return await asyncio.to_thread(self._restore)

    def _keep_off(self, cpus: CPUSet, others: CPUSet) -> KeptOff:
        record = self._file.load()
        if record is None and not cpus:
            return KeptOff()
        record = record or MovedInterrupts(boot=boot_id())
        plans = self._balance.plan(cpus, record.told)
        saved = {value.place: value for value in record.values}
        try:
            wanted = [
                one
                for one in interrupts.wanted(saved, cpus, others)
                if self._fixed.get(one.place) != interrupts.name_of(one.place)
            ]
        except OSError as error:
            raise InterruptError(f"{interrupts.PROC_IRQ}: {error.strerror}") from None
        new = [_named(one) for one in wanted]
        values = interrupts.noted(record.values, new)
        asked = replace(record, values=values, told=_told(plans))
        self._save(record, asked)
        # irqbalance first: what it moves from its next round on is right.
        told, balancers = self._balance.carry_out(plans)
        self._save(asked, replace(asked, told=told))
        written = interrupts.write_all(wanted)
        refused = self._hear(written.refused)
        again = self._settled if self._asked == (cpus, others) else frozenset()
        self._asked = (cpus, others)
        self._settled = frozenset(self._forget(cpus))
        moved = [one for one in new if one.place in written.done and one.before & cpus]
        return KeptOff(
            kept=len(self._settled),
            moved=[_shown(one) for one in moved],
            contested=[_shown(one) for one in moved if one.place in again],
            fixed=self._unmovable(cpus),
            refused=refused,
            pending=self._pending(cpus),
            balancers=balancers,
        )

    def _save(self, record: MovedInterrupts, changed: MovedInterrupts) -> None:
        if changed != record:
            self._file.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._file.save(changed)

    def _hear(self, refused: Mapping[str, OSError]) -> list[str]:
        """Remember which cannot be moved; why the others were not."""
        sentences = []
        for place, error in refused.items():
            if interrupts.is_fixed(place, error):
                self._fixed[place] = interrupts.name_of(place)
            elif interrupts.is_denied(error):
                raise InterruptError(
                    f"{place}: {error.strerror}",
                    "run as root, in a container with the host's /proc/irq that can be written",
                )
            else:
                sentences.append(f"{place}: {error.strerror}")
        return sentences

    def _forget(self, cpus: CPUSet) -> list[str]:
        """Forget what is as it was, or was never changed; the places of the others."""
        record = self._file.load()
        if record is None:
            return []
        left = [value for value in record.values if _is_changed(value)]
        if not left and not record.told and not cpus:
            self._file.remove()
        else:
            self._save(record, replace(record, values=tuple(left)))
        return [value.place for value in left if value.place != interrupts.DEFAULT]

    def _unmovable(self, cpus: CPUSet) -> list[Interrupt]:
        found = []
        for place, name in list(self._fixed.items()):
            try:
                now = interrupts.affinity(place)
            except OSError:
                del self._fixed[place]  # freed; another may have its number
                continue
            if now & cpus:
                found.append(Interrupt(interrupts.number_of(place), name, now))
        return found

    def _pending(self, cpus: CPUSet) -> list[Interrupt]:
        found = []
        for place in sorted(self._settled):
            now = interrupts.effective(place)
            if now is not None and now & cpus:
                number, name = interrupts.number_of(place), interrupts.name_of(place)
                found.append(Interrupt(number, name, now))
        return found

    def _restore(self) -> Sequence[str]:
        record = self._file.load()
        if record is None:
            return ()
        told, balancers = self._balance.carry_out(self._balance.plan(CPUSet(), record.told))
        notes = [one.problem for one in balancers if one.problem]
        same = [one for one in record.values if interrupts.name_of(one.place) == one.name]
        notes += interrupts.restore(same, _OURS)
        if told:
            self._save(record, replace(record, values=(), told=told))
        else:
            self._file.remove()
        self._settled, self._asked = frozenset(), None
        return notes


def _told(plans: Sequence[Plan]) -> tuple[Told, ...]:
    return tuple(plan.told for plan in plans if plan.told is not None)


def _named(one: Saved) -> SavedInterrupt:
    name = interrupts.name_of(one.place)
    return SavedInterrupt(place=one.place, before=one.before, written=one.written, name=name)


def _is_changed(value: Saved) -> bool:
    try:
        return value.is_ours(now := interrupts.affinity(value.place)) and now != value.before
    except OSError:
        return False


def _shown(one: SavedInterrupt) -> Interrupt:
    return Interrupt(interrupts.number_of(one.place), one.name, one.written[-1])

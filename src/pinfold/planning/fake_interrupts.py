"""Interrupts in memory, for tests and for trying out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.machine.interrupts import Saved, affinity_for
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.interrupts import Interrupt, InterruptError, KeptOff


class FakeMachine:
    """The kernel's side: the interrupts of a machine, and what was written down of them.

    Args:
        affinities: where each may come, by its number.
        fixed: those that nobody can move.
    """

    def __init__(self, affinities: Mapping[str, CPUSet], fixed: Sequence[str] = ()) -> None:
        self.affinities = dict(affinities)
        self.fixed = frozenset(fixed)
        self.saved: dict[str, Saved] = {}
        self.problem = ""
        """Why they cannot be looked at."""


class _Look(Struct):
    moved: list[Interrupt]
    contested: list[Interrupt]
    fixed: list[Interrupt]


class FakeInterrupts:
    """See :class:`pinfold.ports.interrupts.Interrupts`; one of these is one life of an agent."""

    def __init__(self, machine: FakeMachine) -> None:
        self._machine = machine
        self._asked: tuple[CPUSet, CPUSet] | None = None

    async def keep_off(self, cpus: CPUSet, others: CPUSet) -> KeptOff:
        """See :class:`pinfold.ports.interrupts.Interrupts`."""
        machine, look = self._machine, _Look([], [], [])
        if machine.problem:
            raise InterruptError(machine.problem)
        again, self._asked = self._asked == (cpus, others), (cpus, others)
        for number, now in machine.affinities.items():
            saved = machine.saved.get(number)
            target = affinity_for(now, saved, cpus, others)
            if number in machine.fixed:
                if now & cpus:
                    look.fixed.append(Interrupt(number, "", now))
                continue
            if target == now:
                continue
            if now & cpus:
                look.moved.append(Interrupt(number, "", target))
                if again and saved is not None:
                    look.contested.append(look.moved[-1])
            self._write(number, now, target)
        kept = sum(number != "default" for number in machine.saved)
        return KeptOff(
            kept=kept, moved=look.moved, contested=look.contested, fixed=tuple(look.fixed)
        )

    def _write(self, number: str, now: CPUSet, target: CPUSet) -> None:
        machine = self._machine
        saved = machine.saved.get(number) or Saved(place=number, before=now, written=())
        if target == saved.before:
            machine.saved.pop(number, None)
        else:
            machine.saved[number] = replace(saved, written=(*saved.written, target))
        machine.affinities[number] = target

    async def restore(self) -> Sequence[str]:
        """See :class:`pinfold.ports.interrupts.Interrupts`."""
        machine, notes = self._machine, []
        for number, saved in machine.saved.items():
            now = machine.affinities[number]
            if saved.is_ours(now):
                machine.affinities[number] = saved.before
            elif now != saved.before:
                notes.append(saved.left(now, "this agent moved it"))
        machine.saved.clear()
        return notes

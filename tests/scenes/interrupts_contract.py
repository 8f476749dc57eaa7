"""What every implementation of the port of interrupts has to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.interrupts import Interrupts


class Interrupted(Protocol):
    """A machine with interrupts, some of which nobody can move."""

    @property
    def online(self) -> CPUSet:
        """Its CPUs; the last one is to have no interrupts."""

    def agent(self) -> Interrupts:
        """What is tried; another one is another life of it."""

    def affinities(self) -> Mapping[str, CPUSet]:
        """Where each interrupt may come, by its number or ``default``."""

    def write(self, number: str, cpus: CPUSet) -> None:
        """Have one come elsewhere, as somebody else does."""


async def check_interrupts(machine: Interrupted) -> None:
    """Kept off, moved back by somebody else, left by an agent that is killed, and restored."""
    before = dict(machine.affinities())
    own = CPUSet([max(machine.online)])
    others = machine.online - own
    agent = machine.agent()
    assert (await agent.keep_off(CPUSet(), machine.online)).kept == 0
    assert machine.affinities() == before

    look = await agent.keep_off(own, others)
    fixed = {one.number for one in look.fixed}
    movable = before.keys() - fixed
    reached = {number for number in movable if before[number] & own}
    assert reached
    assert {one.number for one in look.moved} == reached
    assert look.kept == len(reached - {"default"})
    assert not look.contested
    assert not look.refused
    during = dict(machine.affinities())
    for number, cpus in before.items():
        if number in reached:
            assert during[number] == (cpus & others or others)
        else:
            assert during[number] == cpus
    assert not (await agent.keep_off(own, others)).moved
    assert machine.affinities() == during

    victim = min(reached - {"default"})
    machine.write(victim, before[victim])
    look = await agent.keep_off(own, others)
    assert [one.number for one in look.moved] == [victim]
    assert list(look.contested) == list(look.moved)
    assert machine.affinities() == during

    # Somebody else's choice is his, as long as it keeps off.
    if len(others) > 1:
        chosen = CPUSet([max(others)])
        machine.write(victim, chosen)
        assert not (await agent.keep_off(own, others)).moved
        assert machine.affinities()[victim] == chosen
        machine.write(victim, during[victim])

    # Killed; the next one has nobody to keep them off of.
    agent = machine.agent()
    assert (await agent.keep_off(CPUSet(), machine.online)).kept == 0
    assert machine.affinities() == before

    await agent.keep_off(own, others)
    assert machine.affinities() == during
    machine.write(victim, own)
    notes = await machine.agent().restore()
    assert len(notes) == 1
    assert "somebody else has written" in notes[0]
    assert machine.affinities() == {**before, victim: own}
    machine.write(victim, before[victim])
    assert not await machine.agent().restore()
    assert machine.affinities() == before

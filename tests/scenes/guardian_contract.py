"""What every guardian has to do."""

from __future__ import annotations

from typing import Protocol

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.guardian import Guardian, LeaseError


class Lender(Protocol):
    """A place with a pool and an idle side, and a guardian of it."""

    @property
    def guardian(self) -> Guardian:
        """What is tried."""

    def another(self) -> Guardian:
        """The guardian of the next agent; this one is gone."""

    def lend(self, cpus: CPUSet) -> None:
        """Have the idle side on the pool and these, as an agent would."""

    def cap(self) -> None:
        """Put a cap on the idle side."""

    def in_force(self) -> tuple[CPUSet, bool]:
        """The CPUs that are lent, and whether there is a cap, as the kernel has it."""

    async def sleep(self) -> None:
        """Let a lease go by without anything of the agent, and the guardian look."""

    async def work(self) -> None:
        """Let some time go by, far less than a lease."""


LENT = CPUSet([1])
NOTHING = (CPUSet(), False)


async def check_guarding(place: Lender) -> None:
    """A lease holds while it is renewed; then it is over for good, and all is undone."""
    guardian = place.guardian
    with pytest.raises(LeaseError):
        guardian.renew()
    await guardian.begin()
    await guardian.begin()
    place.lend(LENT)
    place.cap()
    guardian.check()
    for _ in range(8):
        await place.work()
        guardian.renew()
    assert place.in_force() == (LENT, True)

    await place.sleep()
    assert place.in_force() == NOTHING
    for call in (guardian.check, guardian.renew):
        with pytest.raises(LeaseError):
            call()
    with pytest.raises(LeaseError):
        await guardian.begin()

    # An agent that was stopped in the middle of a change goes on with it.
    place.lend(LENT)
    await place.sleep()
    assert place.in_force() == NOTHING
    place.cap()
    await place.sleep()
    assert place.in_force() == NOTHING

    told = await guardian.end()
    assert [(one.cpus, one.uncapped) for one in told] == [
        (LENT, True),
        (LENT, False),
        (CPUSet(), True),
    ]
    assert all("has not renewed for" in one.why for one in told)
    assert await guardian.end() == ()
    with pytest.raises(LeaseError):
        guardian.check()

    # Another lease, with nothing to undo.
    await guardian.begin()
    guardian.renew()
    await place.sleep()
    with pytest.raises(LeaseError):
        guardian.check()
    assert await guardian.end() == ()


async def check_ends(place: Lender) -> None:
    """One that is ended changes nothing any more, and the next agent is told what was done."""
    guardian = place.guardian
    assert await guardian.end() == ()
    await guardian.begin()
    place.lend(LENT)
    assert await guardian.end() == ()
    await place.sleep()
    assert place.in_force() == (LENT, False)
    await guardian.begin()
    await place.sleep()
    assert place.in_force() == NOTHING
    later = place.another()
    (told,) = await later.end()
    assert told.cpus == LENT
    await later.begin()
    place.lend(LENT)
    for _ in range(8):
        await place.work()
        later.renew()
    assert place.in_force() == (LENT, False)
    await later.end()

"""What every implementation of the cgroups port has to do on its idle side, or to refuse."""

from __future__ import annotations

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import ObservedIdle, Placement
from pinfold.ports.errors import CgroupError
from tests.scenes.contract_node import BORROWER, OWNER, SHARED, Node


async def check_idle_side(node: Node, sharer: int) -> None:
    """Who borrows, with what and for how long; there is a sharer."""
    seen = await node.cgroups.observe()
    assert seen.idle is None, "nothing was lent, and nobody borrows"
    if node.cgroups.no_idle_side:
        await _check_no_idle_side(node)
    else:
        await _check_idle(node, sharer)


async def _check_no_idle_side(node: Node) -> None:
    """One clear refusal of whatever needs one; what changes nothing is none."""
    cgroups = node.cgroups
    for asked in (
        cgroups.lend(CPUSet([max(node.cpus)])),
        cgroups.cap_idle(1.0),
        cgroups.place(BORROWER, Placement(idle=True)),
    ):
        with pytest.raises(CgroupError) as refused:
            await asked
        assert refused.value.problem == cgroups.no_idle_side
    await cgroups.lend(CPUSet())
    await cgroups.cap_idle(None)
    assert (await cgroups.observe()).containers.keys() == {SHARED}


async def _check_idle(node: Node, sharer: int) -> None:
    """The third side: the pool and what is lent, whatever is lent, and nobody else with it."""
    cgroups, everything = node.cgroups, node.cpus
    own = CPUSet([max(everything)])
    rest = everything - own
    await cgroups.set_shared(rest)
    borrower = node.start()
    assert await cgroups.place(BORROWER, Placement(idle=True)) == ""
    await cgroups.enter(BORROWER, borrower)
    owner = node.start()
    await cgroups.place(OWNER, Placement(cpus=own))
    await cgroups.enter(OWNER, owner)

    async def expect(cpus: CPUSet, quota: float | None = None) -> None:
        seen = await cgroups.observe()
        assert node.allowed(borrower) == cpus
        assert node.allowed(owner) == own
        assert node.allowed(sharer) == seen.shared
        assert seen.idle == ObservedIdle(cpus, cpus, is_idle=True, quota=quota)
        held = seen.containers[BORROWER]
        assert (held.idle, held.exclusive, held.populated) == (True, False, True)
        assert (held.configured, held.effective) == (None, cpus)
        assert not seen.containers[SHARED].idle
        assert not seen.containers[OWNER].idle

    await expect(rest)
    for lent in (own, own, CPUSet(), own):
        await cgroups.lend(lent)
        await expect(rest | lent)
    # It keeps in step with the pool, whichever way that goes.
    for pool in (CPUSet([min(everything)]), rest):
        await cgroups.set_shared(pool)
        await expect(pool | own)
    # The whole of it is capped, and is not any more.
    for quota in (0.5, 1.5, 0.5, None):
        await cgroups.cap_idle(quota)
        await expect(rest | own, quota)
    # With what cannot be lent nothing more is, and what is not asked for is returned.
    nowhere = CPUSet([max(everything) + 4000])
    for asked, lent in ((own | nowhere, own), (nowhere, CPUSet())):
        with pytest.raises(CgroupError):
            await cgroups.lend(asked)
        await expect(rest | lent)
    await cgroups.lend(own)
    await _check_idle_moves(node, borrower)
    # Whoever opens it anew has lent nothing.
    await cgroups.lend(own)
    await cgroups.cap_idle(0.5)
    for pool in (CPUSet(), rest):
        await cgroups.open(pool)
        await expect(rest)
    for key in (OWNER, BORROWER):
        await cgroups.kill(key)
        await cgroups.remove(key)
    await cgroups.set_shared(everything)
    await cgroups.open(everything)
    assert (await cgroups.observe()).idle is None, "nobody is there any more"
    assert (await cgroups.observe()).containers.keys() == {SHARED}


async def _check_idle_moves(node: Node, borrower: int) -> None:
    """Off the idle side and back, to each other side, while something is lent."""
    cgroups, everything = node.cgroups, node.cpus
    own = CPUSet([max(everything)])
    rest, first = everything - own, CPUSet([min(everything)])
    for placement, where in (
        (Placement(), rest),
        (Placement(idle=True), everything),
        (Placement(cpus=first), first),
        (Placement(idle=True), everything),
    ):
        await cgroups.place(BORROWER, placement)
        assert node.allowed(borrower) == where
        await cgroups.enter(BORROWER, borrower)
        assert node.allowed(borrower) == where
        seen = (await cgroups.observe()).containers[BORROWER]
        assert seen.idle == placement.idle
        assert seen.exclusive == (placement.cpus is not None)
        assert seen.populated
    await cgroups.lend(CPUSet())
    assert node.allowed(borrower) == rest

"""Whoever comes, goes, is promoted, demoted or lends: what was admitted as charged can stay."""

from __future__ import annotations

import asyncio
from typing import Final

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.settling import cpus_by_load
from pinfold.core.controllers.load_driven import Demote
from pinfold.core.controllers.proposals import Rank
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.moves.owners import Owner
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.moves.load_driven import LoadDrivenMoves
from pinfold.node.observation.pod_resources import pod_resources
from pinfold.node.reconciler import reconcile
from pinfold.node.settings import NodeSettings
from pinfold.planning.fake_guardian import FakeGuardian
from pinfold.ports.podresources import PodResources
from tests.scenes.load_driven_pods import CONFIG, LoadDrivenNode, by_load
from tests.scenes.manager_harness import manifest, run_virtually
from tests.scenes.watched_cgroups import WatchedCgroups

KINDS: Final = (
    *("load-driven", "load-driven", "static", "promote", "promote", "promote"),
    *("demote", "demote", "lend", "lend", "end", "restart", "offline", "online"),
)
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 63), st.integers(1, 5)),
    min_size=4,
    max_size=16,
)


class Life:
    """A node of two NUMA nodes, on which one thing after another happens."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.node = LoadDrivenNode(
            machine="2s4c2t",
            config=replace(CONFIG, topology_manager_policy=policy),
            dynamic=DynamicOptions(),
            settings=NodeSettings(backoff=0.01, idle_side=True),
        )
        kernel = self.node.cgroups
        assert isinstance(kernel, WatchedCgroups)
        self.kernel = kernel
        self.node.guardian = FakeGuardian(kernel.take_back, lambda: self.node.lease_clock)
        self.node.arm(0, after=False)
        self.told: dict[str, PodResources] = {}
        self.said = self.stayed = 0

    async def begin(self) -> None:
        """The agent starts, and somebody is there who borrows."""
        await self.node.start()
        self.carrier: LoadDrivenMoves = self.node.by_load
        self.said = 0

    async def step(self, at: int, kind: str, which: int, count: int) -> None:
        """One of :data:`KINDS`, where it can be."""
        node = self.node
        owning, sharing = self.owners(owning=True), self.owners(owning=False)
        if kind in {"load-driven", "static"}:
            name = f"p{at}"
            make = by_load if kind == "load-driven" else manifest
            await node.admit(make(name, str(count)))
            self.kernel.lenders.add(f"uid-{name}")
        elif kind == "promote" and sharing:
            await self.promote(sharing[which % len(sharing)])
        elif kind == "demote" and owning:
            await self.demote(owning[which % len(owning)])
        elif kind == "lend":
            view = node.books.view
            await node.books.lend(view.lendable - view.lent)
        elif kind == "end" and node.books.view.pods.active:
            uids = [uid for uid in node.books.view.pods.active if uid != "uid-web"]
            if uids:
                await node.manager.release(uids[which % len(uids)])
                self.told.pop(uids[which % len(uids)], None)
        elif kind == "restart":
            await node.kill()
            await self.begin()
        elif kind in {"offline", "online"}:
            await self.take_offline(count if kind == "offline" else 0)

    async def take_offline(self, count: int) -> None:
        """So many CPUs that nobody owns are offline, the last ones."""
        node, books = self.node, self.node.books
        free = sorted(books.view.state.ledger.default)[1:]
        gone = CPUSet(free[len(free) - count :] if count else ())
        node.cgroups.online = node.cgroups.machine - gone
        await books.set_offline(gone)

    async def promote(self, owner: Owner) -> None:
        """It has what fits, or stays, which is said and counted."""
        node, state = self.node, self.node.books.view.state
        count = state.load_driven[owner.pod_uid].counts()[owner.container]
        problem = await node.promote(owner.pod_uid.removeprefix("uid-"), self.carrier)
        cpus = node.books.view.state.ledger.cpus_of(*owner)
        if not problem:
            assert cpus is not None
            assert len(cpus) == count
            one_node = any(cpus <= numa for numa in self.numa_nodes)
            assert one_node or self.policy != "single-numa-node"
            assert one_node or self.policy != "restricted" or count > len(self.numa_nodes[0])
            return
        assert cpus is None
        entries = [one for one in node.store.entries if one.kind == "stays-shared"]
        mine = [one for one in entries if one.pod_uid == owner.pod_uid]
        assert problem in mine[-1].document.replace('\\"', '"')
        assert node.books.counters.stays_shared >= self.said
        self.said = node.books.counters.stays_shared
        assert self.said > 0
        self.stayed += 1

    async def demote(self, owner: Owner) -> None:
        """What it has lent is back before it is told, and long before it goes."""
        node = self.node
        had = node.books.view.state.ledger.cpus_of(*owner)
        assert had is not None
        wish = Demote(rank=Rank.LOAD_DRIVEN, why="idle", owners=frozenset({owner}), moves=1)
        assert await self.carrier.carry_out(wish) == ""
        assert node.books.view.lent.isdisjoint(had)
        borrowed = CPUSet.parse(node.cpus("web")["c0"]) - node.books.view.pool
        assert borrowed.isdisjoint(had)
        moving = node.manager.mover.in_flight
        if moving is not None:
            assert (await asyncio.wait_for(moving.ended(), 60)).done
        await node.settle()

    def owners(self, *, owning: bool) -> list[Owner]:
        """The load-driven containers that own CPUs, or share."""
        state = self.node.books.view.state
        return [
            Owner(uid, name)
            for uid, one in state.load_driven.items()
            for name in one.counts()
            if (state.ledger.cpus_of(uid, name) is not None) is owning
        ]

    @property
    def numa_nodes(self) -> list[CPUSet]:
        topology = self.node.view.topology
        return [CPUSet.from_mask(mask) for mask in topology.numa_nodes.values()]

    def check(self, uids: set[str]) -> None:
        """What has to hold between two steps, if these pods were there before."""
        node, view = self.node, self.node.books.view
        node.check()
        assert self.kernel.shared_by_two == []
        assert uids <= view.pods.active.keys(), "what was admitted stays"
        policy = view.node.cpu_policy
        assert policy is not None
        _, charged = cpus_by_load(view.state)
        assert charged <= len(view.state.ledger.default & policy.assignable)
        assert view.lent <= view.lendable
        for cpus in (view.lent, CPUSet(range(0, 16, 3))):
            assert view.lendable_of(cpus) == view.lendable & cpus
        listed = {one.name: one for one in pod_resources(view.state, view.pods)}
        for uid in view.state.load_driven:
            name = uid.removeprefix("uid-")
            assert self.told.setdefault(uid, listed[name]) == listed[name]
            own = view.state.ledger.cpus_of(uid, "c0")
            count = view.state.load_driven[uid].counts()["c0"]
            assert node.quota(name) == (count * 100_000 if own is None else -1)


def test_who_finds_no_place_stays_and_is_counted_under_each_policy() -> None:
    async def whole() -> None:
        for policy in ("restricted", "single-numa-node"):
            life = Life(policy)
            await life.begin()
            steps = [("load-driven", 5), ("load-driven", 5), ("offline", 4), *[("promote", 1)] * 2]
            for at, (kind, count) in enumerate(steps):
                await life.step(at, kind, 0, count)
                life.check({f"uid-p{one}" for one in range(min(at + 1, 2))})
            assert life.stayed == 1
            await life.step(9, "online", 0, 1)
            await life.step(9, "promote", 0, 1)
            assert life.owners(owning=False) == []
            await life.node.kill()

    run_virtually(asyncio.wait_for(whole(), 600))


@given(STEPS, st.sampled_from(["restricted", "single-numa-node"]))
@example([("load-driven", 0, 5), ("promote", 0, 1), ("lend", 0, 1), ("demote", 0, 1)], "restricted")
@example(
    [
        *(("load-driven", 0, 4), ("load-driven", 0, 5), ("load-driven", 0, 4), ("static", 0, 2)),
        *(("promote", 0, 1), ("promote", 0, 1), ("promote", 0, 1), ("promote", 0, 1)),
    ],
    "single-numa-node",
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_admitted_as_charged_can_stay(
    steps: list[tuple[str, int, int]], policy: str
) -> None:
    async def whole() -> None:
        life = Life(policy)
        await life.begin()
        await life.node.admit(manifest("web", ""))
        for at, (kind, which, count) in enumerate(steps):
            before = set(life.node.books.view.pods.active) if kind != "end" else set()
            await life.step(at, kind, which, count)
            await life.node.settle()
            life.check(before)
        assert await reconcile(life.node.books) == []
        await life.node.kill()

    run_virtually(asyncio.wait_for(whole(), 600))

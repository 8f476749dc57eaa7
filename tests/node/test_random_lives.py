"""Random lives of a whole node: nobody is ever where another one owns, and nothing is lost.

Pods come and go, are resized and moved; some are mixed, alone on their cores, on isolated CPUs, or
have CPUs and memory as a whole;
CPUs go offline, ports fail, and the agent dies at any call.  The kernel looks at itself after each
effect (:class:`WatchedCgroups`), and knows nothing of records and plans.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import decide
from pinfold.admission.model import build_node, empty_state
from pinfold.admission.settling import release, settle
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import DynamicOptions, IsolatedCPUs, OwnPolicies, SMTIsolate
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.moves.owners import MoveError, Owner
from pinfold.core.pod.api import PodError
from pinfold.core.pod.pod import Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.moves.moving import BusyError
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.settings import NodeSettings
from pinfold.planning.fake_guardian import FakeGuardian
from pinfold.ports.errors import PortError
from tests.scenes.manager_harness import STATIC, Harness, isolating, manifest, parse, run_virtually
from tests.scenes.mortal_harness import MortalHarness, until_dead
from tests.scenes.random_pods import again, comes_to_rest
from tests.scenes.random_pods import operate as operate_pods
from tests.scenes.watched_cgroups import WatchedCgroups
from tests.scenes.whole_pods import BY_CONTAINER, WHOLE, WHOLE_MEMORY, whole_pod

SAID = (PortError, NameTakenError, UnknownPodError, BusyError, MoveError)
"""What may be said to whoever asks for something."""

SHAPES = [("",), ("1",), ("2",), ("3", "500m"), ("8",), ("500m", ""), ("4",)]
MIXED = [("1500m",), ("2",), ("2500m", "500m"), ("1", "1900m"), ("500m",)]
PODS = st.integers(0, 5)
PLAIN: Final = (
    st.tuples(st.just("admit"), PODS, st.sampled_from(SHAPES)),
    st.tuples(st.just("init"), PODS, st.sampled_from(["", "2", "4"])),
    st.tuples(st.just("release"), PODS, st.none()),
)
FAULTS: Final = (
    st.tuples(st.just("mixed-cpus"), PODS, st.sampled_from(MIXED)),
    st.tuples(st.just("exit"), st.integers(0, 20), st.integers(0, 2)),
    st.tuples(st.just("restart"), st.none(), st.none()),
    st.tuples(
        st.just("fault"), st.sampled_from(["store", "cgroups", "runtime"]), st.integers(1, 4)
    ),
    st.tuples(st.just("reconcile"), st.none(), st.none()),
    st.tuples(st.just("offline"), st.sampled_from(["", "7", "4-5"]), st.none()),
)
DRIFT: Final = st.tuples(st.just("drift"), st.integers(0, 20), st.none())
MOVES: Final = (
    st.tuples(st.just("smt-isolate"), PODS, st.sampled_from([("1",), ("2",), ("1", "2")])),
    st.tuples(st.just("isolated-cpus"), PODS, st.sampled_from([("1",), ("2",), ("2", "1")])),
    st.tuples(st.just("scale-down-grace-period"), PODS, st.sampled_from([("2",), ("3", "1")])),
    *[st.tuples(st.just("resize"), PODS, st.integers(1, 6)) for _ in range(3)],
    st.tuples(st.just("rebalance"), st.none(), st.none()),
    st.tuples(st.just("die"), st.integers(1, 12), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 5.0]), st.none()),
)
LOANS: Final = (
    *[st.tuples(st.just("lend"), PODS, st.none()) for _ in range(4)],
    st.tuples(st.just("give back"), st.integers(0, 15), st.none()),
    st.tuples(st.just("lapse"), st.none(), st.none()),
    st.tuples(st.just("admit"), PODS, st.just(("",))),
)
WHOLES: Final = (
    *[
        st.tuples(
            st.just("whole"),
            PODS,
            st.tuples(
                st.sampled_from(["2", "3", "4", "6", "1500m"]),
                st.sampled_from([(), ("1",), ("2",), ("1", "1"), ("500m",), ("4",)]),
                st.integers(0, 2),
                st.sampled_from([(), ("",), ("1",), ("2", ""), ("4",)]),
                st.sampled_from([(), ("",), ("1",)]),
            ),
        )
        for _ in range(4)
    ],
)
LENDERS: Final = ("uid-p0", "uid-p1", "uid-p2")
VALUES = {"isolated-cpus": "require", "scale-down-grace-period": "3"}


async def operate(node: Harness, kind: str, what: Any, how: Any) -> None:
    if kind in {"mixed-cpus", "smt-isolate", *VALUES}:
        pod = manifest(f"p{what}", *how)
        pod["metadata"]["annotations"] = {f"{kind}.pinfold.dev/pod": VALUES.get(kind, "true")}
        await node.admit(pod, wait=False)
    elif kind == "whole":
        budget, own, shared, init, sidecars = how
        if not (own or shared):
            shared = 1
        pod = whole_pod(
            f"p{what}", budget, *own, shared=shared, init=init, sidecars=sidecars, memory="1200Mi"
        )
        pod["metadata"]["annotations"] = {"lend-cpus.pinfold.dev/pod": "8"}
        with contextlib.suppress(PodError):  # it gives its containers more than it asks for
            await node.admit(pod, wait=False)
    elif kind == "resize":
        # One that owns CPUs, mostly.
        owners = sorted(node.books.view.state.ledger.assignments) or [f"uid-p{what}"]
        await node.manager.resizing.resize(owners[what % len(owners)], "c0", how)
    elif kind == "rebalance":
        await node.manager.rebalancing.rebalance()
    elif kind == "lend":
        view = node.books.view
        allowed = CPUSet.union_of(view.state.ledger.cpus_of_pod(uid) for uid in LENDERS)
        await node.books.lend((allowed & view.lendable) - view.lent)
    elif kind == "give back":
        await node.books.give_back(CPUSet([what]))
    elif kind == "lapse":
        node.lease_clock += 60.0
    elif kind == "wait":
        await asyncio.sleep(what)
    else:
        await operate_pods(node, kind, what, how)


async def all_go(node: Harness) -> None:
    """Nothing is left of them."""
    for pod in list(node.books.view.pods.active.values()):
        await asyncio.wait_for(node.manager.release(pod.uid), 600)
    await node.settle()
    node.check()
    ledger = node.books.view.state.ledger
    assert (ledger.default, ledger.idle) == (ledger.limits.pool, {})
    assert (ledger.assignments, ledger.bubbles) == ({}, {})
    memory = node.books.view.state.memory
    if memory is not None:
        assert (memory.assignments, memory.bubbles) == ({}, {})
        tables = [
            one for each in memory.machine.values() for one in (each.memory_map or {}).values()
        ]
        assert all(table is not None and table.reserved == 0 for table in tables)
    assert not any(node.books.view.state.requested.values())
    assert node.cgroups.groups == {}


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.one_of(*PLAIN, *FAULTS, DRIFT), min_size=5, max_size=60))
def test_random_lives_keep_every_invariant(operations: list[tuple[str, Any, Any]]) -> None:
    async def whole() -> None:
        node = Harness()
        await node.start()
        for kind, what, how in operations:
            with contextlib.suppress(*SAID):
                await asyncio.wait_for(operate(node, kind, what, how), 600)
            for _ in range(4):
                await asyncio.sleep(0)
        await comes_to_rest(node)
        await all_go(node)
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 6000))


# -------------------------------------------------------------------------------- while they run


class Whole(MortalHarness):
    """A node with everything that is beyond a kubelet, whose kernel looks at itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cgroups = self.watched = WatchedCgroups(self.view.topology.cpus)
        self.runtime = type(self.runtime)(self.cgroups)
        if self.settings.idle_side:
            self.watched.lenders = set(LENDERS)
            self.guardian = FakeGuardian(self.cgroups.take_back, lambda: self.lease_clock)
        self.bubbles: dict[tuple[str, float], object] = {}
        self.arm(0, after=False)

    async def live(self, work: Awaitable[Any]) -> None:
        """Do something; an agent that dies on the way is followed by another one."""

        async def waits() -> None:
            with contextlib.suppress(*SAID):
                await asyncio.wait_for(work, 600)
            for _ in range(4):
                await asyncio.sleep(0)

        if await until_dead(self, waits()):
            self.arm(0, after=False)
            await again(self)
        self.look()

    def look(self) -> None:
        """What holds at any moment: in the kernel's order of effects, and in the ledger."""
        assert self.watched.shared_by_two == []
        view = self.books.view
        ledger, pods = view.state.ledger, view.pods.active
        assert ledger.violations() == []
        assert ledger.assignments.keys() <= pods.keys()
        # On its way somebody may make room for others, and has what it keeps at the end.
        moving = () if view.move is None else view.move.plan.start.placed
        for uid, pod in pods.items():
            for name, baseline in pod.record.baselines.items():
                has = ledger.cpus_of(uid, name)
                assert has is not None
                if Owner(uid, name) in moving:
                    continue
                assert baseline <= has, f"{pod.name} {name} has {has} of its baseline {baseline}"
        for uid, pod in pods.items():
            record = pod.record
            whole = (record.bubble, record.bubble_memory, record.memory)
            if record.bubble or record.bubble_memory:
                # Whatever happens to others, to CPUs and to agents: it stays as it was given.
                assert self.bubbles.setdefault((uid, record.admitted_at), whole) == whole
                assert record.bubble.isdisjoint(view.lent)
        assert view.lent <= CPUSet.union_of(ledger.cpus_of_pod(uid) for uid in LENDERS)
        idle = ledger.idle_siblings
        for pid, key in self.cgroups.processes.items():
            if key is not None:
                assert self.cgroups.allowed(pid).isdisjoint(idle & self.cgroups.online)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.one_of(*PLAIN, *MOVES, *MOVES, *FAULTS), min_size=20, max_size=60),
    st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    st.sampled_from(["container", "pod"]),
    st.sampled_from(["", "2-3,6-7,12-13", "5-9"]),
    st.sampled_from(["never", "prefer"]),
    st.booleans(),
    st.booleans(),
)
def test_moves_resizes_and_wishes_keep_every_invariant(  # noqa: PLR0917 - a world
    operations: list[tuple[str, Any, Any]],
    policy: str,
    scope: str,
    isolated: str,
    use: Any,
    alone: bool,
    makes_room: bool,
) -> None:
    dynamic = DynamicOptions(make_room=makes_room, moves_per_hour=3600)
    own = OwnPolicies(dynamic, IsolatedCPUs(use), SMTIsolate(use=alone))
    config = replace(
        STATIC,
        cpu_manager_policy="dynamic",
        topology_manager_policy=policy,
        topology_manager_scope=scope,
        own=own,
    )
    lives(operations, Whole("2s4c2t", CPUSet.parse(isolated), config, dynamic=dynamic))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.one_of(*PLAIN, *MOVES, *LOANS, *LOANS, *FAULTS), min_size=20, max_size=60),
    st.sampled_from(["", "2-3,6-7,12-13"]),
    st.booleans(),
)
def test_loans_keep_every_invariant(
    operations: list[tuple[str, Any, Any]], isolated: str, alone: bool
) -> None:
    """A borrower is on the pool, or on what somebody lends who allows it, and nowhere else."""
    dynamic = DynamicOptions(make_room=True, moves_per_hour=3600)
    own = OwnPolicies(dynamic, IsolatedCPUs("prefer"), SMTIsolate(use=alone))
    config = replace(STATIC, cpu_manager_policy="dynamic", own=own)
    borrows = NodeSettings(backoff=0.01, idle_side=True)
    lives(operations, Whole("2s4c2t", CPUSet.parse(isolated), config, borrows, dynamic=dynamic))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(*PLAIN, *WHOLES, *WHOLES, *MOVES[3:], *LOANS, *FAULTS), min_size=20, max_size=60
    ),
    st.sampled_from([WHOLE, WHOLE_MEMORY, BY_CONTAINER]),
    st.sampled_from(["best-effort", "restricted", "single-numa-node"]),
    st.booleans(),
)
def test_bubbles_stay_whole(
    operations: list[tuple[str, Any, Any]], config: NodeConfig, policy: str, makes_room: bool
) -> None:
    """Nobody is in a bubble but its pod, which has all of it as long as it lives, and no second."""
    dynamic = DynamicOptions(make_room=makes_room, moves_per_hour=3600)
    own = OwnPolicies(dynamic)
    config = replace(config, cpu_manager_policy="dynamic", topology_manager_policy=policy, own=own)
    borrows = NodeSettings(backoff=0.01, idle_side=True)
    lives(operations, Whole("2s4c2t@4Gi", CPUSet(), config, borrows, dynamic=dynamic))


def lives(operations: list[tuple[str, Any, Any]], node: Whole) -> None:
    """A life of a node, with an end at which nothing is left."""

    async def whole() -> None:
        await node.start()
        for kind, what, how in operations:
            if kind == "die":
                node.death.at, node.death.after = node.death.calls + what, how
            else:
                await node.live(operate(node, kind, what, how))
        node.death.at = 0
        await node.live(asyncio.sleep(0))
        await comes_to_rest(node)
        assert node.store.move is None
        await all_go(node)
        node.look()
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 60_000))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(*PLAIN), min_size=3, max_size=30),
    st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
)
def test_where_nothing_moves_it_is_static_bit_for_bit(
    operations: list[tuple[str, Any, Any]], policy: str
) -> None:
    """Each decision is what the policy ``static`` gives, on the state that it leaves."""
    plain = replace(STATIC, topology_manager_policy=policy)
    config: NodeConfig = replace(plain, cpu_manager_policy="dynamic", own=OwnPolicies())
    machine = isolating(parse_short_form("2s2c2t"), CPUSet.parse("5-7"))

    async def whole() -> None:
        node = Harness("2s2c2t", CPUSet.parse("5-7"), config, dynamic=DynamicOptions())
        await node.start()
        static = build_node(machine, plain, rules=SOUND)
        state = empty_state(static, machine.online)
        pods: dict[str, Pod] = {}
        for kind, what, how in operations:
            uid, before = f"uid-p{what}", set(node.books.view.pods.active)
            with contextlib.suppress(*SAID):
                await asyncio.wait_for(operate(node, kind, what, how), 600)
            await node.settle()
            active = node.books.view.pods.active
            if kind == "release" and uid in pods:
                state = release(state, pods.pop(uid))
            elif uid not in before and kind != "release":
                asked = {"admit": how, "init": ("1",)}[kind]
                init = (how,) if kind == "init" else ()
                document = manifest(f"p{what}", *asked, init=init, restartPolicy="Never")
                pod = parse(json.dumps(document)).pod
                decision = decide(static, state, pod)
                state = settle(state, decision)
                assert decision.admitted == (uid in active)
                if decision.admitted:
                    pods[uid] = pod
            ledger = node.books.view.state.ledger
            assert ledger.default == state.ledger.default
            assert ledger.assignments == state.ledger.assignments
            assert node.mirrored[-1].policy_name == state.ledger.policy_name == "static"
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 6000))

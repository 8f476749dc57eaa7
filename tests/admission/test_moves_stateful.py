"""A node on which pods come, go, grow, shrink and move, and every move may be stopped anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from pinfold.admission.admission import NodeState, decide
from pinfold.admission.model import build_node, empty_state
from pinfold.admission.moves import with_claims
from pinfold.admission.resize import Resize, decide_resize, settle_resize
from pinfold.admission.settling import release, settle
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.moves.owners import MoveError, MoveOptions, Owner, Refusal, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.moves.rebalance import RebalanceOptions, carried, make_room, plan_rebalance
from pinfold.core.moves.resize import resized
from pinfold.core.moves.steps import GiveBack, MovePlan, undo
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from tests.scenes.move_scenes import Scene

COUNTS = st.integers(1, 4)
DELAYS = st.sampled_from([0.0, 3.0])
MACHINE = parse_short_form("2s3c2t")
RESERVED = CPUSet([0, 1])


T = TypeVar("T")


def unless_refused(plan: Callable[[], T]) -> T | None:
    """What is planned; None where no CPU is free for it."""
    try:
        return plan()
    except MoveError as error:
        if error.refusal is not Refusal.NO_FREE_CPU:
            raise
        return None


class Moves(RuleBasedStateMachine):
    """One node; ``baselines`` are what pods were admitted with, and have to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, Pod] = {}
        self.baselines: dict[str, CPUSet] = {}
        self.mixed: set[Owner] = set()
        self.number = 0

    @initialize(
        whole=st.booleans(),
        policy=st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    )
    def start(self, *, whole: bool, policy: str) -> None:
        config = NodeConfig(
            cpu_manager_policy="static",
            cpu_manager_policy_options={"full-pcpus-only": "true"} if whole else {},
            reserved_system_cpus=RESERVED,
            topology_manager_policy=policy,
            eviction_hard={},
        )
        self.node = build_node(MACHINE, config)
        self.state: NodeState = empty_state(self.node, MACHINE.online)
        assert self.node.cpu_policy is not None
        self.topology = self.node.cpu_policy.topology
        self.whole = whole

    @property
    def options(self) -> MoveOptions:
        return MoveOptions(self.topology, self.whole, mixed=frozenset(self.mixed))

    def owner(self, data: st.DataObject) -> Owner:
        return Owner(data.draw(st.sampled_from(sorted(self.pods))), "c")

    def held(self, owner: Owner) -> CPUSet:
        cpus = self.state.ledger.cpus_of(*owner)
        assert cpus is not None
        return cpus

    # -------------------------------------------------------------------------- come and go

    @rule(count=COUNTS, mixed=st.booleans())
    def admit(self, count: int, *, mixed: bool) -> None:
        self.number += 1
        uid = f"p{self.number:03}"
        both = {"cpu": Quantity.parse(str(count)), "memory": Quantity.parse("1Mi")}
        pod = Pod(uid=uid, name=uid, containers=(Container("c", both, both),))
        decision = decide(self.node, self.state, pod)
        self.state = settle(self.state, decision)
        if decision.admitted:
            self.pods[uid] = pod
            self.baselines[uid] = self.held(Owner(uid, "c"))
            if mixed:
                self.mixed.add(Owner(uid, "c"))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        owner = self.owner(data)
        self.state = release(self.state, self.pods.pop(owner.pod_uid))
        del self.baselines[owner.pod_uid]
        self.mixed.discard(owner)

    # --------------------------------------------------------------------------------- moves

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), count=st.integers(1, 7), delay=DELAYS, below=st.booleans())
    def resize(self, data: st.DataObject, count: int, delay: float, *, below: bool) -> None:
        owner = self.owner(data)
        pod, baseline = self.pods[owner.pod_uid], self.baselines[owner.pod_uid]
        ask = Resize("c", count, baseline, below_baseline=below)
        decision = decide_resize(self.node, self.state, pod, ask)
        if not decision.feasible:
            assert decision.after == decision.before == self.held(owner)
            return
        assert below or decision.after >= baseline
        wishes = (decision.wish(delay),)
        plan = plan_moves(self.state.ledger, wishes, self.options)
        if self.carry_out(plan, wishes, data):
            done = settle_resize(self.state, pod, decision)
            assert done.ledger == self.state.ledger
            self.state = done
            self.pods[owner.pod_uid] = resized(pod, "c", count)
            self.baselines[owner.pod_uid] = decision.baseline

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), delay=DELAYS)
    def rebalance(self, data: st.DataObject, delay: float) -> None:
        stay = data.draw(st.sets(st.sampled_from(sorted(self.pods))))
        options = RebalanceOptions(
            self.options,
            fixed=dict.fromkeys((Owner(uid, "c") for uid in stay), ""),
            delays=dict.fromkeys((Owner(uid, "c") for uid in self.pods), delay),
        )
        found = plan_rebalance(self.state.ledger, self.topology, options)
        assert all(wish.owner.pod_uid not in stay for wish in found.wishes)
        assert found.after < found.before or not found.wishes
        self.move(found.plan, found.wishes, data)

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), count=COUNTS, node=st.integers(0, 1))
    def make_room(self, data: st.DataObject, count: int, node: int) -> None:
        count *= 2 if self.whole else 1
        among = [CPUSet.from_mask(self.topology.numa_nodes[node])]
        options = RebalanceOptions(self.options)
        found = unless_refused(
            lambda: make_room(self.state.ledger, self.topology, count, among, options)
        )
        if found is not None and self.move(found.plan, found.wishes, data):
            assert found.room <= self.state.ledger.default - RESERVED

    @precondition(lambda self: len(self.pods) > 1)
    @rule(data=st.data(), delay=DELAYS)
    def exchange(self, data: st.DataObject, delay: float) -> None:
        one, other = self.owner(data), self.owner(data)
        mine, theirs = self.held(one), self.held(other)
        if one == other or len(mine) != len(theirs):
            return
        wishes = (Wish(one, theirs, delay=delay), Wish(other, mine, delay=delay))
        plan = unless_refused(lambda: plan_moves(self.state.ledger, wishes, self.options))
        if plan is not None:
            self.move(plan, wishes, data)

    def move(self, plan: MovePlan, wishes: tuple[Wish, ...], data: st.DataObject) -> bool:
        """Carry out moves that take baselines along."""
        old = {wish.owner: self.held(wish.owner) for wish in wishes}
        if not self.carry_out(plan, wishes, data):
            return False
        for wish in wishes:
            uid = wish.owner.pod_uid
            was = self.baselines[uid]
            self.baselines[uid] = carried(self.topology, old[wish.owner], wish.cpus, was)
            assert len(self.baselines[uid]) == len(was)
        return True

    def carry_out(self, plan: MovePlan, wishes: tuple[Wish, ...], data: st.DataObject) -> bool:
        """Carry out a plan that is stopped some times; whether it was fulfilled, or undone."""
        scene = Scene(self.state.ledger, wishes, self.options)
        node = scene.node()
        way, goes_on, written = plan, True, 0
        for _ in range(data.draw(st.integers(0, 3))):
            stop = data.draw(st.integers(written, len(way.steps)))
            node.run(way, stop - 1, written=written)
            written = stop
            if written:
                node.write(way, written)
                if data.draw(st.booleans()):
                    node.make(way, written - 1)
            if data.draw(st.booleans()):
                node.restart(way, written)
            gave = any(isinstance(step, GiveBack) for step in way.steps[:written])
            if goes_on and not gave and data.draw(st.booleans()):
                way, goes_on, written = undo(way, written), False, 0
        node.run(way, written=written)
        ledger = with_claims(self.state.ledger, way.end)
        expected = Scene(ledger, ()).node()
        assert node.kernel == node.claims == expected.claims
        assert node.pool == node.recorded_pool == expected.pool
        if goes_on:
            assert node.kernel == scene.goal()
        else:
            assert ledger.assignments == self.state.ledger.assignments
        self.state = replace(self.state, ledger=ledger)
        return goes_on

    # ----------------------------------------------------------------------------- what holds

    @invariant()
    def nothing_is_leaked_or_shared(self) -> None:
        ledger = self.state.ledger if self.pods else None
        if ledger is None:
            return
        assert ledger.violations() == []
        assert set(ledger.assignments) == set(self.pods)

    @invariant()
    def baselines_are_kept(self) -> None:
        for uid, baseline in self.baselines.items():
            assert self.held(Owner(uid, "c")) >= baseline

    @invariant()
    def requests_are_counted(self) -> None:
        if self.pods:
            exclusive = len(self.state.ledger.exclusive)
            assert self.state.requested["cpu"] == 1000 * exclusive


Moves.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestMoves = Moves.TestCase

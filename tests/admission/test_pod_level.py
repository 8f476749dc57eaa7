"""Pods with resources of their own on a node that serves them: bubbles, wishes, faults, lives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import NodeState, decide
from pinfold.admission.decision import Decision
from pinfold.admission.settling import release, settle
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.kubelet.faults import KUBELET, SOUND, AllocationRules
from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import DYNAMIC, LoadDrivenOptions, OwnPolicies
from pinfold.core.machine.machine import PCIFunction
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.memory.memory import MemoryState
from pinfold.core.pod.pod import Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.planning.planner import Planner
from pinfold.state.ledger import AssignBubble
from tests.scenes.pod_level_pods import container, whole_pod, whole_pods

GATE = {POD_LEVEL_RESOURCE_MANAGERS: True}
MEMORY: dict[str, Any] = {
    "memory_manager_policy": "Static",
    "reserved_memory": ({"numaNode": 0, "limits": {"memory": Quantity.parse("100Mi")}},),
}


def planner(
    form: str = "2s4c2t@8Gi",
    *,
    rules: AllocationRules = SOUND,
    memory: bool = True,
    **config: Any,
) -> Planner:
    made = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet([0]),
        topology_manager_policy="restricted",
        topology_manager_scope="pod",
        feature_gates=GATE,
        **(MEMORY if memory else {}),
    )
    machine = parse_short_form(form)
    cards = tuple(
        PCIFunction(f"0000:{16 + at:02x}:00.0", "0x020000", one.id, one.cpus, (f"eth{at}",))
        for at, one in enumerate(machine.numa_nodes)
    )
    devices = config.pop("devices", None)
    return Planner(
        replace(machine, pci=cards), replace(made, **config), rules=rules, devices=devices
    )


def of(planner: Planner, pod: Pod, state: NodeState | None = None) -> Decision:
    return decide(planner.node, state or planner.empty, pod)


def parts(decision: Decision) -> dict[str, str]:
    assert decision.bubble is not None
    return {name: str(cpus) for name, cpus in decision.bubble.parts.items()}


MIXED = whole_pod(
    "4",
    "2Gi",
    container("app", "2", "1Gi"),
    container("log"),
    init=(container("prepare"), container("proxy", "1", "256Mi", sidecar=True)),
)
UNSOUND = whole_pod("2", "1Gi", container("app", "2", "512Mi"), container("log"))
TOO_SMALL = whole_pod("2", "1Gi", container("app", "3", "512Mi"))


def test_a_pod_gets_its_bubble_and_each_container_its_part() -> None:
    node = planner()
    decision = of(node, MIXED)
    assert decision.admitted
    assert decision.bubble is not None
    assert str(decision.bubble.cpus) == "2-5"
    assert str(decision.bubble.pool) == "3"
    assert parts(decision) == {"prepare": "2-5", "proxy": "2", "app": "4-5", "log": "3"}
    # What a container has for itself, and nothing else.
    assert set(decision.allocations) == {"proxy", "app"}
    assert decision.claims == decision.bubble.parts
    assert decision.changes == (AssignBubble("u", decision.bubble.cpus, decision.bubble.parts),)
    assert [(one.type, one.size) for one in decision.bubble.memory] == [("memory", 2 << 30)]
    after = settle(node.empty, decision)
    assert after.ledger.bubbles == {"u": decision.bubble.cpus}
    assert after.ledger == node.empty.ledger.apply(decision.changes)
    assert after.memory is not None
    assert after.memory.bubbles == {"u": decision.bubble.memory}
    gone = release(after, MIXED)
    assert (gone.ledger, gone.memory) == (node.empty.ledger, node.empty.memory)


def test_a_restored_pod_keeps_its_bubble() -> None:
    """The kubelet would give it another one (bubble-twice)."""
    node = planner()
    before = settle(node.empty, of(node, MIXED))
    again = of(node, MIXED, before)
    assert again.admitted
    assert settle(before, again).ledger == before.ledger
    assert settle(before, again).memory == before.memory
    theirs, owner = planner(rules=KUBELET), whole_pod("2", "1Gi", container("app", "2", "1Gi"))
    once = settle(theirs.empty, of(theirs, owner))
    twice = of(theirs, owner, once)
    assert twice.bubble is not None
    assert twice.bubble.cpus.isdisjoint(once.ledger.bubbles["u"])


def test_who_shares_the_nodes_pool_has_no_bubble() -> None:
    fraction = replace(MIXED, resources=whole_pod("4500m", "2Gi").resources)
    decision = of(planner(memory=False), fraction)
    assert (decision.admitted, decision.bubble, decision.allocations) == (True, None, {})
    configs: tuple[dict[str, Any], ...] = (
        {"feature_gates": {}},
        {"topology_manager_scope": "container", "topology_manager_policy": "best-effort"},
        {"topology_manager_policy": "none"},
    )
    for config in configs:
        node = planner(memory=False, **config)
        decision = of(node, MIXED)
        assert decision.admitted
        assert decision.bubble is None
        is_on = "feature_gates" not in config
        assert set(decision.allocations) == ({"proxy", "app"} if is_on else set())
        assert settle(node.empty, decision).ledger.bubbles == {}


def test_memory_alone_can_be_a_bubble() -> None:
    decision = of(planner(), replace(MIXED, resources=whole_pod("4500m", "2Gi").resources))
    assert decision.bubble is not None
    assert (decision.bubble.cpus, decision.bubble.parts) == (CPUSet(), {})
    assert decision.changes == ()
    assert sum(one.size for one in decision.bubble.memory) == 2 << 30


def test_what_is_unsound_is_refused() -> None:
    refused = of(planner(), UNSOUND)
    assert (refused.reason, refused.bubble) == ("TopologyAffinityError", None)
    assert "pod-level resources failed admission" in (refused.message or "")
    best = of(planner(topology_manager_policy="best-effort"), UNSOUND)
    assert best.reason == "EmptyPodSharedPoolError"
    assert not best.leaked


def test_only_a_kubelet_leaks_the_bubble_of_a_refused_pod() -> None:
    theirs, ours = planner(rules=KUBELET), planner()
    refused, sound = of(theirs, TOO_SMALL), of(ours, TOO_SMALL)
    assert refused.reason == sound.reason == "UnexpectedAdmissionError"
    assert refused.fault is not None
    assert refused.fault.slug == "bubble-leaks"
    assert len(refused.leaked) == 2
    after = settle(theirs.empty, refused)
    assert after.ledger.bubbles == {"u": refused.leaked}
    assert after.pods == 0
    assert (sound.fault, sound.leaked) == (None, CPUSet())
    assert settle(ours.empty, sound) == ours.empty
    # In a plan the pods after it find them taken.
    plan = theirs.plan([TOO_SMALL, whole_pod("2", "1Gi", container("c"), uid="v")])
    assert plan.pods[0].bubble is not None
    assert plan.pods[0].bubble.cpus == refused.leaked
    assert plan.pods[1].bubble is not None
    assert plan.pods[1].bubble.cpus.isdisjoint(refused.leaked)
    assert not plan.shared & refused.leaked


def test_only_a_kubelet_gives_more_memory_than_the_pod_has() -> None:
    pod = whole_pod("2", "512Mi", container("app", "1", "1Gi"))
    theirs, ours = of(planner(rules=KUBELET), pod), of(planner(), pod)
    assert theirs.admitted
    assert theirs.fault is not None
    assert theirs.fault.slug == "memory-wraps-around"
    assert (ours.admitted, ours.fault) == (False, None)
    assert "its containers request 1Gi of memory for themselves" in (ours.message or "")


def test_a_kubelet_refuses_for_want_of_no_memory() -> None:
    container_scope: dict[str, Any] = {"topology_manager_scope": "container"}
    single: dict[str, Any] = {"topology_manager_policy": "single-numa-node", **container_scope}
    theirs, ours = of(planner(rules=KUBELET, **single), MIXED), of(planner(**single), MIXED)
    assert theirs.fault is not None
    assert theirs.fault.slug == "no-memory-refused"
    assert ours.admitted


@pytest.mark.parametrize("wish", ["mixed-cpus", "smt-isolate", "isolated-cpus"])
def test_a_binding_wish_refuses_the_pod_and_says_why(wish: str) -> None:
    value = "require" if wish == "isolated-cpus" else "true"
    node = planner(own=OwnPolicies())
    for holder in ("pod", "container.app"):
        said = replace(MIXED, annotations={f"{wish}.pinfold.dev/{holder}": value})
        decision = of(node, said)
        assert not decision.admitted
        assert f"annotation {wish}.pinfold.dev/{holder}: a pod that gets its CPUs as a whole" in (
            decision.message or ""
        )
    # Where nothing is served as a whole, others say what is wrong.
    off = of(planner(own=OwnPolicies(), feature_gates={}), said)
    assert "as a whole" not in (off.message or "")
    unread = replace(MIXED, annotations={f"{wish}.pinfold.dev/pod": "perhaps"})
    assert of(node, unread).reason == "InvalidAnnotation"


def test_a_wish_that_is_not_binding_is_noted() -> None:
    own = OwnPolicies(load_driven=LoadDrivenOptions(use=True))
    node = planner(own=own, cpu_manager_policy=DYNAMIC)
    for wish, value in (("isolated-cpus", "prefer"), ("load-driven", "true")):
        said = replace(MIXED, annotations={f"{wish}.pinfold.dev/pod": value})
        decision = of(node, said)
        assert decision.admitted
        assert decision.load_driven == {}
        assert [note.partition(" ")[0] for note in decision.notes] == [wish]
    assert of(node, MIXED).notes == ()


def test_near_is_one_more_hint() -> None:
    node = planner()
    for at in (0, 1):
        said = {"near.pinfold.dev/pod": f"eth{at}", "near-policy.pinfold.dev/pod": "required"}
        decision = of(node, replace(MIXED, annotations=said))
        assert decision.admitted
        assert decision.bubble is not None
        assert {node.view.topology.by_cpu[c].numa_node for c in decision.bubble.cpus} == {at}
    # One that shares within the bubble may wish for it, too.
    alone = {
        "near.pinfold.dev/container.log": "eth1",
        "near-policy.pinfold.dev/container.log": "required",
    }
    decision = of(node, replace(MIXED, annotations=alone))
    assert decision.bubble is not None
    assert decision.bubble.cpus <= CPUSet(range(8, 16))
    there = CPUSet(range(8, 16))
    crowded = node.empty.ledger.with_bubble("w", there, {"c": there})
    taken = replace(node.empty, ledger=crowded)
    assert of(node, replace(MIXED, annotations=alone), taken).reason == "TopologyAffinityError"
    assert of(node, MIXED, taken).admitted


def gpus(count: int) -> dict[str, DeviceResource]:
    name = "example.com/gpu"
    made = {f"g{at}": Device(f"g{at}", numa_nodes=(1,)) for at in range(count)}
    return {name: DeviceResource(name, made)}


def test_devices_come_with_the_affinity_of_the_pod() -> None:
    limits = {"example.com/gpu": Quantity(2)}
    pod = replace(
        MIXED,
        containers=(
            replace(MIXED.containers[0], limits={**MIXED.containers[0].limits, **limits}),
            MIXED.containers[1],
        ),
    )
    decision = of(planner(devices=gpus(2)), pod)
    assert decision.admitted
    assert decision.devices == {"app": {"example.com/gpu": ("g0", "g1")}}
    assert decision.bubble is not None
    assert decision.bubble.cpus <= CPUSet(range(8, 16))


def test_a_kubelet_finds_out_late_that_devices_are_missing() -> None:
    limits = {"example.com/gpu": Quantity(2)}
    app = MIXED.containers[0]
    pod = replace(MIXED, containers=(replace(app, limits={**app.limits, **limits}),))
    best: dict[str, Any] = {"topology_manager_policy": "best-effort", "devices": gpus(1)}
    theirs, ours = of(planner(rules=KUBELET, **best), pod), of(planner(**best), pod)
    assert theirs.admitted
    assert "container app cannot be created" in theirs.notes[0]
    assert theirs.devices == {}
    assert not ours.admitted
    assert ours.bubble is None


def _sound(node: Planner, state: NodeState, pods: dict[str, Pod]) -> None:
    ledger = state.ledger
    assert ledger.violations() == []
    assert ledger.bubbles.keys() <= pods.keys()
    owners: dict[int, str] = {}
    for uid, cpus in ledger.bubbles.items():
        for cpu in cpus:
            assert owners.setdefault(cpu, uid) == uid
        assert not cpus & ledger.default
    for uid, containers in ledger.assignments.items():
        for cpus in containers.values():
            for cpu in cpus:
                assert owners.setdefault(cpu, uid) == uid
    assert state.memory is not None
    policy = node.node.memory_policy
    assert policy is not None
    again = MemoryState.of(policy.nodes, state.memory.assignments, state.memory.bubbles)
    for id_, one in state.memory.machine.items():
        assert one.table("memory").free == again.machine[id_].table("memory").free


def _ordinary(uid: str, cpus: int) -> Pod:
    return Pod(uid, uid, containers=(container("c", str(cpus), "64Mi"),))


@settings(max_examples=60)
@given(st.data())
def test_random_lives_never_share_a_cpu_of_a_bubble(data: st.DataObject) -> None:
    """Whatever comes and goes in whatever order, and however often a pod is admitted again."""
    form = data.draw(st.sampled_from(["1s4c2t@8Gi", "2s4c2t@8Gi", "2s4n8c1t@8Gi"]))
    policy = data.draw(st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]))
    scope = data.draw(st.sampled_from(["pod", "pod", "container"]))
    options = data.draw(st.sampled_from([{}, {"full-pcpus-only": "true"}]))
    node = planner(
        form,
        topology_manager_policy=policy,
        topology_manager_scope=scope,
        cpu_manager_policy_options=options,
    )
    state, running = node.empty, dict[str, Pod]()
    for step in range(data.draw(st.integers(1, 8))):
        what = data.draw(st.sampled_from(["whole", "whole", "ordinary", "again", "end"]))
        if what in {"whole", "ordinary"}:
            uid = f"p{step}"
            pod = (
                data.draw(whole_pods(uid))
                if what == "whole"
                else _ordinary(uid, data.draw(st.integers(1, 3)))
            )
            before = state
            decision = of(node, pod, state)
            state = settle(state, decision)
            if decision.admitted:
                running[uid] = pod
            else:
                assert state == before
            if decision.bubble is not None and decision.bubble.cpus:
                assert decision.bubble.cpus == state.ledger.bubbles[uid]
                assert decision.bubble.pool <= decision.bubble.cpus
        elif running and what == "again":
            pod = running[data.draw(st.sampled_from(sorted(running)))]
            again = of(node, pod, state)
            if again.admitted and again.bubble is not None:
                assert settle(state, again).ledger == state.ledger
                assert settle(state, again).memory == state.memory
        elif running:
            state = release(state, running.pop(data.draw(st.sampled_from(sorted(running)))))
        _sound(node, state, running)
    for pod in running.values():
        state = release(state, pod)
    assert (state.ledger, state.memory) == (node.empty.ledger, node.empty.memory)

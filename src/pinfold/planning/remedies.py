"""The nearest changes that would admit a refused pod; every one of them is tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pinfold.core.node_config import NodeConfig
from pinfold.core.pod import CPU, Container, Pod, guaranteed_cpus
from pinfold.core.policy_options import FULL_PCPUS_ONLY
from pinfold.core.quantity import Quantity
from pinfold.node.admission import Decision, Node, NodeState, decide
from pinfold.node.model import NodeError, build_node
from pinfold.planning.planner import Planner


def find_remedies(
    planner: Planner, state: NodeState, decision: Decision, admitted: Sequence[Decision]
) -> Iterator[str]:
    """Yield changes, the smallest first: to the request, the other pods, the configuration.

    Args:
        planner: the node.
        state: the state in which the pod was refused.
        decision: the refusal.
        admitted: the pods that were admitted before it.
    """
    yield from _other_requests(planner.node, state, decision)
    yield from _without_others(planner.node, state, decision.pod, admitted)
    yield from _other_settings(planner, state, decision.pod)


def _other_requests(node: Node, state: NodeState, decision: Decision) -> Iterator[str]:
    pod = decision.pod
    for container in pod.all_containers:
        asked = guaranteed_cpus(pod, container)
        if asked == 0 or decision.failed_container not in (None, container.name):
            continue
        size = 1 if node.cpu_policy is None else node.cpu_policy.group_size
        upwards = range(asked + 1, asked + size)
        for wanted in (*upwards, *range(asked - 1, 0, -1)):
            if decide(node, state, with_cpus(pod, container, wanted)).admitted:
                yield (
                    f"ask for {wanted} CPUs instead of {asked} in container {container.name} "
                    f"(requests and limits cpu: {wanted})"
                )
                if wanted < asked:
                    break


def with_cpus(pod: Pod, container: Container, cpus: int) -> Pod:
    """The pod with another cpu request and limit in one container."""
    amount = Quantity(cpus)
    changed = replace(
        container,
        requests={**container.requests, CPU: amount},
        limits={**container.limits, CPU: amount},
    )

    def swap(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(changed if c is container else c for c in containers)

    return replace(pod, init_containers=swap(pod.init_containers), containers=swap(pod.containers))


def _without_others(
    node: Node, state: NodeState, pod: Pod, admitted: Sequence[Decision]
) -> Iterator[str]:
    candidates = sorted(admitted, key=lambda other: sum(other.requests.values()))
    for other in candidates:
        if decide(node, _released(state, other), pod).admitted:
            yield f"remove pod {other.pod.namespace}/{other.pod.name}, or place this one before it"
            return
    if len(admitted) > 1:
        empty = state
        for other in admitted:
            empty = _released(empty, other)
        if decide(node, empty, pod).admitted:
            yield f"place it before the {len(admitted)} pods there; no single one makes room"


def _released(state: NodeState, other: Decision) -> NodeState:
    requested = dict(state.requested)
    for name, amount in other.requests.items():
        requested[name] -= amount
    return NodeState(state.ledger.without(other.pod.uid), requested, state.pods - 1)


def _other_settings(planner: Planner, state: NodeState, pod: Pod) -> Iterator[str]:
    for text, settings in _settings(planner.config):
        config = replace(planner.config, **settings)
        try:
            node = build_node(planner.machine, config, view=planner.view)
        except NodeError:
            continue
        if decide(node, state, pod).admitted:
            yield text


def _settings(config: NodeConfig) -> Iterator[tuple[str, Mapping[str, Any]]]:
    softer = {"single-numa-node": ("restricted", "best-effort"), "restricted": ("best-effort",)}
    for policy in softer.get(config.topology_manager_policy, ()):
        yield f"topologyManagerPolicy: {policy}", {"topology_manager_policy": policy}
    if config.topology_manager_policy != "none" and config.topology_manager_scope == "pod":
        yield "topologyManagerScope: container", {"topology_manager_scope": "container"}
    options = dict(config.cpu_manager_policy_options)
    for name in (FULL_PCPUS_ONLY, "reject-non-smt-aligned"):
        if options.pop(name, "false").lower() in ("true", "t", "1"):
            yield f"cpuManagerPolicyOptions without {name}", {"cpu_manager_policy_options": options}
    if config.max_pods < 250:
        yield "maxPods: 250", {"max_pods": 250}

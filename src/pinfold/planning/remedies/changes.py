"""The nearest changes that would admit a refused pod; every one of them is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.decision import Decision
from pinfold.admission.model import NodeError, build_node
from pinfold.admission.settling import release
from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.policy_options import FULL_PCPUS_ONLY
from pinfold.core.pod.hugepages import page_size
from pinfold.core.pod.pod import CPU, Container, Pod, guaranteed_cpus
from pinfold.core.pod.pod_level import takes_part
from pinfold.core.values.quantity import Format, Quantity
from pinfold.core.values.resource_names import is_extended
from pinfold.planning.planner import Planner
from pinfold.planning.remedies.pages import missing_size, more_pages
from pinfold.planning.remedies.whole import is_valid, other_budgets
from pinfold.planning.wants import describe_amount, is_memory

_MIB: Final = 1 << 20
_NEAR_CPUS: Final = 16
"""So many numbers of CPUs below the one asked for are tried one by one."""


def find_remedies(
    planner: Planner, state: NodeState, decision: Decision, admitted: Sequence[Decision]
) -> Iterator[str]:
    """Yield changes, the smallest first: to the request, the other pods, the configuration.

    Nothing where the pod would be admitted as it is by now.  ``admitted`` are the pods that were
    admitted before it, ``state`` is that in which it was refused.
    """
    state = _without_preferences(state)
    # An agent counts extended resources that no plugin offers as not there, a kubelet does not.
    nodes = (planner.node, replace(planner.node, devices_managed=True))
    node = next((one for one in nodes if not decide(one, state, decision.pod).admitted), None)
    if node is None:
        return
    missing = _without_plugin(state, decision.pod)
    if missing and decide(node, _with_plugins(state, missing), decision.pod).admitted:
        plural = "s" * (len(missing) > 1)
        yield f"start the device plugin{plural} of {', '.join(missing)} again"
    else:
        missing = ()
    yield from _other_requests(node, state, decision, missing)
    yield from _other_sizes(planner, node, state, decision)
    yield from more_pages(planner, node, state, decision.pod)
    yield from _without_others(node, state, decision.pod, admitted)
    yield from _other_settings(planner, node, state, decision.pod)


def _without_preferences(state: NodeState) -> NodeState:
    """The same devices of plugins that need not be asked, on which no admission hangs."""
    inventory = state.devices.inventory
    if not any(resource.preferred_allocation for resource in inventory.values()):
        return state
    silent = {
        name: replace(resource, preferred_allocation=False)
        if resource.preferred_allocation
        else resource
        for name, resource in inventory.items()
    }
    return replace(state, devices=state.devices.with_inventory(silent))


def _without_plugin(state: NodeState, pod: Pod) -> tuple[str, ...]:
    """What the pod requests of plugins that are gone, but have listed it."""
    devices = state.devices
    asked = {name for container in pod.all_containers for name in container.requests}
    listed = {name for name, resource in devices.inventory.items() if not resource.connected}
    return tuple(sorted(asked & (listed | devices.gone.keys())))


def _with_plugins(state: NodeState, resources: Sequence[str]) -> NodeState:
    """The same with these resources as their plugins listed them last."""
    devices = state.devices
    known = {**devices.gone, **devices.inventory}
    back = {
        name: replace(known[name], connected=True, preferred_allocation=False) for name in resources
    }
    return replace(state, devices=devices.with_inventory({**devices.inventory, **back}))


def _other_requests(
    node: Node, state: NodeState, decision: Decision, missing: Sequence[str]
) -> Iterator[str]:
    """Other requests, but of what is ``missing`` for another reason than the request."""
    pod = decision.pod
    failed = [
        container
        for container in pod.all_containers
        if decision.failed_container in (None, container.name)
    ]
    if node.pod_level and takes_part(pod):
        most = 0 if node.cpu_policy is None else len(node.cpu_policy.assignable)
        yield from other_budgets(pod, most, lambda changed: _admits(node, state, changed))
    for container in failed:
        yield from _other_cpus(node, state, pod, container)
    requested = {name for container in failed for name in container.requests}
    for resource in sorted(requested.difference(missing)):
        if not is_memory(resource) and not is_extended(resource):
            continue
        asking = [c for c in failed if resource in c.requests]
        found = [text for c in asking for text in _less(node, state, pod, resource, (c,))]
        if not found:
            every = tuple(c for c in pod.all_containers if resource in c.requests)
            if len(every) > 1:
                found = list(_less(node, state, pod, resource, every))
        yield from found


def _admits(node: Node, state: NodeState, pod: Pod) -> bool:
    return is_valid(pod) and decide(node, state, pod).admitted


def _other_sizes(
    planner: Planner, node: Node, state: NodeState, decision: Decision
) -> Iterator[str]:
    """Huge pages of a size that the machine has not; the pod would be admitted without them."""
    pod = decision.pod
    for container in pod.all_containers:
        for resource, asked in container.requests.items():
            told = missing_size(planner.machine, resource)
            without = with_amount(pod, container.name, resource, None) if told else pod
            if told and asked.sign > 0 and _admits(node, state, without):
                yield (
                    f"ask for no {resource} instead of {asked} in container {container.name}: "
                    f"{told}"
                )


def _other_cpus(node: Node, state: NodeState, pod: Pod, container: Container) -> Iterator[str]:
    asked = guaranteed_cpus(pod, container)
    size = 1 if node.cpu_policy is None else node.cpu_policy.group_size
    if asked == 0:
        return

    def admits(cpus: int) -> bool:
        changed = with_amount(pod, container.name, CPU, Quantity(cpus))
        return _admits(node, state, changed)

    upwards = [wanted for wanted in range(asked + 1, asked + size) if admits(wanted)]
    for wanted in (*upwards, *filter(None, [_fewer_cpus(asked, size, admits)])):
        yield (
            f"ask for {describe_amount(CPU, wanted)} instead of {asked} in container "
            f"{container.name} (requests and limits cpu: {wanted})"
        )


def _fewer_cpus(asked: int, size: int, admits: Callable[[int], bool]) -> int:
    """The most CPUs below ``asked`` that are admitted; 0 for none."""
    if not any(admits(fewest) for fewest in {1, size} if fewest < asked):
        return 0
    first = max(asked - 1 - _NEAR_CPUS, 0)
    found = next((wanted for wanted in range(asked - 1, first, -1) if admits(wanted)), 0)
    if found or not first:
        return found
    # Far below, the whole groups first, and then what is between two of them.
    whole = size * _most(first // size, lambda groups: admits(groups * size))
    between = range(min(whole + size - 1, first), whole, -1)
    return next((wanted for wanted in between if admits(wanted)), whole)


def _less(
    node: Node, state: NodeState, pod: Pod, resource: str, containers: tuple[Container, ...]
) -> Iterator[str]:
    """Less of one resource in a container, or in all of those that ask for more."""
    asked = max(container.requests[resource].value() for container in containers)
    unit = (page_size(resource) or _MIB) if is_memory(resource) else 1
    form = Format.BINARY_SI if is_memory(resource) else Format.DECIMAL_SI

    def admits(units: int) -> bool:
        changed = pod
        most = Quantity(units * unit, 0, form) if units else None
        for container in containers:
            if container.requests[resource].value() > units * unit:
                changed = with_amount(changed, container.name, resource, most)
        return _admits(node, state, changed)

    if len(containers) == 1:
        where = f" instead of {containers[0].requests[resource]} in container {containers[0].name}"
    else:
        where = f" in each of the containers {', '.join(c.name for c in containers)}"
    most = _most((asked - 1) // unit, admits)
    if most:
        amount = Quantity(most * unit, 0, form)
        least = "" if len(containers) == 1 else "at most "
        yield f"ask for {least}{amount} {resource}{where} (requests and limits)"
    elif asked and not is_memory(resource) and admits(0):
        yield f"ask for no {resource}{where}"


def _most(limit: int, admits: Callable[[int], bool]) -> int:
    """The most that is admitted, from 1 to ``limit``; 0 for nothing.

    What is less is taken to be as good, so that few are tried; the answer itself always is.
    """
    if limit < 1 or not admits(1):
        return 0
    if admits(limit):
        return limit
    good, bad = 1, limit
    while bad - good > 1:
        middle = (good + bad) // 2
        if admits(middle):
            good = middle
        else:
            bad = middle
    return good


def with_amount(pod: Pod, container: str, resource: str, amount: Quantity | None) -> Pod:
    """The pod with another request and limit of one resource in one container; None for none."""

    def changed(one: Container) -> Container:
        if one.name != container:
            return one
        requests = {name: q for name, q in one.requests.items() if name != resource}
        limits = {name: q for name, q in one.limits.items() if name != resource}
        if amount is not None:
            requests[resource] = limits[resource] = amount
        return replace(one, requests=requests, limits=limits)

    return replace(
        pod,
        init_containers=tuple(map(changed, pod.init_containers)),
        containers=tuple(map(changed, pod.containers)),
    )


def _without_others(
    node: Node, state: NodeState, pod: Pod, admitted: Sequence[Decision]
) -> Iterator[str]:
    candidates = sorted(admitted, key=lambda other: sum(other.requests.values()))
    for other in candidates:
        if decide(node, release(state, other.pod), pod).admitted:
            yield f"remove pod {other.pod.full_name}, or place this one before it"
            return
    if len(admitted) > 1:
        empty = state
        for other in admitted:
            empty = release(empty, other.pod)
        if decide(node, empty, pod).admitted:
            yield f"place it before the {len(admitted)} pods there; no single one makes room"


def _other_settings(planner: Planner, refusing: Node, state: NodeState, pod: Pod) -> Iterator[str]:
    for text, settings in _settings(planner.config):
        config = replace(planner.config, **settings)
        try:
            node = build_node(planner.machine, config, view=planner.view, rules=planner.rules)
        except NodeError:
            continue
        node = replace(node, devices_managed=refusing.devices_managed)
        if decide(node, state, pod).admitted:
            yield text


def _settings(config: NodeConfig) -> Iterator[tuple[str, Mapping[str, Any]]]:
    softer = {"single-numa-node": ("restricted", "best-effort"), "restricted": ("best-effort",)}
    for policy in softer.get(config.topology_manager_policy, ()):
        yield f"topologyManagerPolicy: {policy}", {"topology_manager_policy": policy}
    if config.topology_manager_policy != "none" and config.topology_manager_scope == "pod":
        yield "topologyManagerScope: container", {"topology_manager_scope": "container"}
    if config.gate(POD_LEVEL_RESOURCE_MANAGERS) and config.topology_manager_policy == "none":
        scope = {"topology_manager_policy": "best-effort", "topology_manager_scope": "pod"}
        yield "topologyManagerPolicy: best-effort, with topologyManagerScope: pod", scope
    elif config.gate(POD_LEVEL_RESOURCE_MANAGERS) and config.topology_manager_scope != "pod":
        yield "topologyManagerScope: pod", {"topology_manager_scope": "pod"}
    if config.memory_manager_policy != "None":
        yield (
            "memoryManagerPolicy: None, without reservedMemory",
            {"memory_manager_policy": "None", "reserved_memory": ()},
        )
    options = dict(config.cpu_manager_policy_options)
    for name in (FULL_PCPUS_ONLY, "reject-non-smt-aligned"):
        if options.pop(name, "false").lower() in ("true", "t", "1"):
            yield f"cpuManagerPolicyOptions without {name}", {"cpu_manager_policy_options": options}
    if config.gate(POD_LEVEL_RESOURCE_MANAGERS):
        gates = {**config.feature_gates, POD_LEVEL_RESOURCE_MANAGERS: False}
        yield (
            (
                f"featureGates: {POD_LEVEL_RESOURCE_MANAGERS}: false, and pods with resources of "
                "their own share CPUs"
            ),
            {"feature_gates": gates},
        )
    if config.max_pods < 250:
        yield "maxPods: 250", {"max_pods": 250}

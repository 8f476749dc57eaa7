"""Replays the device manager: kinds ``filter_by_affinity``, ``allocate`` and ``hints``.

Where the kubelet chose at random, the choice must hold all that it always took, and nothing that
it never took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pinfold.admission.devices.manager import DeviceManager
from pinfold.core.devices.devices import Device, DeviceResource, PreferenceQuestion
from pinfold.core.devices.policy import (
    DeviceRequest,
    device_hints,
    devices_to_allocate,
    nodes_with_devices,
)
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.version_rules import DEVICE_HINTS_BY_DEVICES
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import AllocationError, TopologyHint, numa_mask
from pinfold.core.values.cpuset import iter_bits
from pinfold.core.values.quantity import Quantity
from tests.vectors import Case, Outcome, version_of

RESOURCE = "example.com/dev"
KINDS = {
    "filter_by_affinity": {"available", "devices", "hint", "no_affinity"},
    "allocate": {"always", "possible", "devices", "reusable"},
    "hints": {"container_hints", "pod_hints", "devices", "second_container_requires_one"},
}


def claims(case: Case) -> bool:
    """Tell the three kinds by their fields."""
    return case.keys() >= KINDS.get(case.get("kind", ""), {"no such field"})


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
    """Split, choose or hint, and compare."""
    del topologies
    kinds = {"filter_by_affinity": _filter, "allocate": _allocate, "hints": _hints}
    problems = kinds[case["kind"]](case)
    return Outcome(passed=not problems, detail="; ".join(problems))


def _different(rows: Iterable[tuple[str, object, object]]) -> list[str]:
    return [f"{what}: want {want!r}, got {got!r}" for what, got, want in rows if got != want]


def _affinity(case: Case) -> int | None:
    return None if case["hint"] is None else numa_mask(case["hint"])


def _state(case: Case, *, preferred_allocation: bool = False) -> DeviceState:
    """The recorded node: other pods' devices, and those of the pod ``me``."""
    sick = set(case.get("unhealthy") or ())
    devices = {
        fields["id"]: Device(
            fields["id"],
            fields["id"] not in sick,
            tuple(fields["numa"] or ()),
            fields["numa"] == [],
        )
        for fields in case["devices"]
    }
    listed = DeviceResource(RESOURCE, devices, preferred_allocation=preferred_allocation)
    state = DeviceState({RESOURCE: listed})
    own = set(case.get("already_allocated_to_container") or ())
    others = set(case.get("allocated_by_others") or ()) - own
    if others:
        state = state.with_pod("other", {"c": {RESOURCE: others}})
    return state.with_pod("me", {"c": {RESOURCE: own}}) if own else state


def _filter(case: Case) -> list[str]:
    table = _state(case).table(RESOURCE)
    assert table is not None
    tiers = table.tiers(table.mask(case["available"]), _affinity(case))
    return _different(
        (name, sorted(table.names(mask)), case[name]) for name, mask in tiers._asdict().items()
    )


def _allocate(case: Case) -> list[str]:
    """Choose as the policy does, and where nothing is reused also as the provider does."""
    asked: list[PreferenceQuestion] = []

    def ask(question: PreferenceQuestion) -> tuple[str, ...]:
        asked.append(question)
        if case["preferred_error"]:
            raise AllocationError(
                f"device plugin GetPreferredAllocation rpc failed with err: "
                f"{case['preferred_error']}"
            )
        return tuple(case["preferred_response"])

    offers = case["preferred_response"] is not None or bool(case["preferred_error"])
    state = _state(case, preferred_allocation=offers)
    table = state.table(case["resource"])
    listed = state.table(RESOURCE)
    assert listed is not None
    # What the container has is of the plugin's resource, whatever it asks for now.
    own = case["already_allocated_to_container"] if case["resource"] == RESOURCE else None
    request = DeviceRequest(
        "me",
        "c",
        case["resource"],
        case["required"],
        held=own or None,
        in_use=listed.mask(state.in_use(RESOURCE)),
        reusable=listed.mask(case["reusable"] or ()),
        affinity=_affinity(case),
    )
    chosen, error = 0, ""
    try:
        chosen = devices_to_allocate(table, request, ask if offers else None)
    except AllocationError as failure:
        error = str(failure)
    names = listed.names(chosen)
    problems = _different(
        [
            ("error", error, case["error"]),
            ("nil_result", not names, case["nil_result"]),
            ("never chosen upstream", set(names) - set(case["possible"]), set()),
            ("always chosen upstream", set(case["always"]) - set(names), set()),
        ]
    )
    if "preferred_call" in case:
        problems += _different([("preferred_call", _calls(asked), case["preferred_call"])])
    if not case["reusable"] and case["resource"] == RESOURCE:
        problems += _same_from_provider(case, state, names, error, asked)
    return problems


def _calls(asked: list[PreferenceQuestion]) -> str:
    return "; ".join(
        f"available={','.join(question.available)} must={len(question.must_include)} "
        f"size={question.size}"
        for question in asked
    )


def _same_from_provider(
    case: Case,
    state: DeviceState,
    names: tuple[str, ...],
    error: str,
    asked: list[PreferenceQuestion],
) -> list[str]:
    answer = case["preferred_error"] or tuple(case["preferred_response"] or ())
    manager = DeviceManager(state, dict.fromkeys(asked, answer), range(case["numa_nodes"]))
    container = _container("c", case["required"])
    got = ""
    try:
        manager.allocate(_pod(container), container, TopologyHint(_affinity(case), preferred=False))
    except AllocationError as failure:
        got = str(failure)
    given = manager.allocations.get("c", {}).get(RESOURCE, ())
    return _different([("provider's error", got, error), ("provider's choice", given, names)])


def _container(name: str, devices: int) -> Container:
    limits = {RESOURCE: Quantity.parse(str(devices))}
    return Container(name, limits, limits)


def _pod(*containers: Container) -> Pod:
    return Pod("me", "me", containers=containers)


def _hints(case: Case) -> list[str]:
    state = _state(case)
    containers = [_container("c", case["required"])]
    if case["second_container_requires_one"]:
        containers.append(_container("d", 1))
    manager = DeviceManager(
        state, {}, _nodes(case), by_devices=DEVICE_HINTS_BY_DEVICES.at(version_of(case))
    )
    pod = _pod(*containers)
    if case["reusable"]:
        # The recorded pod has no init container; what is reusable was put into its memory.
        for_container = _with_reusable(case, state)
    else:
        for_container = manager.get_topology_hints(pod, pod.containers[0])[RESOURCE]
    for_pod = manager.get_pod_topology_hints(pod)[RESOURCE]
    return _different(
        [
            ("container_hints", _listed(for_container), case["container_hints"]),
            ("pod_hints", _listed(for_pod), case["pod_hints"]),
        ]
    )


def _nodes(case: Case) -> tuple[int, ...]:
    """The machine's NUMA nodes: their ids, or as many as there are from 0 on."""
    return tuple(case.get("numa_ids") or range(case["numa_nodes"]))


def _with_reusable(case: Case, state: DeviceState) -> list[TopologyHint] | None:
    table = state.table(RESOURCE)
    assert table is not None
    available = table.healthy & ~table.mask(state.in_use(RESOURCE))
    reusable = table.mask(case["reusable"])
    if not table.has_topology:
        return None
    if (available | reusable).bit_count() < case["required"]:
        return []
    nodes: Sequence[int] = _nodes(case)
    if DEVICE_HINTS_BY_DEVICES.at(version_of(case)):
        nodes = nodes_with_devices(table, nodes)
    return device_hints(table, nodes, available, reusable, case["required"])


def _listed(hints: list[TopologyHint] | None) -> list[Case] | None:
    if hints is None:
        return None
    return [{"mask": list(iter_bits(h.mask or 0)), "preferred": h.preferred} for h in hints]

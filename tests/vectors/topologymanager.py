"""Replays ``topologymanager.jsonl``: merges, whole admissions, construction, mask order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS
from pinfold.core.kubelet.policy_options import PolicyOptionError
from pinfold.core.topology_manager.hints import (
    AllocationError,
    NUMAInfo,
    TopologyHint,
    is_narrower,
    iter_numa_masks,
    numa_mask,
)
from pinfold.core.topology_manager.manager import (
    NO_AFFINITY,
    Admission,
    TopologyManager,
    TopologyManagerError,
)
from pinfold.core.values.cpuset import iter_bits
from tests.vectors import Case, Outcome, version_of

Hints = dict[str, list[TopologyHint] | None]


def claims(case: Case) -> bool:
    """Whether the case is one of ``topologymanager.jsonl``, told by its fields."""
    fields = case.keys()
    return (
        {"numa_nodes", "policy", "providers", "admit"} <= fields
        or {"numa_nodes", "policy", "has_distances", "error"} <= fields
        or {"numa_nodes", "sequence"} <= fields
        or {"a", "b", "narrower"} <= fields
    )


def replay(case: Case, topologies: Mapping[str, object]) -> Outcome:
    """Compare one recorded decision of the topology manager."""
    del topologies
    if "sequence" in case:
        got: object = [list(iter_bits(m)) for m in iter_numa_masks(case["numa_nodes"])]
        return _compare(got, case["sequence"])
    if "narrower" in case:
        return _replay_mask(case)
    if "has_distances" in case:
        return _replay_new(case)
    return _replay_scope(case) if "scope" in case else _replay_merge(case)


def _compare(got: object, want: object) -> Outcome:
    return Outcome(passed=got == want, detail="" if got == want else f"got {got}, want {want}")


def _replay_mask(case: Case) -> Outcome:
    a, b = numa_mask(case["a"]), numa_mask(case["b"])
    got = (is_narrower(a, b), a < b, a > b, a & b, a | b)
    want = (
        case["narrower"],
        case["less"],
        case["greater"],
        int(case["and"], 2),
        int(case["or"], 2),
    )
    return _compare(got, want)


def _replay_new(case: Case) -> Outcome:
    nodes = tuple(case["numa_nodes"])
    row = [10] * (max(nodes, default=0) + 1)
    numa = NUMAInfo(nodes, dict.fromkeys(nodes, row) if case["has_distances"] else None)
    error: str | None = None
    try:
        TopologyManager.create(
            numa, case["policy"], case["scope"], case["options"], version=version_of(case)
        )
    except (PolicyOptionError, TopologyManagerError) as raised:
        error = str(raised)
    return _compare(error, case["error"])


def _replay_merge(case: Case) -> Outcome:
    distances = case["distances"]
    numa = NUMAInfo(
        tuple(case["numa_nodes"]),
        None if distances is None else {int(node): row for node, row in distances.items()},
    )
    manager = TopologyManager.create(
        numa, case["policy"], "container", case["options"], version=version_of(case)
    )
    answers = [None if hints is None else _hints(hints) for hints in case["providers"]]
    decision = manager.merge(answers)
    return _compare((_hint_json(decision.best), decision.admit), (case["best"], case["admit"]))


def _replay_scope(case: Case) -> Outcome:
    numa = NUMAInfo(tuple(case["numa_nodes"]))
    manager = TopologyManager.create(numa, case["policy"], case["scope"], {})
    calls: list[str] = []
    providers = [RecordedProvider(spec, calls) for spec in case["providers"]]
    names = [*(case["init_containers"] or ()), *(case["containers"] or ())]
    gate = case.get("gates", {}).get(POD_LEVEL_RESOURCE_MANAGERS, False)
    result = manager.admit(
        case["id"],
        [RecordedContainer(name) for name in names],
        providers,
        pod_level=gate and case["pod_level"],
    )
    got = (*_verdict(result), calls, _affinities(result, names))
    want = (
        case["admit"],
        case["reason"],
        case["message"],
        case["allocate_calls"],
        case["affinity"],
    )
    return _compare(got, want)


def _verdict(result: Admission) -> tuple[bool, str, str]:
    return result.admitted, result.reason or "", result.message or ""


def _affinities(result: Admission, names: Sequence[str]) -> dict[str, object]:
    return {name: _hint_json(result.affinity.get(name, NO_AFFINITY)) for name in names}


def _hints(answer: Mapping[str, list[Case] | None]) -> Hints:
    return {
        resource: None if hints is None else [_hint(hint) for hint in hints]
        for resource, hints in answer.items()
    }


def _hint(hint: Case) -> TopologyHint:
    mask = hint["mask"]
    return TopologyHint(None if mask is None else numa_mask(mask), hint["preferred"])


def _hint_json(hint: TopologyHint) -> Case:
    mask = None if hint.mask is None else list(iter_bits(hint.mask))
    return {"mask": mask, "preferred": hint.preferred}


@dataclass(frozen=True)
class RecordedContainer:
    """A container of which only the name matters."""

    name: str


class RecordedAllocationError(AllocationError):
    """A failure that the recorded provider had; ``!`` marks one with a reason of its own."""

    def __init__(self, text: str) -> None:
        self.reason = "SMTAlignmentError" if text.startswith("!") else None
        super().__init__(text.removeprefix("!"))


@dataclass
class RecordedProvider:
    """Answers as the recorded provider did, and notes the order of calls."""

    spec: Case
    calls: list[str] = field(default_factory=list)

    def get_topology_hints(self, pod: str, container: RecordedContainer) -> Hints | None:
        """The recorded hints of the container."""
        del pod
        hints = (self.spec["container_hints"] or {}).get(container.name)
        return None if hints is None else _hints(hints)

    def get_pod_topology_hints(self, pod: str) -> Hints | None:
        """The recorded hints of the pod."""
        del pod
        hints = self.spec["pod_hints"]
        return None if hints is None else _hints(hints)

    def allocate(self, pod: str, container: RecordedContainer, affinity: TopologyHint) -> None:
        """Note the call; fail where the recorded provider failed."""
        del pod, affinity
        self.calls.append(f"{self.spec['name']}:{container.name}")
        failure = (self.spec["allocate_fails"] or {}).get(container.name)
        if failure is not None:
            raise RecordedAllocationError(failure)

    def allocate_pod(self, pod: str, affinity: TopologyHint) -> None:
        """Note the call; fail where the recorded provider failed."""
        del pod, affinity
        self.calls.append(f"{self.spec['name']}:<pod>")
        if self.spec["allocate_pod_fails"]:
            raise RecordedAllocationError(self.spec["allocate_pod_fails"])

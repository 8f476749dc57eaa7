"""Construction, admission by scope, and the recorded decisions of the kubelet."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.kubelet.policy_options import PolicyOptionError
from pinfold.core.kubelet.versions import V1_34, V1_35
from pinfold.core.topology_manager.hints import (
    AllocationError,
    EmptyPodSharedPoolError,
    NUMAInfo,
    ResourceHints,
    TopologyHint,
)
from pinfold.core.topology_manager.manager import TopologyManager, TopologyManagerError
from pinfold.core.topology_manager.policy import Policy, Scope, TopologyManagerOptions
from tests.roots import DATA, SHARED
from tests.vectors import Case
from tests.vectors.topologymanager import claims, replay

SAMPLE = DATA / "vectors" / "topologymanager.sample.jsonl"
RECORDING = SHARED / "vectors" / "topologymanager.jsonl"

LEFT, RIGHT, BOTH = 0b01, 0b10, 0b11
TWO_NODES = NUMAInfo((0, 1))


@dataclass(frozen=True)
class Container:
    name: str


@dataclass
class Provider:
    """One resource with the same hints for everybody; remembers what it was told to allocate."""

    resource: str
    masks: tuple[int, ...]
    fails_for: str = ""
    allocated: list[tuple[str, TopologyHint]] = field(default_factory=list)

    def get_topology_hints(self, pod: str, container: Container) -> ResourceHints:
        del pod, container
        return {self.resource: [TopologyHint(mask, preferred=True) for mask in self.masks]}

    def get_pod_topology_hints(self, pod: str) -> ResourceHints:
        return self.get_topology_hints(pod, Container(""))

    def allocate(self, pod: str, container: Container, affinity: TopologyHint) -> None:
        del pod
        if container.name == self.fails_for:
            raise AllocationError("not enough cpus available to satisfy request")
        self.allocated.append((container.name, affinity))

    def allocate_pod(self, pod: str, affinity: TopologyHint) -> None:
        if self.fails_for == pod:
            raise EmptyPodSharedPoolError("nothing is left")
        self.allocated.append((pod, affinity))


def manager(policy: str, scope: str = "container", numa: NUMAInfo = TWO_NODES) -> TopologyManager:
    return TopologyManager.create(numa, policy, scope, {})


def _cases(path: Path) -> Iterator[Case]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


@pytest.mark.parametrize("path", [SAMPLE, RECORDING], ids=["sample", "all"])
def test_recorded_decisions(path: Path) -> None:
    if not path.exists():
        pytest.skip("the whole set of vectors lies beside the repository only")
    kinds: Counter[str] = Counter()
    for case in _cases(path):
        assert claims(case), case["id"]
        outcome = replay(case, {})
        assert outcome.passed, f"{case['id']}: {outcome.detail}"
        kinds[case["kind"]] += 1
    assert set(kinds) == {"merge", "scope", "new", "iterate", "mask"}


def test_replay_notices_a_wrong_answer() -> None:
    for case in _cases(SAMPLE):
        if case["kind"] in {"merge", "scope"}:
            assert not replay({**case, "admit": not case["admit"]}, {}).passed
        elif case["kind"] == "new":
            assert not replay({**case, "error": "another"}, {}).passed


def test_container_scope_decides_for_each_container() -> None:
    cpu, gpu = Provider("cpu", (LEFT, RIGHT)), Provider("gpu", (RIGHT,))
    result = manager("restricted").admit("pod", [Container("a"), Container("b")], [cpu, gpu])
    right = TopologyHint(RIGHT, preferred=True)
    assert result.admitted
    assert result.affinity == {"a": right, "b": right}
    assert cpu.allocated == gpu.allocated == [("a", right), ("b", right)]
    assert [decision.container for decision in result.decisions] == ["a", "b"]
    assert result.decisions[0].answers[1] == {"gpu": [right]}


def test_pod_scope_decides_once() -> None:
    cpu = Provider("cpu", (LEFT,))
    result = manager("single-numa-node", "pod").admit(
        "pod", [Container("a"), Container("b")], [cpu]
    )
    assert [decision.container for decision in result.decisions] == [None]
    assert list(result.affinity) == ["a", "b"]


def test_a_pod_with_pod_level_resources_is_given_its_share_once() -> None:
    first, second = Provider("cpu", (LEFT, BOTH)), Provider("memory", (LEFT, RIGHT))
    containers = [Container("init"), Container("app")]
    result = manager("restricted", "pod").admit("pod", containers, [first, second], pod_level=True)
    hint = TopologyHint(LEFT, preferred=True)
    assert result.affinity == {"init": hint, "app": hint}
    assert (first.allocated, second.allocated) == ([("pod", hint)], [("pod", hint)])
    by_container = manager("restricted").admit("pod", containers, [first], pod_level=True)
    assert by_container.admitted
    assert [name for name, _ in first.allocated] == ["pod", "init", "app"]


@pytest.mark.parametrize(
    ("scope", "words"),
    [("pod", "under pod-scope topology manager"), ("container", "with a container-level topology")],
)
def test_pods_with_pod_level_resources_are_refused_in_other_words(scope: str, words: str) -> None:
    providers = [Provider("cpu", (LEFT,)), Provider("memory", (RIGHT,))]
    result = manager("restricted", scope).admit(
        "pod", [Container("app")], providers, pod_level=True
    )
    assert (result.admitted, result.reason) == (False, "TopologyAffinityError")
    assert words in (result.message or "")
    assert providers[0].allocated == []


def test_a_failed_allocation_of_a_whole_pod_says_who_failed() -> None:
    providers = [Provider("cpu", (LEFT,)), Provider("memory", (LEFT,), fails_for="pod")]
    result = manager("best-effort", "pod").admit(
        "pod", [Container("app")], providers, pod_level=True
    )
    assert (result.reason, result.message) == ("EmptyPodSharedPoolError", "nothing is left")
    assert (result.failed_container, result.failed_provider) == (None, 1)
    assert list(result.affinity) == ["app"]


@pytest.mark.parametrize(("scope", "failed"), [("container", "a"), ("pod", None)])
def test_refusal_allocates_nothing_and_says_what_blocks(scope: str, failed: str | None) -> None:
    providers = [
        Provider("cpu", (LEFT,)),
        Provider("memory", (LEFT, RIGHT)),
        Provider("gpu", (RIGHT,)),
    ]
    result = manager("restricted", scope).admit("pod", [Container("a")], providers)
    assert (result.admitted, result.reason, result.message, result.failed_container) == (
        False,
        "TopologyAffinityError",
        "Resources cannot be allocated with Topology locality",
        failed,
    )
    assert all(not provider.allocated for provider in providers)
    assert result.decisions[-1].blocking() == ((0, "cpu"), (2, "gpu"))


def test_wide_hints_block_a_single_numa_node() -> None:
    decision = manager("single-numa-node").merge(
        [
            {"cpu": [TopologyHint(BOTH, preferred=True)]},
            {"gpu": [TopologyHint(LEFT, preferred=True)]},
        ]
    )
    assert decision.blocking() == ((0, "cpu"),)
    assert manager("restricted").merge(decision.answers[:1]).blocking() == ()


def test_single_numa_node_does_not_ask_for_distances() -> None:
    """The option changes the other policies only, as upstream has it."""
    numa = NUMAInfo((0, 1), {0: [20, 30], 1: [30, 10]})
    hints = [TopologyHint(LEFT, preferred=True), TopologyHint(RIGHT, preferred=True)]
    for policy, best in (("single-numa-node", hints[0]), ("restricted", hints[1])):
        options = {"prefer-closest-numa-nodes": "true"}
        created = TopologyManager.create(numa, policy, "container", options)
        assert created.merge([{"cpu": hints}]).best == best


def test_best_effort_admits_without_locality() -> None:
    cpu, gpu = Provider("cpu", (LEFT,)), Provider("gpu", (RIGHT,))
    result = manager("best-effort").admit("pod", [Container("a")], [cpu, gpu])
    assert result.admitted
    assert result.affinity == {"a": TopologyHint(BOTH, preferred=False)}


def test_policy_none_asks_nobody() -> None:
    cpu = Provider("cpu", ())
    result = manager("none", "pod").admit("pod", [Container("a")], [cpu])
    assert result.admitted
    assert (result.affinity, result.decisions) == ({}, ())
    assert cpu.allocated == [("a", TopologyHint(None, preferred=False))]


def test_failed_allocation_ends_the_admission() -> None:
    cpu, gpu = Provider("cpu", (LEFT,), fails_for="b"), Provider("gpu", (LEFT,))
    containers = [Container("a"), Container("b"), Container("c")]
    result = manager("restricted").admit("pod", containers, [cpu, gpu])
    assert (result.admitted, result.reason, result.message, result.failed_container) == (
        False,
        "UnexpectedAdmissionError",
        "Allocate failed due to not enough cpus available to satisfy request, which is unexpected",
        "b",
    )
    assert [name for name, _ in gpu.allocated] == ["a"]
    assert list(result.affinity) == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max-allowable-numa-nodes": "7"}, 'the minimum value of "max-allowable-numa-nodes"'),
        ({"max-allowable-numa-nodes": "1_0"}, 'Atoi: parsing "1_0": invalid syntax'),
        ({"max-allowable-numa-nodes": "9" * 30}, "value out of range"),
        ({"max-allowable-numa-nodes": "١٢"}, "invalid syntax"),
        ({"prefer-closest-numa-nodes": "yes"}, 'ParseBool: parsing "yes": invalid syntax'),
        ({"full-pcpus-only": "true"}, 'unknown Topology Manager Policy option: "full-pcpus-only"'),
    ],
)
def test_options_that_stop_a_kubelet(options: dict[str, str], message: str) -> None:
    with pytest.raises(PolicyOptionError, match=message):
        TopologyManager.create(TWO_NODES, "best-effort", "container", options)


def test_options_need_their_gate() -> None:
    gates = {"TopologyManagerPolicyBetaOptions": False}
    with pytest.raises(PolicyOptionError, match="Beta-level Options not enabled"):
        TopologyManagerOptions.parse({"max-allowable-numa-nodes": "9"}, gates, V1_34)
    assert TopologyManagerOptions.parse({"max-allowable-numa-nodes": "9"}, gates, V1_35)
    assert TopologyManagerOptions.parse({"prefer-closest-numa-nodes": "t"}, gates) == (
        TopologyManagerOptions(prefer_closest_numa_nodes=True)
    )


@pytest.mark.parametrize(
    ("numa", "policy", "scope", "options", "message"),
    [
        (NUMAInfo(tuple(range(9))), "restricted", "pod", {}, "more than 8 NUMA Nodes"),
        (TWO_NODES, "Restricted", "pod", {}, 'unknown policy: "Restricted"'),
        (TWO_NODES, "restricted", "", {}, 'unknown scope: ""'),
        (TWO_NODES, "restricted", "pod", {"prefer-closest-numa-nodes": "true"},
         "cannot discover NUMA topology: error getting NUMA distances from cadvisor"),
    ],
)  # fmt: skip
def test_configurations_that_stop_a_kubelet(
    numa: NUMAInfo, policy: str, scope: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(TopologyManagerError, match=message):
        TopologyManager.create(numa, policy, scope, options)


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8)), st.text(max_size=8))
def test_policy_none_looks_at_nothing_else(options: dict[str, str], scope: str) -> None:
    created = TopologyManager.create(TWO_NODES, "none", scope, options)
    assert (created.policy, created.options) == (Policy.NONE, TopologyManagerOptions())
    assert created.scope is Scope.CONTAINER

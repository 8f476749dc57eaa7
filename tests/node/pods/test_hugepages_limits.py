"""Limits of huge pages: what the kernel is told of each size that the machine has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.affinity.affinity import not_granted
from pinfold.adapters.cgroup.limits import apply, apply_nested, v1_settings, v2_settings
from pinfold.core.pod.annotations import MEMORY_LIMIT
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.pods.containers import PodContainers
from pinfold.node.settings import NodeSettings
from pinfold.node.view import Whereabouts
from pinfold.planning.fake_cgroups import FakeCgroups
from pinfold.planning.fakes import FakeRuntime
from pinfold.ports.cgroups import Limits, Placement
from pinfold.ports.records import PodPhase, PodRecord

SMALL, LARGE = 2 << 20, 1 << 30
SHARED = Whereabouts(None, CPUSet(), frozen=False)

FILES = {"v1": ("limit_in_bytes", "rsvd.limit_in_bytes"), "v2": ("max", "rsvd.max")}
RULES = {"v1": v1_settings, "v2": v2_settings}


def placement(
    limits: Mapping[str, str],
    init: Mapping[str, str] | None = None,
    *,
    page_sizes: tuple[int, ...] = (SMALL, LARGE),
    unlimited: bool = False,
) -> Placement:
    """What the kernel is told of a pod's container ``app``."""
    amounts = {name: Quantity.parse(text) for name, text in limits.items()}
    first = {name: Quantity.parse(text) for name, text in (init or {}).items()}
    app = Container("app", limits=amounts)
    pod = apply_defaults(
        Pod(
            "uid",
            "p",
            init_containers=(Container("first", limits=first),),
            containers=(app,),
            annotations={MEMORY_LIMIT.key(): "none"} if unlimited else {},
        )
    )
    record = PodRecord("uid", "default", "p", "{}", PodPhase.RUNNING)
    settings = NodeSettings(page_sizes=page_sizes)
    cgroups = FakeCgroups(CPUSet([0, 1]))
    containers = PodContainers(cgroups, FakeRuntime(cgroups), settings)
    return containers.placement(AdmittedPod(Workload(pod, {}), record), pod.containers[0], SHARED)


def test_sizes_that_are_not_asked_for_have_a_limit_of_nothing() -> None:
    found = placement({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "8Mi", "hugepages-1Gi": "1Gi"})
    assert found.limits.hugepages == {SMALL: 4 << 20, LARGE: 0}
    # An init container has the pod's cgroup, too.
    assert found.pod_limits.hugepages == {SMALL: 8 << 20, LARGE: 1 << 30}
    none = placement({"cpu": "1"})
    assert none.limits.hugepages == none.pod_limits.hugepages == {SMALL: 0, LARGE: 0}


def test_sizes_that_the_machine_has_not_are_passed_over() -> None:
    asked = {"hugepages-2Mi": "4Mi", "hugepages-1536Ki": "0"}
    found = placement(asked, page_sizes=(SMALL,))
    assert found.limits.hugepages == found.pod_limits.hugepages == {SMALL: 4 << 20}
    assert placement(asked, page_sizes=()).limits.hugepages == {}


def test_a_pod_whose_memory_has_no_limit_may_use_what_it_does_not_ask_for() -> None:
    found = placement({"hugepages-2Mi": "4Mi"}, unlimited=True)
    assert found.limits.hugepages == found.pod_limits.hugepages == {SMALL: 4 << 20}


@pytest.fixture(params=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_both_files_of_a_size_are_written(tmp_path: Path, version: str) -> None:
    limits = Limits(hugepages={SMALL: 8 << 20, LARGE: 0})
    for unit in ("2MB", "1GB"):
        for file in FILES[version]:
            (tmp_path / f"hugetlb.{unit}.{file}").write_text("9\n")
    hugetlb = [one for one in RULES[version](limits) if one.controller == "hugetlb"]
    assert apply(hugetlb, lambda _: tmp_path) == []
    told = {path.name: path.read_text().strip() for path in tmp_path.iterdir()}
    assert told == {
        f"hugetlb.{unit}.{file}": amount
        for unit, amount in (("2MB", "8388608"), ("1GB", "0"))
        for file in FILES[version]
    }


def test_an_older_kernel_has_no_limit_of_promises(tmp_path: Path, version: str) -> None:
    limits = Limits(hugepages={SMALL: 8 << 20})
    file = tmp_path / f"hugetlb.2MB.{FILES[version][0]}"
    file.write_text("0\n")
    hugetlb = [one for one in RULES[version](limits) if one.controller == "hugetlb"]
    assert apply(hugetlb, lambda _: tmp_path) == []
    assert file.read_text().strip() == "8388608"


def test_only_a_limit_that_was_asked_for_is_missed(version: str) -> None:
    limits = Limits(hugepages={SMALL: 8 << 20, LARGE: 0, 1536 << 10: 3 << 20})
    hugetlb = [one for one in RULES[version](limits) if one.controller == "hugetlb"]
    file = FILES[version][0]
    assert apply(hugetlb, lambda _: None) == [
        f"hugetlb.2MB.{file} 8388608 is not in force: no hugetlb controller here",
        f"hugetlb.1572864B.{file} 3145728 is not in force: no hugetlb controller here",
    ]
    assert list(not_granted(Placement(limits=limits))) == [
        "limit of 3145728 bytes on 1572864-byte hugepages of the container",
        "limit of 8388608 bytes on 2097152-byte hugepages of the container",
    ]


def test_what_pod_and_container_lack_is_said_once(version: str) -> None:
    small, large = (
        [one for one in RULES[version](Limits(hugepages={SMALL: size << 20})) if one.wished]
        for size in (8, 16)
    )
    file = FILES[version][0]
    missing = "is not in force: no hugetlb controller here"
    assert apply_nested(small, lambda _: None, small, lambda _: None) == [
        f"hugetlb.2MB.{file} 8388608 {missing}"
    ]
    assert apply_nested(large, lambda _: None, small, lambda _: None) == [
        f"hugetlb.2MB.{file} 16777216 {missing}",
        f"hugetlb.2MB.{file} 8388608 {missing}",
    ]


SIZES = st.sets(st.integers(12, 34).map(lambda power: 1 << power), max_size=5)


@given(SIZES, st.dictionaries(st.integers(12, 34).map(lambda p: 1 << p), st.integers(0, 9)))
def test_every_size_of_the_machine_is_told_and_no_other(
    sizes: set[int], asked: dict[int, int]
) -> None:
    limits = {f"hugepages-{size}": str(size * pages) for size, pages in asked.items()}
    found = placement(limits, page_sizes=tuple(sizes))
    expected = {size: size * asked.get(size, 0) for size in sizes}
    assert found.limits.hugepages == found.pod_limits.hugepages == expected

"""Names and sizes of huge pages, and the page size of a volume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.kubernetes.manifests import ManifestError, read_manifests
from pinfold.core.pod.api import PodError
from pinfold.core.pod.hugepages import (
    HugePagesError,
    folder_name,
    folder_size,
    is_divisible,
    page_size,
    page_size_option,
    resource_name,
    unit_name,
)
from pinfold.core.pod.manifest.validation import manifest_problems
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.pod import Container, Pod, PodResources
from pinfold.core.values.names import qualified_name_problems
from pinfold.core.values.quantity import Quantity
from pinfold.core.values.resource_names import is_extended
from tests.roots import DATA, SHARED
from tests.vectors.runner import discover_families, read_vector_file, replay_file

SAMPLE = DATA / "vectors/hugepages.sample.jsonl"
RECORD = SHARED / "vectors/hugepages.jsonl"
PAGE_SIZES = st.integers(10, 44).map(lambda power: 1 << power)


@pytest.mark.parametrize("file", [SAMPLE, RECORD], ids=["sample", "record"])
def test_recorded_answers_are_ours(file: Path) -> None:
    if not file.is_file():
        pytest.skip("the whole record is not here")
    tally = replay_file(read_vector_file(file), {}, discover_families())
    assert tally.failures == []
    assert tally.passed > 100
    assert not tally.not_covered


@given(PAGE_SIZES)
def test_every_spelling_of_a_size_says_it(size: int) -> None:
    assert page_size(resource_name(size)) == size
    assert folder_size(folder_name(size)) == size
    number, unit = unit_name(size)[:-2], unit_name(size)[-2:]
    assert page_size(f"hugepages-{number}{unit[0]}i") == size


@given(st.integers(1, 1 << 50))
def test_a_unit_is_exact_or_refused(size: int) -> None:
    try:
        text = unit_name(size)
    except HugePagesError as error:
        problem: str | None = str(error)
    else:
        problem = None
    if problem is not None:
        assert "divisible into the largest units" in problem
        assert any(size % (1 << power) and size >> power for power in (10, 20, 30, 40, 50))
        return
    digits = text.rstrip("BKMGTP")
    powers = {"B": 0, "KB": 10, "MB": 20, "GB": 30, "TB": 40, "PB": 50}
    assert int(digits) << powers[text[len(digits) :]] == size
    assert int(digits) < 1024


@pytest.mark.parametrize(
    "name", ["hugepages-kB", "hugepages-2048KB", "hugepages-2048", "2048kB", "hugepages-2²kB", ""]
)
def test_other_folders_say_no_size(name: str) -> None:
    assert folder_size(name) is None


@given(PAGE_SIZES, st.integers(0, 1 << 20), st.integers(0, (1 << 20) - 1))
def test_only_whole_pages_are_divisible(size: int, pages: int, rest: int) -> None:
    rest %= size
    assert is_divisible(resource_name(size), Quantity(size * pages + rest)) == (rest == 0)


def _pod(*requests: str, whole: str | None = None) -> Pod:
    some = tuple(
        Container(f"c{index}", requests={name: Quantity(0)}) for index, name in enumerate(requests)
    )
    own = None if whole is None else PodResources(requests={whole: Quantity(0)})
    return Pod("uid", "p", init_containers=some[1:], containers=some[:1], resources=own)


def test_the_page_size_of_a_volume() -> None:
    small, large = "hugepages-2Mi", "hugepages-1Gi"
    assert page_size_option("HugePages", _pod(small, "hugepages-2048Ki")) == "pagesize=2Mi"
    assert page_size_option("HugePages-1Gi", _pod(small, large)) == "pagesize=1Gi"
    assert page_size_option("HugePages", _pod("cpu", whole=large)) == "pagesize=1Gi"
    with pytest.raises(HugePagesError, match="multiple huge page sizes"):
        page_size_option("HugePages", _pod(small, large))
    with pytest.raises(HugePagesError, match="multiple huge page sizes"):
        page_size_option("HugePages", _pod(small, whole=large))
    with pytest.raises(HugePagesError, match="no resource request for huge pages"):
        page_size_option("HugePages-1Gi", _pod(small))
    with pytest.raises(HugePagesError, match="Memory is not a hugepage medium"):
        page_size_option("Memory", _pod(small))
    with pytest.raises(HugePagesError, match="quantities must match"):
        page_size_option("HugePages", _pod("hugepages-"))


@given(st.text(max_size=20), st.sampled_from(["cpu", "hugepages-2Mi", "hugepages-x", "hugepages-"]))
def test_any_medium_has_an_answer(medium: str, request_name: str) -> None:
    try:
        option = page_size_option(medium, _pod(request_name))
    except HugePagesError:
        option = ""
    assert bool(option) == (
        request_name == "hugepages-2Mi" and medium in ("HugePages", "HugePages-2Mi")
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("/gpu", "prefix part must be non-empty"),
        ("a.b/", "name part must be non-empty"),
        ("A.b/gpu", "prefix part a lowercase RFC 1123 subdomain"),
        ("a/b/c", "a qualified name must consist"),
        (f"a.b/{'x' * 64}", "name part must be no more than 63 bytes"),
        (f"{'x' * 254}/a", "prefix part must be no more than 253 bytes"),
    ],
)
def test_names_that_nobody_may_announce(name: str, problem: str) -> None:
    assert next(qualified_name_problems(name)).startswith(problem)
    assert not is_extended(name)


def test_extended_names() -> None:
    assert is_extended("vendor.example/gpu")
    assert not is_extended("requests.vendor.example/gpu")
    assert not is_extended("node.kubernetes.io/gpu")
    assert not is_extended("hugepages-2Mi")


def _refused(spec: object) -> list[str]:
    return [str(problem) for problem in manifest_problems({"spec": spec}, "spec.template.")]


def test_fields_that_only_a_manifest_has() -> None:
    field = {"resource": "requests.memory", "divisor": "3"}
    env = [{"name": "A", "valueFrom": {"resourceFieldRef": field}}]
    (told,) = _refused({"initContainers": [{"env": env}]})
    assert told.startswith(
        "spec.template.spec.initContainers[0].env[0].valueFrom.resourceFieldRef.divisor: "
    )
    assert told.endswith("1Pi, 1Ei are supported with the memory resource")
    volumes = [{"name": "a", "emptyDir": {"sizeLimit": "x"}}, {"emptyDir": {"sizeLimit": -1}}]
    first, second = _refused({"volumes": volumes})
    assert first.startswith("spec.template.spec.volumes[0].emptyDir.sizeLimit: Invalid value")
    assert "[1].emptyDir.sizeLimit: Forbidden: SizeLimit" in second


def test_both_readers_of_manifests_refuse_them(tmp_path: Path) -> None:
    spec = {
        "containers": [{"name": "a"}],
        "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "-1"}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    with pytest.raises(
        PodError, match=r"^spec\.volumes\[0\]\.emptyDir\.sizeLimit: Forbidden: Size"
    ):
        workload_from_api(pod)
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(pod))
    with pytest.raises(ManifestError, match=r"emptyDir\.sizeLimit: Forbidden: SizeLimit"):
        read_manifests([str(file)])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(
    (
        *("volumes", "containers", "env", "valueFrom", "resourceFieldRef"),
        *("emptyDir", "sizeLimit", "divisor", "resource"),
    )
)
SHAPES = st.recursive(
    ANYTHING,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(SHAPES)
def test_no_manifest_breaks_the_check(spec: object) -> None:
    for problem in manifest_problems({"spec": spec}):
        assert isinstance(problem, PodError)

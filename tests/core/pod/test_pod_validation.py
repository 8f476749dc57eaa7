"""What the API server would refuse in a pod, in its words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.pod.api import PodError, pod_from_api
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.manifest.validation import manifest_problems, pod_problems, validate_pod
from pinfold.core.pod.pod import Container, Pod, PodResources, Resources
from pinfold.core.values.quantity import Quantity
from tests.roots import DATA, SHARED

Texts = Mapping[str, str]


def amounts(texts: Texts) -> Resources:
    return {name: Quantity.parse(text) for name, text in texts.items()}


def container(requests: Texts | None = None, limits: Texts | None = None) -> Container:
    return Container("app", amounts(requests or {}), amounts(limits or {}))


def pod(*containers: Container) -> Pod:
    return Pod("uid", "name", containers=containers)


@pytest.mark.parametrize(
    ("requests", "limits"),
    [
        ({}, {}),
        ({"cpu": "1"}, {}),
        ({"cpu": "1"}, {"cpu": "1"}),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "1024Mi"}),
        ({"ephemeral-storage": "1Gi"}, {"ephemeral-storage": "2Gi"}),
        ({"hugepages-2Mi": "4Mi", "cpu": "1"}, {"hugepages-2Mi": "4Mi"}),
        ({"example.com/gpu": "1"}, {"example.com/gpu": "1"}),
        ({"cpu": "0"}, {"cpu": "0"}),
    ],
)
def test_accepted(requests: Texts, limits: Texts) -> None:
    validate_pod(pod(container(requests, limits)))


@pytest.mark.parametrize(
    ("requests", "limits", "text"),
    [
        (
            {"cpu": "2"},
            {"cpu": "1"},
            'requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        (
            {"memory": "1025Mi"},
            {"memory": "1Gi"},
            'requests: Invalid value: "1025Mi": must be less than or equal to memory limit of 1Gi',
        ),
        (
            {"example.com/gpu": "1"},
            {"example.com/gpu": "2"},
            'requests: Invalid value: "1": must be equal to example.com/gpu limit of 2',
        ),
        (
            {"example.com/gpu": "1"},
            {},
            "limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            {},
            {"cpu": "-500m"},
            'limits[cpu]: Invalid value: "-500m": must be greater than or equal to 0',
        ),
        (
            {},
            {"a.b/c": "500m"},
            'limits[a.b/c]: Invalid value: "500m": must be an integer',
        ),
        (
            {"cpus": "1"},
            {"cpus": "1"},
            'limits[cpus]: Invalid value: "cpus": must be a standard resource for containers',
        ),
        (
            {"memory": "1"},
            {"hugepages-2Mi": "3Mi"},
            (
                'limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple '
                "of hugepages-2Mi"
            ),
        ),
        (
            {"memory": "-1"},
            {},
            'requests[memory]: Invalid value: "-1": must be greater than or equal to 0',
        ),
    ],
)
def test_refused(requests: Texts, limits: Texts, text: str) -> None:
    with pytest.raises(PodError) as caught:
        validate_pod(pod(container(requests, limits)), "spec.template.")
    assert str(caught.value) == f"spec.template.spec.containers[0].resources.{text}"


SAMPLE = DATA / "pod_validation/pods.sample.jsonl"
RECORD = SHARED / "vectors/hugepages.jsonl"


@pytest.mark.parametrize("file", [SAMPLE, RECORD], ids=["sample", "record"])
def test_every_problem_is_told_as_the_api_server_tells_it(file: Path) -> None:
    if not file.is_file():
        pytest.skip("the whole record is not here")
    answers = 0
    for line in file.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case["kind"] != "pod":
            continue
        problems = pod_problems(apply_defaults(pod_from_api(case["pod"])))
        told = sorted(str(problem) for problem in (*problems, *manifest_problems(case["pod"])))
        assert told == [error["message"] for error in case["errors_sorted"]], case["id"]
        answers += 1
    assert answers > 10


def test_names() -> None:
    with pytest.raises(PodError, match=r"^metadata.name: Required value"):
        validate_pod(Pod("uid", "", containers=(container(),)))
    with pytest.raises(PodError, match=r"^spec.containers: Required value$"):
        validate_pod(pod())
    twice = pod(container(), container())
    with pytest.raises(PodError, match=r'^spec.containers\[1\].name: Duplicate value: "app"$'):
        validate_pod(twice)
    across = replace(pod(container()), init_containers=(container(),))
    with pytest.raises(PodError, match=r'^spec.containers\[0\].name: Duplicate value: "app"$'):
        validate_pod(across)


def test_pod_level_resources_and_overhead() -> None:
    whole = PodResources(amounts({"cpu": "2"}), amounts({"cpu": "1"}))
    with pytest.raises(PodError, match=r"^spec.resources.requests: Invalid value"):
        validate_pod(replace(pod(container()), resources=whole))
    with pytest.raises(PodError, match=r"^spec.overhead.limits\[cpu\]: Invalid value"):
        validate_pod(replace(pod(container()), overhead=amounts({"cpu": "-1"})))


QUANTITIES = st.integers(-2000, 4000).map(lambda milli: f"{milli}m")
LISTS = st.dictionaries(st.sampled_from(["cpu", "memory", "a.b/c"]), QUANTITIES)


def _lists(found: Container) -> tuple[Resources, Resources]:
    return found.requests, found.limits


@given(LISTS, LISTS)
def test_what_is_accepted_is_sound(requests: Texts, limits: Texts) -> None:
    defaulted = apply_defaults(pod(container(requests, limits)))
    try:
        validate_pod(defaulted)
    except PodError as error:
        refused = error.path
    else:
        refused = ""
    found = defaulted.containers[0]
    over = [n for n, limit in found.limits.items() if n in requests and found.requests[n] > limit]
    negative = [q for q in (*found.requests.values(), *found.limits.values()) if q.sign < 0]
    parts = [n for n in (*found.requests, *found.limits) if "/" in n]
    broken = [n for n in parts if any(r[n].milli_value() % 1000 for r in _lists(found) if n in r)]
    unlimited = [n for n in found.requests if "/" in n and found.requests[n] != found.limits.get(n)]
    assert bool(refused) is bool(over or negative or unlimited or broken)

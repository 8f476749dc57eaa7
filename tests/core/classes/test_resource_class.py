"""Classes: what they select, who wins, and what is refused in their manifests."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.classes.api import (
    ClassError,
    class_from_api,
    class_to_api,
    compute_resource_from_api,
    compute_resource_to_api,
)
from pinfold.core.classes.names import unknown_names, with_class_quotas, with_class_resources
from pinfold.core.classes.readiness import (
    COMING,
    NOT_HERE,
    NOT_VIABLE,
    READY,
    readiness,
)
from pinfold.core.classes.resource_class import (
    CLUSTERLEVEL,
    NODELEVEL,
    OPERATORS,
    ORDER,
    PRESENCE,
    ProvisionConfig,
    Requirement,
    ResourceClass,
    classes_of,
)

AMOUNTS: dict[str, Fraction | int] = {
    "8G": 8 * 10**9,
    "8Gi": 8 * 2**30,
    "8000M": 8 * 10**9,
    "30G": 30 * 10**9,
    "500m": Fraction(1, 2),
    "0": 0,
}
KEYS = st.sampled_from(["Kind", "memory", "gpuType"])
VALUES = st.sampled_from([*AMOUNTS, "K80", "P100", "nvidia-gpu", ""])
PROPERTIES = st.dictionaries(KEYS, VALUES, max_size=3)


@st.composite
def requirements(draw: st.DrawFn) -> Requirement:
    chosen = draw(st.sampled_from(OPERATORS))
    if chosen in PRESENCE:
        return Requirement(draw(KEYS), chosen)
    if chosen in ORDER:
        return Requirement(draw(KEYS), chosen, (draw(st.sampled_from(sorted(AMOUNTS))),))
    return Requirement(draw(KEYS), chosen, tuple(draw(st.lists(VALUES, min_size=1, max_size=3))))


@st.composite
def classes(draw: st.DrawFn) -> list[ResourceClass]:
    count = draw(st.integers(0, 4))
    selectors = st.lists(st.lists(requirements(), min_size=1, max_size=2).map(tuple), max_size=2)
    provision = st.builds(
        ProvisionConfig,
        st.sampled_from([CLUSTERLEVEL, NODELEVEL]),
        st.lists(st.sampled_from(["a", "b.c/d"]), max_size=2).map(tuple),
        st.none() | st.integers(0, 600),
    )
    return [
        ResourceClass(f"c{at}", tuple(draw(selectors)), draw(st.integers(0, 2)), draw(provision))
        for at in range(count)
    ]


def naive(one: Requirement, properties: dict[str, str]) -> bool:
    has = properties.get(one.key)
    if one.operator == "Exists":
        return has is not None
    if one.operator == "DoesNotExist":
        return has is None
    if one.operator == "In":
        return has in one.values
    if one.operator == "NotIn":
        return has not in one.values
    if has not in AMOUNTS:
        return False
    compare = {"Gt": operator.gt, "GtEq": operator.ge, "Lt": operator.lt, "LtEq": operator.le}
    return bool(compare[one.operator](AMOUNTS[has], AMOUNTS[one.values[0]]))


@given(classes(), PROPERTIES)
def test_matching_and_priority(every: list[ResourceClass], properties: dict[str, str]) -> None:
    expected = [
        one
        for one in every
        if any(all(naive(r, properties) for r in selector) for selector in one.selectors)
    ]
    assert [one for one in every if one.matches(properties)] == expected
    winners = classes_of(every, properties)
    highest = max((one.priority for one in expected), default=None)
    assert list(winners) == [one for one in expected if one.priority == highest]
    assert len({one.priority for one in every}) < len(every) or len(winners) <= 1


@given(classes())
def test_a_class_is_read_as_it_was_written(every: list[ResourceClass]) -> None:
    for one in every:
        assert class_from_api(class_to_api(one)) == one


DOCUMENT = """
kind: ResourceClass
metadata: {name: nvidia.high.mem}
spec:
  labelSelector:
  - matchExpressions:
    - {key: "Kind", operator: "In", values: ["nvidia-gpu"]}
    - {key: "memory", operator: "GtEq", values: ["30G"]}
"""
RESOURCE = """
kind: ComputeResource
metadata: {name: node-1-gpu-12h8x}
spec:
  nodeName: node-1
  resourceName: nvidia.com/gpu
  properties: {gpuType: K80, memory: 8G}
"""


def test_the_example_of_the_proposal() -> None:
    one = class_from_api(yaml.safe_load(DOCUMENT))
    small = compute_resource_from_api(yaml.safe_load(RESOURCE))
    assert small.all_properties["Kind"] == "nvidia-gpu"
    assert not one.matches(small.all_properties)
    assert one.matches({**small.all_properties, "memory": "32G"})
    # 30G is more than 28Gi.
    assert not one.matches({**small.all_properties, "memory": "27Gi"})
    assert one.matches({**small.all_properties, "memory": "28Gi"})
    written = compute_resource_to_api(small)
    assert compute_resource_from_api(written) == small


def changed(path: str, value: object, text: str = DOCUMENT) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load(text)
    holder: Any = manifest
    *outer, last = path.split(".")
    for key in outer:
        holder = holder[int(key) if key.isdecimal() else key]
    holder[int(last) if last.isdecimal() else last] = value
    return manifest


FIRST = "spec.labelSelector.0.matchExpressions.0"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("metadata.name", "", "metadata.name: Required value"),
        ("metadata.name", "GPU", 'metadata.name: Invalid value: "GPU": a lowercase RFC 1123'),
        ("metadata.name", "memory", "is the name of a resource that every node has"),
        ("metadata.name", "hugepages-2Mi", "is the name of a resource that every node has"),
        ("metadata.name", "a" * 64, "must be no more than 63 bytes"),
        ("spec", [], "spec: must be a mapping"),
        ("spec.selector", [], "spec.selector: unknown field; there are labelSelector, priority"),
        ("spec.priority", "high", "spec.priority: must be an integer"),
        ("spec.priority", True, "spec.priority: must be an integer"),
        ("spec.priority", 10**30, "spec.priority: Invalid value: 1000"),
        ("spec.labelSelector", {}, "spec.labelSelector: must be a list"),
        ("spec.labelSelector.0", {}, r"spec.labelSelector\[0\].matchExpressions: Required value"),
        (f"{FIRST}.key", None, r"matchExpressions\[0\].key: Required value"),
        (f"{FIRST}.key", "a b", r"matchExpressions\[0\].key: Invalid value"),
        (f"{FIRST}.operator", "Eq", r'operator: Unsupported value: "Eq": supported values: "In"'),
        (f"{FIRST}.operator", "Exists", r"values: Forbidden: may not be specified when"),
        (f"{FIRST}.values", [], r"values: Required value: must be specified when"),
        (f"{FIRST}.values", [8], r"values\[0\]: must be a string \(quote it\)"),
        (f"{FIRST}.operator", "Gt", r"values\[0\]: Invalid value: 'nvidia-gpu': quantities must"),
        ("spec.labelSelector.0.matchExpressions.1.values", ["1", "2"], "must have one value when"),
        (
            "spec.provisionConfig",
            {"resourceType": "NODE"},
            'resourceType: Unsupported value: "NODE"',
        ),
        ("spec.provisionConfig", {"provisionSeconds": -1}, "provisionSeconds: Invalid value: -1"),
        ("spec.provisionConfig", {"capacityNodeLabelKeys": ["/"]}, r"Keys\[0\]: Invalid value"),
    ],
)
def test_what_is_refused_in_a_class(path: str, value: object, said: str) -> None:
    with pytest.raises(ClassError, match=said):
        class_from_api(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.resourceName", None, "spec.resourceName: Required value"),
        ("spec.resourceName", "a/b/c", "spec.resourceName: Invalid value"),
        ("spec.nodeName", "No_de", "spec.nodeName: Invalid value"),
        ("spec.properties", {"memory": 8}, r"spec.properties\[memory\]: must be a string"),
        ("spec.properties", {f"k{i}": "" for i in range(65)}, "spec.properties: Too many: 65"),
        ("spec.devices", "gpu-0", "spec.devices: must be a list"),
        ("status", {"capacity": "many"}, "status.capacity: Invalid value"),
    ],
)
def test_what_is_refused_in_a_compute_resource(path: str, value: object, said: str) -> None:
    with pytest.raises(ClassError, match=said):
        compute_resource_from_api(changed(path, value, RESOURCE))


@pytest.mark.parametrize("read", [class_from_api, compute_resource_from_api])
def test_another_version_is_refused(read: Callable[[Mapping[str, Any]], object]) -> None:
    manifest = {"apiVersion": "pinfold.dev/v1", "metadata": {"name": "a"}}
    with pytest.raises(ClassError, match=r"unknown version .*; there is pinfold\.dev/v1alpha1"):
        read(manifest)


def test_short_names_become_names_of_resources() -> None:
    container = {"resources": {"limits": {"gpu-gold": 1, "cpu": 2}, "requests": {"gpu-gold": 1}}}
    pod = {"spec": {"containers": [container, {"name": "plain"}], "initContainers": None}}
    assert unknown_names(pod, ()) == {"gpu-gold"}
    assert unknown_names(pod, ("gpu-gold",)) == set()
    assert with_class_resources(pod, ()) is pod
    [first, second] = with_class_resources(pod, {"gpu-gold"})["spec"]["containers"]
    assert first["resources"] == {
        "limits": {"class.pinfold.dev/gpu-gold": 1, "cpu": 2},
        "requests": {"class.pinfold.dev/gpu-gold": 1},
    }
    assert second == {"name": "plain"}
    assert container["resources"]["limits"] == {"gpu-gold": 1, "cpu": 2}
    assert with_class_quotas({"gpu-gold": "4", "gpu-iron": "1"}, {"gpu-gold"}) == {
        "requests.class.pinfold.dev/gpu-gold": "4",
        "gpu-iron": "1",
    }


def test_an_autoscaler_learns_whether_to_wait() -> None:
    provision = ProvisionConfig(NODELEVEL, ("gpus.k80", "gpus.p100"), 300)
    one = ResourceClass("gpu", provision=provision)
    labels = {"gpus.k80": "2", "gpus.p100": "2", "zone": "a"}
    assert readiness(one, {}, 0, 10).state == NOT_HERE
    waiting = readiness(one, labels, 1, 60)
    assert (waiting.state, waiting.expected, waiting.exported, waiting.wait) == (COMING, 4, 1, 240)
    assert readiness(one, labels, 4, 10**6).state == READY
    assert readiness(one, labels, 3, 300).state == NOT_VIABLE
    unbounded = ResourceClass("gpu", provision=ProvisionConfig(NODELEVEL, ("gpus.k80",)))
    assert readiness(unbounded, {"gpus.k80": "2"}, 0, 10**6).state == COMING
    assert readiness(unbounded, {"gpus.k80": "many"}, 0, 1).state == NOT_HERE
    assert readiness(unbounded, {}, 2, 1).state == READY
    cluster = ResourceClass("ip", provision=ProvisionConfig(CLUSTERLEVEL))
    assert readiness(cluster, {}, 0, 1).state == READY

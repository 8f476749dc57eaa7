"""Classes as objects of DRA: nothing is lost on the way back, and the same devices are meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.core.classes.api import (
    class_from_api,
    class_to_api,
    compute_resource_from_api,
    compute_resource_to_api,
)
from pinfold.core.classes.compute_resource import ComputeResource
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
from pinfold.core.dra.convert import to_classes, to_dra
from pinfold.core.dra.objects import ConvertError, Located
from pinfold.core.values.quantity import Format, Quantity
from tests.scenes.dra_rules import device_of, selects

Manifest = Mapping[str, Any]

KEYS = st.sampled_from(
    ["Kind", "memory", "gpuType", "in", "example.com/model", "memory-size", "gpu.io/x", "pf_x", "7"]
)
AMOUNTS = ["8G", "8Gi", "8000M", "30G", "500m", "0", "1e3", "-1"]
VALUES = st.sampled_from([*AMOUNTS, "K80", "nvidia-gpu", "", 'a"b\\c\n', "true", "ä𝄞"])
PROPERTIES = st.dictionaries(KEYS, VALUES, max_size=4)
DRIVERS = st.sampled_from(["pinfold.dev", "gpu.io"])


@st.composite
def requirements(draw: st.DrawFn) -> Requirement:
    chosen = draw(st.sampled_from(OPERATORS))
    if chosen in PRESENCE:
        return Requirement(draw(KEYS), chosen)
    if chosen in ORDER:
        return Requirement(draw(KEYS), chosen, (draw(st.sampled_from(AMOUNTS)),))
    return Requirement(draw(KEYS), chosen, tuple(draw(st.lists(VALUES, min_size=1, max_size=3))))


@st.composite
def classes(draw: st.DrawFn) -> list[ResourceClass]:
    selectors = st.lists(st.lists(requirements(), min_size=1, max_size=3).map(tuple), max_size=3)
    provision = st.builds(
        ProvisionConfig,
        st.sampled_from([CLUSTERLEVEL, NODELEVEL]),
        st.lists(st.sampled_from(["a", "b.c/d"]), max_size=2).map(tuple),
        st.none() | st.integers(0, 600),
    )
    return [
        ResourceClass(f"c{at}", tuple(draw(selectors)), draw(st.integers(-1, 2)), draw(provision))
        for at in range(draw(st.integers(1, 4)))
    ]


@st.composite
def compute_resources(draw: st.DrawFn) -> list[ComputeResource]:
    found = []
    for at in range(draw(st.integers(1, 3))):
        ids = draw(
            st.lists(
                st.sampled_from(["gpu-0", "0", "GPU-6f.3", "a/b", "x" * 80]),
                unique=True,
                max_size=4,
            )
        )
        count = draw(st.integers(1, 300))
        found.append(
            ComputeResource(
                f"r{at}",
                draw(st.sampled_from(["", "node-1", "n" * 70])),
                draw(st.sampled_from(["nvidia.com/gpu", f"{'long.' * 20}io/nic"])),
                draw(PROPERTIES) | draw(st.dictionaries(st.just("nodeName"), VALUES)),
                draw(st.none() | st.just(Quantity(len(ids)))) if ids else Quantity(count),
                tuple(ids),
            )
        )
    return found


def located(manifests: Sequence[Manifest]) -> list[Located]:
    return [Located(f"objects[{at}]", manifest) for at, manifest in enumerate(manifests)]


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] == kind]


@settings(max_examples=300)
@given(known=classes(), driver=DRIVERS, says_driver=st.booleans())
def test_classes_come_back_as_they_were(
    *, known: list[ResourceClass], driver: str, says_driver: bool
) -> None:
    there = to_dra(located([class_to_api(one) for one in known]), driver)
    assert there.lost == ()
    back = to_classes(located(there.objects), driver if says_driver else None)
    assert back.lost == ()
    assert [class_from_api(one) for one in back.objects] == known


@settings(max_examples=200)
@given(compute_resources(), DRIVERS)
def test_compute_resources_come_back_as_they_were(
    known: list[ComputeResource], driver: str
) -> None:
    there = to_dra(located([compute_resource_to_api(one) for one in known]), driver)
    back = to_classes(located(there.objects))
    assert back.lost == ()
    assert [compute_resource_from_api(one) for one in back.objects] == known
    for one in there.objects:
        spec = one["spec"]
        assert 0 < len(spec["devices"]) <= 128
        for device in spec["devices"]:
            assert len(device["name"]) <= 63
            assert len(device["attributes"]) + len(device.get("capacity", {})) <= 32


@settings(max_examples=400)
@given(classes(), PROPERTIES, DRIVERS)
def test_the_same_devices_are_selected_priorities_included(
    known: list[ResourceClass], properties: dict[str, str], driver: str
) -> None:
    resource = ComputeResource("r", "n", "nvidia.com/gpu", properties, Quantity(1), ("d",))
    manifests = [compute_resource_to_api(resource), *(class_to_api(one) for one in known)]
    converted = to_dra(located(manifests), driver)
    objects = converted.objects
    (device,) = of_kind(objects, "ResourceSlice")[0]["spec"]["devices"]
    seen = device_of(driver, device, ("example.com", "gpu.io"))
    selected = [
        one["metadata"]["name"] for one in of_kind(objects, "DeviceClass") if selects(one, seen)
    ]
    of_nodes = [one for one in known if not one.is_cluster_level]
    of_cluster = [one for one in known if one.is_cluster_level]
    having = classes_of(of_nodes, resource.all_properties)
    others = classes_of(of_cluster, resource.all_properties)
    assert selected == [one.name for one in known if one in having or one in others]
    assert len([note for note in converted.lost if "had nothing of it" in note]) == len(others)


@given(classes())
def test_devices_of_other_drivers_are_never_selected(known: list[ResourceClass]) -> None:
    objects = to_dra(located([class_to_api(one) for one in known])).objects
    other = device_of("other.io", {}, ("pinfold.dev", "example.com", "gpu.io"))
    assert not any(selects(one, other) for one in objects)


BY_DRIVER = st.sampled_from(
    [
        'device.driver == "d.io"',
        'device.driver != "d.io"',
        'device.driver in ["d.io", "e.io"]',
        '!(device.driver in ["e.io"])',
    ]
)
BY_MODEL = st.sampled_from(
    [
        "true",
        '!("model" in device.attributes["d.io"] && device.attributes["d.io"].model == "x")',
        '"model" in device.attributes["d.io"] && device.attributes["d.io"].model == "x"',
        '"model" in device.attributes["e.io"]',
    ]
)


@given(
    BY_DRIVER,
    BY_MODEL,
    st.sampled_from([" && ", " || "]),
    st.lists(st.sampled_from(["", "x", "y"]), min_size=3, max_size=3),
    st.sampled_from(["d.io", "e.io", None]),
)
def test_classes_of_others_select_the_devices_of_the_same_drivers(
    by_driver: str, by_model: str, joint: str, models: list[str], driver: str | None
) -> None:
    drivers = ("d.io", "e.io", "f.io")
    text = f"({by_driver}){joint}({by_model})"
    one = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "c"},
        "spec": {"selectors": [{"cel": {"expression": text}}]},
    }
    devices = [
        {"name": "d", "attributes": {"model": {"string": model}} if model else {}}
        for model in models
    ]
    slices = [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": {
                "driver": name,
                "allNodes": True,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "devices": [device],
            },
        }
        for name, device in zip(drivers, devices, strict=True)
    ]
    wanted = [
        selects(one, device_of(name, device, drivers))
        for name, device in zip(drivers, devices, strict=True)
    ]
    back = to_classes(located([one, *slices]), driver).objects
    known = class_from_api(back[0])
    found = [compute_resource_from_api(each).all_properties for each in back[1:]]
    assert [known.matches(properties) for properties in found] == wanted


def test_amounts_keep_their_text() -> None:
    resource = ComputeResource(
        "r", "n", "a.b/c", {}, Quantity(2048, 0, Format.BINARY_SI), ("d0", "d1")
    )
    there = to_dra(located([compute_resource_to_api(resource)]))
    (back,) = to_classes(located(there.objects)).objects
    assert back["status"] == {"capacity": "2Ki"}


@pytest.mark.parametrize("driver", ["", "A.io", "a/b", "a" * 64])
def test_a_driver_has_a_drivers_name(driver: str) -> None:
    with pytest.raises(ConvertError, match="driver: "):
        to_dra((), driver)

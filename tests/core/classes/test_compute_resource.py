"""Compute resources: their names, and how a node's resources are told apart."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.classes.compute_resource import (
    KIND,
    Properties,
    common_properties,
    compute_resource_name,
    device_resources,
    machine_resources,
)
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.names import LONGEST_SUBDOMAIN, subdomain_problems

TEXTS = st.text(max_size=8)
NODES = st.one_of(st.just(""), st.from_regex(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", fullmatch=True))
RESOURCES = st.one_of(
    st.sampled_from(["cpu", "a.b/c", "a.b-c", "a/B_x", "a._b/c._d", "x/" + "y" * 63]),
    st.from_regex(r"[a-z]{1,4}\.(com|org)/[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", fullmatch=True),
)
PROPERTIES = st.dictionaries(TEXTS, TEXTS, max_size=3)
INPUTS = st.tuples(NODES, RESOURCES, PROPERTIES)


@given(st.lists(INPUTS, min_size=2, max_size=6))
def test_names_are_valid_and_differ_where_anything_does(
    inputs: list[tuple[str, str, Properties]],
) -> None:
    names: dict[str, object] = {}
    for node, resource, properties in inputs:
        name = compute_resource_name(node, resource, properties)
        assert list(subdomain_problems(name)) == []
        key = (node, resource, tuple(sorted(properties.items())))
        assert names.setdefault(name, key) == key


def test_what_is_cut_is_in_the_hash() -> None:
    long = "n" * 240
    one, other = (compute_resource_name(long, f"example.com/{'d' * 60}{c}", {}) for c in "ab")
    assert one != other
    assert one[:-17] == other[:-17]
    assert len(one) == len(other) == LONGEST_SUBDOMAIN


def test_a_name_tells_node_and_resource() -> None:
    name = compute_resource_name("node-1", "nvidia.com/gpu", {"gpuType": "K80", "memory": "8G"})
    assert name.startswith("node-1-nvidia.com-gpu-")
    moved = compute_resource_name("node-1", "nvidia.com/gpu", {"memory": "8G", "gpuType": "K80"})
    assert name == moved
    assert not compute_resource_name("", "nvidia.com/gpu", {}).startswith("-")


@given(st.dictionaries(RESOURCES, st.dictionaries(TEXTS, PROPERTIES, max_size=6), max_size=3))
def test_each_device_is_in_one_compute_resource_with_its_likes(
    resources: dict[str, dict[str, Properties]],
) -> None:
    made = list(device_resources("n", resources))
    found = Counter((one.resource_name, id_) for one in made for id_ in one.devices)
    assert found == Counter((name, id_) for name, ids in resources.items() for id_ in ids)
    assert len({one.name for one in made}) == len(made)
    for one in made:
        assert one.capacity is not None
        assert one.capacity.value() == len(one.devices)
        assert all(resources[one.resource_name][id_] == one.properties for id_ in one.devices)


def test_what_a_machine_has() -> None:
    machine = parse_short_form("1s2n4c2t@8Gi")
    found = {
        (one.all_properties[KIND], one.properties.get("numaNode")): one
        for one in machine_resources("n", machine)
    }
    assert set(found) == {("cpu", None), ("numa-node", "0"), ("numa-node", "1")}
    assert str(found["cpu", None].capacity) == "8"
    assert {str(found["numa-node", node].capacity) for node in "01"} == {"8Gi"}


def test_what_is_said_wins_over_what_is_common() -> None:
    assert common_properties("", "nvidia.com/gpu", {}) == {
        KIND: "nvidia-gpu",
        "resourceName": "nvidia.com/gpu",
    }
    assert common_properties("n", "cpu", {KIND: "core"})[KIND] == "core"

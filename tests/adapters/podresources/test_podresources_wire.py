"""The bytes of podresources, read without our definitions: numbers and wire types as published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.podresources import messages
from pinfold.adapters.podresources import podresources_pb2 as v1
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.podresources import (
    AllocatableResources,
    ContainerDevices,
    ContainerMemory,
    ContainerResources,
    PodResources,
)
from tests.scenes.podresources_world import fields, numbers

POD = PodResources(
    namespace="prod",
    name="web",
    containers=(
        ContainerResources("side", restartable_init=True),
        ContainerResources(
            "main",
            CPUSet([2, 3, 300]),
            devices=(
                ContainerDevices("example.com/nic", ("a", "b"), (0, 1)),
                ContainerDevices("example.com/usb", ("u",)),
            ),
            memory=(ContainerMemory("memory", 1 << 40, (0,)), ContainerMemory("hugepages-2Mi", 0)),
        ),
    ),
)


def test_a_list_is_what_the_kubelet_sends() -> None:
    assert messages.list_response([]).SerializeToString() == b""
    ((number, pod),) = fields(messages.list_response([POD]).SerializeToString())
    assert number == 1
    (name, namespace, side, main) = fields(pod)
    assert (name, namespace) == ((1, b"web"), (2, b"prod"))
    # A container without anything has a name and nothing else: no empty lists, no zeros.
    assert side == (3, b"\x0a\x04side")
    assert main[0] == 3
    parts = fields(main[1])
    assert [number for number, _ in parts] == [1, 2, 2, 3, 4, 4]
    assert parts[0][1] == b"main"
    assert fields(parts[1][1]) == [
        (1, b"example.com/nic"),
        (2, b"a"),
        (2, b"b"),
        # NUMA node 0 is an empty message, and is there.
        (3, b"\x0a\x00\x0a\x02\x08\x01"),
    ]
    assert fields(parts[2][1]) == [(1, b"example.com/usb"), (2, b"u")]
    assert numbers(parts[3][1]) == [2, 3, 300]
    assert fields(parts[4][1]) == [(1, b"memory"), (2, 1 << 40), (3, b"\x0a\x00")]
    assert fields(parts[5][1]) == [(1, b"hugepages-2Mi"), (3, b"")]


def test_what_a_pod_has_as_a_whole_is_beside_its_containers() -> None:
    whole = replace(
        POD, cpus=CPUSet([0, 1, 200]), memory=(ContainerMemory("memory", 1 << 33, (0, 1)),)
    )
    ((_, pod),) = fields(messages.list_response([whole]).SerializeToString())
    parts = fields(pod)
    assert [number for number, _ in parts] == [1, 2, 3, 3, 4, 5]
    assert numbers(parts[4][1]) == [0, 1, 200]
    assert fields(parts[5][1]) == [
        (1, b"memory"),
        (2, 1 << 33),
        (3, b"\x0a\x00\x0a\x02\x08\x01"),
    ]
    # Nothing else of the message is another one.
    ((_, without),) = fields(messages.list_response([POD]).SerializeToString())
    assert fields(without) == parts[:4]


def test_get_wraps_one_pod() -> None:
    (one,) = fields(messages.get_response(POD).SerializeToString())
    assert one[0] == 1
    assert one[1] == fields(messages.list_response([POD]).SerializeToString())[0][1]


def test_allocatable_has_numbers_of_its_own() -> None:
    resources = AllocatableResources(
        CPUSet([1, 128]),
        (ContainerDevices("example.com/nic", ("a",), ()),),
        (ContainerMemory("memory", 4096, (1,)),),
    )
    found = fields(messages.allocatable_response(resources).SerializeToString())
    assert found == [
        (1, b"\x0a\x0fexample.com/nic\x12\x01a\x1a\x00"),
        (2, b"\x01\x80\x01"),
        (3, b"\x0a\x06memory\x10\x80\x20\x1a\x04\x0a\x02\x08\x01"),
    ]
    assert messages.allocatable_response(AllocatableResources()).SerializeToString() == b""


def test_v1alpha1_tells_of_devices_and_not_of_sidecars() -> None:
    ((_, pod),) = fields(messages.alpha_list_response([POD]).SerializeToString())
    (name, namespace, main) = fields(pod)
    assert (name, namespace, main[0]) == ((1, b"web"), (2, b"prod"), 3)
    assert fields(main[1]) == [
        (1, b"main"),
        (2, b"\x0a\x0fexample.com/nic\x12\x01a\x12\x01b"),
        (2, b"\x0a\x0fexample.com/usb\x12\x01u"),
    ]


@pytest.mark.parametrize("packed", [True, False])
def test_a_request_from_go_is_understood(packed: bool) -> None:
    request = v1.GetPodResourcesRequest.FromString(b"\x0a\x03web\x12\x04prod")
    assert (request.pod_name, request.pod_namespace) == ("web", "prod")
    # Readers may have lists of numbers packed or not; ours takes both, as proto3 asks.
    data = b"\x1a\x02\x02\x03" if packed else b"\x18\x02\x18\x03"
    assert list(v1.ContainerResources.FromString(data).cpu_ids) == [2, 3]


def test_what_a_newer_reader_or_server_adds_does_no_harm() -> None:
    request = v1.GetPodResourcesRequest.FromString(b"\x0a\x03web\xf8\x01\x07\x12\x04prod")
    assert (request.pod_name, request.pod_namespace) == ("web", "prod")


@given(st.frozensets(st.integers(0, 4095), max_size=300))
def test_any_set_of_cpus_comes_through_sorted(cpus: frozenset[int]) -> None:
    pod = PodResources("n", "p", (ContainerResources("c", CPUSet(cpus)),))
    data = messages.list_response([pod]).SerializeToString()
    container = dict(fields(dict(fields(fields(data)[0][1]))[3]))
    assert numbers(container.get(3, b"")) == sorted(cpus)

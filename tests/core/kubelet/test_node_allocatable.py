"""What is left of a machine for pods; the kubelet's record is replayed by the vector runner."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.kubelet.eviction import SIGNALS, EvictionError, parse_thresholds
from pinfold.core.kubelet.node_allocatable import (
    AllocatableError,
    MachineCapacity,
    allocatable_reservation,
    check_allocatable,
    enforced_limits,
    node_allocatable,
    node_capacity,
    parse_reserved,
    pods_cgroup,
    reservation,
    reserved_cpu_count,
)
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity

GIB = 2**30
MACHINE = MachineCapacity(
    cpus=8,
    memory_bytes=16 * GIB,
    hugepages={2 << 20: 512, GIB: 2},
    ephemeral_storage=Quantity.parse("100Gi"),
    pids=32768,
)
CONFIG = NodeConfig(
    kube_reserved=parse_reserved({"cpu": "500m", "memory": "1Gi", "pid": "1000"}),
    system_reserved=parse_reserved({"cpu": "1", "ephemeral-storage": "1Gi"}),
)


def texts(resources: dict[str, Quantity]) -> dict[str, str]:
    return {name: quantity.canonical() for name, quantity in resources.items()}


def test_an_ordinary_node() -> None:
    assert texts(node_capacity(MACHINE, CONFIG)) == {
        "cpu": "8",
        "memory": "16Gi",
        "hugepages-2Mi": "1Gi",
        "hugepages-1Gi": "2Gi",
        "ephemeral-storage": "100Gi",
        "pods": "110",
    }
    left = texts(node_allocatable(MACHINE, CONFIG))
    assert left["cpu"] == "6500m"
    assert left["memory"] == "12188Mi"  # 16Gi - 1Gi reserved - 100Mi threshold - 3Gi of pages
    assert left["hugepages-1Gi"] == "2Gi"
    assert left["pods"] == "110"
    assert texts(enforced_limits(MACHINE, CONFIG))["pid"] == "31768"
    cgroup, pids = pods_cgroup(MACHINE, CONFIG)
    assert (cgroup.cpu_shares, cgroup.memory, pids) == (6656, 15 * GIB, 31768)
    assert cgroup.hugepage_limits == {2 << 20: GIB, GIB: 2 * GIB}


def test_reserved_cpus_outrank_both_reservations() -> None:
    config = NodeConfig(
        kube_reserved=parse_reserved({"cpu": "3"}),
        system_reserved=parse_reserved({"cpu": "2"}),
        reserved_system_cpus=CPUSet([0, 4]),
    )
    assert texts(reservation(config)) == {"cpu": "2"}
    assert reserved_cpu_count(config) == 2


def test_reserved_cpus_add_up_as_the_document_says_that_proposed_them() -> None:
    config = NodeConfig(
        kube_reserved=parse_reserved({"cpu": "500m"}),
        system_reserved=parse_reserved({"cpu": "3"}),
        reserved_system_cpus=CPUSet([1, 9]),
    )
    machine = MachineCapacity(cpus=16, memory_bytes=16 * GIB, hugepages={})
    assert texts(node_allocatable(machine, config))["cpu"] == "14"
    added = replace(config, reserved_cpus_add_up=True)
    # 16X1000m - len(1,9)X1000m - 500m
    assert node_allocatable(machine, added)["cpu"].milli_value() == 13_500
    # Those that are named are the ones that are never exclusive.
    assert reserved_cpu_count(added) == reserved_cpu_count(config) == 2


@pytest.mark.parametrize(
    ("kube", "system", "count"),
    [("1", "1", 2), ("500m", "400m", 1), ("1", "1m", 2), ("2", "0", 2)],
)
def test_the_static_policy_reserves_whole_cpus(kube: str, system: str, count: int) -> None:
    config = NodeConfig(
        kube_reserved=parse_reserved({"cpu": kube}),
        system_reserved=parse_reserved({"cpu": system}),
    )
    assert reserved_cpu_count(config) == count


def test_the_static_policy_needs_a_reservation() -> None:
    with pytest.raises(AllocatableError, match="unable to determine reserved CPU resources"):
        reserved_cpu_count(NodeConfig())
    with pytest.raises(AllocatableError, match="to be greater than zero"):
        reserved_cpu_count(NodeConfig(kube_reserved=parse_reserved({"cpu": "0"})))


def test_more_reserved_than_there_is() -> None:
    config = NodeConfig(kube_reserved=parse_reserved({"cpu": "9", "memory": "1Gi"}))
    check_allocatable(MACHINE, CONFIG)
    with pytest.raises(
        AllocatableError,
        match=r"^invalid Node Allocatable configuration\. Resource \"cpu\" has a reservation of 9 ",
    ):
        check_allocatable(MACHINE, config)
    assert texts(node_allocatable(MACHINE, config))["cpu"] == "0"


def test_thresholds_are_32_bit_shares() -> None:
    config = NodeConfig(eviction_hard={"memory.available": "5%", "nodefs.available": "10%"})
    withheld = allocatable_reservation(MACHINE, config)
    [share] = struct.unpack("<f", struct.pack("<f", 0.05))
    assert withheld["memory"].value() == int(16 * GIB * share) != int(16 * GIB * 0.05)
    with pytest.raises(AllocatableError, match="evictionHard: unsupported eviction signal disk"):
        node_allocatable(MACHINE, NodeConfig(eviction_hard={"disk": "1Gi"}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1e39%", 'strconv.ParseFloat: parsing "1e39": value out of range'),
        ("Inf%", "must be <= 100%: Inf%"),
        ("-inf%", "must be >= 0%: -inf%"),
        ("1_0%", "invalid syntax"),
        ("0x1p-2", "quantities must match"),
        ("9" * 5000 + "%", "invalid syntax"),
    ],
)
def test_odd_thresholds(text: str, words: str) -> None:
    with pytest.raises(EvictionError) as caught:
        parse_thresholds({"memory.available": text})
    assert words in str(caught.value)[:600]


def test_odd_numbers_that_go_reads() -> None:
    [threshold] = parse_thresholds({"memory.available": "0x1p-2%"})
    assert threshold.percentage == pytest.approx(0.0025)
    assert threshold.of(1000).value() == 2


@given(st.dictionaries(st.sampled_from(SIGNALS) | st.text(max_size=4), st.text(max_size=8)))
def test_any_thresholds_are_read_or_refused(eviction_hard: dict[str, str]) -> None:
    try:
        thresholds = parse_thresholds(eviction_hard)
    except EvictionError:
        thresholds = ()
    assert [t.signal for t in thresholds] == sorted({t.signal for t in thresholds})


AMOUNTS = st.integers(0, 40_000).map(lambda milli: f"{milli}m")
RESERVED = st.dictionaries(st.sampled_from(["cpu", "memory", "pid"]), AMOUNTS).map(parse_reserved)


@given(RESERVED, RESERVED, st.integers(0, 100), st.integers(0, 4))
def test_allocatable_is_between_nothing_and_capacity(
    kube: dict[str, Quantity], system: dict[str, Quantity], percent: int, reserved: int
) -> None:
    config = NodeConfig(
        kube_reserved=kube,
        system_reserved=system,
        eviction_hard={"memory.available": f"{percent}%"},
        reserved_system_cpus=CPUSet(range(reserved)),
    )
    capacity, left = node_capacity(MACHINE, config), node_allocatable(MACHINE, config)
    assert left.keys() == capacity.keys()
    for name, quantity in left.items():
        assert Quantity(0) <= quantity <= capacity[name]
    if reserved:
        assert left["cpu"] == Quantity(8 - reserved)

"""The machine value and its document."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import Cpu, HugepagePool, Machine, NUMANode, Socket
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.published_schemas import machine_document
from tests.scenes.sysfs_trees import cpu_files, machine, plain


@given(st.sets(st.integers(0, 20), min_size=1), st.sets(st.integers(0, 20)))
def test_sets_of_a_machine(present: set[int], chosen: set[int]) -> None:
    made = Machine(
        name="x",
        source="test",
        cpus=tuple(
            Cpu(cpu, online=cpu in chosen, isolated=cpu % 2 == 0) for cpu in sorted(present)
        ),
        numa_nodes=(),
        sockets=(),
        cores=(),
    )
    assert made.online | made.offline == CPUSet(present)
    assert made.online == CPUSet(present & chosen)
    assert made.isolated == CPUSet(cpu for cpu in present if cpu % 2 == 0)


def test_machines_compare_by_value() -> None:
    assert machine(plain(3)) == machine(plain(3))
    assert machine(plain(3)) != machine(plain(3, online="0-1"))


def test_a_machine_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        setattr(machine(plain(1)), "name", "y")  # noqa: B010 - what the type checker forbids


def test_document_is_json_and_versioned() -> None:
    files = plain(3, online="0,2") | {
        "sys/devices/system/cpu/isolated": "2\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "7\n",
        "sys/bus/pci/devices/0000:00:01.0/class": "0x010802\n",
    }
    document = machine_document(machine(files))
    assert json.loads(json.dumps(document)) == document
    assert document["version"] == 1
    assert document["isolated"] == "2"
    assert document["hugepages_machine"] == {"2097152": {"total": 7, "free": 7}}
    assert document["pci"] == [
        {"address": "0000:00:01.0", "class": "0x010802", "numa_node": -1, "local_cpus": None}
    ]
    assert document["cpus"][1] == {"cpu": 1, "online": False}
    assert document["cpus"][2]["isolated"] is True
    assert "isolated" not in document["cpus"][0]
    assert "allowed" not in document["cpus"][0]


def test_document_of_a_machine_that_no_kubelet_sees() -> None:
    files = plain(2)
    for cpu in range(2):
        del files[f"sys/devices/system/cpu/cpu{cpu}/topology/core_id"]
    document = machine_document(machine(files))
    kubelet = document["kubelet"]
    assert (kubelet["num_cpus"], kubelet["num_cores"], kubelet["num_sockets"]) == (0, 0, 1)
    assert kubelet["machine_nodes"] == [0]
    assert "sees no CPU" in kubelet["notes"][0]
    assert {row["kubelet_core"] for row in document["cpus"]} == {None}
    assert [row["core"] for row in document["cpus"]] == [0, 1]


def test_document_takes_a_view_that_is_there() -> None:
    found = machine(plain(2))
    assert machine_document(found, kubelet_view(found)) == machine_document(found)


def test_unknown_sockets_are_null() -> None:
    document = machine_document(machine(cpu_files(0, package=-1, core_siblings="1")))
    assert document["sockets"] == [{"id": None, "cpus": "0"}]
    assert document["cpus"][0]["socket"] is None
    assert document["cpus"][0]["kubelet_socket"] == -1


def test_several_nodes_of_a_cpu_are_told_where_nodes_do_not_tell() -> None:
    made = Machine(
        name="x",
        source="hwloc-xml",
        cpus=(Cpu(0, core=0, socket=0, numa=0, numa_all=(0, 1)),),
        numa_nodes=(NUMANode(0, CPUSet([0])), NUMANode(1, CPUSet([0]))),
        sockets=(Socket(0, CPUSet([0])),),
        cores=(CPUSet([0]),),
    )
    assert machine_document(made)["cpus"][0]["numa_all"] == [0, 1]


def test_hugepages_ascend_by_size() -> None:
    pools = {1 << 30: HugepagePool(1, 0), 1 << 21: HugepagePool(2, 2)}
    document = machine_document(replace(machine(plain(1)), hugepages=pools))
    assert list(document["hugepages_machine"]) == ["2097152", "1073741824"]

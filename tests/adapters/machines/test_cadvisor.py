"""MachineInfo: the kubelet's view is given."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.machines.cadvisor import machine_from_cadvisor
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import HugepagePool, MachineError
from tests.roots import DATA, SHARED
from tests.scenes.published_schemas import machine_document

MACHINES = SHARED / "machines"
SAMPLES = DATA / "machines"
CAPTURED = [
    path
    for path in sorted([*SAMPLES.glob("*.json"), *MACHINES.glob("*.json")])
    if "kubelet" in json.loads(path.read_text())
]


def machine_info(truth: dict[str, Any]) -> dict[str, Any]:
    """The MachineInfo that cAdvisor would give of a machine, from what the kubelet sees of it."""
    cores: dict[int, dict[int, dict[str, Any]]] = {
        node: {} for node in truth["kubelet"]["machine_nodes"]
    }
    for row in truth["cpus"]:
        if row.get("kubelet_core") is None:
            continue
        socket, uncore = row["kubelet_socket"], row["kubelet_uncore"]
        core = cores[row["kubelet_numa"]].setdefault(
            row["kubelet_core"],
            {
                "core_id": row["core_id"],
                "thread_ids": [],
                "caches": [{"id": 0, "size": 32768, "type": "Data", "level": 1}],
                "uncore_caches": None
                if uncore == socket
                else [{"id": uncore, "size": 1 << 20, "type": "Unified", "level": 3}],
                "socket_id": socket,
            },
        )
        core["thread_ids"].append(row["cpu"])
    memory = {node["id"]: node["memory_bytes"] for node in truth["numa"]}
    return {
        "num_cores": sum(len(c["thread_ids"]) for node in cores.values() for c in node.values()),
        "num_sockets": truth["kubelet"]["num_sockets"],
        "memory_capacity": truth["memory_bytes"],
        "hugepages": [{"page_size": 2048, "num_pages": 3}],
        "machine_id": "",
        "topology": [
            {
                "node_id": node,
                "memory": memory.get(node) or 0,
                "hugepages": None,
                "cores": list(of_node.values()) or None,
                "caches": None,
                "distances": None,
            }
            for node, of_node in cores.items()
        ],
    }


def overlapping(truth: dict[str, Any]) -> bool:
    return any("several nodes" in note for note in truth["kubelet"]["notes"])


@pytest.mark.parametrize("path", CAPTURED, ids=lambda path: path.stem)
def test_the_kubelets_view_is_that_of_the_machine(path: Path) -> None:
    truth = json.loads(path.read_text())
    if not any(row.get("kubelet_core") is not None for row in truth["cpus"]):
        pytest.skip("the kubelet sees no CPU of it")
    found = machine_document(machine_from_cadvisor(machine_info(truth), name="it"))
    by_cpu = {row["cpu"]: row for row in found["cpus"]}
    for row in truth["cpus"]:
        if row.get("kubelet_core") is None:
            assert row["cpu"] not in by_cpu
            continue
        for field in ("kubelet_core", "kubelet_socket", "kubelet_numa", "kubelet_uncore"):
            assert by_cpu[row["cpu"]][field] == row[field], (row["cpu"], field)
    kubelet = truth["kubelet"]
    assert found["kubelet"]["machine_nodes"] == kubelet["machine_nodes"]
    counts = ["num_sockets", "num_numa_nodes", "num_uncore_caches"]
    # Overlapping nodes count CPUs twice; the rows of the truth have only the node that won.
    counts += [] if overlapping(truth) else ["num_cpus", "num_cores"]
    for field in counts:
        assert found["kubelet"][field] == kubelet[field], field


def small() -> dict[str, Any]:
    """Two nodes in a socket; the first with two uncore caches, the second with one of its own."""

    def core(core_id: int, cpus: list[int], cache: int | None) -> dict[str, Any]:
        uncore = [{"id": cache, "size": 1 << 24, "type": "Unified", "level": 3}]
        return {
            "core_id": core_id,
            "thread_ids": cpus,
            "uncore_caches": None if cache is None else uncore,
            "socket_id": 0,
        }

    return {
        "num_cores": 8,
        "num_sockets": 1,
        "memory_capacity": 3 << 30,
        "hugepages": [{"page_size": 2048, "num_pages": 12}],
        "topology": [
            {
                "node_id": 0,
                "memory": 1 << 30,
                "hugepages": [
                    {"page_size": 2048, "num_pages": 12},
                    {"page_size": 1048576, "num_pages": 1},
                ],
                "cores": [core(0, [0, 4], 5), core(1, [1, 5], 6)],
                "distances": [10, 12],
            },
            {
                "node_id": 1,
                "memory": 2 << 30,
                "cores": [core(2, [2, 6], None), core(3, [3, 7], None)],
                "caches": [{"id": 7, "size": 1 << 25, "type": "Unified", "level": 3}],
                "distances": [12, 10],
            },
        ],
    }


def test_the_hardware_is_derived() -> None:
    machine = machine_from_cadvisor(small(), name="it")
    assert [str(core) for core in machine.cores] == ["0,4", "1,5", "2,6", "3,7"]
    assert [(str(c.cpus), c.size, c.id) for c in machine.l3] == [
        ("0,4", 1 << 24, 5),
        ("1,5", 1 << 24, 6),
        ("2-3,6-7", 1 << 25, 7),
    ]
    assert [(s.id, str(s.cpus)) for s in machine.sockets] == [(0, "0-7")]
    first, second = machine.numa_nodes
    assert (str(first.cpus), first.memory_bytes) == ("0-1,4-5", 1 << 30)
    assert dict(first.hugepages) == {2 << 20: HugepagePool(12, 12), 1 << 30: HugepagePool(1, 1)}
    assert (str(second.cpus), second.memory_bytes) == ("2-3,6-7", 2 << 30)
    assert machine.distances is not None
    assert dict(machine.distances.rows) == {0: (10, 12), 1: (12, 10)}
    assert machine.memory_bytes == 3 << 30
    assert kubelet_view(machine).topology.num_uncore_caches == 3


def test_old_documents_without_socket_ids() -> None:
    info = small()
    for node in info["topology"]:
        for core in node["cores"]:
            del core["socket_id"]
    assert {cpu.socket for cpu in machine_from_cadvisor(info, name="it").cpus} == {0}
    with pytest.raises(MachineError, match="it: topology has no socket_id"):
        machine_from_cadvisor(info | {"num_sockets": 2}, name="it")


def test_cores_of_one_id_stay_apart() -> None:
    info = small()
    for node in info["topology"]:
        for core in node["cores"]:
            core["core_id"] = 0
    assert kubelet_view(machine_from_cadvisor(info, name="it")).topology.num_cores == 4


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"topology": []}, r"\$.topology"),
        ({"topology": None}, r"\$.topology"),
        ({"topology": [{}]}, "node_id"),
        ({"topology": [{"node_id": 0, "cores": [{"core_id": 0}]}]}, "thread_ids"),
        ({"topology": [{"node_id": 0}], "num_cores": 0}, "no CPU"),
        ({"num_cores": 9}, "num_cores is 9, but topology has 8 CPUs"),
        ({"topology": small()["topology"] * 2}, "NUMA node appears twice"),
        ({"hugepages": [{"page_size": -1}]}, r"\$.hugepages"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(MachineError, match=fault) as caught:
        machine_from_cadvisor(small() | change, name="it", file="info.json")
    assert str(caught.value).startswith("info.json: ")


def test_a_cpu_in_two_cores() -> None:
    info = small()
    info["topology"][0]["cores"][0]["thread_ids"] = [0, 1]
    with pytest.raises(MachineError, match="a CPU is in two cores of NUMA node 0"):
        machine_from_cadvisor(info, name="it")


SMALL_INTS = st.integers(-2, 5)
CORES = st.fixed_dictionaries(
    {"core_id": SMALL_INTS, "thread_ids": st.lists(st.integers(-1, 6), max_size=3)},
    optional={
        "socket_id": SMALL_INTS,
        "uncore_caches": st.lists(
            st.fixed_dictionaries({"level": SMALL_INTS}, optional={"id": SMALL_INTS}), max_size=2
        ),
    },
)
NODES = st.fixed_dictionaries(
    {"node_id": SMALL_INTS},
    optional={
        "cores": st.none() | st.lists(CORES, max_size=3),
        "memory": SMALL_INTS,
        "distances": st.lists(SMALL_INTS, max_size=3),
        "caches": st.lists(st.fixed_dictionaries({"level": SMALL_INTS}), max_size=1),
    },
)


@given(
    st.fixed_dictionaries(
        {"topology": st.lists(NODES, max_size=3)}, optional={"num_sockets": SMALL_INTS}
    )
)
def test_any_document_reads_or_is_refused(info: dict[str, Any]) -> None:
    with suppress(MachineError):
        machine = machine_from_cadvisor(info, name="it")
        machine_document(machine, kubelet_view(machine))

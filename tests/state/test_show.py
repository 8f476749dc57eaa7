"""State files as text for people."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from pinfold.core.values.cpuset import CPUSet
from pinfold.state.device_checkpoint import (
    NO_NUMA_NODE,
    DeviceManagerCheckpoint,
    PodDevicesEntry,
)
from pinfold.state.ledger import Ledger
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.restore import to_checkpoint
from pinfold.state.show import describe, describe_text
from pinfold.state.state_file import StateFile

MEMORY = (
    b'{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":'
    b'{"total":8589934592,"systemReserved":1073741824,"allocatable":7516192768,"reserved":3145728,'
    b'"free":1500}},"cells":[0,1]},"1":{"numberOfAssignments":0,"memoryMap":null,"cells":[1]}},'
    b'"entries":{"pod-a":{"main":[{"numaAffinity":[0,1],"type":"memory","size":3145728}]}},'
    b'"checksum":0}'
)
DEVICES = DeviceManagerCheckpoint(
    (
        PodDevicesEntry("pod-b", "main", "vendor.com/nic", {NO_NUMA_NODE: ("n1",)}, b""),
        PodDevicesEntry("pod-a", "main", "vendor.com/gpu", {1: ("g3",), 0: ("g2", "g1")}, b""),
        PodDevicesEntry("pod-a", "side", "vendor.com/gpu", None, b""),
    ),
    {"vendor.com/nic": ("n1", "n2"), "vendor.com/gpu": None},
)


def document(file: bytes) -> dict[str, Any]:
    """What is printed as JSON."""
    plain: dict[str, Any] = to_builtins(describe(StateFile.read(file), "file"))
    return plain


def head(file: bytes) -> dict[str, str]:
    """The lines above the table."""
    lines = describe_text(StateFile.read(file)).partition("\n\n")[0].splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_the_policy_is_told_and_that_none_is_named() -> None:
    for name, told in (("static", "static"), ("", "(none named)")):
        cpu = to_checkpoint(Ledger(name, CPUSet.parse("0-3"))).encode()
        assert head(cpu)["policy"] == told
        assert document(cpu)["policy"] == name
    memory = b'{"policyName":"%s","machineState":{},"entries":{},"checksum":0}'
    assert head(memory % b"Static")["policy"] == "Static"
    assert head(memory % b"")["policy"] == "(none named)"
    assert document(memory % b"")["policy"] == ""


def test_devices_by_pod_and_numa_node() -> None:
    file = DEVICES.encode()
    described = document(file)
    assert described["registered"] == {"vendor.com/gpu": [], "vendor.com/nic": ["n1", "n2"]}
    gpu, nic = "vendor.com/gpu", "vendor.com/nic"
    assert described["pods"] == [
        {
            "uid": "pod-a",
            "containers": [
                {"name": "main", "resource": gpu, "devices": {"0": ["g2", "g1"], "1": ["g3"]}},
                {"name": "side", "resource": gpu, "devices": {}},
            ],
        },
        {
            "uid": "pod-b",
            "containers": [{"name": "main", "resource": nic, "devices": {"-1": ["n1"]}}],
        },
    ]
    text = describe_text(StateFile.read(file))
    assert [line.split() for line in text.partition("\n\n")[2].splitlines()] == [
        ["POD", "CONTAINER", "RESOURCE", "NUMA", "DEVICES"],
        ["pod-b", "main", nic, "-", "n1"],
        ["pod-a", "main", gpu, "0", "g1,g2"],
        ["pod-a", "main", gpu, "1", "g3"],
    ]
    assert f"registered: {gpu}: 0 devices\nregistered: {nic}: 2 devices\n" in text
    head = [line.partition(":") for line in text.partition("\n\n")[0].splitlines()]
    columns = {len(name) + len(value) - len(value.lstrip()) for name, _, value in head}
    assert columns == {len("registered ")}, "all values begin in one column"


def test_memory_by_container_and_numa_node() -> None:
    file = MemoryManagerCheckpoint.parse(MEMORY).encode()
    described = document(file)
    assert described["pods"] == [
        {
            "uid": "pod-a",
            "containers": [
                {"name": "main", "blocks": [{"numa": [0, 1], "type": "memory", "size": 3 << 20}]}
            ],
        }
    ]
    node = {
        "id": 0,
        "assignments": 1,
        "group": [0, 1],
        "memory": {
            "memory": {
                "total": 8 << 30,
                "system_reserved": 1 << 30,
                "allocatable": 7 << 30,
                "reserved": 3 << 20,
                "free": 1500,
            }
        },
    }
    bare = {"id": 1, "assignments": 0, "group": [1], "memory": {}}
    assert described["numa_nodes"] == [node, bare]
    text = describe_text(StateFile.read(file))
    assert [line.split() for line in text.partition("\n\n")[2].splitlines()] == [
        ["POD", "CONTAINER", "TYPE", "SIZE", "NUMA"],
        ["pod-a", "main", "memory", "3", "MiB", "0,1"],
    ]
    assert "\nNUMA 0:    memory 1500 bytes free of 7 GiB\nNUMA 1:    nothing\n" in text

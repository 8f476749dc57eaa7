"""The file of devices for a plan: its forms, what is refused and where, a kubelet's checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.config.devices_file import ConfigError, LoadedDevices, load_devices
from pinfold.core.devices.devices import Device, DeviceInventory, DeviceResource
from pinfold.core.devices.state import DeviceAllocations, DeviceState
from pinfold.core.machine.machine import Machine, PCIFunction
from pinfold.core.machine.short_form import parse_short_form
from pinfold.state.device_checkpoint import Holding, checkpoint_of

HEADER = "kind: Devices\nversion: 1\nresources:\n"
GPU = "example.com/gpu"

Load = Callable[[str], LoadedDevices]


def machine() -> Machine:
    """Two NUMA nodes, a card at each, and one of which the firmware does not say where it is."""
    plain = parse_short_form("2s4c2t")
    cpus = [node.cpus for node in plain.numa_nodes]
    return replace(
        plain,
        pci=(
            PCIFunction("0000:3b:00.0", "0x020000", 0, cpus[0], ("eth0",)),
            PCIFunction("0000:af:00.0", "0x020000", 1, cpus[1], ("eth1",)),
            PCIFunction("0000:ff:00.0", "0x020000", -1, None, ("lost0",)),
        ),
    )


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def from_text(text: str) -> LoadedDevices:
        path = tmp_path / "devices.yaml"
        path.write_text(text, encoding="utf-8")
        return load_devices(str(path), machine())

    return from_text


def places(loaded: LoadedDevices, resource: str = GPU) -> dict[str, tuple[int, ...]]:
    return {id_: d.numa_nodes for id_, d in loaded.inventory[resource].devices.items()}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2", [(), ()]),
        ("{count: 0}", []),
        ("{count: 3}", [(), (), ()]),
        ("{count: 2, numa: 1}", [(1,), (1,)]),
        ("{numa: [0, 1, 1]}", [(0,), (1,), (1,)]),
        ("{count: 3, numa: [0, null, [0, 1]]}", [(0,), (), (0, 1)]),
        ("{numa: {0: 2, 1: 1}}", [(0,), (0,), (1,)]),
        ('{"numa": {"1": 2}, "count": 2}', [(1,), (1,)]),
        ("{count: 2, near: eth1}", [(1,), (1,)]),
        ('{near: ["3b:00.0", "/dev/eth1"]}', [(0,), (1,)]),
    ],
)
def test_the_short_form(load: Load, value: str, expected: list[tuple[int, ...]]) -> None:
    loaded = load(f"{HEADER}  {GPU}: {value}")
    assert list(places(loaded).items()) == [(f"gpu-{n}", at) for n, at in enumerate(expected)]
    assert loaded.notes == ()


def test_the_long_form(load: Load) -> None:
    loaded = load(
        f"{HEADER}"
        f"  {GPU}:\n    devices:\n"
        "    - {id: '0000:3b:02.0', near: eth0, health: Unhealthy}\n"
        "    - {id: a, numa: [1, 0, 1]}\n"
        "    - loose\n"
        "    - {id: nowhere, numa: []}\n"
        "  example.com/nic: {numa: [0, 1], unhealthy: [nic-1]}\n"
    )
    assert loaded.inventory == {
        GPU: DeviceResource(
            GPU,
            {
                "0000:3b:02.0": Device("0000:3b:02.0", healthy=False, numa_nodes=(0,)),
                "a": Device("a", numa_nodes=(1, 0)),
                "loose": Device("loose"),
                "nowhere": Device("nowhere", located_nowhere=True),
            },
        ),
        "example.com/nic": DeviceResource(
            "example.com/nic",
            {
                "nic-0": Device("nic-0", numa_nodes=(0,)),
                "nic-1": Device("nic-1", healthy=False, numa_nodes=(1,)),
            },
        ),
    }


def test_json_will_do(load: Load) -> None:
    document = {"kind": "Devices", "version": 1, "resources": {GPU: {"count": 1, "numa": 0}}}
    assert places(load(json.dumps(document))) == {"gpu-0": (0,)}


def test_a_place_that_nobody_knows_is_told(load: Load) -> None:
    loaded = load(f"{HEADER}  {GPU}: {{count: 1, near: lost0}}")
    assert places(loaded) == {"gpu-0": ()}
    [note] = loaded.notes
    assert note.startswith("resources['example.com/gpu'].near: lost0: the firmware does not say")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must hold one mapping; it starts with kind: Devices"),
        ("- 1", "must hold one mapping"),
        ("a: 1\n---\nb: 2", "must hold one mapping"),
        ("kind: Device\nversion: 1", "no Devices of version 1 (kind: 'Device', version: 1)"),
        ("kind: Devices\nversion: 2", "version: 2"),
        ("kind: Devices\nversion: true", "version: true"),
        ("kind: Devices\nversion: 1\nresources: 3", "resources: must be a mapping, not 3"),
        ("kind: Devices\nversion: 1", "resources: must be a mapping, not nothing"),
        (HEADER + "  {", "line 5, column 1: not YAML"),
        (HEADER + "  gpu: 1", "resources['gpu']: no name that a device plugin can have"),
        (HEADER + "  kubernetes.io/gpu: 1", "no name that a device plugin can have"),
        (HEADER + "  hugepages-2Mi: 1", "no name that a device plugin can have"),
        (HEADER + "  3: 1", "resources[3]: no name"),
        (HEADER + "  a.b/c: -1", "resources['a.b/c'].count: must be a number from 0 to 100000"),
        (HEADER + "  a.b/c: 100001", "must be a number from 0 to 100000, not 100001"),
        (HEADER + "  a.b/c: yes", "must be a number of devices, or a mapping"),
        (HEADER + "  a.b/c: [1]", "not a list"),
        (HEADER + "  a.b/c: {}", "how many? Say count, or list the devices"),
        (HEADER + "  a.b/c: {numa: 1}", "how many?"),
        (HEADER + "  a.b/c: {conut: 1}", "unknown field 'conut'; there are count"),
        (HEADER + "  a.b/c: {count: 1, devices: []}", "unknown field 'count'; there are devices"),
        (HEADER + "  a.b/c: {count: 3, numa: [0]}", "numa: says where 1 devices are, but count"),
        (HEADER + "  a.b/c: {count: 3, numa: {0: 2}}", "says where 2 devices are"),
        (HEADER + "  a.b/c: {numa: [0, 2]}", "numa[1]: the machine has no NUMA node 2; it has 0-1"),
        (HEADER + "  a.b/c: {numa: [-1]}", "numa[0]: the machine has no NUMA node -1"),
        (HEADER + "  a.b/c: {numa: [x]}", "numa[0]: must be the number of a NUMA node, not 'x'"),
        (HEADER + "  a.b/c: {numa: [true]}", "must be the number of a NUMA node, not true"),
        (HEADER + "  a.b/c: {numa: {0: x}}", "numa[0]: must be a number of devices, not 'x'"),
        (HEADER + "  a.b/c: {numa: {0: -1}}", "numa[0]: must be from 0 to"),
        (HEADER + "  a.b/c: {numa: {7: 1}}", "numa[7]: the machine has no NUMA node 7"),
        (HEADER + "  a.b/c: {numa: [0], near: eth0}", "either numa or near"),
        (HEADER + "  a.b/c: {near: [eth9]}", "near[0]: 'eth9' is no device with a PCI function"),
        (HEADER + "  a.b/c: {count: 1, near: 3}", "near: must be a PCI address or the name"),
        (HEADER + "  a.b/c: {count: 1, unhealthy: [gpu-0]}", "unhealthy: no device 'gpu-0'"),
        (HEADER + "  a.b/c: {count: 1, unhealthy: c-0}", "unhealthy: must be a list of device ids"),
        (HEADER + "  a.b/c: {devices: {}}", "devices: must be a list, not a mapping"),
        (HEADER + "  a.b/c: {devices: [1]}", "devices[0]: must be a mapping, not 1"),
        (HEADER + "  a.b/c: {devices: [{}]}", "devices[0].id: must be a text that is not empty"),
        (HEADER + "  a.b/c: {devices: [{id: ''}]}", "devices[0].id"),
        (HEADER + "  a.b/c: {devices: [{id: 1}]}", "devices[0].id: must be a text"),
        (HEADER + "  a.b/c: {devices: [a, {id: a}]}", "devices[1]: device 'a' is there twice"),
        (HEADER + "  a.b/c: {devices: [{id: a, health: ok}]}", "must be Healthy or Unhealthy"),
        (HEADER + "  a.b/c: {devices: [{id: a, node: 1}]}", "unknown field 'node'"),
        (HEADER + "  a.b/c: {devices: [{id: a, numa: 1, near: eth0}]}", "either numa or near"),
        (HEADER + "  a.b/c: 60000\n  a.b/d: 60000", "resources['a.b/d']: more than 100000 devices"),
        ('{"Data": 3, "Checksum": 1}', "kubelet_internal_checkpoint: "),
    ],
)
def test_what_is_wrong_is_named_with_its_place(load: Load, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert words in str(caught.value)
    assert "devices.yaml: " in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml: No such file"):
        load_devices(str(tmp_path / "none.yaml"), machine())
    with pytest.raises(ConfigError, match="Is a directory"):
        load_devices(str(tmp_path), machine())
    with pytest.raises(ConfigError, match="no name that a file can have"):
        load_devices("a\0b", machine())
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_devices(str(tmp_path / "binary"), machine())


def checkpoint(inventory: DeviceInventory, held: dict[str, tuple[str, ...]]) -> bytes:
    state = DeviceState(inventory, DeviceAllocations({"uid": {"main": held}}))
    responses = {Holding("uid", "main", name): b"" for name in held}
    return checkpoint_of(state, responses).encode()


def test_a_kubelets_checkpoint(tmp_path: Path) -> None:
    devices = {f"g{n}": Device(f"g{n}", numa_nodes=(n // 2,)) for n in range(4)}
    path = tmp_path / "kubelet_internal_checkpoint"
    recorded = checkpoint({GPU: DeviceResource(GPU, devices)}, {GPU: ("g0", "g3")})
    path.write_bytes(recorded)
    loaded = load_devices(str(path), machine())
    assert places(loaded) == {"g0": (0,), "g1": (), "g2": (), "g3": (1,)}
    assert loaded.inventory[GPU].connected
    assert "all devices are planned as free" in loaded.notes[0]
    assert "2 of the devices" in loaded.notes[1]

    path.write_bytes(recorded.replace(b'"g1"', b'"gX"'))
    with pytest.raises(ConfigError, match=r"kubelet_internal_checkpoint: .*corrupted"):
        load_devices(str(path), machine())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.sampled_from(["eth0", "0", "gpu-0", "x"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["count", "numa", "near", "devices", "id", "health", "unhealthy", "0", "1"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def load_or_refuse(path: str) -> LoadedDevices | str:
    try:
        return load_devices(path, machine())
    except ConfigError as error:
        return str(error)


@given(json_values)
def test_any_resource_is_read_or_refused(value: Any) -> None:
    document = {"kind": "Devices", "version": 1, "resources": {GPU: value}}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "devices.json"
        path.write_text(json.dumps(document))
        found = load_or_refuse(str(path))
    if isinstance(found, str):
        assert found.startswith(f"{path}: resources['{GPU}']")
        return
    for id_, device in found.inventory[GPU].devices.items():
        assert id_ == device.id
        assert set(device.numa_nodes) <= {0, 1}

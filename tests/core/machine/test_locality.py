"""Where devices are: discovery of names, captures of them, and what is near."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.machines.capture import capture_entries
from pinfold.adapters.machines.capture_file import pack
from pinfold.adapters.machines.discovery import read_machine
from pinfold.adapters.machines.own_json import machine_from_own_json
from pinfold.adapters.machines.source import open_machine
from pinfold.core.machine.locality import Localities, LocalityError, device_kind, resolve
from pinfold.core.machine.machine import Distances, Machine, PCIFunction
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from tests.roots import DATA
from tests.scenes.published_schemas import machine_document
from tests.scenes.sysfs_trees import machine, memory_tree, server

HWLOC = DATA / "hwloc"


NAMES = {
    "0000:00:14.0": ("enx001122334455",),
    "0000:17:00.0": ("eth0", "bond0", "bond0.7"),
    "0000:17:00.1": ("eth1",),
    "0000:18:00.0": ("nvme1n1", "nvme1", "md0"),
    "0000:3a:00.0": ("card0",),
    "0000:b1:00.0": ("eth2", "mlx5_0", "bond0", "bond0.7"),
    "0000:b1:02.0": ("vf0",),
    "0000:b2:00.0": ("nvme0", "md0", "nvme0n1"),
}


def test_every_kind_of_name_is_found() -> None:
    found = machine(*server())
    assert {one.address: one.names for one in found.pci} == NAMES
    virtual = {one.address: one.physical_function for one in found.pci if one.physical_function}
    assert virtual == {"0000:b1:02.0": "0000:b1:00.0"}


@pytest.mark.parametrize("form", ["archive", "folder"])
def test_a_capture_finds_them_too(form: str, tmp_path: Path) -> None:
    live, entries = capture_entries(memory_tree(*server()))
    path = tmp_path / "test.tar"
    path.write_bytes(pack(entries, "test", ".tar"))
    with tarfile.open(path) as archive:
        members = archive.getnames()
    if form == "folder":
        shutil.unpack_archive(path, tmp_path / "folder")
        path = tmp_path / "folder" / "test"
    again = read_machine(path)
    # An interface that is named by its hardware address would tell that address.
    assert "001122334455" not in "".join(members)
    named = [one for one in live.pci if one.address != "0000:00:14.0"]
    assert [one for one in again.pci if one.address != "0000:00:14.0"] == named
    assert again.cpus == live.cpus


def test_the_document_carries_them() -> None:
    found = machine(*server())
    document = json.loads(json.dumps(machine_document(found)))
    rows = {row["address"]: row for row in document["pci"]}
    assert rows["0000:b1:00.0"]["names"] == ["eth2", "mlx5_0", "bond0", "bond0.7"]
    assert rows["0000:b1:02.0"]["physical_function"] == "0000:b1:00.0"
    assert "physical_function" not in rows["0000:b1:00.0"]
    assert machine_from_own_json(document, file="own.json").pci == found.pci


def test_hwloc_names_are_read() -> None:
    found = open_machine(str(HWLOC / "nvidiaDGX2.v3.xml.xz"))
    assert resolve(found, "nvml0").nodes == 1
    assert resolve(found, "nvml15").nodes == 2
    assert resolve(found, "34:00.0").cpus == CPUSet([0, 1])


@pytest.mark.parametrize(
    ("name", "nodes", "cpus"),
    [
        ("eth0", 0b01, "0-1"),
        (" mlx5_0 ", 0b10, "2-3"),
        ("vf0", 0b10, "2-3"),
        ("bond0.7", 0b11, "0-3"),
        ("nvme0n1", 0b10, "2-3"),
        ("/dev/nvme1n1", 0b01, "0-1"),
        ("/dev/md0", 0b11, "0-3"),
        ("/dev/dri/card0", 0b01, "0-1"),
        ("0000:b1:00.0", 0b10, "2-3"),
        ("B1:00.0", 0b10, "2-3"),
        ("3a:00.0", 0b01, "0-1"),
    ],
)
def test_resolving(name: str, nodes: int, cpus: str) -> None:
    found = resolve(machine(*server()), name)
    assert (found.nodes, str(found.cpus), found.unknown) == (nodes, cpus, None)
    assert found.name == name.strip()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("eth9", "did you mean eth"),
        ("0000:b1:00.7", "did you mean 0000:b1:00.0"),
        ("lo", "virtual interfaces have none"),
        ("card0-DP-1", "did you mean card0?"),
        ("nvme0c0n1", "did you mean nvme0n1"),
        ("zzz", "there are enx001122334455, eth0, eth1, nvme1n1, card0, eth2, ...:"),
        ("", "is no device"),
    ],
)
def test_what_is_no_device(name: str, text: str) -> None:
    with pytest.raises(LocalityError) as error:
        resolve(machine(*server()), name)
    assert text in str(error.value)
    assert repr(name) in str(error.value)
    assert "pinfold topology" in str(error.value)


def test_a_machine_without_devices_says_so() -> None:
    with pytest.raises(LocalityError, match=r"short forms, lscpu and cAdvisor have none"):
        resolve(parse_short_form("2s4c"), "eth0")


def placed(node: int, cpus: CPUSet | None, form: str = "2s4c") -> Machine:
    pci = (PCIFunction("0000:01:00.0", "0x020000", node, cpus, ("eth0",)),)
    return replace(parse_short_form(form), pci=pci)


@pytest.mark.parametrize(
    ("node", "local", "nodes", "cpus"),
    [
        (1, None, 0b10, "4-7"),
        (1, "4-5", 0b10, "4-5"),
        (1, "0-7", 0b10, "4-7"),
        (1, "0-3", 0b10, "4-7"),
        (-1, "4-7", 0b10, "4-7"),
        (-1, "3-4", 0b11, "3-4"),
        (-1, "0-7", None, "0-7"),
        (-1, "0-63", None, "0-7"),
        (-1, None, None, "0-7"),
        (-1, "", None, "0-7"),
        (9, "0-3", 0b01, "0-3"),
        (9, None, None, "0-7"),
    ],
)
def test_what_the_firmware_says(node: int, local: str | None, nodes: int | None, cpus: str) -> None:
    found = resolve(placed(node, None if local is None else CPUSet.parse(local)), "eth0")
    assert (found.nodes, str(found.cpus)) == (nodes, cpus)
    if nodes is None:
        assert found.unknown is not None
        assert "firmware does not say" in found.unknown
        assert "0000:01:00.0" in found.unknown


def test_of_several_the_unknown_are_named() -> None:
    made = placed(1, None)
    nowhere = PCIFunction("0000:02:00.0", "0x010802", -1, None, ("sda",))
    found = Localities.of(replace(made, pci=(*made.pci, nowhere))).resolve_all(["eth0", "sda"])
    assert found.unknown is not None
    assert "eth0,sda: the firmware does not say at which NUMA node 0000:02:00.0 is" in found.unknown


def test_on_one_node_everything_is_near() -> None:
    found = resolve(placed(-1, CPUSet(range(4)), "1s4c"), "eth0")
    assert (found.nodes, str(found.cpus), found.unknown) == (1, "0-3", None)


def test_a_node_without_cpus_is_near_the_closest() -> None:
    made = placed(2, None)
    empty = replace(made.numa_nodes[0], id=2, cpus=CPUSet())
    rows = {0: (10, 21, 28), 1: (21, 10, 17), 2: (28, 17, 10)}
    whole = replace(
        made, numa_nodes=(*made.numa_nodes, empty), distances=Distances((0, 1, 2), rows)
    )
    assert resolve(whole, "eth0").nodes == 0b10
    assert str(resolve(whole, "eth0").cpus) == "4-7"
    assert resolve(replace(whole, distances=None), "eth0").nodes is None


def test_a_short_address_in_another_domain() -> None:
    made = parse_short_form("2s4c")
    one = PCIFunction("10000:01:00.0", "0x010802", 1, None)
    other = PCIFunction("0000:01:00.0", "0x010802", 0, None)
    assert resolve(replace(made, pci=(one,)), "01:00.0").nodes == 0b10
    assert resolve(replace(made, pci=(one, other)), "01:00.0").nodes == 0b01
    assert resolve(replace(made, pci=(one, other)), "10000:01:00.0").nodes == 0b10


def test_devices_stacked_in_circles_end() -> None:
    files, links = server()
    for at in range(9):
        links[f"sys/class/net/loop{at}"] = f"../../devices/virtual/net/loop{at}"
        for other in range(9):
            links[f"sys/devices/virtual/net/loop{at}/lower_loop{other}"] = f"../loop{other}"
    assert {one.address: one.names for one in machine(files, links).pci} == NAMES


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("0x020700", "network"),
        ("0x0302", "display"),
        ("0x120000", "accelerator"),
        ("0x0b4000", "co-processor"),
        ("0x0c0330", "other"),
    ],
)
def test_kinds(code: str, kind: str) -> None:
    assert device_kind(code) == kind


FUNCTIONS = st.lists(
    st.builds(
        PCIFunction,
        st.sampled_from(["0000:01:00.0", "0000:02:00.0", "0001:01:00.0"]),
        st.just("0x020000"),
        st.integers(-1, 4),
        st.none() | st.builds(CPUSet, st.frozensets(st.integers(0, 12))),
        st.lists(st.sampled_from(["eth0", "eth1", "bond0"]), unique=True).map(tuple),
    ),
    max_size=4,
    unique_by=lambda one: one.address,
)
ASKED = st.sampled_from(["eth0", "eth1", "bond0", "01:00.0", "0001:01:00.0"]) | st.text(max_size=6)


@given(FUNCTIONS, st.lists(ASKED, min_size=1, max_size=3), st.sampled_from(["1s4c", "2s2n2c"]))
def test_whatever_is_asked(functions: list[PCIFunction], asked: list[str], form: str) -> None:
    """A place within the machine, the union of the places of each, or one kind of error."""
    localities = Localities.of(replace(parse_short_form(form), pci=tuple(functions)))
    try:
        each = [localities.resolve(name) for name in asked]
    except LocalityError:
        with pytest.raises(LocalityError):
            localities.resolve_all(asked)
        return
    whole = localities.resolve_all(asked)
    assert (whole.nodes is None) == any(one.nodes is None for one in each)
    for one in (whole, *each):
        assert one.cpus
        assert one.cpus <= localities.online
        if one.nodes is not None:
            assert one.nodes
            assert one.nodes & ~localities.mask == 0
            assert one.cpus <= localities.cpus_at(one.nodes)
    if whole.nodes is not None:
        assert [one.nodes for one in each if one.nodes and one.nodes & ~whole.nodes] == []
        assert whole.nodes.bit_count() <= sum((one.nodes or 0).bit_count() for one in each)

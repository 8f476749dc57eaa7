"""hwloc XML against the truth, and XML that is none."""

from __future__ import annotations

import json
import lzma
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.adapters.machines.hwloc import machine_from_hwloc
from pinfold.adapters.machines.hwloc_xml import MAX_DEPTH
from pinfold.adapters.machines.source import open_machine
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import MachineError
from tests.roots import DATA, SHARED
from tests.scenes.published_schemas import machine_document

SAMPLES = DATA / "hwloc"
MACHINES = SHARED / "machines"
XML = sorted([*SAMPLES.glob("*.xml*"), *MACHINES.glob("*.xml")])
OF_SYSFS = sorted(MACHINES.glob("*.hwloc.xml.xz"))
FIELDS = (
    "cpus",
    "numa",
    "sockets",
    "l3",
    "cores",
    "numa_distances",
    "cpu_kinds",
    "memory_bytes",
    "online",
    "offline",
    "allowed",
    "cpu_model",
)


def truth(path: Path) -> dict[str, Any]:
    name = path.name.partition(".xml")[0].removesuffix(".v3").removesuffix(".hwloc")
    loaded: dict[str, Any] = json.loads((path.parent / f"{name}.json").read_text())
    return loaded


def document(path: Path) -> dict[str, Any]:
    return machine_document(open_machine(str(path)))


@pytest.mark.parametrize("path", XML, ids=lambda path: path.name)
def test_xml_machine_meets_its_truth(path: Path) -> None:
    expected, found = truth(path), document(path)
    for field in FIELDS:
        assert found[field] == expected[field], field
    assert found["name"] == expected["name"]
    assert found["source"] == expected["source"]
    if expected["architecture_from"] == "capture":
        assert found["architecture"] == expected["architecture"]


def what_xml_knows(rows: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """A document of the machine's sysfs tree or of its XML, without what XML cannot know.

    - ``die``: hwloc drops a die that is its whole package.
    - ``isolated`` CPUs, and what cAdvisor reads: ``kubelet``, ``kubelet_*``.
    - Nodes without CPUs: hwloc gives them the nearest ones (``hwloc_local_cpus`` of the truth),
      so that CPUs appear in several nodes (``numa_all``).
    - Whether the only node is a node of the kernel's (``synthetic``).
    - How many hugepages are free.
    - The distance of a single node, which hwloc drops; the name is hwloc's own.
    - Sockets where ``core_siblings`` contradicts ``physical_package_id``.
    """
    known = {field: rows[field] for field in FIELDS}
    known["cpus"] = [
        {
            key: value
            for key, value in row.items()
            if key not in ("die", "isolated", "numa_all") and not key.startswith("kubelet")
        }
        for row in rows["cpus"]
    ]
    known["numa"] = [
        {
            **{key: value for key, value in node.items() if key != "synthetic"},
            "cpus": node.get("hwloc_local_cpus", node["cpus"]),
            "hwloc_local_cpus": None,
            "hugepages": {size: pool["total"] for size, pool in node["hugepages"].items()},
        }
        for node in rows["numa"]
    ]
    distances = rows["numa_distances"]
    if distances is not None and len(expected["numa"]) > 1:
        known["numa_distances"] = {**distances, "name": None}
    else:
        known["numa_distances"] = None
    if any(differs["field"] == "socket cpus" for differs in expected["hwloc_differs"]):
        known["sockets"] = None
    return known


@pytest.mark.parametrize("path", OF_SYSFS, ids=lambda path: path.name.partition(".")[0])
def test_xml_of_a_captured_tree_meets_the_trees_truth(path: Path) -> None:
    expected, found = truth(path), document(path)
    wanted = what_xml_knows(expected, expected)
    for field, value in what_xml_knows(found, expected).items():
        assert value == wanted[field], field
    for row, wanted_row in zip(found["cpus"], expected["cpus"], strict=True):
        # Where hwloc has a die, it is the kernel's.
        assert row.get("die") in (None, wanted_row.get("die"))


@pytest.mark.parametrize("path", [p for p in XML if p.name.endswith(".v3.xml")])
def test_both_versions_are_one_machine(path: Path) -> None:
    older = path.with_name(path.name.replace(".v3.xml", ".xml"))
    assert open_machine(str(path)) == open_machine(str(older))


def test_pci_devices_are_where_their_bridge_is() -> None:
    devices = open_machine(str(SAMPLES / "nvidiaDGX2.v3.xml.xz")).pci
    assert {(d.device_class, d.numa_node, str(d.local_cpus)) for d in devices} >= {
        ("0x0302", 0, "0-1"),
        ("0x0302", 1, "24-25"),
    }


MACHINE = (
    '<object type="Machine" cpuset="0x3" complete_cpuset="0x7" allowed_cpuset="0x1">'
    '<object type="NUMANode" os_index="0" cpuset="0x3" local_memory="4096"/>'
    "{}</object>"
)
CORES = (
    '<object type="Core" os_index="0"><object type="PU" os_index="0"/></object>'
    '<object type="Core" os_index="1"><object type="PU" os_index="1"/></object>'
)


def xml(body: str, head: str = "", version: str = ' version="2.0"') -> bytes:
    return f'<?xml version="1.0"?>{head}<topology{version}>{body}</topology>'.encode()


def test_complete_and_allowed_sets() -> None:
    machine = machine_from_hwloc(xml(MACHINE.format(CORES)), name="it")
    assert str(machine.online) == "0-1"
    assert str(machine.offline) == "2"
    assert [cpu.allowed for cpu in machine.cpus] == [True, False, True]
    # Without a Package there is one socket that nobody knows the id of.
    assert [(s.id, str(s.cpus)) for s in machine.sockets] == [(None, "0-1")]
    assert [str(core) for core in machine.cores] == ["0", "1"]


def test_caches_for_instructions_are_not_counted() -> None:
    inside = f'<object type="L3Cache" cache_type="2" cache_size="1024">{CORES}</object>'
    assert machine_from_hwloc(xml(MACHINE.format(inside)), name="it").l3 == ()


ENTITY = '<!DOCTYPE topology [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
OUTSIDE = '<!DOCTYPE topology [<!ENTITY a SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"<topology", "not well-formed XML"),
        (b"", "not well-formed XML"),
        (b"\0\0", "not well-formed XML"),
        (xml("<info name='&b;'/>", ENTITY), "entities"),
        (xml("&a;", OUTSIDE), "entities"),
        (xml("<x>" * 200 + "</x>" * 200), f"more than {MAX_DEPTH} nested"),
        (b"<html></html>", "first element is 'html'"),
        (xml("", version=""), "version 1 is not known"),
        (xml("", version=' version="4.0"'), "version 4.0 is not known"),
        (xml(""), "no object"),
        (xml('<object type="Package"/>'), "not a Machine"),
        (xml('<object type="Machine"/>'), "no cpuset"),
        (xml('<object type="Machine" cpuset="zz"/>'), "cpuset of Machine"),
        (xml('<object type="Machine" cpuset="0x1"/>'), "CPUs 0 of the Machine's cpuset have no PU"),
        (xml(MACHINE.format('<object type="PU" os_index="x"/>')), "os_index 'x'"),
        (xml(MACHINE.format('<object type="PU"/>')), "a PU has the os_index None"),
        (xml(MACHINE.format(CORES + CORES)), "CPU 0 appears twice"),
        (
            xml(MACHINE.format(CORES + '<object type="NUMANode" os_index="0"/>')),
            "NUMANode 0 appears twice",
        ),
        (
            xml(
                MACHINE.format(CORES)
                + '<distances2 type="NUMANode"><indexes>0</indexes></distances2>'
            ),
            "0 values for 1 nodes",
        ),
        (b'<?xml version="1.0" encoding="klingon"?><topology/>', "encoding|not well-formed"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, fault: str) -> None:
    with pytest.raises(MachineError, match=fault) as caught:
        machine_from_hwloc(data, name="it", file="some.xml")
    assert str(caught.value).startswith("some.xml: ")


SAMPLE = lzma.decompress((SAMPLES / "nvidiaDGX2.v3.xml.xz").read_bytes())[:6000]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(SAMPLE) - 1),
            st.sampled_from([b"", b"<", b'"', b"/>", b"&", b"0", b"-1", b"\0", b"PU"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_damaged_xml_reads_or_is_refused(changes: list[tuple[int, bytes]]) -> None:
    data = SAMPLE + b"</object></object></object></object></object></object></object></topology>"
    for at, piece in changes:
        data = data[:at] + piece + data[at + 1 :]
    with suppress(MachineError):
        kubelet_view(machine_from_hwloc(data, name="it"))


NAMES = st.sampled_from(
    ["Machine", "Package", "Core", "PU", "NUMANode", "L3Cache", "Die", "PCIDev"]
)
VALUES = st.sampled_from(["0", "1", "2", "-1", "0x3", "0x1", "0xf,0x0", "", "x", "4294967295"])
ATTRIBUTES = st.dictionaries(
    st.sampled_from(
        [
            "os_index",
            "cpuset",
            "complete_cpuset",
            "nodeset",
            "local_memory",
            "cache_size",
            "pci_type",
        ]
    ),
    VALUES,
)


def element(kind: str, attributes: dict[str, str], children: list[str]) -> str:
    written = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f'<object type="{kind}"{written}>{"".join(children)}</object>'


TREES = st.recursive(
    st.builds(element, NAMES, ATTRIBUTES, st.just([])),
    lambda inner: st.builds(element, NAMES, ATTRIBUTES, st.lists(inner, max_size=3)),
    max_leaves=12,
)


@given(TREES)
def test_any_tree_of_objects_reads_or_is_refused(tree: str) -> None:
    whole = MACHINE.format(CORES + tree)
    with suppress(MachineError):
        machine = machine_from_hwloc(xml(whole), name="it")
        kubelet_view(machine)

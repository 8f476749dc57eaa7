"""Whatever ``--machine`` is given, and pinfold's own JSON."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.machines import source
from pinfold.adapters.machines.own_json import machine_from_own_json
from pinfold.adapters.machines.source import open_machine, read_document
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import MachineError
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import MAX_CPU
from pinfold.documents.machine import MAX_ITEMS
from tests.roots import DATA, SHARED
from tests.scenes.published_schemas import machine_document

MACHINES = SHARED / "machines"
TRUTHS = sorted(
    [
        *(DATA / "machines").glob("*.json"),
        *(DATA / "hwloc").glob("*.json"),
        *MACHINES.glob("*.json"),
    ]
)
TREE = "16em64t-4s2c2t-offlines.tar.xz"
XML = (DATA / "hwloc" / "AMD-1Ah-Zen5StrixPoint-RyzenAI9HX370.xml").read_bytes()
LSCPU = b'{"cpus": [{"cpu": 0, "node": 0, "socket": 0, "core": 0, "mhz": -}]}'
SUMMARY = (
    b'{"lscpu": [{"field": "On-line CPU(s) list:", "data": "0"}, {"field": "Socket(s):", '
    b'"data": "1"}, {"field": "Thread(s) per core:", "data": "1"}, '
    b'{"field": "Core(s) per socket:", "data": "1"}]}'
)
PARSABLE = b"# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n0,0,0,0,,0,0,0,0\n"
MACHINE_INFO = (
    b'{"num_cores": 1, "topology": [{"node_id": 0, "cores": '
    b'[{"core_id": 0, "thread_ids": [0], "socket_id": 0}]}]}'
)
OWN = json.dumps(machine_document(parse_short_form("1c"))).encode()


def through_json(document: dict[str, Any]) -> Any:
    return json.loads(json.dumps(document))


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (XML, "hwloc-xml"),
        (b"\xef\xbb\xbf\n  " + XML, "hwloc-xml"),
        (LSCPU, "lscpu"),
        (SUMMARY, "lscpu"),
        (PARSABLE, "lscpu"),
        (MACHINE_INFO, "cadvisor"),
        (b"\n " + MACHINE_INFO, "cadvisor"),
        (OWN, "short-form"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress])
def test_content_decides(
    content: bytes, form: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "node-7.misnamed"
    path.write_bytes(pack(content))
    assert open_machine(str(path)).source == form


def test_trees_and_short_forms() -> None:
    assert open_machine(str(DATA / "machines" / TREE)).source == "sysfs"
    assert open_machine("2s8c2t") == parse_short_form("2s8c2t")
    assert open_machine(None).source == "sysfs"


def test_a_file_named_like_a_short_form_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("2s8c2t").write_bytes(LSCPU)
    assert len(open_machine("2s8c2t").cpus) == 1


@pytest.mark.parametrize(
    ("file", "name"),
    [("a.hwloc.xml.xz", "a"), ("b.v3.xml", "b"), ("c.json.gz", "c"), (".xml", ".xml")],
)
def test_machines_are_named_after_files(file: str, name: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(PARSABLE)
    assert open_machine(str(tmp_path / file)).name == name


def test_a_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(LSCPU,))
    writer.start()
    assert open_machine(str(pipe)).source == "lscpu"
    writer.join()


@pytest.mark.parametrize(
    ("given_source", "fault"),
    [
        ("capture.tar.xzz", "'capture.tar.xzz': no such file; a machine is a sysfs tree"),
        ("", "'': no such file"),
        ("with\0zero", "no such file"),
        ("x" * 5000, "name too long"),
        ("nodes/2s8c2t", "no such file"),
        ("2s8x", "is no short form of a machine"),
        ("2s3n4c", "cannot be shared evenly"),
    ],
)
def test_what_is_no_file(
    given_source: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MachineError, match=re.escape(fault)) as caught:
        open_machine(given_source)
    assert ("short form" in str(caught.value)) or ("nor is there a file" in str(caught.value))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "nothing in it"),
        (b" \n ", "nothing in it"),
        (b"hello", "begins neither as XML nor as JSON nor as a tar archive"),
        (b"# a heading\n\ntext about a cpu\n", "begins neither as XML"),
        (b"{", "not valid JSON"),
        (b"[1, 2]", "none of the known forms"),
        (b"{}", "none of the known forms"),
        (b'{"a": NaN}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"version": 1}', "name"),
        (b'{"version": 99, "cpus": []}', "version 99 of pinfold's JSON is not known"),
        (b'{"numa": []}', "version None of pinfold's JSON is not known"),
        (b'{"topology": 1}', "$.topology"),
        (b"<html/>", "not 'topology'"),
        (gzip.compress(OWN)[:-20], "the gzip data is truncated"),
        (lzma.compress(OWN)[:40], "the xz data is truncated"),
        (b"\x1f\x8b" + b"rubbish" * 9, "the gzip data is damaged"),
        (b"BZh9" + b"rubbish" * 9, "the bzip2 data is damaged"),
        (b"\xfd7zXZ\x00" + b"rubbish" * 9, "the xz data is damaged"),
    ],
)
def test_what_is_in_the_file_is_wrong(content: bytes, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "node"
    path.write_bytes(content)
    with pytest.raises(MachineError, match=re.escape(fault)) as caught:
        open_machine(str(path))
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_a_bomb_is_not_unpacked(
    pack: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_DOCUMENT_BYTES", 1 << 20)
    path = tmp_path / "bomb"
    path.write_bytes(pack(b"{" + b" " * (1 << 21)))
    with pytest.raises(MachineError, match="more than 1 MiB of text"):
        open_machine(str(path))


def test_unreadable_files(tmp_path: Path) -> None:
    path = tmp_path / "node.xml"
    path.write_bytes(XML)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(MachineError, match="cannot be read: Permission denied"):
        open_machine(str(path))


@pytest.mark.parametrize("path", TRUTHS, ids=lambda path: path.stem)
def test_truth_reads_back_to_itself(path: Path) -> None:
    truth = json.loads(path.read_text())
    found = machine_document(open_machine(str(path)))
    for field in found.keys() & truth.keys():
        assert found[field] == truth[field], field
    again = machine_from_own_json(through_json(found), file="again")
    assert machine_document(again) == found


@pytest.mark.parametrize("form", ["2s8c2t", "2s2n4l16c2t@half@8Gi", "0l3c", "1c"])
def test_short_forms_read_back(form: str) -> None:
    machine = parse_short_form(form)
    again = machine_from_own_json(through_json(machine_document(machine)), file="again")
    for field in ("name", "source", "cpus", "numa_nodes", "sockets", "cores", "l3", "distances"):
        assert getattr(again, field) == getattr(machine, field), field
    assert kubelet_view(again) == kubelet_view(machine)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"cores": ["0", "9"]}, "cores[1]: CPUs 9 are not among the online cpus"),
        ({"cores": ["0-"]}, "cores[0]: "),
        ({"cpus": []}, "$.cpus"),
        ({"cpus": json.loads(OWN)["cpus"] * 2}, "a CPU appears twice"),
        ({"numa": json.loads(OWN)["numa"] * 2}, "a NUMA node appears twice"),
        ({"hugepages_machine": {"2M": {"total": 1}}}, "'2M' is no number"),
        ({"memory_bytes": -1}, "$.memory_bytes"),
        ({"version": True}, "version True"),
        ({"version": "1"}, "version 1 of"),
    ],
)
def test_own_json_that_is_wrong(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(MachineError, match=re.escape(fault)) as caught:
        machine_from_own_json(json.loads(OWN) | change, file="own.json")
    assert str(caught.value).startswith("own.json: ")


def test_a_document_takes_every_cpu_that_there_may_be() -> None:
    assert MAX_ITEMS == MAX_CPU + 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["", "0", "0-1", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["cpu", "cpus", "id", "lscpu", "topology", "0", "total", "field"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(json.loads(OWN))), JSON, max_size=3))
def test_own_json_with_any_values_reads_or_is_refused(change: dict[str, Any]) -> None:
    with suppress(MachineError):
        machine = machine_from_own_json(json.loads(OWN) | change, file="own.json")
        machine_document(machine, kubelet_view(machine))


@given(JSON)
def test_any_json_reads_or_is_refused(value: object) -> None:
    with suppress(MachineError):
        read_document(json.dumps(value).encode(), name="it", file="it")


@given(st.binary(max_size=200), st.sampled_from([b"", b"<", b"{", b"# cpu,", b"\x1f\x8b", b"BZh9"]))
def test_any_bytes_read_or_are_refused(data: bytes, start: bytes) -> None:
    with suppress(MachineError):
        read_document(start + data, name="it", file="it")

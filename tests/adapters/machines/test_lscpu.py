"""lscpu's tables and counts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.machines.discovery import read_live
from pinfold.adapters.machines.lscpu import (
    COMMAND,
    decode_lscpu,
    machine_from_lscpu,
    machine_from_parsable,
)
from pinfold.adapters.machines.lscpu_summary import machine_from_lscpu_summary
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import Machine, MachineError
from pinfold.core.machine.short_form import parse_short_form

FORMS = ("2s8c2t", "2s8c2t@half", "2s2n4l16c2t@half", "1s0l4c", "4s2c1t", "1s2n8c1t")


def levels(l3: int | None) -> tuple[str, str]:
    return ("l1d:l1i:l2", "0:0:0") if l3 is None else ("l1d:l1i:l2:l3", f"0:0:0:{l3}")


def table(machine: Machine) -> dict[str, Any]:
    """The JSON of ``lscpu -J -e`` for a machine; cores and caches are numbered in order."""
    cores = {min(core): number for number, core in enumerate(machine.cores)}
    caches = {min(cache.cpus): number for number, cache in enumerate(machine.l3)}
    rows = []
    for cpu in machine.cpus:
        assert cpu.core is not None
        key, value = levels(None if cpu.l3 is None else caches[cpu.l3])
        rows.append(
            {
                "cpu": cpu.cpu,
                "node": cpu.numa,
                "socket": cpu.socket,
                "core": cores[cpu.core],
                key: value,
                "online": True,
            }
        )
    return {"cpus": rows}


def same_places(one: Machine, other: Machine) -> bool:
    return (
        one.cores == other.cores
        and one.sockets == other.sockets
        and [cache.cpus for cache in one.l3] == [cache.cpus for cache in other.l3]
        and [(n.id, n.cpus) for n in one.numa_nodes] == [(n.id, n.cpus) for n in other.numa_nodes]
    )


@pytest.mark.parametrize("form", FORMS)
def test_table(form: str) -> None:
    machine = parse_short_form(form)
    assert same_places(machine_from_lscpu(table(machine), name="it"), machine)


@pytest.mark.parametrize("form", FORMS)
def test_parsable(form: str) -> None:
    machine = parse_short_form(form)
    lines = ["# The following is the parsable format", "# CPU,Core,Socket,Node,,L1d,L1i,L2,L3"]
    for row in table(machine)["cpus"]:
        caches = next(v for k, v in row.items() if ":" in k).replace(":", ",")
        lines.append(f"{row['cpu']},{row['core']},{row['socket']},{row['node']},,{caches}")
    assert same_places(machine_from_parsable("\n".join(lines), name="it"), machine)


def test_cores_numbered_within_their_socket() -> None:
    rows = table(parse_short_form("2s4c2t"))
    for row in rows["cpus"]:
        row["core"] %= 4
    assert same_places(machine_from_lscpu(rows, name="it"), parse_short_form("2s4c2t"))


def test_older_versions_write_what_is_no_json() -> None:
    data = b"""{
   "cpus": [
      {
         "cpu": 0,
         "node": 0,
         "socket": 0,
         "core": 0,
         "l1d:l1i:l2:l3": "0:0:0:0",
         "online": true,
         "maxmhz": 2000.0000
      },{
         "cpu": 1,
         "node": -,
         "socket": -,
         "core": -,
         "l1d:l1i:l2:l3": "-",
         "online": false,
         "maxmhz": -
      }
   ]
}
"""
    machine = machine_from_lscpu(decode_lscpu(data, name="it"), name="it")
    assert (str(machine.online), str(machine.offline)) == ("0", "1")


def test_texts_for_numbers_and_words() -> None:
    rows = [
        {"CPU": "0", "NODE": "-", "SOCKET": "0", "CORE": "0", "ONLINE": "yes"},
        {"CPU": "1", "NODE": "-", "SOCKET": "0", "CORE": "1", "ONLINE": "no"},
        {"CPU": "2", "NODE": "-", "SOCKET": "0", "CORE": "1", "ONLINE": "yes"},
    ]
    machine = machine_from_lscpu({"cpus": rows}, name="it")
    assert (str(machine.online), str(machine.offline)) == ("0,2", "1")
    assert [(node.id, str(node.cpus)) for node in machine.numa_nodes] == [(0, "0,2")]


def test_sockets_that_repeat_in_every_book() -> None:
    rows = [
        {"cpu": cpu, "node": 0, "book": cpu // 2, "socket": cpu % 2, "core": cpu}
        for cpu in range(4)
    ]
    machine = machine_from_lscpu({"cpus": rows}, name="it")
    assert [(s.id, str(s.cpus)) for s in machine.sockets] == [(i, str(i)) for i in range(4)]
    assert kubelet_view(machine).topology.num_sockets == 4


ROW = {"cpu": 0, "node": 0, "socket": 0, "core": 0}


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([], "0 rows"),
        ([{"cpu": 0, "core": 0}], "column SOCKET is missing"),
        ([{"cpu": 0, "socket": 0}], "column CORE is missing"),
        ([{"core": 0, "socket": 0}], "column CPU is missing"),
        ([ROW, ROW], "CPU 0 appears twice"),
        ([ROW | {"core": "x"}], "CORE of a row is 'x'"),
        ([ROW | {"cpu": 99999}], "a row has the CPU '99999'"),
        ([ROW | {"online": "ja"}], "ONLINE of CPU 0 is 'ja'"),
        ([ROW | {"core": None, "online": True}], "CPU 0 is online but has no CORE"),
        ([ROW | {"l1d:l2:l3": "0:0:x"}], "L1D:L2:L3 of CPU 0 is '0:0:x'"),
        ([ROW | {"core": None}], "no CPU"),
        (
            [{"cpu": 0, "core": 0, "socket": 0}, {"cpu": 1, "core": 1, "socket": 1}],
            "column NODE is missing",
        ),
        (1, "Expected `array`"),
    ],
)
def test_what_is_wrong_is_said(rows: object, fault: str) -> None:
    with pytest.raises(MachineError, match=re.escape(fault)) as caught:
        machine_from_lscpu({"cpus": rows}, name="it", file="lscpu.json")
    assert str(caught.value).startswith("lscpu.json: ")
    assert str(caught.value).count("lscpu.json: ") == 1


def summary(**changes: str | None) -> dict[str, Any]:
    """Plain ``lscpu -J`` of two sockets of 4 cores, nested as newer versions have it."""
    fields: dict[str, str | None] = {
        "Architecture:": "x86_64",
        "On-line CPU(s) list:": "0-7",
        "Thread(s) per core:": "1",
        "Core(s) per socket:": "4",
        "Socket(s):": "2",
        "L3 cache:": "64 MiB (2 instances)",
        "NUMA node0 CPU(s):": "0,2,4,6",
        "NUMA node1 CPU(s):": "1,3,5,7",
    }
    for name, value in changes.items():
        key = next(key for key in fields if name in re.sub(r"\W", "", key).lower())
        fields[key] = value
    leaves = [{"field": key, "data": value} for key, value in fields.items() if value is not None]
    return {"lscpu": [leaves[0], {"field": "Vendor ID:", "data": "X", "children": leaves[1:]}]}


def test_counts_that_leave_one_answer() -> None:
    machine = machine_from_lscpu_summary(summary(), name="it")
    assert [(s.id, str(s.cpus)) for s in machine.sockets] == [(0, "0,2,4,6"), (1, "1,3,5,7")]
    assert [(str(c.cpus), c.size) for c in machine.l3] == [
        ("0,2,4,6", 32 << 20),
        ("1,3,5,7", 32 << 20),
    ]
    assert machine.architecture == "x86_64"
    assert kubelet_view(machine).topology.num_numa_nodes == 2


def test_one_socket_without_cache() -> None:
    fields = summary(l3=None, sockets="1", coresper="8")
    machine = machine_from_lscpu_summary(fields, name="it")
    assert [str(s.cpus) for s in machine.sockets] == ["0-7"]
    assert machine.l3 == ()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"threads": "2", "coresper": "2"}, "which of 8 CPUs are siblings (2 per core)"),
        ({"online": "0-6"}, "some are offline"),
        ({"sockets": "4", "coresper": "2"}, "which of 2 NUMA nodes are in which of 4 sockets"),
        ({"l3": "64 MiB (4 instances)"}, "which CPUs share one of 4 level 3 caches"),
        ({"l3": "20480K"}, "which CPUs share a level 3 cache"),
    ],
)
def test_counts_that_leave_several(changes: dict[str, str], fault: str) -> None:
    with pytest.raises(MachineError, match=re.escape(fault)) as caught:
        machine_from_lscpu_summary(summary(**changes), name="it")
    assert str(caught.value).endswith(COMMAND)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"sockets": None}, "field 'Socket(s)' is missing"),
        ({"sockets": "-"}, "Socket(s) is '-'"),
        ({"online": "x"}, "'x' is no CPU id"),
        ({"node1": "1,3"}, "CPU 5 is in no NUMA node"),
    ],
)
def test_broken_counts(changes: dict[str, str | None], fault: str) -> None:
    with pytest.raises(MachineError, match=re.escape(fault)):
        machine_from_lscpu_summary(summary(**changes), name="it")


def run_lscpu(*arguments: str) -> bytes:
    if shutil.which("lscpu") is None:
        pytest.skip("lscpu is not installed")
    environment = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["lscpu", *arguments], capture_output=True, check=False, env=environment, timeout=20
    )
    if done.returncode:
        pytest.skip(f"this lscpu is too old: {done.stderr.decode()}")
    return done.stdout


@pytest.mark.parametrize("arguments", [["-J", "-e"], COMMAND.split()[1:]])
def test_this_machine(arguments: list[str]) -> None:
    found = machine_from_lscpu(decode_lscpu(run_lscpu(*arguments), name="it"), name="it")
    live = read_live()
    assert found.online == live.online
    assert found.cores == live.cores
    assert [s.cpus for s in found.sockets] == [s.cpus for s in live.sockets]


def test_this_machine_in_other_forms() -> None:
    live = read_live()
    parsed = machine_from_parsable(run_lscpu("-p").decode(), name="it")
    assert parsed.cores == live.cores
    with suppress(MachineError):
        counted = machine_from_lscpu_summary(json.loads(run_lscpu("-J")), name="it")
        assert counted.cores == live.cores


def test_the_memory_of_its_nodes_is_not_known() -> None:
    machine = machine_from_lscpu(table(parse_short_form("2s8c2t")), name="it")
    assert {node.memory_bytes for node in machine.numa_nodes} == {None}


CELLS = st.none() | st.integers(-1, 5) | st.sampled_from(["-", "", "0", "1", "x", "yes", "0:1"])
ROWS = st.dictionaries(
    st.sampled_from(["cpu", "core", "socket", "node", "book", "online", "l3", "l1d:l3", "CPU"]),
    CELLS,
)


@given(
    st.lists(ROWS | st.builds(lambda row, cpu: row | ROW | {"cpu": cpu}, ROWS, CELLS), max_size=5)
)
def test_any_table_reads_or_is_refused(rows: list[dict[str, Any]]) -> None:
    with suppress(MachineError):
        kubelet_view(machine_from_lscpu({"cpus": rows}, name="it"))


@given(st.text(st.sampled_from("# CPU,CoreSocketNode\n0123-"), max_size=60))
def test_any_text_reads_or_is_refused(text: str) -> None:
    with suppress(MachineError):
        kubelet_view(machine_from_parsable("# CPU,Core,Socket,Node\n" + text, name="it"))

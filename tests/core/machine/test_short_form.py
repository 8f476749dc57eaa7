"""Machines in a word."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import MachineError
from pinfold.core.machine.short_form import (
    MAX_CPUS,
    ShortForm,
    build,
    looks_like_short_form,
    parse_counts,
    parse_short_form,
)

GIB = 1 << 30


def test_two_sockets_with_adjacent_siblings() -> None:
    machine = parse_short_form("2s8c2t")
    assert [str(core) for core in machine.cores] == [f"{n}-{n + 1}" for n in range(0, 32, 2)]
    assert [str(socket.cpus) for socket in machine.sockets] == ["0-15", "16-31"]
    assert [str(node.cpus) for node in machine.numa_nodes] == ["0-15", "16-31"]
    assert [str(cache.cpus) for cache in machine.l3] == ["0-15", "16-31"]
    assert [node.memory_bytes for node in machine.numa_nodes] == [64 * GIB, 64 * GIB]
    assert machine.distances is not None
    assert dict(machine.distances.rows) == {0: (10, 21), 1: (21, 10)}


def test_siblings_in_the_second_half() -> None:
    machine = parse_short_form("2s8c2t@half")
    assert [str(core) for core in machine.cores] == [f"{n},{n + 16}" for n in range(16)]
    assert [str(socket.cpus) for socket in machine.sockets] == ["0-7,16-23", "8-15,24-31"]


def test_cores_are_counted_per_socket() -> None:
    machine = parse_short_form("2s2n8c2t")
    assert len(machine.online) == 32
    assert [str(node.cpus) for node in machine.numa_nodes] == ["0-7", "8-15", "16-23", "24-31"]
    assert machine.distances is not None
    assert machine.distances.rows[1] == (12, 10, 21, 21)


def test_caches_are_what_the_kubelet_calls_uncore_caches() -> None:
    view = kubelet_view(parse_short_form("1s2n4l16c2t"))
    assert view.topology.num_uncore_caches == 4
    assert view.uncore_known
    # A cache of a whole node is none of its cores'.
    assert kubelet_view(parse_short_form("1s2n16c2t")).topology.num_uncore_caches == 1
    assert parse_short_form("0l4c").l3 == ()


@pytest.mark.parametrize(
    ("text", "memory"),
    [("4c", 16 * GIB), ("4c@16Gi", 16 * GIB), ("4c@512Mi", GIB // 2), ("4c@1000", 1000)],
)
def test_memory_of_a_node(text: str, memory: int) -> None:
    assert parse_short_form(text).numa_nodes[0].memory_bytes == memory


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "such as 2s8c2t"),
        ("2s", "such as 2s8c2t"),
        ("8c2s", "such as 2s8c2t"),
        ("2s-8c", "such as 2s8c2t"),
        ("\u0662s8c", "such as 2s8c2t"),
        ("0s8c", "0 sockets"),
        ("2s0c", "0 cores"),
        ("2s8c0t", "0 threads"),
        ("2s0n8c", "0 NUMA nodes"),
        ("2s3n8c", "8 cores per socket cannot be shared evenly by 3 NUMA nodes"),
        ("3l8c", "cannot be shared evenly by 3 level 3 caches"),
        ("2n3l6c", "would overlap"),
        ("2s8c@hlaf", "write @half or a size"),
        ("2s8c@0Gi", "write @half or a size"),
        ("2s8c@999999999Ti", "write @half or a size"),
        ("2s8c@1Gi@2Gi", "twice"),
        ("4097c", "4097 CPUs; at most 4096"),
        ("999999999s999999999c999999999t", "at most 4096"),
        ("2s1024n1024c", "2048 NUMA nodes; at most 1024"),
    ],
)
def test_what_is_wrong_is_said(text: str, fault: str) -> None:
    with pytest.raises(MachineError, match=re.escape(fault)):
        parse_short_form(text)


def test_what_is_meant_for_a_short_form() -> None:
    for text in ("2s8c2t", "2s8x", "4c@hlaf", "4c@1.5Gi"):
        assert looks_like_short_form(text)
    for text in ("capture.tar.xzz", "node", "2s8c2t.json", "a/2s8c2t", "", "2S8C2T"):
        assert not looks_like_short_form(text)


@st.composite
def forms(draw: st.DrawFn) -> ShortForm:
    nodes = draw(st.integers(1, 4))
    caches = nodes * draw(st.integers(1, 3))
    return ShortForm(
        sockets=draw(st.integers(1, 4)),
        nodes=nodes,
        caches=draw(st.sampled_from([0, 1, nodes, caches])),
        cores=caches * draw(st.integers(1, 3)),
        threads=draw(st.integers(1, 4)),
        half=draw(st.booleans()),
        memory=draw(st.integers(1, 1 << 60)),
    )


@given(forms())
def test_text_reads_back(form: ShortForm) -> None:
    counts = f"{form.sockets}s{form.nodes}n{form.caches}l{form.cores}c{form.threads}t"
    half = "@half" if form.half else ""
    assert parse_counts(f"{counts}{half}@{form.memory}") == form


@given(forms())
def test_counts_are_those_of_the_machine(form: ShortForm) -> None:
    machine = build(form, name="it")
    assert len(machine.online) == form.cpus
    assert sorted(machine.online) == list(range(form.cpus))
    assert len(machine.sockets) == form.sockets
    assert len(machine.numa_nodes) == form.sockets * form.nodes
    assert len(machine.cores) == form.sockets * form.cores
    assert len(machine.l3) == form.sockets * form.caches
    assert {len(core) for core in machine.cores} == {form.threads}
    for groups in (
        machine.cores,
        [socket.cpus for socket in machine.sockets],
        [node.cpus for node in machine.numa_nodes],
    ):
        assert sum(len(cpus) for cpus in groups) == form.cpus
    topology = kubelet_view(machine).topology
    assert topology.num_cpus == form.cpus
    assert topology.num_cores == form.sockets * form.cores
    assert topology.num_sockets == form.sockets
    assert topology.num_numa_nodes == form.sockets * form.nodes


@given(st.text(st.sampled_from("0123456789snlct@hafGiMk .-"), max_size=24))
def test_any_text_reads_or_is_refused(text: str) -> None:
    with suppress(MachineError):
        machine = parse_short_form(text)
        assert 1 <= len(machine.online) <= MAX_CPUS

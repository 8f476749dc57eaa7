"""The short form: a machine in a word, such as ``2s8c2t`` or ``2s2n4l16c2t@half@64Gi``.

Grammar (each count is followed by its letter; the letters come in this order)::

    [SOCKETSs] [NODESn] [CACHESl] CORESc [THREADSt] [@half] [@MEMORY]

==========  ======================================================  ==================
``s``       sockets                                                 1
``n``       NUMA nodes *per socket*                                 1
``l``       level 3 caches *per socket*; ``0l`` for none            one per NUMA node
``c``       cores *per socket*, whatever ``n`` and ``l`` are        must be given
``t``       threads per core                                        1
``@half``   sibling threads are numbered in the second half         numbered adjacent
``@16Gi``   memory of each NUMA node (Ki, Mi, Gi, Ti or bytes)      4 GiB for each CPU
==========  ======================================================  ==================

``2s2n8c2t`` so has 2 x 8 = 16 cores and 32 CPUs, with 4 cores in each of the 4 NUMA nodes.

CPUs are numbered socket by socket, node by node, core by core.  Without ``@half`` the threads of
a core have neighbouring numbers (core 0 is CPUs 0-1, as virtual machines and some AMD servers
have it); with it the first threads of all cores come first (core 0 of 16 is CPUs 0,16, as Intel
servers do).  NUMA distances are 10 within a node, 12 within a socket, 21 beyond.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from pinfold.core.machine.machine import (
    CpuFacts,
    Distances,
    KubeletFacts,
    Machine,
    MachineError,
    NUMANode,
    UpperCache,
)
from pinfold.core.machine.rows import CacheFacts, CpuRow, group_rows
from pinfold.core.values.cpuset import CPUSet

MAX_CPUS: Final = 4096
MAX_NUMA_NODES: Final = 1024
"""The kernel's own limit (``CONFIG_NODES_SHIFT`` 10)."""

SOURCE: Final = "short-form"
_GIB: Final = 1 << 30
_MEMORY_PER_CPU: Final = 4 * _GIB
_MAX_MEMORY: Final = 1 << 60
_LOCAL, _WITHIN_SOCKET, _REMOTE = 10, 12, 21
_EXAMPLE: Final = "such as 2s8c2t or 2s2n16c2t@half@64Gi"
_COUNTS = re.compile(
    r"(?:(?P<s>\d{1,9})s)?(?:(?P<n>\d{1,9})n)?(?:(?P<l>\d{1,9})l)?(?P<c>\d{1,9})c"
    r"(?:(?P<t>\d{1,9})t)?",
    re.ASCII,
)
_LOOKS_LIKE = re.compile(r"(?:\d+[a-z])+(?:@[^/]*)?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,19})(Ki|Mi|Gi|Ti)?", re.ASCII)
_UNITS: Final = {None: 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}


class ShortForm(Struct, frozen=True):
    """The counts of a short form; per socket as in the text, ``memory`` in bytes per NUMA node."""

    sockets: int
    nodes: int
    caches: int
    cores: int
    threads: int
    half: bool
    memory: int

    @property
    def cpus(self) -> int:
        """CPUs of the machine."""
        return self.sockets * self.cores * self.threads


def looks_like_short_form(text: str) -> bool:
    """Whether somebody who wrote ``text`` meant a short form rather than a file."""
    return _LOOKS_LIKE.fullmatch(text.strip()) is not None


def parse_counts(text: str) -> ShortForm:
    """Read a short form without building the machine.

    Raises:
        MachineError: not of the grammar, a zero, cores that the NUMA nodes or caches cannot
            share evenly, or more than ``MAX_CPUS`` CPUs or ``MAX_NUMA_NODES`` NUMA nodes.
    """
    shown = repr(text if len(text) <= 60 else text[:57] + "...")
    counts, *modifiers = text.strip().split("@")
    match = _COUNTS.fullmatch(counts)
    if match is None:
        raise MachineError(
            f"{shown} is no short form of a machine: write sockets, cores per socket and threads "
            f"per core in this order, {_EXAMPLE}"
        )
    sockets, nodes, cores, threads = (int(match[letter] or 1) for letter in "snct")
    caches = nodes if match["l"] is None else int(match["l"])
    for letter, what, count in (
        ("s", "sockets", sockets),
        ("n", "NUMA nodes", nodes),
        ("c", "cores", cores),
        ("t", "threads", threads),
    ):
        if count == 0:
            raise MachineError(f"{shown}: 0 {what}; give at least 1{letter}, {_EXAMPLE}")
    if sockets * cores * threads > MAX_CPUS:
        raise MachineError(
            f"{shown} has {sockets * cores * threads} CPUs; at most {MAX_CPUS} are accepted"
        )
    _check_shares(shown, nodes, caches, cores)
    if sockets * nodes > MAX_NUMA_NODES:
        raise MachineError(
            f"{shown} has {sockets * nodes} NUMA nodes; at most {MAX_NUMA_NODES} are accepted"
        )
    half = False
    memory: int | None = None
    for modifier in modifiers:
        if modifier == "half":
            half = True
        elif memory is None:
            memory = _read_memory(shown, modifier)
        else:
            raise MachineError(f"{shown} gives the memory of a NUMA node twice; leave one out")
    if memory is None:
        memory = _default_memory(cores, threads, nodes)
    return ShortForm(sockets, nodes, caches, cores, threads, half, memory)


def parse_short_form(text: str) -> Machine:
    """The machine that a short form describes; its name is the text; see :func:`parse_counts`."""
    return build(parse_counts(text), name=text.strip())


def build(form: ShortForm, *, name: str) -> Machine:
    """The machine of counts that :func:`parse_counts` has checked."""
    cores = form.sockets * form.cores
    cores_of_node = form.cores // form.nodes
    caches: dict[object, CacheFacts] = {i: CacheFacts(id=i) for i in range(cores)}
    rows: list[CpuRow] = []
    facts: dict[int, CpuFacts] = {}
    nodes: dict[int, list[int]] = {}
    cores_of_cache = form.cores // form.caches if form.caches else 0
    for core in range(cores):
        socket = core // form.cores
        node = core // cores_of_node
        l3 = core // cores_of_cache if cores_of_cache else None
        upper = () if l3 is None else (UpperCache(l3, cores_of_cache * form.threads),)
        fact = CpuFacts(core_id=core % form.cores, package_id=socket, caches=upper)
        for thread in range(form.threads):
            cpu = thread * cores + core if form.half else core * form.threads + thread
            facts[cpu] = fact
            nodes.setdefault(node, []).append(cpu)
            rows.append(
                CpuRow(
                    cpu,
                    core=core,
                    package=socket,
                    l3=l3,
                    core_id=core % form.cores,
                    socket=socket,
                    numa=(node,),
                )
            )
    groups = group_rows(rows, caches=caches)
    return Machine(
        name=name,
        source=SOURCE,
        cpus=groups.cpus,
        numa_nodes=tuple(
            NUMANode(node, CPUSet(cpus), memory_bytes=form.memory) for node, cpus in nodes.items()
        ),
        sockets=groups.sockets,
        cores=groups.cores,
        l3=groups.l3,
        distances=_distances(form),
        memory_bytes=form.memory * len(nodes),
        kubelet_facts=KubeletFacts(
            cpus=facts, nodes={node: tuple(sorted(cpus)) for node, cpus in nodes.items()}
        ),
    )


def _check_shares(shown: str, nodes: int, caches: int, cores: int) -> None:
    if cores % nodes:
        raise MachineError(
            f"{shown}: {cores} cores per socket cannot be shared evenly by {nodes} NUMA nodes; "
            "c counts the cores of a whole socket"
        )
    if not caches:
        return
    if cores % caches:
        raise MachineError(
            f"{shown}: {cores} cores per socket cannot be shared evenly by {caches} level 3 "
            "caches; c counts the cores of a whole socket"
        )
    if caches % nodes and nodes % caches:
        raise MachineError(
            f"{shown}: {caches} level 3 caches and {nodes} NUMA nodes per socket would overlap; "
            "make one count a multiple of the other"
        )


def _default_memory(cores: int, threads: int, nodes: int) -> int:
    return _MEMORY_PER_CPU * (cores * threads // nodes)


def _read_memory(shown: str, text: str) -> int:
    match = _MEMORY.fullmatch(text)
    size = int(match[1]) << _UNITS[match[2]] if match else 0
    if not 0 < size <= _MAX_MEMORY:
        raise MachineError(
            f"{shown}: {text[:40]!r} after '@' is neither 'half' nor the memory of a NUMA node; "
            "write @half or a size such as @16Gi (at most 1 EiB)"
        )
    return size


def _distances(form: ShortForm) -> Distances:
    count = form.sockets * form.nodes
    remote = [_REMOTE] * count
    rows: dict[int, tuple[int, ...]] = {}
    for node in range(count):
        row = remote.copy()
        first = node - node % form.nodes
        row[first : first + form.nodes] = [_WITHIN_SOCKET] * form.nodes
        row[node] = _LOCAL
        rows[node] = tuple(row)
    return Distances(tuple(range(count)), rows)

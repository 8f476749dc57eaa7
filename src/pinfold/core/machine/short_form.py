"""The short form: a machine in a word, such as ``2s8c2t`` or ``2s32c2t@half@256Gi+hp1Gi=64+gpu=8``.

Grammar (each count is followed by its letter; the letters come in this order)::

    [SOCKETSs] [NODESn] [CACHESl] CORESc [THREADSt] [@NUMBERING] [@MEMORY]
        [+hpSIZE=PAGES[@NODES]]... [+RESOURCE=DEVICES[@NODES]]...

==============  ==================================================  ==================
``s``           sockets                                             1
``n``           NUMA nodes *per socket*                             1
``l``           level 3 caches *per socket*; ``0l`` for none        one per NUMA node
``c``           cores *per socket*, whatever ``n`` and ``l`` are    must be given
``t``           threads per core                                    1
``@half``       numbers of the CPUs, a :class:`.Numbering`          ``@adjacent``
``@16Gi``       memory of *each NUMA node* (Ki, Mi, Gi, Ti, bytes)  4 GiB for each CPU
``+hp1Gi=16``   pages of huge pages of *each NUMA node*             none
``+hp2Mi=9@1``  the same, at these NUMA nodes only
``+gpu=4``      devices of *the machine*, spread over its nodes     none
``+gpu=4@0-1``  the same, spread over these NUMA nodes
==============  ==================================================  ==================

``2s2n8c2t`` so has 2 x 8 = 16 cores and 32 CPUs, with 4 cores in each of the 4 NUMA nodes.  Huge
pages are a part of the memory.  Devices are those that a device plugin lists for an extended
resource, ``DOMAIN/NAME``; ``gpu`` alone is ``nvidia.com/gpu``.  NUMA distances are 10 within a
node, 12 within a socket, 21 beyond.
"""

from __future__ import annotations

import re
from typing import Final

from pinfold.core.machine.counts import UNITS, Numbering, ShortForm, default_memory, spread
from pinfold.core.machine.machine import Machine, MachineError
from pinfold.core.machine.planned_machine import build
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.core.values.resource_names import is_extended

MAX_CPUS: Final = 4096
MAX_NUMA_NODES: Final = 1024
"""The kernel's own limit (``CONFIG_NODES_SHIFT`` 10)."""

MAX_DEVICES: Final = 4096
_MAX_MEMORY: Final = 1 << 60
_PAGE_SIZES: Final = (1 << 16, 1 << 34)
"""The smallest and the largest pages that an architecture has: 64 KiB (Arm), 16 GiB (Power)."""
_EXAMPLE: Final = "such as 2s8c2t or 2s2n16c2t@half@64Gi"
_BESIDE: Final = "write +hp1Gi=64 for huge pages, +nvidia.com/gpu=4 for devices"
_RESOURCE: Final = (
    "devices have the name that pods ask for, such as nvidia.com/gpu (gpu alone is short for that)"
)
_SHORT_NAMES: Final = {"gpu": "nvidia.com/gpu"}
_COUNTS = re.compile(
    r"(?:(?P<s>\d{1,9})s)?(?:(?P<n>\d{1,9})n)?(?:(?P<l>\d{1,9})l)?(?P<c>\d{1,9})c"
    r"(?:(?P<t>\d{1,9})t)?",
    re.ASCII,
)
_LOOKS_LIKE = re.compile(r"(?:\d+[a-z])+(?:@[^/+]*)?(?:\+.*)?", re.ASCII)
_MEMORY = re.compile(r"(\d{1,19})(Ki|Mi|Gi|Ti)?", re.ASCII)
_PAGES = re.compile(r"hp(\d{1,19})(Ki|Mi|Gi)?", re.ASCII)
_BESIDE_PART = re.compile(r"(?P<what>[^=@]*)=(?P<count>\d{1,9})(?:@(?P<nodes>[^@]*))?", re.ASCII)
_MAKERS: Final = {
    **dict.fromkeys(("intel", "amd", "xeon", "epyc"), "half"),
    **dict.fromkeys(("dell", "interleaved", "alternating"), "alternate"),
    **dict.fromkeys(("ibm", "power", "kvm", "vm", "siblings"), "adjacent"),
}
"""What people write who know the machine: makers are no numbering, but most keep to one."""


def looks_like_short_form(text: str) -> bool:
    """Whether somebody who wrote ``text`` meant a short form rather than a file."""
    return _LOOKS_LIKE.fullmatch(text.strip()) is not None


def parse_counts(text: str) -> ShortForm:
    """Read a short form without building the machine.

    Raises:
        MachineError: not of the grammar, a zero, cores that the NUMA nodes or caches cannot
            share evenly, more huge pages than memory, or more than ``MAX_CPUS`` CPUs,
            ``MAX_NUMA_NODES`` NUMA nodes or ``MAX_DEVICES`` devices.
    """
    shown = repr(text if len(text) <= 60 else text[:57] + "...")
    before, *beside = text.strip().split("+")
    counts, *modifiers = before.split("@")
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
    numbering, memory = _read_modifiers(shown, modifiers)
    if memory is None:
        memory = default_memory(cores, threads, nodes)
    found = _Beside(shown, sockets * nodes, memory)
    for part in beside:
        found.read(part)
    return ShortForm(
        sockets,
        nodes,
        caches,
        cores,
        threads,
        numbering,
        memory,
        tuple((size, tuple(pages)) for size, pages in sorted(found.pages.items())),
        tuple((name, tuple(counts)) for name, counts in found.devices.items()),
    )


def parse_short_form(text: str) -> Machine:
    """The machine that a short form describes; its name is the text.

    Args:
        text: the counts, such as ``2s8c2t``; the reference of machine sources has the grammar.

    Raises:
        MachineError: it is none; the message says which part, and what to write.

    >>> machine = parse_short_form("2s8c2t@half+hp1Gi=4+gpu=2")
    >>> str(machine.cores[0]), [function.numa_node for function in machine.pci]
    ('0,16', [0, 1])
    """
    return build(parse_counts(text), name=text.strip())


def _read_modifiers(shown: str, modifiers: list[str]) -> tuple[Numbering, int | None]:
    """What stands after ``@``: how the CPUs are numbered, and the memory of a NUMA node."""
    numbering: Numbering | None = None
    memory: int | None = None
    names = {one.value: one for one in Numbering}
    for modifier in modifiers:
        if modifier in names:
            if numbering not in (None, names[modifier]):
                raise MachineError(f"{shown} numbers the CPUs twice; leave one out")
            numbering = names[modifier]
        elif memory is None:
            memory = _read_memory(shown, modifier)
        else:
            raise MachineError(f"{shown} gives the memory of a NUMA node twice; leave one out")
    return numbering or Numbering.ADJACENT, memory


class _Beside:
    """What stands after ``+``: huge pages and devices, by NUMA node."""

    def __init__(self, shown: str, nodes: int, memory: int) -> None:
        self.pages: dict[int, list[int]] = {}
        self.devices: dict[str, list[int]] = {}
        self._shown = shown
        self._nodes = nodes
        self._memory = memory

    def read(self, part: str) -> None:
        """Read one part, without its ``+``."""
        match = _BESIDE_PART.fullmatch(part)
        where = f"{self._shown}: {part[:40]!r} after '+'"
        if match is None:
            if part in {one.value for one in Numbering} or _MEMORY.fullmatch(part):
                raise MachineError(f"{where} stands after '@', before the first '+': @{part[:40]}")
            raise MachineError(f"{where} is neither huge pages nor devices; {_BESIDE}")
        what, count = match["what"], int(match["count"])
        if count == 0:
            raise MachineError(f"{where} is nothing; leave it out, or say how many")
        nodes = self._read_nodes(where, match["nodes"])
        pages = _PAGES.fullmatch(what)
        if pages is not None:
            self._add_pages(where, int(pages[1]) << UNITS[pages[2] or ""], count, nodes)
        elif what.startswith("hugepages-"):
            size = what.removeprefix("hugepages-")
            raise MachineError(f"{where}: pages are counted, not bytes; write +hp{size}=PAGES")
        else:
            self._add_devices(where, _SHORT_NAMES.get(what, what), count, nodes)

    def _read_nodes(self, where: str, text: str | None) -> CPUSet:
        """NUMA nodes, in the list format of CPUs."""
        everywhere = CPUSet(range(self._nodes))
        if text is None:
            return everywhere
        try:
            nodes = CPUSet.parse(text)
        except CPUSetError:
            nodes = CPUSet()
        if not nodes or not nodes <= everywhere:
            raise MachineError(
                f"{where}: {text[:20]!r} names no NUMA nodes of this machine; it has {everywhere}"
            )
        return nodes

    def _add_pages(self, where: str, size: int, count: int, nodes: CPUSet) -> None:
        smallest, largest = _PAGE_SIZES
        if not smallest <= size <= largest or size.bit_count() != 1:
            raise MachineError(
                f"{where}: no machine has pages of this size; write +hp2Mi or +hp1Gi"
            )
        here = self.pages.setdefault(size, [0] * self._nodes)
        for node in nodes:
            if here[node]:
                raise MachineError(
                    f"{where}: NUMA node {node} has pages of this size already; leave one out"
                )
            here[node] = count
            used = sum(size * pages[node] for size, pages in self.pages.items())
            if used > self._memory:
                raise MachineError(
                    f"{where}: the huge pages of NUMA node {node} are more than its memory of "
                    f"{self._memory} bytes; give it more after '@', or fewer pages (they are "
                    "counted for each NUMA node)"
                )

    def _add_devices(self, where: str, name: str, count: int, nodes: CPUSet) -> None:
        if not is_extended(name):
            raise MachineError(f"{where}: {_RESOURCE}; huge pages are +hp1Gi=64")
        here = self.devices.setdefault(name, [0] * self._nodes)
        for node, more in enumerate(spread(count, nodes, self._nodes)):
            if here[node] and more:
                raise MachineError(
                    f"{where}: NUMA node {node} has devices of this resource already; add them up"
                )
            here[node] += more
        if sum(map(sum, self.devices.values())) > MAX_DEVICES:
            raise MachineError(f"{where}: at most {MAX_DEVICES} devices are accepted in all")


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


def _read_memory(shown: str, text: str) -> int:
    match = _MEMORY.fullmatch(text)
    size = int(match[1]) << UNITS[match[2] or ""] if match else 0
    if 0 < size <= _MAX_MEMORY:
        return size
    if maker := _MAKERS.get(text.lower()):
        raise MachineError(
            f"{shown}: {text!r} after '@' is no numbering; most of these number their CPUs so: "
            f"@{maker}"
        )
    raise MachineError(
        f"{shown}: {text[:40]!r} after '@' is neither a numbering of the CPUs nor the memory of a "
        "NUMA node; write @half or a size such as @16Gi (at most 1 EiB)"
    )

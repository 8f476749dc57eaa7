"""Capturing a machine: the files that discovery reads, and nothing else.

What goes into a capture is the list below.  Files with more in them than is needed
(``/proc/cpuinfo``, ``/proc/cmdline``, ``meminfo``) are written anew from the few values that
discovery takes; so no serial number, host name, mount, or other word of the kernel's command line
can be in a capture.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from pinfold.adapters.machines import node_facts
from pinfold.adapters.machines.discovery import read_tree
from pinfold.adapters.machines.memory import DAX_DEVICES, DAX_KMEM
from pinfold.adapters.machines.node_facts import kernel_words
from pinfold.adapters.machines.pci import (
    LOWER,
    NAMED,
    PCI_DIRECTORY,
    PHYSICAL_FUNCTION,
    SLAVES,
    named_devices,
)
from pinfold.adapters.machines.proc import NOFILE_INFO, CpuInfo
from pinfold.adapters.machines.tree import Tree
from pinfold.core.machine.machine import Machine

_CPU: Final = r"sys/devices/system/cpu"
_NODE: Final = r"sys/devices/system/node"
_INITIATORS: Final = rf"{_NODE}/node\d+/access[01]/initiators"
_HUGEPAGES: Final = r"hugepages/hugepages-\d+kB"

# Every component is a literal name or a regular expression for names.
FILES: Final = (
    rf"{_CPU}/(?:online|present|possible|offline|isolated|nohz_full)",
    rf"{_CPU}/cpu\d+/(?:online|cpu_capacity)",
    rf"{_CPU}/cpu\d+/topology/(?:core_id|physical_package_id|die_id|book_id|drawer_id)",
    rf"{_CPU}/cpu\d+/topology/(?:core_cpus|package_cpus|thread_siblings|core_siblings)(?:_list)?",
    rf"{_CPU}/cpu\d+/cache/index\d+/(?:id|size|level|type|shared_cpu_map|shared_cpu_list)",
    rf"{_CPU}/cpu\d+/cpufreq/(?:cpuinfo_max_freq|base_frequency)",
    rf"{_CPU}/cpu\d+/acpi_cppc/nominal_freq",
    rf"{_CPU}/cpu\d+/regs/identification/midr_el1",
    r"sys/devices/cpu_(?:atom|core|lowpower)/cpus",
    rf"{_NODE}/(?:online|possible)",
    rf"{_NODE}/node\d+/(?:cpumap|cpulist|distance)",
    rf"{_NODE}/node\d+/{_HUGEPAGES}/(?:nr_hugepages|free_hugepages)",
    rf"{_INITIATORS}/(?:read|write)_(?:bandwidth|latency)",
    rf"sys/kernel/mm/{_HUGEPAGES}/(?:nr_hugepages|free_hugepages)",
)
"""Files that are taken as they are."""

DIRECTORIES: Final = (
    rf"{_CPU}/cpu\d+",
    rf"{_CPU}/cpu\d+/topology",
    rf"{_CPU}/cpu\d+/cache",
    rf"{_CPU}/cpu\d+/cache/index\d+",
    rf"{_NODE}/node\d+",
    _INITIATORS,
)
"""Directories that say something by being there."""

LINKS: Final = (
    rf"{PCI_DIRECTORY}/[0-9a-f:.]+/{PHYSICAL_FUNCTION}",
    rf"(?:{'|'.join(NAMED)})/[^/]+(?:/(?:{LOWER}|{SLAVES}/)\d+)?",
)
"""Links by which devices are found; their targets are made up from addresses and names."""

_PCI_FILES: Final = ("class", "numa_node", "local_cpus", "local_cpulist")

# Names of interfaces and RDMA devices that are made of a hardware address, such as enx001122334455.
_OF_ADDRESS: Final = re.compile(r"[a-z]+x[0-9a-f]{12,16}")

# A value of sysfs: a number, a list, a mask, a size, a word.
_VALUE: Final = re.compile(r"[\w,:+\- \t\n\0]*", re.ASCII)

_KERNEL_WORDS: Final = re.compile(
    rf"(?:{node_facts.PARAMETERS})=[\w,:.\-]*|nosmt(?:=force)?", re.ASCII
)
_CPUINFO_FIELDS: Final = ("vendor_id", "cpu family", "model name", "Model Name", "Processor", "cpu")
_CPUINFO_LINES: Final = re.compile(
    r"^(?:processor\s*:\s*\d+|physical id\s*:\s*[0-9]+)$", re.MULTILINE | re.ASCII
)
_MEMINFO_LINES: Final = re.compile(
    r"(?:MemTotal|Hugepagesize):\s*\d+ kB|HugePages_(?:Total|Free):\s*\d+", re.ASCII
)
_ARCHITECTURE: Final = re.compile(r"[\w\-]{1,32}", re.ASCII)


class Entry(Struct, frozen=True, order=True):
    """A member of a capture: ``text`` of a file, ``link`` of a symbolic link, else a directory."""

    path: str
    text: str | None = None
    link: str | None = None


def capture_entries(tree: Tree, kubelet_version: str = "") -> tuple[Machine, tuple[Entry, ...]]:
    """The machine, and what a capture of it holds, sorted by path; raises MachineError.

    ``kubelet_version``, such as ``v1.36.2``, is for a machine that does not tell it.
    """
    machine = read_tree(tree)
    entries: dict[str, Entry] = {}
    for found in (
        _directories(tree),
        _files(tree),
        _links(tree),
        _node_memory(tree),
        _dax(tree),
        _pci(tree, machine),
        _names(tree),
        _settings(tree, kubelet_version),
        _proc(tree, machine),
        _allowed(machine),
    ):
        for entry in found:
            entries.setdefault(entry.path, entry)
    return machine, tuple(entries[path] for path in sorted(entries))


def reduce_command_line(text: str) -> str:
    """The words that say something about CPUs and hugepages."""
    return " ".join(word for word in kernel_words(text) if _KERNEL_WORDS.fullmatch(_plain(word)))


def _plain(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name.replace('-', '_')}{equals}{value}"


def reduce_cpuinfo(text: str) -> str:
    """The model, once, and the lines by which processors and sockets are counted."""
    fields = CpuInfo(text).fields
    head = [f"{name}\t: {fields[name]}" for name in _CPUINFO_FIELDS if fields.get(name)]
    # A number on x86; elsewhere it may be the name of the whole machine.
    if fields.get("model", "").isdecimal():
        head.append(f"model\t: {fields['model']}")
    return "".join(f"{line}\n" for line in [*head, *_CPUINFO_LINES.findall(text)])


def reduce_meminfo(text: str) -> str:
    """Total memory and the pages of the default hugepage size."""
    return "".join(f"{line}\n" for line in _MEMINFO_LINES.findall(text))


def expand(tree: Tree, pattern: str) -> Iterator[str]:
    """The paths of a tree that match a pattern of :data:`FILES`."""
    yield from _expand(tree, "", pattern.split("/"))


def _expand(tree: Tree, base: str, components: list[str]) -> Iterator[str]:
    first, *rest = components
    names: Iterable[str]
    if re.fullmatch(r"[\w\-]+", first):
        names = (first,)
    else:
        names = [name for name in tree.names(base) if re.fullmatch(first, name, re.ASCII)]
    for name in names:
        path = f"{base}/{name}" if base else name
        if rest:
            yield from _expand(tree, path, rest)
        else:
            yield path


def _directories(tree: Tree) -> Iterator[Entry]:
    for pattern in DIRECTORIES:
        for path in expand(tree, pattern):
            if tree.is_directory(path):
                yield Entry(path)


def _files(tree: Tree) -> Iterator[Entry]:
    for pattern in FILES:
        for path in expand(tree, pattern):
            text = tree.read(path)
            if text is not None and _VALUE.fullmatch(text):
                yield Entry(path, text=text)


def _settings(tree: Tree, kubelet_version: str) -> Iterator[Entry]:
    """What a profile of a node reads, and that this capture was asked for it."""
    for pattern in node_facts.FILES:
        for path in expand(tree, pattern):
            text = tree.read(path)
            if text is not None and node_facts.VALUE.fullmatch(text):
                yield Entry(path, text=text)
    yield from (Entry(path, text=text) for path, text in node_facts.kernel_files(tree))
    if (swaps := tree.read("proc/swaps")) is not None:
        yield Entry("proc/swaps", text=node_facts.reduce_swaps(swaps))
    if (side := node_facts.side_file(tree, kubelet_version)) is not None:
        yield Entry(node_facts.SIDE_FILE, text=side)


def _links(tree: Tree) -> Iterator[Entry]:
    for path in expand(tree, rf"{_NODE}/node\d+/cpu\d+"):
        yield Entry(path, link=f"../../cpu/{path.rpartition('/')[2]}")
    for path in expand(tree, rf"{_INITIATORS}/node\d+"):
        yield Entry(path, link=f"../../../{path.rpartition('/')[2]}")


def _node_memory(tree: Tree) -> Iterator[Entry]:
    for path in expand(tree, rf"{_NODE}/node\d+/meminfo"):
        text = tree.read(path)
        if text is not None:
            node = path.split("/")[-2].removeprefix("node")
            lines = reduce_meminfo(text).splitlines()
            yield Entry(path, text="".join(f"Node {node} {line}\n" for line in lines))


def _dax(tree: Tree) -> Iterator[Entry]:
    for path in expand(tree, rf"{DAX_KMEM}/dax\d+\.\d+"):
        name = path.rpartition("/")[2]
        place = "ndbus0" if "ndbus" in tree.real_path(f"{DAX_DEVICES}/{name}") else "platform"
        node = tree.read(f"{DAX_DEVICES}/{name}/target_node")
        if node is not None and _VALUE.fullmatch(node):
            device = f"devices/{place}/{name}"
            yield Entry(path, link=f"../../devices/{name}")
            yield Entry(f"{DAX_DEVICES}/{name}", link=f"../../../{device}")
            yield Entry(f"sys/{device}/target_node", text=node)


def _pci(tree: Tree, machine: Machine) -> Iterator[Entry]:
    for function in machine.pci:
        for name in _PCI_FILES:
            path = f"{PCI_DIRECTORY}/{function.address}/{name}"
            text = tree.read(path)
            if text is not None and _VALUE.fullmatch(text):
                yield Entry(path, text=text)
        if function.physical_function is not None:
            path = f"{PCI_DIRECTORY}/{function.address}/{PHYSICAL_FUNCTION}"
            yield Entry(path, link=f"../{function.physical_function}")


def _names(tree: Tree) -> Iterator[Entry]:
    """The links from the names to the functions: a name says nothing private but by its address."""
    for device in named_devices(tree):
        if _OF_ADDRESS.fullmatch(device.name):
            continue
        path = f"{device.folder}/{device.name}"
        # Where a link is followed, its target need not be there.
        up = "../" * device.folder.count("/")
        targets = [f"{up}devices/pci/{address}/{device.name}" for address in device.functions]
        if not device.stacked:
            yield Entry(path, link=targets[0])
            continue
        stack = SLAVES + "/" if device.folder == "sys/block" else LOWER
        deeper = "../" * (2 if device.folder == "sys/block" else 1)
        for index, target in enumerate(targets):
            yield Entry(f"{path}/{stack}{index}", link=f"{deeper}{target}")


def _proc(tree: Tree, machine: Machine) -> Iterator[Entry]:
    for path, reduce in (
        ("proc/cpuinfo", reduce_cpuinfo),
        ("proc/meminfo", reduce_meminfo),
        ("proc/cmdline", lambda text: reduce_command_line(text) + "\n"),
    ):
        text = tree.read(path)
        if text is not None:
            yield Entry(path, text=reduce(text))
    if machine.architecture is not None and _ARCHITECTURE.fullmatch(machine.architecture):
        yield Entry(NOFILE_INFO, text=f"Architecture: {machine.architecture}\n")


def _allowed(machine: Machine) -> Iterator[Entry]:
    """A cpuset mount of our own making, in place of the name of the cgroup we are in."""
    if machine.allowed is not None and machine.allowed != machine.online:
        yield Entry("proc/mounts", text="cpuset /dev/cpuset cpuset rw 0 0\n")
        yield Entry("proc/self/cpuset", text="/\n")
        yield Entry("dev/cpuset/cpus", text=f"{machine.allowed}\n")

"""The parsers of machines: whatever comes out has a view, a document and a topology."""

from __future__ import annotations

import io
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from fuzz import seeds
from fuzz.engine import Target
from pinfold.adapters.machines.archive import MAX_DEPTH, ArchiveTree, read_archive
from pinfold.adapters.machines.cadvisor import machine_from_cadvisor
from pinfold.adapters.machines.discovery import read_tree
from pinfold.adapters.machines.hwloc import machine_from_hwloc
from pinfold.adapters.machines.json_document import decode
from pinfold.adapters.machines.lscpu import (
    decode_lscpu,
    machine_from_lscpu,
    machine_from_parsable,
)
from pinfold.adapters.machines.own_json import machine_from_own_json
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import Machine, MachineError
from pinfold.core.machine.short_form import parse_short_form
from pinfold.planning.machine_document import machine_document


def use(machine: Machine) -> None:
    """What every command does with a machine."""
    view = kubelet_view(machine)
    machine_document(machine, view)


def run_short_form(data: bytes) -> None:
    """Machines in a word."""
    with suppress(MachineError):
        use(parse_short_form(data.decode("utf-8", "replace")))


def run_hwloc(data: bytes) -> None:
    """Hwloc's XML."""
    with suppress(MachineError):
        use(machine_from_hwloc(data, name="fuzzed.xml"))


def run_cadvisor(data: bytes) -> None:
    """CAdvisor's MachineInfo."""
    with suppress(MachineError):
        use(machine_from_cadvisor(decode(data, name="fuzzed.json"), name="fuzzed"))


def run_own_json(data: bytes) -> None:
    """What ``pinfold topology -o json`` prints."""
    with suppress(MachineError):
        use(machine_from_own_json(decode(data, name="fuzzed.json"), file="fuzzed.json"))


def run_lscpu(data: bytes) -> None:
    """``lscpu -J -e`` and ``lscpu -p``."""
    with suppress(MachineError):
        use(machine_from_lscpu(decode_lscpu(data, name="fuzzed.json"), name="fuzzed"))
    with suppress(MachineError):
        use(machine_from_parsable(data.decode("utf-8", "replace"), name="fuzzed"))


def run_sysfs(data: bytes) -> None:
    """The files of ``/sys`` and ``/proc``, as a text archive."""
    with suppress(MachineError):
        use(read_tree(_tree(data)))


def run_archive(data: bytes) -> None:
    """Tar archives, packed or not."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        file.write(data)
        file.flush()
        with suppress(MachineError):
            use(read_tree(read_archive(Path(file.name))))


def _tree(data: bytes) -> ArchiveTree:
    """The tree that a text archive describes (see :func:`fuzz.seeds.text_archive`)."""
    lines: dict[str, list[bytes]] = {}
    links: dict[str, str] = {}
    directories: dict[str, set[str]] = {"": set()}
    current: str | None = None
    for line in data.split(b"\n"):
        head, _, rest = line.partition(b" ")
        if head == b"==" and rest:
            current = _path(rest)
            lines[current] = []
            _enter(directories, current)
        elif head == b"->" and b" " in rest:
            path, _, target = rest.partition(b" ")
            links[_path(path)] = target.decode("utf-8", "replace")
            _enter(directories, _path(path))
        elif current is not None:
            lines[current].append(line + b"\n")
    files = {path: b"".join(content) for path, content in lines.items()}
    return ArchiveTree("fuzzed", files, links, directories)


def _path(raw: bytes) -> str:
    # As deep as an archive may be (MAX_DEPTH).
    names = raw.decode("utf-8", "replace").split("/")[:MAX_DEPTH]
    return "/".join(name for name in names if name not in ("", ".", ".."))


def _enter(directories: dict[str, set[str]], path: str) -> None:
    """List the path in its directory, and that in its own, to the top."""
    while path:
        path, _, name = path.rpartition("/")
        directories.setdefault(path, set()).add(name)


_JSON: Final = tuple(
    b"""node_id memory hugepages page_size num_pages distances cores core_id thread_ids socket_id
    caches uncore_caches level type size id num_cores num_sockets null true false [] {} -1 0-3,8
    cpus cpu node socket core online field data l1d:l1i:l2:l3 version numa l3 sockets kubelet
    numa_distances cpu_kinds""".split()
)
_SYSFS: Final = tuple(
    b"""== -> sys/devices/system/cpu/ cpu0 cpu1 topology/ core_id physical_package_id core_cpus
    core_cpus_list thread_siblings package_cpus die_id cache/index3/ level type shared_cpu_map
    shared_cpu_list size id online present possible isolated sys/devices/system/node/node0 cpumap
    cpulist distance meminfo hugepages/hugepages-2048kB/ nr_hugepages free_hugepages MemTotal: kB
    ffffffff,ffffffff 0-3 32768K -1 ../ /""".split()
)
_XML: Final = tuple(
    b"""<object </object> type= os_index= cpuset= complete_cpuset= allowed_cpuset= nodeset= PU Core
    Package NUMANode L3Cache Die Group Machine 0x00000001 0xf...f local_memory= page_type &lt;
    &amp; <!ENTITY <!DOCTYPE <![CDATA[ ]]> <!-- --> <?xml ?> subtype= cache_size= depth= distances2
    memattr indexes u64values support""".split()
)


def _short_forms() -> list[bytes]:
    return [b"2s8c2t", b"2s2n16c2t@half", b"1s4n8l64c2t@half@128Gi", b"4c", b"0l2c"]


def _xml() -> list[bytes]:
    return [seeds.HWLOC_XML, *seeds.files("tests/data/**/*.xml", "../shared/machines/*.xml")]


def _machine_info() -> list[bytes]:
    return [seeds.MACHINE_INFO, *seeds.files("tests/data/**/*machineinfo*.json")]


def _own_json() -> list[bytes]:
    found = [parse_short_form(text.decode()) for text in _short_forms()]
    documents = [machine_document(machine, kubelet_view(machine)) for machine in found]
    return [msgspec.json.encode(document) for document in documents]


def _lscpu() -> list[bytes]:
    rows = b"# CPU,Core,Socket,Node,,L1d,L1i,L2,L3\n0,0,0,0,,0,0,0,0\n1,0,0,0,,0,0,0,0\n"
    return [*seeds.LSCPU, rows, *seeds.files("tests/data/**/*lscpu*")]


def _sysfs() -> list[bytes]:
    return [
        _LITTLE_TREE,
        *seeds.trees("tests/data/**/*.tar*", "../shared/machines/*.tar.xz"),
    ]


def _archives() -> list[bytes]:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        tree = _tree(_LITTLE_TREE)
        for path in ("sys/devices/system/cpu/online", "sys/devices/system/cpu/present"):
            member = tarfile.TarInfo(f"node/{path}")
            content = (tree.read(path) or "").encode()
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return [
        stream.getvalue(),
        *seeds.files("tests/data/**/*.tar*", "../shared/machines/*.tar.xz", limit=5),
    ]


_LITTLE_TREE: Final = b"""\
== sys/devices/system/cpu/online
0-1
== sys/devices/system/cpu/present
0-3
== sys/devices/system/cpu/cpu0/topology/core_id
0
== sys/devices/system/cpu/cpu0/topology/physical_package_id
0
== sys/devices/system/cpu/cpu0/topology/core_cpus
3
== sys/devices/system/cpu/cpu0/cache/index3/level
3
== sys/devices/system/cpu/cpu0/cache/index3/type
Unified
== sys/devices/system/cpu/cpu0/cache/index3/size
32768K
== sys/devices/system/cpu/cpu0/cache/index3/id
0
== sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_map
3
== sys/devices/system/cpu/cpu1/topology/core_id
0
== sys/devices/system/cpu/cpu1/topology/physical_package_id
0
== sys/devices/system/cpu/cpu1/topology/core_cpus
3
-> sys/devices/system/node/node0/cpu0 ../../cpu/cpu0
== sys/devices/system/node/node0/cpumap
3
== sys/devices/system/node/node0/distance
10
== sys/devices/system/node/node0/meminfo
Node 0 MemTotal:       4194304 kB
== sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages
8
== proc/cmdline
isolcpus=managed_irq,domain,1 hugepagesz=1G
== proc/cpuinfo
processor\t: 0
physical id\t: 0
"""

MACHINE_TARGETS: Final = (
    Target("shortform", run_short_form, _short_forms, (b"s", b"n", b"l", b"c", b"t", b"@half")),
    Target("hwloc", run_hwloc, _xml, _XML),
    Target("cadvisor", run_cadvisor, _machine_info, _JSON),
    Target("ownjson", run_own_json, _own_json, _JSON),
    Target("lscpu", run_lscpu, _lscpu, _JSON),
    Target("sysfs", run_sysfs, _sysfs, _SYSFS),
    Target("archive", run_archive, _archives, (b"ustar", b"\x00" * 512, b"../", b"node/sys/")),
)

"""From a tree to a :class:`~pinfold.core.machine.machine.Machine`."""

from __future__ import annotations

import stat
from pathlib import Path
from types import MappingProxyType

from pinfold.adapters.machines.caches import CacheFolder, Caches, read_caches
from pinfold.adapters.machines.cpus import CpuFolder, die_of, group_cores, group_sockets, read_cpus
from pinfold.adapters.machines.kinds import read_kinds
from pinfold.adapters.machines.numa import (
    HUGEPAGES_DIRECTORY,
    NodeFolder,
    parse_default_hugepages,
    parse_mem_total,
    read_hugepages,
    read_nodes,
)
from pinfold.adapters.machines.pci import read_pci
from pinfold.adapters.machines.proc import CpuInfo, read_allowed, read_architecture
from pinfold.adapters.machines.reader import Reader
from pinfold.adapters.machines.tree import (
    DirectoryTree,
    LiveTree,
    Tree,
    find_machine,
    missing_cpu_directory,
)
from pinfold.core.machine.machine import (
    Cpu,
    CpuFacts,
    CpuKind,
    KubeletFacts,
    Machine,
    MachineError,
    NUMANode,
)
from pinfold.core.values.cpuset import CPUSet


def read_machine(path: Path) -> Machine:
    """Read a captured machine from a directory or a tar archive; raises MachineError."""
    return read_tree(open_tree(path))


def read_live() -> Machine:
    """Read the machine that this process runs on; raises MachineError."""
    return read_tree(LiveTree())


def read_tree(tree: Tree, name: str | None = None) -> Machine:
    """Read a machine; ``name`` instead of the tree's own.

    Raises:
        MachineError: no CPUs, or a file that is not what it should be.
    """
    reader = Reader(tree)
    command_line = tree.read("proc/cmdline") or ""
    folder = read_cpus(reader, command_line)
    if not folder.present:
        raise missing_cpu_directory(tree.name)
    cpuinfo = CpuInfo(tree.read("proc/cpuinfo") or "")
    architecture = read_architecture(reader, cpuinfo)
    cores = group_cores(folder)
    caches = read_caches(reader, folder.online, cores)
    nodes = read_nodes(reader, folder.online, knights_landing=cpuinfo.knights_landing)
    kinds = () if cpuinfo.never_hybrid else read_kinds(reader, folder.online, architecture)
    allowed = read_allowed(reader, folder.online)
    meminfo = tree.read("proc/meminfo") or ""
    mem_total = parse_mem_total(meminfo)
    hugepages = read_hugepages(reader, HUGEPAGES_DIRECTORY) or parse_default_hugepages(meminfo)
    numa_nodes = nodes.nodes or (NUMANode(0, folder.online, mem_total, hugepages, synthetic=True),)
    return Machine(
        name=name or tree.name,
        source="sysfs",
        cpus=_cpus(
            folder, cores=cores, caches=caches, nodes=numa_nodes, kinds=kinds, allowed=allowed
        ),
        numa_nodes=numa_nodes,
        sockets=group_sockets(folder),
        cores=cores,
        l3=caches.l3,
        distances=nodes.distances,
        cpu_kinds=kinds,
        architecture=architecture,
        cpu_model=cpuinfo.model,
        memory_bytes=_memory(nodes, mem_total),
        hugepages=hugepages,
        pci=read_pci(reader),
        allowed=allowed,
        nohz_full=folder.boot.nohz_full,
        rcu_nocbs=folder.boot.rcu_nocbs,
        kubelet_facts=_kubelet_facts(
            folder,
            caches=caches,
            nodes=nodes,
            cpuinfo=cpuinfo,
            architecture=architecture,
            mem_total=mem_total,
        ),
    )


def _cpus(  # noqa: PLR0913 - one argument for each thing a row tells
    folder: CpuFolder,
    *,
    cores: tuple[CPUSet, ...],
    caches: Caches,
    nodes: tuple[NUMANode, ...],
    kinds: tuple[CpuKind, ...],
    allowed: CPUSet,
) -> tuple[Cpu, ...]:
    core_of = {cpu: next(iter(core)) for core in cores for cpu in core}
    cache_of = {cpu: cache for cache in caches.l3 for cpu in cache.cpus}
    kind_of = {cpu: kind.kind for kind in kinds for cpu in kind.cpus}
    socket_of = {cpu: socket.id for socket in group_sockets(folder) for cpu in socket.cpus}
    nodes_of: dict[int, list[int]] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        for cpu in node.cpus:
            nodes_of.setdefault(cpu, []).append(node.id)
    rows = []
    for cpu in folder.present:
        if cpu not in folder.online:
            rows.append(Cpu(cpu, online=False, isolated=cpu in folder.boot.isolated))
            continue
        files = folder.files.get(cpu)
        cache = cache_of.get(cpu)
        numa = tuple(nodes_of.get(cpu, ()))
        rows.append(
            Cpu(
                cpu,
                core=core_of[cpu],
                core_id=files.core_id if files else None,
                socket=socket_of[cpu],
                die=die_of(files) if files else None,
                numa=numa[0] if numa else None,
                l3=next(iter(cache.cpus)) if cache else None,
                l3_id=cache.id if cache else None,
                kind=kind_of.get(cpu),
                allowed=cpu in allowed,
                isolated=cpu in folder.boot.isolated,
                numa_all=numa if len(numa) > 1 else (),
            )
        )
    return tuple(rows)


def _memory(nodes: NodeFolder, mem_total: int | None) -> int | None:
    known = [node.memory_bytes for node in nodes.nodes if node.memory_bytes is not None]
    return sum(known) if known else mem_total


def _kubelet_facts(  # noqa: PLR0913 - what cAdvisor reads comes from as many places
    folder: CpuFolder,
    *,
    caches: Caches,
    nodes: NodeFolder,
    cpuinfo: CpuInfo,
    architecture: str | None,
    mem_total: int | None,
) -> KubeletFacts:
    mainframe = architecture == "s390x"
    no_cache = CacheFolder(upper=None)
    facts: dict[int, CpuFacts] = {}
    for cpu, files in folder.files.items():
        # cAdvisor skips a CPU of which it cannot read the place.
        skipped = mainframe and (files.book_id is None or files.drawer_id is None)
        cache = caches.folders.get(cpu, no_cache)
        facts[cpu] = CpuFacts(
            core_id=None if skipped else files.core_id,
            package_id=files.package_id,
            book_id=(files.book_id or "") if mainframe else "",
            drawer_id=(files.drawer_id or "") if mainframe else "",
            caches=cache.upper,
            lacks_cache_id=cache.incomplete,
        )
    return KubeletFacts(
        cpus=MappingProxyType(facts),
        nodes=nodes.links,
        links_missing=nodes.links_missing,
        physical_ids=cpuinfo.physical_ids,
        online=folder.online_file,
        memory_capacity=mem_total,
    )


def open_tree(path: Path) -> Tree:
    """Open a captured tree: a directory, or a ``.tar``, ``.tar.gz``, ``.tar.bz2``, ``.tar.xz``.

    The tree is the directory that holds ``sys/``, or the one such directory in it.

    Raises:
        MachineError: there is nothing readable, or no ``sys/devices/system/cpu`` in it.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise MachineError(
            f"{path}: {reason}; give a directory or a tar archive that holds sys/"
        ) from None
    if stat.S_ISDIR(mode):
        return _open_directory(path)
    if not stat.S_ISREG(mode):
        raise MachineError(f"{path}: neither a directory nor a file that holds a capture")
    # The archive formats cost a third of the start-up time and are mostly not needed.
    from pinfold.adapters.machines.archive import read_archive  # noqa: PLC0415 - 2.2 ms

    return read_archive(path)


def _open_directory(path: Path) -> Tree:
    absolute = path.resolve()
    if absolute == Path("/"):
        return LiveTree()
    top = find_machine(DirectoryTree(path, absolute.name), path)
    return DirectoryTree(path / top, top) if top else DirectoryTree(path, absolute.name)

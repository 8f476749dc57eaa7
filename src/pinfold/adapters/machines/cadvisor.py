"""A machine from cAdvisor's MachineInfo (``/api/v1.3/machine``, ``/api/v2.0/machine``).

MachineInfo is what the kubelet itself decides on, so its view is *given* here; the hardware is
derived from it as far as it can be.  It does not say which CPUs are offline or isolated, which
hugepages are free, or what the kernel's cores are where cAdvisor forms others.
Source: the fields of cAdvisor's ``info/v1`` MachineInfo, and upstream ``topology.Discover``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from pinfold.adapters.machines.json_document import convert
from pinfold.core.machine.machine import (
    CpuFacts,
    Distances,
    HugepagePool,
    Hugepages,
    KubeletFacts,
    Machine,
    MachineError,
    NUMANode,
    UpperCache,
)
from pinfold.core.machine.rows import CacheFacts, CpuRow, group_rows
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.machine import MAX_ITEMS, CpuId, Id
from pinfold.documents.records import Size

SOURCE: Final = "cadvisor"
_LEVEL_3: Final = 3
_WHAT: Final = (
    "cAdvisor's MachineInfo; capture it again, for instance with: "
    "curl http://localhost:8080/api/v2.0/machine"
)
_KIB: Final = 1024


class HugePagesInfo(Struct):
    """Hugepages of one size; ``page_size`` in KiB."""

    page_size: Annotated[int, Meta(ge=1, le=1 << 40)]
    num_pages: Size = 0


class Cache(Struct):
    """A cache; ``id`` is missing in documents of old versions."""

    level: int = 0
    type: str = ""
    size: Size = 0
    id: Id | None = None


class Core(Struct):
    """A core as cAdvisor forms it; ``socket_id`` is missing in documents of old versions."""

    core_id: Id
    thread_ids: Annotated[list[CpuId], Meta(min_length=1, max_length=MAX_ITEMS)]
    uncore_caches: list[Cache] | None = None
    socket_id: Id | None = None


class Node(Struct):
    """A NUMA node; Go writes null for an empty list."""

    node_id: Id
    memory: Size = 0
    hugepages: list[HugePagesInfo] | None = None
    cores: list[Core] | None = None
    caches: list[Cache] | None = None
    distances: list[Size] | None = None


class MachineInfo(Struct):
    """The document, as far as it is used here."""

    topology: Annotated[list[Node], Meta(min_length=1, max_length=MAX_ITEMS)]
    num_cores: int | None = None
    num_sockets: Annotated[int, Meta(ge=0)] = 0
    memory_capacity: Size | None = None
    hugepages: list[HugePagesInfo] | None = None


def machine_from_cadvisor(value: object, *, name: str, file: str | None = None) -> Machine:
    """Read a decoded MachineInfo document; ``file`` is its name for messages, else ``name``.

    Raises:
        MachineError: no MachineInfo, one without socket ids on a machine with several sockets,
            or one whose topology does not hold the CPUs that it counts.
    """
    file = file or name
    info = convert(value, MachineInfo, name=file, what=_WHAT)
    try:
        return _machine(info, name)
    except MachineError as error:
        raise MachineError(f"{file}: {error}") from error


def _machine(info: MachineInfo, name: str) -> Machine:
    _check(info)
    caches: dict[Hashable, CacheFacts] = {}
    rows: dict[int, CpuRow] = {}
    facts: dict[int, CpuFacts] = {}
    threads: dict[int, list[int]] = {}
    for node in info.topology:
        in_node = threads.setdefault(node.node_id, [])
        for position, core in enumerate(node.cores or ()):
            socket = core.socket_id or 0
            cache = _l3(node, core, socket, caches)
            fact = CpuFacts(
                core_id=core.core_id,
                package_id=socket,
                # Two cores of one id and socket stay apart (cAdvisor does so on s390x).
                book_id=f"{node.node_id}.{position}",
                caches=_upper_caches(core),
            )
            for cpu in core.thread_ids:
                before = rows.get(cpu)
                in_node.append(cpu)
                facts[cpu] = fact
                rows[cpu] = CpuRow(
                    cpu,
                    core=(node.node_id, position) if before is None else before.core,
                    package=socket,
                    l3=cache,
                    core_id=core.core_id,
                    socket=None if socket < 0 else socket,
                    numa=(node.node_id, *(before.numa if before else ())),
                )
    groups = group_rows(rows.values(), caches=caches)
    return Machine(
        name=name,
        source=SOURCE,
        cpus=groups.cpus,
        numa_nodes=tuple(
            NUMANode(
                node.node_id,
                CPUSet(threads[node.node_id]),
                memory_bytes=node.memory,
                hugepages=_pools(node.hugepages),
            )
            for node in sorted(info.topology, key=lambda node: node.node_id)
        ),
        sockets=groups.sockets,
        cores=groups.cores,
        l3=groups.l3,
        distances=_distances(info),
        memory_bytes=info.memory_capacity,
        hugepages=_pools(info.hugepages),
        kubelet_facts=KubeletFacts(
            cpus=facts,
            nodes={node: tuple(cpus) for node, cpus in threads.items()},
            physical_ids=info.num_sockets,
        ),
    )


def _check(info: MachineInfo) -> None:
    ids = [node.node_id for node in info.topology]
    if len(set(ids)) != len(ids):
        raise MachineError("a NUMA node appears twice in topology; capture MachineInfo again")
    threads = 0
    for node in info.topology:
        cpus = [cpu for core in node.cores or () for cpu in core.thread_ids]
        threads += len(cpus)
        if len(set(cpus)) != len(cpus):
            raise MachineError(
                f"a CPU is in two cores of NUMA node {node.node_id}; capture MachineInfo again"
            )
        lacks_socket = any(core.socket_id is None for core in node.cores or ())
        if lacks_socket and info.num_sockets > 1:
            raise MachineError(
                f"topology has no socket_id but the machine has {info.num_sockets} sockets: this "
                "is MachineInfo of an old cAdvisor; capture it again with 0.38 or later"
            )
    if info.num_cores is not None and info.num_cores != threads:
        raise MachineError(
            f"num_cores is {info.num_cores}, but topology has {threads} CPUs; the document is "
            "incomplete, capture MachineInfo again"
        )


def _upper_caches(core: Core) -> tuple[UpperCache, ...]:
    # cAdvisor has sorted them out already: a count that no node can have keeps them all.
    return tuple(UpperCache(cache.id or 0, -1) for cache in core.uncore_caches or ())


def _l3(node: Node, core: Core, socket: int, caches: dict[Hashable, CacheFacts]) -> Hashable | None:
    """The key of the core's level 3 cache: an uncore cache, else the node's."""
    for cache in core.uncore_caches or ():
        if cache.level == _LEVEL_3:
            # Ids are unique for one level of cache, whatever node the cores are in.
            key: Hashable = ("uncore", socket, cache.id)
            caches[key] = CacheFacts(size=cache.size or None, id=cache.id)
            return key
    for cache in node.caches or ():
        if cache.level == _LEVEL_3:
            key = ("node", node.node_id)
            caches[key] = CacheFacts(size=cache.size or None, id=cache.id)
            return key
    return None


def _pools(infos: list[HugePagesInfo] | None) -> Hugepages:
    """Pools by page size in bytes; how many are free is not said: all of them."""
    return {
        info.page_size * _KIB: HugepagePool(info.num_pages, info.num_pages) for info in infos or ()
    }


def _distances(info: MachineInfo) -> Distances | None:
    rows: Mapping[int, tuple[int, ...]] = {
        node.node_id: tuple(node.distances)
        for node in sorted(info.topology, key=lambda node: node.node_id)
        if node.distances
    }
    # The kernel's rows have one value for each node, in the order of the ids.
    if len(rows) != len(info.topology):
        return None
    return Distances(tuple(rows), rows)

"""What a machine is, as presentation wants it: the map, and the tables below it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.node_map import NodeMap

SHOWN_DEVICES: Final = 8
"""Names of devices of one kind at one node; a machine can have hundreds of functions."""


class NumaRow(Struct, frozen=True):
    """One NUMA node; ``hugepages`` maps the page size in bytes to ``(total, free)`` pages."""

    id: int
    cpus: CPUSet
    memory_bytes: int = 0
    hugepages: Mapping[int, tuple[int, int]] = MappingProxyType({})
    kind: str = ""

    def remark(self) -> str:
        """``memory only``, ``no memory``, or the kind of memory."""
        parts = [self.kind] if self.kind else []
        if not self.cpus:
            parts.append("memory only" if self.memory_bytes else "empty")
        elif not self.memory_bytes:
            parts.append("no memory known")
        return ", ".join(parts)


class KindRow(Struct, frozen=True):
    """One kind of cores of a hybrid machine."""

    name: str
    cpus: CPUSet


class DeviceRow(Struct, frozen=True):
    """PCI devices of one kind at one place.

    ``place`` is ``node 0`` or the like; ``names`` are those of the kernel, or addresses;
    ``virtual`` counts the virtual functions, which are not among the names.
    """

    place: str
    kind: str
    names: tuple[str, ...]
    virtual: int = 0


class TopologyView(Struct, frozen=True):
    """A machine to be shown.

    ``facts`` are counts such as ``("sockets", "2")`` for the header; ``distances`` maps
    a NUMA node id to its row, whose columns are ``distance_nodes``; ``kubelet_notes`` say how the
    kubelet's view differs.
    """

    title: str
    node_map: NodeMap
    facts: tuple[tuple[str, str], ...] = ()
    numa: tuple[NumaRow, ...] = ()
    distance_nodes: tuple[int, ...] = ()
    distances: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    kinds: tuple[KindRow, ...] = ()
    offline: CPUSet = CPUSet()
    isolated: CPUSet = CPUSet()
    unseen: CPUSet = CPUSet()
    kubelet_notes: tuple[str, ...] = ()
    devices: tuple[DeviceRow, ...] = ()
    nohz_full: CPUSet = CPUSet()
    rcu_nocbs: CPUSet = CPUSet()


def binary_size(count: int) -> str:
    """Bytes in the largest binary unit that keeps them readable: ``62.8 GiB``, ``2 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return _size(value, unit)
        value /= 1024
    return _size(value, "TiB")


def _size(value: float, unit: str) -> str:
    text = f"{value:.1f}" if value < 100 else f"{value:.0f}"
    return f"{text.removesuffix('.0')} {unit}"


def hugepage_text(hugepages: Mapping[int, tuple[int, int]]) -> str:
    """``1024 x 2 MiB (512 free)``, for the sizes that have pages."""
    parts = [
        f"{total} x {binary_size(size)} ({free} free)"
        for size, (total, free) in sorted(hugepages.items())
        if total
    ]
    return ", ".join(parts) or "none"


def cpu_facts(view: TopologyView) -> list[tuple[str, str, str]]:
    """The sets below the tables: name, CPU list, remark."""
    sets: Iterable[tuple[str, CPUSet, str]] = (
        *((f"{kind.name} cores", kind.cpus, "") for kind in view.kinds),
        ("Offline", view.offline, ""),
        ("Isolated", view.isolated, "isolcpus: no other work is scheduled there"),
        ("nohz_full", view.nohz_full, "no tick while one thread runs"),
        ("rcu_nocbs", view.rcu_nocbs, "callbacks run elsewhere"),
        ("Unseen", view.unseen, "online, but the kubelet does not see them"),
    )
    return [
        (name, str(cpus), f"{len(cpus)} CPU{'s' * (len(cpus) != 1)}" + (f", {say}" if say else ""))
        for name, cpus, say in sets
        if cpus
    ]


def device_facts(view: TopologyView, *, aligned: bool = True) -> list[tuple[str, str, str]]:
    """The devices: place and kind, some of the names, and how many more there are.

    ``aligned`` is for letters of one width: a place is said once, and spaces stand for it below.
    """
    facts = []
    kinds = max((len(row.place) for row in view.devices), default=0) + 2 if aligned else 0
    before = ""
    for row in view.devices:
        place = "" if aligned and row.place == before else row.place
        before = row.place
        more = [f"{len(row.names) - SHOWN_DEVICES} more"] if len(row.names) > SHOWN_DEVICES else []
        if row.virtual:
            more.append(f"{row.virtual} virtual function{'s' * (row.virtual != 1)}")
        shown = ", ".join(row.names[:SHOWN_DEVICES])
        remark = f"and {' and '.join(more)}" if more and shown else " and ".join(more)
        facts.append(
            (
                f"{place:<{kinds}}{'' if aligned else ' '}{row.kind}",
                shown or remark,
                remark if shown else "",
            )
        )
    return facts


def header(view: TopologyView) -> str:
    """The counts of the machine in one line."""
    return " · ".join(
        f"{count} {name.removesuffix('s') if count == '1' else name}" for name, count in view.facts
    )

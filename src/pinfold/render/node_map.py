"""The picture of a node as a value: which box holds which cores, and whose each CPU is.

The maps that :mod:`pinfold.render.text` prints and :mod:`pinfold.render.svg` draws are both this
value, so they can never disagree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet
from pinfold.render.boxes import Box, Cell, CellState, Level, Place, arrange

POOL: Final = "pool"
"""The kind of an owner that is a pod's shared pool, and no container."""

_NOBODYS: Final = frozenset({CellState.OFFLINE, CellState.IDLE})


class NodeMapError(ValueError):
    """Places or owners that cannot be one map."""


class Owner(Struct, frozen=True):
    """Who has CPUs for itself: a container, as a rule.

    ``index`` chooses symbol and colour; equal owners of two maps that are compared have the same.
    One that is ``mixed`` uses the shared pool besides.  The parts of a pod's ``bubble`` have a
    symbol each, and its colour together, which is that of the owner with index ``color``; the part
    of the kind :data:`POOL` is what the pod's other containers share.
    """

    key: str
    label: str
    cpus: CPUSet
    index: int = 0
    kind: str = "container"
    mixed: bool = False
    bubble: str | None = None
    color: int | None = None

    @property
    def painted(self) -> int:
        """The index of its colour."""
        return self.index if self.color is None else self.color

    @property
    def whole(self) -> str:
        """The key of its bubble; its own where it is no part of one."""
        return self.bubble or self.key


class NodeMap(Struct, frozen=True):
    """A node ready to be drawn: ``root`` has no title of its own."""

    root: Box
    owners: Mapping[str, Owner] = MappingProxyType({})
    memory_only: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def cells(self) -> Iterator[Cell]:
        """Every cell, in drawing order."""
        for core in self.root.all_cores():
            yield from core.cells

    def count(self, state: CellState) -> int:
        """CPUs in ``state``."""
        return sum(cell.state is state for cell in self.cells())

    def split_cores(self) -> tuple[int, ...]:
        """Cores that are exclusive in part: of other threads neither one owner's nor idle.

        A bubble is one owner, whatever its pod makes of it.
        """
        wholes = {key: owner.whole for key, owner in self.owners.items()}
        return tuple(
            core.id
            for core in self.root.all_cores()
            if any(cell.owner for cell in core.cells)
            and len(
                {
                    wholes.get(cell.owner or "", cell.owner)
                    for cell in core.cells
                    if cell.state not in _NOBODYS
                }
            )
            > 1
        )

    def free_cores(self) -> tuple[int, ...]:
        """Cores whose every thread may still be given to somebody."""
        return tuple(
            core.id
            for core in self.root.all_cores()
            if all(cell.state in {CellState.SHARED, CellState.ISOLATED} for cell in core.cells)
        )


def counted(state: CellState, maps: Sequence[NodeMap]) -> str:
    """``28``, or ``28 → 30`` where it is not the same on two maps."""
    counts = [str(each.count(state)) for each in maps]
    return " → ".join(dict.fromkeys(counts)) if len(set(counts)) > 1 else counts[-1]


def mute(node_map: NodeMap, keep: CPUSet) -> NodeMap:
    """The same map with every CPU outside ``keep`` drawn faint."""
    return _redrawn(node_map, lambda cell: replace(cell, muted=cell.cpu not in keep))


def mark(node_map: NodeMap, cpus: CPUSet) -> NodeMap:
    """The same map with some CPUs outlined, in pictures."""
    return _redrawn(node_map, lambda cell: replace(cell, marked=cell.cpu in cpus))


def with_devices(node_map: NodeMap, devices: Mapping[int, Sequence[str]]) -> NodeMap:
    """The same map with devices at their NUMA nodes, by the id of these.

    A node that is not drawn as a box has its devices in a line below the map.
    """
    left = {node: tuple(texts) for node, texts in devices.items() if texts}

    def placed(box: Box) -> Box:
        nodes = [label.id for label in box.labels if label.level is Level.NUMA]
        told = tuple(text for node in nodes for text in left.pop(_number(node), ()))
        return replace(box, children=tuple(map(placed, box.children)), devices=told)

    root = placed(node_map.root)
    rest = tuple(f"NUMA node {node} · {', '.join(texts)}" for node, texts in sorted(left.items()))
    return replace(node_map, root=root, memory_only=(*node_map.memory_only, *rest))


def _number(node: int | str) -> int:
    return node if isinstance(node, int) else -1


def lend(node_map: NodeMap, cpus: CPUSet) -> NodeMap:
    """The same map with some CPUs of owners drawn as lent; in the colour of their owner."""

    def drawn(cell: Cell) -> Cell:
        is_lent = cell.owner is not None and cell.cpu in cpus
        return replace(cell, state=CellState.LENT) if is_lent else cell

    return _redrawn(node_map, drawn)


def with_owners(node_map: NodeMap, owners: Sequence[Owner]) -> NodeMap:
    """The same machine with other owners; what nobody has any more is in the shared pool."""
    owned: dict[int, Owner] = {}
    # What an init container has is drawn as its heirs'.
    for owner in sorted(owners, key=lambda owner: owner.kind == "init"):
        for cpu in owner.cpus:
            owned.setdefault(cpu, owner)

    def drawn(cell: Cell) -> Cell:
        owner = owned.get(cell.cpu)
        if owner is not None:
            return replace(cell, owner=owner.key, state=CellState.EXCLUSIVE)
        if cell.owner is None:
            return cell
        state = CellState.ISOLATED if cell.isolated else CellState.SHARED
        return replace(cell, owner=None, state=state)

    by_key = MappingProxyType({owner.key: owner for owner in owners})
    return replace(_redrawn(node_map, drawn), owners=by_key)


def _redrawn(node_map: NodeMap, cell: Callable[[Cell], Cell]) -> NodeMap:
    def redraw(box: Box) -> Box:
        cores = tuple(replace(core, cells=tuple(map(cell, core.cells))) for core in box.cores)
        return replace(box, children=tuple(redraw(child) for child in box.children), cores=cores)

    return replace(node_map, root=redraw(node_map.root))


def build_node_map(  # noqa: PLR0913 - one name for each thing that a map shows
    places: CPUTopology | Iterable[Place],
    owners: Iterable[Owner] = (),
    *,
    shared: CPUSet | None = None,
    reserved: CPUSet | None = None,
    idle: CPUSet | None = None,
    details: Mapping[tuple[Level, int], str] | None = None,
    memory_only: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> NodeMap:
    """Arrange CPUs in boxes and colour them.

    Args:
        places: one for each present CPU, in any order, or the kubelet's view of a machine.
        owners: their order is that of the legend; an owner whose ``index`` is 0 like another's
            shares its colour, see :func:`number_owners`.
        shared: the shared pool; CPUs in no set are plain ``ONLINE``.
        reserved: the reserved CPUs; they win over ``shared`` (which may contain them).
        idle: siblings that belong to nobody, so that somebody is alone on his cores.
        details: what stands behind the title of a socket, NUMA node or cache.
        memory_only: a line for each NUMA node without CPUs.
        notes: lines below the map.

    Raises:
        NodeMapError: a CPU twice, or owned twice.
    """
    if isinstance(places, CPUTopology):
        places = places_of(places)
    rows = sorted(places, key=lambda place: place.cpu)
    for one, two in itertools.pairwise(rows):
        if one.cpu == two.cpu:
            raise NodeMapError(f"CPU {one.cpu} appears twice in the map")
    by_key: dict[str, Owner] = {}
    owned: dict[int, str] = {}
    for owner in owners:
        by_key[owner.key] = owner
        for cpu in owner.cpus:
            if owned.setdefault(cpu, owner.key) != owner.key:
                raise NodeMapError(f"CPU {cpu} belongs to {owned[cpu]!r} and to {owner.key!r}")
    empty = CPUSet()
    cells = {
        place.cpu: _cell(
            place, owned.get(place.cpu), shared or empty, reserved or empty, idle or empty
        )
        for place in rows
    }
    root, crossing = arrange(rows, cells, details or {})
    named = ", ".join(label.text(short=True) for label in crossing)
    if named:
        notes = (*notes, f"not drawn as boxes, because they overlap with others: {named}")
    return NodeMap(root, MappingProxyType(by_key), tuple(memory_only), tuple(notes))


def places_of(topology: CPUTopology) -> tuple[Place, ...]:
    """The places of the CPUs that the kubelet sees.

    Without cache files the kubelet takes the socket's id for the uncore cache's; such caches are
    none.
    """
    cached = dict(topology.uncore_caches) != dict(topology.sockets)
    return tuple(
        Place(row.cpu, row.core, row.uncore_cache if cached else None, row.numa_node, row.socket)
        for row in topology.rows
    )


def number_owners(owners: Iterable[Owner]) -> tuple[Owner, ...]:
    """The owners with ``index`` 0, 1, 2 ... in their order; a bubble has one colour."""
    colors: dict[str, int] = {}
    return tuple(
        replace(owner, index=number, color=colors.setdefault(owner.whole, len(colors)))
        for number, owner in enumerate(owners)
    )


def _cell(place: Place, owner: str | None, shared: CPUSet, reserved: CPUSet, idle: CPUSet) -> Cell:
    if owner is not None:
        state = CellState.EXCLUSIVE
    elif not place.online:
        state = CellState.OFFLINE
    elif not place.seen:
        state = CellState.UNSEEN
    elif place.cpu in idle:
        state = CellState.IDLE
    elif place.cpu in reserved:
        state = CellState.RESERVED
    elif place.cpu in shared:
        state = CellState.SHARED
    else:
        state = CellState.ISOLATED if place.isolated else CellState.ONLINE
    return Cell(place.cpu, state, owner, place.isolated)

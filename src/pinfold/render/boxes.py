"""Boxes within boxes: how CPUs become sockets, NUMA nodes, caches and cores of a picture.

Boxes nest as the machine does: sockets, NUMA nodes and L3 caches form a tree in whatever order
they contain each other; two that hold the same CPUs are one box with both titles; one that
overlaps another half way cannot be drawn as a box.  No CPU is ever lost or drawn twice.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet

_DIGITS: Final = str.maketrans("123456789", "000000000")


class CellState(enum.Enum):
    """What a CPU is to the CPU manager; the value is the word of the legend."""

    EXCLUSIVE = "exclusive"
    LENT = "exclusive and lent"
    IDLE = "idle sibling"
    SHARED = "shared pool"
    RESERVED = "reserved"
    ONLINE = "online"
    ISOLATED = "isolated"
    UNSEEN = "unseen by the kubelet"
    OFFLINE = "offline"


class Level(enum.IntEnum):
    """What a box stands for; the lower one is the outer one where two hold the same CPUs."""

    SOCKET = 0
    NUMA = 1
    L3 = 2
    KIND = 3


class Place(Struct, frozen=True):
    """Where one CPU sits.  Ids are the kernel's; ``None`` where it has none or is unknown.

    ``core`` and ``l3`` are unique in the machine (the lowest CPU id of the core or cache).
    ``seen`` is whether the kubelet sees the CPU; ``kind`` names the core kind of hybrid machines.
    """

    cpu: int
    core: int | None = None
    l3: int | None = None
    numa: int | None = None
    socket: int | None = None
    kind: str | None = None
    online: bool = True
    isolated: bool = False
    seen: bool = True


class Cell(Struct, frozen=True):
    """One thread.

    ``muted`` cells are drawn faint (those that a comparison leaves alone), ``marked`` ones with an
    outline.
    """

    cpu: int
    state: CellState
    owner: str | None = None
    isolated: bool = False
    muted: bool = False
    marked: bool = False


class Core(Struct, frozen=True):
    """The threads of one core, ascending."""

    id: int
    cells: tuple[Cell, ...]


class Label(Struct, frozen=True):
    """One title of a box: ``detail`` is free text such as ``64 GiB``; ids below 0 are not shown."""

    level: Level
    id: int | str
    detail: str = ""

    def text(self, *, short: bool = False) -> str:
        """``NUMA node 0 · 64 GiB``, or ``NUMA 0`` when short."""
        names = {Level.SOCKET: "Socket", Level.NUMA: "NUMA node", Level.L3: "L3", Level.KIND: ""}
        name = "NUMA" if short and self.level is Level.NUMA else names[self.level]
        unknown = isinstance(self.id, int) and self.id < 0
        head = name if unknown else f"{name} {self.id}".strip()
        return head if short or not self.detail else f"{head} · {self.detail}"


class Box(Struct, frozen=True):
    """A part of the machine: either ``children`` or ``cores``, never both.

    ``devices`` are those that are there, a text each, below what is inside.
    """

    labels: tuple[Label, ...] = ()
    children: tuple[Box, ...] = ()
    cores: tuple[Core, ...] = ()
    offline: bool = False
    devices: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """``Socket 0 · NUMA node 0 · 64 GiB``; empty of one without labels."""
        return "Offline" if self.offline else " · ".join(label.text() for label in self.labels)

    def all_cores(self) -> Iterator[Core]:
        """Every core in the box and the boxes inside it, in drawing order."""
        yield from self.cores
        for child in self.children:
            yield from child.all_cores()

    def cpus(self) -> CPUSet:
        """Every CPU in the box."""
        return CPUSet(cell.cpu for core in self.all_cores() for cell in core.cells)


class _Node:
    """A box under construction: ``mask`` is its CPUs."""

    __slots__ = ("children", "labels", "mask")

    def __init__(self, mask: int, labels: list[Label]) -> None:
        self.mask = mask
        self.labels = labels
        self.children: list[_Node] = []


def arrange(
    rows: Sequence[Place], cells: Mapping[int, Cell], details: Mapping[tuple[Level, int], str]
) -> tuple[Box, list[Label]]:
    """The boxes of a machine, and the titles of those that could not be drawn as boxes.

    ``rows`` are ascending; ``details`` is what stands behind the title of a socket, node or cache.
    """
    # An offline CPU mostly has no place in sysfs; one that has is drawn where it sits.
    placed = [row for row in rows if row.online or row.core is not None]
    nodes, crossing = _nest(placed, details)
    root = _Node(_mask(placed), [])
    for node in sorted(nodes, key=lambda node: (-node.mask.bit_count(), node.mask & -node.mask)):
        parent = root
        while inner := [child for child in parent.children if node.mask & ~child.mask == 0]:
            parent = inner[0]
        parent.children.append(node)
    by_cpu = {row.cpu: row for row in rows}
    top = _finish(root, by_cpu, cells)
    lost = [row for row in rows if not (row.online or row.core is not None)]
    if lost:
        offline = Box((), (), tuple(Core(p.cpu, (cells[p.cpu],)) for p in lost), offline=True)
        inner_boxes = top.children or ((replace(top, labels=()),) if top.cores else ())
        top = Box((), (*inner_boxes, offline))
    return top, crossing


def _nest(
    placed: Sequence[Place], details: Mapping[tuple[Level, int], str]
) -> tuple[list[_Node], list[Label]]:
    """The groups that nest, and the labels of those that do not."""
    cores = set(_groups((row.cpu, row.core) for row in placed).values())
    nodes: dict[int, _Node] = {}
    crossing: list[Label] = []
    for level, pairs in (
        (Level.SOCKET, [(row.cpu, row.socket) for row in placed]),
        (Level.NUMA, [(row.cpu, row.numa) for row in placed]),
        (Level.L3, [(row.cpu, row.l3) for row in placed]),
    ):
        for id_, mask in sorted(_groups(pairs).items()):
            if level is Level.L3 and mask in cores:
                continue  # a cache of one core says nothing that the core does not
            label = Label(level, id_, details.get((level, id_), ""))
            if mask in nodes:
                nodes[mask].labels.append(label)
            elif any(mask & other and mask & ~other and other & ~mask for other in nodes):
                crossing.append(label)
            else:
                nodes[mask] = _Node(mask, [label])
    return list(nodes.values()), crossing


def _finish(node: _Node, by_cpu: Mapping[int, Place], cells: Mapping[int, Cell]) -> Box:
    ordered = sorted(node.children, key=lambda child: child.mask & -child.mask)
    children = [_finish(child, by_cpu, cells) for child in ordered]
    rest = node.mask
    for child in node.children:
        rest &= ~child.mask
    kinds: dict[str | None, dict[int, list[Cell]]] = {}
    for cpu in CPUSet.from_mask(rest):
        place = by_cpu[cpu]
        core = cpu if place.core is None else place.core
        kinds.setdefault(place.kind, {}).setdefault(core, []).append(cells[cpu])
    leaves = [
        Box(
            () if kind is None or len(kinds) == 1 else (Label(Level.KIND, kind),),
            (),
            tuple(Core(core, tuple(found)) for core, found in cores.items()),
        )
        for kind, cores in kinds.items()
    ]
    labels = tuple(node.labels)
    if len(leaves) == 1 and not children:
        return replace(leaves[0], labels=labels)
    return Box(labels, (*children, *leaves))


def _groups(pairs: Iterable[tuple[int, int | None]]) -> dict[int, int]:
    groups: dict[int, int] = {}
    for cpu, id_ in pairs:
        if id_ is not None:
            groups[id_] = groups.get(id_, 0) | 1 << cpu
    return groups


def _mask(rows: Iterable[Place]) -> int:
    mask = 0
    for row in rows:
        mask |= 1 << row.cpu
    return mask


def shapes(root: Box) -> dict[int, int]:
    """A number for each box (by ``id``), equal for boxes that take the same room.

    Large machines are made of like parts; measuring one of each is enough.
    """
    known: dict[object, int] = {}
    found: dict[int, int] = {}

    def walk(box: Box) -> int:
        threads = max((len(core.cells) for core in box.cores), default=0)
        digits = max((len(str(core.cells[-1].cpu)) for core in box.cores), default=0)
        # Digits are all of one width, other characters need not be.
        titles = tuple(label.text().translate(_DIGITS) for label in box.labels)
        inside = tuple(walk(child) for child in box.children)
        key = (inside, len(box.cores), threads, digits, titles, box.offline, box.devices)
        found[id(box)] = known.setdefault(key, len(known))
        return found[id(box)]

    walk(root)
    return found


def cores_per_row(count: int, most: int) -> int:
    """How to break ``count`` cores into rows of at most ``most``: evenly, or at a round number."""
    share = -(-count // -(-count // most))
    if count % share == 0:
        return share
    for even in range(most, max(most // 2, 1), -1):
        if count % even == 0:
            return even
    for step in (8, 4, 2):
        even = -(-share // step) * step
        if even <= most:
            return even
    return share

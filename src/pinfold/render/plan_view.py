"""What a plan says, as presentation wants it: the map, the pods and the sets beside it.

The command line fills these values from a plan, the renderers only read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from pinfold.core.pod.pod import MEMORY
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.records import MemoryBlock
from pinfold.render.boxes import CellState
from pinfold.render.node_map import POOL, NodeMap
from pinfold.render.numa_panel import NUMAGauges
from pinfold.render.topology_view import binary_size

POD_POOL: Final = "pod shared pool"
"""What the containers of a bubble share that have nothing of their own."""

_LISTED: Final = 40
"""Longer lists of split cores are left out: the map shows them."""

_IDS_SHOWN: Final = 8


class ContainerRow(Struct, frozen=True):
    """One container and the CPUs it may run on.

    ``owner`` is the key of its :class:`~pinfold.render.node_map.Owner` where it has CPUs for
    itself, else ``None``; ``kind`` is ``init`` or ``sidecar`` where it is not an ordinary one;
    ``extras`` say what it has beside CPUs, such as ``memory 8 GiB on NUMA node 0``.  ``remark``
    stands behind ``cpus`` that it shares with others of its pod, such as ``pod shared pool``; then
    ``owner`` is that of this part of the pod's bubble.
    """

    name: str
    cpus: CPUSet
    exclusive: bool = False
    owner: str | None = None
    kind: str = ""
    extras: tuple[str, ...] = ()
    remark: str = ""


class PodRow(Struct, frozen=True):
    """One pod: where its containers went, or why it was refused (the kubelet's words).

    ``failed`` is one that was admitted and has failed since; where it says a ``reason``, that is
    told in place of the containers, as a refusal is.  ``whole`` are lines on what the pod has as a
    whole, which its containers divide.  ``owner`` is the workload that has created it, such as
    ``deployment/web``, where something says so.  One that has ``ended`` has nothing any more.
    """

    namespace: str
    name: str
    qos: str
    admitted: bool
    containers: tuple[ContainerRow, ...] = ()
    reason: str | None = None
    message: str | None = None
    failed: bool = False
    whole: tuple[str, ...] = ()
    owner: str | None = None
    uid: str = ""
    ended: bool = False

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def has_trouble(self) -> bool:
        """Whether a reason is told in place of the containers."""
        return not self.admitted or (self.failed and self.reason is not None)


class ResizeRow(Struct, frozen=True):
    """A resize of a container, or why it cannot be (``reason`` and ``message``)."""

    name: str
    cpus: float
    before: CPUSet
    after: CPUSet
    owner: str | None = None
    reason: str | None = None
    message: str | None = None

    @property
    def feasible(self) -> bool:
        """Whether it can be done."""
        return self.reason is None

    @property
    def change(self) -> str:
        """``4 → 6 CPUs``, ``as before``, or ``to 6 CPUs`` where it cannot be done.

        A kubelet's container may ask for another number, and have the CPUs of before.
        """
        if self.feasible and self.before == self.after:
            if int(self.cpus) == len(self.before):
                return "as before"
            kept = f", keeps its {len(self.before)}" if self.before else ""
            return f"asks for {self.cpus} CPU{'s' * (self.cpus != 1)}{kept}"
        now = f"{len(self.before)} → " if self.feasible else "to "
        return f"{now}{self.cpus} CPU{'s' * (self.cpus != 1)}"

    @property
    def outcome(self) -> str:
        """``2-5 → 2-7``."""
        if self.before != self.after:
            return f"{self.before} → {self.after}" if self.before else f"→ {self.after}"
        return str(self.after) or "shared pool"


class PlanView(Struct, frozen=True):
    """A whole plan.  ``subtitle`` says the policies; ``notes`` are warnings below everything.

    ``numa`` is empty where there is nothing to tell of NUMA nodes but their CPUs; ``pins`` is
    whether anybody gives out CPUs here: where nobody does, no summary says who has which.
    ``isolated`` are CPUs that the kernel was booted to isolate, ``idle`` siblings that stay idle.
    All but ``resizes`` is as it is after them.  ``in_force`` is what is wished of the node besides,
    ``quotas`` what is in use of those of the namespaces.  ``each`` is whether every pod is told in
    a row of its own, also of many replicas that are alike.
    """

    title: str
    node_map: NodeMap
    pods: tuple[PodRow, ...] = ()
    subtitle: str = ""
    shared: CPUSet = CPUSet()
    reserved: CPUSet = CPUSet()
    allocatable: CPUSet = CPUSet()
    notes: tuple[str, ...] = ()
    numa: tuple[NUMAGauges, ...] = ()
    pins: bool = True
    isolated: CPUSet = CPUSet()
    idle: CPUSet = CPUSet()
    resizes: tuple[ResizeRow, ...] = ()
    in_force: tuple[str, ...] = ()
    quotas: tuple[str, ...] = ()
    each: bool = False

    @property
    def exclusive(self) -> CPUSet:
        """CPUs that somebody has for itself."""
        return CPUSet(cell.cpu for cell in self.node_map.cells() if cell.owner is not None)

    @property
    def rejected(self) -> int:
        """Pods that were refused."""
        return sum(not pod.admitted for pod in self.pods)


def summary_facts(view: PlanView) -> Iterator[tuple[str, str, str]]:
    """The lines below the pods: a name, a value, and a remark that may be left out."""
    if not view.pins:
        return
    if view.isolated:
        remark = f"{_cpus(view.isolated)}, by the kernel's command line"
        yield "Isolated", str(view.isolated), remark
    exclusive = view.exclusive
    drawn = [owner for owner in view.node_map.owners.values() if owner.cpus]
    owners = sum(owner.kind != POOL for owner in drawn)
    bubbles = len({owner.bubble for owner in drawn if owner.bubble})
    yield "Shared pool", _listed(view.shared), _cpus(view.shared) + _drawn_apart(view)
    yield "Reserved", _listed(view.reserved), _cpus(view.reserved)
    yield "Allocatable", _listed(view.allocatable), _cpus(view.allocatable)
    remark = _cpus(exclusive)
    if view.allocatable:
        remark += f", {100 * len(exclusive) / len(view.allocatable):.0f} % of allocatable"
    if owners:
        remark += f", {owners} container{'s' * (owners != 1)}"
    if bubbles:
        remark += f", {bubbles} pod{'s' * (bubbles != 1)} as a whole"
    yield "Exclusive", _listed(exclusive), remark
    if view.idle:
        yield "Idle", str(view.idle), f"{_cpus(view.idle)}, siblings that belong to nobody"
    free, split = len(view.node_map.free_cores()), view.node_map.split_cores()
    text = f"{free} whole core{'s' * (free != 1)} free"
    if split:
        text += f", {len(split)} split between owners"
        named = str(CPUSet(split))
        text += f" (core {named})" if len(named) <= _LISTED else ""
    yield "Cores", text, ""
    for number, wish in enumerate(view.in_force):
        yield "" if number else "Besides", wish, ""
    for number, quota in enumerate(view.quotas):
        yield "" if number else "Quotas", quota, ""


def _drawn_apart(view: PlanView) -> str:
    """What of the shared pool the map and its legend tell of as something else."""
    cells = [cell for cell in view.node_map.cells() if cell.cpu in view.shared]
    counts = Counter[CellState](cell.state for cell in cells)
    apart = [state for state in CellState if state is not CellState.SHARED and counts[state]]
    if len(counts) == 1:
        return f", {'all ' * (len(cells) > 1)}{apart[0].value}" if apart else ""
    texts = [f"{counts[state]} {state.value}" for state in apart]
    return f", of them {' and '.join(texts)}" if texts else ""


def state_counts(node_map: NodeMap) -> Mapping[CellState, int]:
    """How many CPUs are in each state that occurs, in the order of the legend."""
    counts = {state: node_map.count(state) for state in CellState}
    return {state: number for state, number in counts.items() if number}


def headline(view: PlanView) -> str:
    """``4 admitted, 1 failed, 1 rejected``; each pod counts once."""
    failed = sum(pod.admitted and pod.failed for pod in view.pods)
    text = f"{len(view.pods) - view.rejected - failed} admitted"
    text += f", {failed} failed" if failed else ""
    return f"{text}, {view.rejected} rejected" if view.rejected else text


def resizes_headline(view: PlanView) -> str:
    """``2 feasible, 1 infeasible``; the map shows the outcome."""
    feasible = sum(row.feasible for row in view.resizes)
    infeasible = len(view.resizes) - feasible
    texts = [f"{feasible} feasible"] * bool(feasible)
    texts += [f"{infeasible} infeasible"] * bool(infeasible)
    order = ", in this order" if len(view.resizes) > 1 else ""
    return f"{', '.join(texts)}{order}{'; all else is as it is afterwards' if feasible else ''}"


def _listed(cpus: CPUSet) -> str:
    return str(cpus) or "none"


def _cpus(cpus: CPUSet) -> str:
    return f"{len(cpus)} CPU{'s' * (len(cpus) != 1)}"


def extras(
    memory: Sequence[MemoryBlock],
    devices: Mapping[str, Sequence[str]],
    classes: Mapping[str, Sequence[str]] | UnsetType = UNSET,
) -> Iterator[str]:
    """What a container has beside CPUs, a line for each place, each resource and each class."""
    places: dict[tuple[int, ...], list[MemoryBlock]] = {}
    for block in memory:
        if block.size:  # what an init container leaves to the next one is nobody's twice
            places.setdefault(block.numa_nodes, []).append(block)
    for nodes, blocks in places.items():
        ordered = sorted(blocks, key=lambda block: (block.type != MEMORY, block.type))
        sizes = ", ".join(f"{block.type} {binary_size(block.size)}" for block in ordered)
        yield f"{sizes} on NUMA node{'s' * (len(nodes) > 1)} {CPUSet(nodes)}"
    for_classes = [(f"for class {name}", ids) for name, ids in sorted((classes or {}).items())]
    for resource, ids in [*sorted(devices.items()), *for_classes]:
        more = f" and {len(ids) - _IDS_SHOWN} more" if len(ids) > _IDS_SHOWN else ""
        yield f"{resource}: {', '.join(ids[:_IDS_SHOWN])}{more}"

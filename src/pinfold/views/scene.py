"""From what terminal and pictures draw to a scene, which a page in a browser draws.

All three draw one :class:`~pinfold.render.plan_view.PlanView`, so they can never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.api import HistoryEntry
from pinfold.documents.live.event import Whole
from pinfold.documents.live.scene import (
    Paint,
    Scene,
    SceneBox,
    SceneContainer,
    SceneCore,
    SceneFact,
    SceneGauge,
    SceneOwner,
    ScenePod,
    SceneState,
    SceneZone,
)
from pinfold.documents.machine import Machine
from pinfold.render.boxes import Box, CellState
from pinfold.render.node_map import NodeMap, Owner
from pinfold.render.numa_panel import NUMAGauges
from pinfold.render.palette import owner_symbol, state_symbol
from pinfold.render.plan_view import (
    ContainerRow,
    PlanView,
    PodRow,
    ResizeRow,
    state_counts,
    summary_facts,
)
from pinfold.render.svg_canvas import owner_look, state_colors
from pinfold.render.terminal import clean
from pinfold.views.past import past
from pinfold.views.status import Hardware, status_view

Why = Mapping[str, Sequence[str]]
"""The lines of ``pinfold explain`` by ``namespace/name`` of the pod."""

_NOTHING: Final[Why] = MappingProxyType({})


def scene_of(
    view: PlanView,
    *,
    at: float | None = None,
    live: bool = False,
    why: Why = _NOTHING,
    marked: CPUSet | None = None,
) -> Scene:
    """A view as a page draws it.

    Args:
        view: a plan, or a live node (:func:`~pinfold.views.status.status_view`).
        at: the moment, in seconds since the epoch; None for a plan.
        live: whether it is how the node is now.
        why: what is told beforehand of why pods have what they have.
        marked: CPUs that are to be outlined.
    """
    node_map = view.node_map
    return Scene(
        title=clean(view.title),
        subtitle=clean(view.subtitle),
        at=at,
        live=live,
        summary=_summary(node_map),
        root=_box(node_map.root),
        owners=tuple(_owners(view)),
        states=tuple(_states(node_map)),
        pods=tuple(_pod(pod, why) for pod in view.pods),
        zones=tuple(map(_zone, view.numa)),
        facts=(*map(_resize, view.resizes), *(_fact(*fact) for fact in summary_facts(view))),
        notes=_clean((*node_map.memory_only, *node_map.notes, *view.notes)),
        marked=str(marked or ""),
    )


class SceneMaker:
    """Makes scenes of a live node, one after the other; keeps what it has read of its machine."""

    def __init__(self) -> None:
        self._read: tuple[Machine, Hardware] | None = None

    def scene(self, whole: Whole, at: float, *, live: bool = True) -> Scene:
        """How the node is drawn at this moment, in seconds since the epoch.

        Raises:
            MachineError: the machine of another version of Pinfold.
        """
        # What containers do is told by events of its own: a scene does not grow old with it.
        hardware = self._hardware(whole.machine)
        view = status_view(whole.status, hardware, whole.node, observed=False)
        return scene_of(view, at=at, live=live)

    def past(self, now: Whole, entries: Iterable[HistoryEntry], at: float) -> Scene:
        """How the node was drawn at a moment that is over, as far as its history tells.

        Args:
            now: what the agent says now.
            entries: of ``GET /v1/history``, in any order.
            at: the moment, in seconds since the epoch.

        Raises:
            MachineError: the machine of another version of Pinfold.
        """
        found = past(now, entries, at)
        scene = self.scene(found.whole, at, live=False)
        return replace(scene, notes=(*_clean(found.notes), *scene.notes))

    def _hardware(self, machine: Machine) -> Hardware:
        if self._read is None or self._read[0] is not machine:
            self._read = machine, Hardware.told(msgspec.to_builtins(machine))
        return self._read[1]


def scene_of_status(whole: Whole, at: float) -> Scene:
    """How a live node is drawn at this moment; see :class:`SceneMaker` for many of them."""
    return SceneMaker().scene(whole, at)


def _summary(node_map: NodeMap) -> str:
    """``32 CPUs · 12 exclusive · 18 shared pool · 2 reserved``, in the words of the legend."""
    counts = state_counts(node_map)
    every = sum(counts.values())
    told = [f"{count} {state.value}" for state, count in counts.items()]
    return " · ".join((f"{every} CPU{'s' * (every != 1)}", *told))


def _box(box: Box) -> SceneBox:
    return SceneBox(
        title=clean(box.title),
        boxes=tuple(map(_box, box.children)),
        cores=tuple(
            SceneCore(id=core.id, cpus=tuple(cell.cpu for cell in core.cells)) for core in box.cores
        ),
        devices=_clean(box.devices),
    )


def _owners(view: PlanView) -> Iterator[SceneOwner]:
    """Those with CPUs of the map: a CPU that is not there is drawn nowhere."""
    drawn: dict[str, int] = {}
    lent: dict[str, int] = {}
    for cell in view.node_map.cells():
        if cell.owner is not None:
            drawn[cell.owner] = drawn.get(cell.owner, 0) | 1 << cell.cpu
            if cell.state is CellState.LENT:
                lent[cell.owner] = lent.get(cell.owner, 0) | 1 << cell.cpu
    names = _containers_of(view.pods)
    for key, owner in view.node_map.owners.items():
        pod, container = names.get(key, (key, ""))
        yield SceneOwner(
            key=key,
            label=clean(owner.label),
            pod=clean(pod),
            container=clean(container),
            cpus=str(CPUSet.from_mask(drawn.get(key, 0))),
            lent=str(CPUSet.from_mask(lent.get(key, 0))),
            mixed=owner.mixed,
            paint=_owner_paint(owner),
        )


def _containers_of(pods: Iterable[PodRow]) -> dict[str, tuple[str, str]]:
    """Key of an owner -> the pod and the container; what a pod shares is no container's."""
    return {
        f"{pod.full_name}/{one.name}": (pod.full_name, one.name)
        for pod in pods
        for one in pod.containers
    }


def _owner_paint(owner: Owner) -> Paint:
    look = owner_look(owner)
    return Paint(
        mark=owner_symbol(owner.index),
        background=look.fill,
        text=look.ink,
        stripes=look.stripes,
        stripe=look.shade or UNSET,
    )


def _states(node_map: NodeMap) -> Iterator[SceneState]:
    """The states of the CPUs that nobody owns, in the order of the legend."""
    cpus: dict[CellState, int] = {}
    for cell in node_map.cells():
        if cell.owner is None:
            cpus[cell.state] = cpus.get(cell.state, 0) | 1 << cell.cpu
    for state in CellState:
        if state in cpus:
            paint = _state_paint(state)
            yield SceneState(
                state=state.value, cpus=str(CPUSet.from_mask(cpus[state])), paint=paint
            )


def _state_paint(state: CellState) -> Paint:
    light, dark = state_colors(state)
    return Paint(
        mark=state_symbol(state).strip(),
        background=light[0],
        text=light[1],
        outline=state is CellState.OFFLINE,
        dark_background=UNSET if dark == light else dark[0],
        dark_text=UNSET if dark == light else dark[1],
    )


def _pod(pod: PodRow, why: Why) -> ScenePod:
    lines = why.get(pod.full_name)
    return ScenePod(
        namespace=clean(pod.namespace),
        name=clean(pod.name),
        uid=pod.uid,
        word=clean(pod.qos),
        admitted=pod.admitted,
        ended=pod.ended,
        reason=pod.reason and clean(pod.reason),
        message=pod.message and clean(pod.message),
        workload=pod.owner and clean(pod.owner),
        whole=_clean(pod.whole),
        containers=tuple(map(_container, pod.containers)),
        why=UNSET if lines is None else _clean(lines),
    )


def _container(row: ContainerRow) -> SceneContainer:
    return SceneContainer(
        name=clean(row.name),
        kind=row.kind,
        cpus=str(row.cpus),
        exclusive=row.exclusive,
        owner=row.owner,
        remark=clean(row.remark),
        extras=_clean(row.extras),
    )


def _zone(node: NUMAGauges) -> SceneZone:
    title = "no NUMA node known" if node.id is None else f"NUMA node {node.id}"
    others = CPUSet(node.group) - CPUSet(() if node.id is None else (node.id,))
    return SceneZone(
        title=f"{title}, together with {others}" if others else title,
        gauges=tuple(
            SceneGauge(name=clean(one.resource), used=one.share(), text=one.text())
            for one in node.gauges
        ),
    )


def _resize(row: ResizeRow) -> SceneFact:
    outcome = row.outcome if row.feasible else f"{row.reason}: {row.message}"
    return SceneFact(name="Resize", value=clean(f"{row.name}  {row.change}"), remark=clean(outcome))


def _fact(name: str, value: str, remark: str) -> SceneFact:
    return SceneFact(name=name, value=clean(value), remark=clean(remark))


def _clean(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(clean, texts))

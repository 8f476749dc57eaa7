"""A node as it is drawn on a page: everything that a browser needs, in words and colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from pinfold.documents.records import CPUs, Document, Record

Color: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": "^#[0-9a-f]{6}$"})]
Stripes: TypeAlias = Annotated[
    str,
    Meta(extra_json_schema={"enum": ["", "rising", "falling", "upright", "level", "both"]}),
]


class SceneCore(Record, frozen=True, kw_only=True):
    """The threads of a core, drawn side by side."""

    id: int
    cpus: Sequence[int]


class SceneBox(Record, frozen=True, kw_only=True):
    """A part of the machine: a socket, a NUMA node, a cache; with boxes or with cores inside."""

    title: str
    """Such as ``Socket 0 · NUMA node 0 · 64 GiB``; empty of the whole machine."""
    boxes: Sequence[SceneBox] = ()
    cores: Sequence[SceneCore] = ()
    devices: Sequence[str] = ()
    """A text each."""


class Paint(Record, frozen=True, kw_only=True):
    """How a cell is painted; its mark is legible on its background."""

    mark: str
    """One letter or two: colour is never the only mark."""
    background: Color
    text: Color
    stripes: Stripes = ""
    stripe: Color | UnsetType = UNSET
    """The colour of the stripes, where there are some."""
    outline: bool = False
    """Whether it is a dashed outline and no block, such as that of a CPU that is offline."""
    dark_background: Color | UnsetType = UNSET
    """The background on a dark page, where it is another one there."""
    dark_text: Color | UnsetType = UNSET
    """The text on it."""


class SceneOwner(Record, frozen=True, kw_only=True):
    """Who has CPUs for itself."""

    key: str
    label: str
    """Such as ``default/db postgres``."""
    pod: str
    """``namespace/name``."""
    container: str
    """Empty where it is what the containers of a pod share among themselves."""
    cpus: CPUs
    lent: CPUs = ""
    """Those of them that are lent."""
    mixed: bool = False
    """Whether it uses the shared pool besides."""
    paint: Paint


class SceneState(Record, frozen=True, kw_only=True):
    """The CPUs that nobody owns, by what they are."""

    state: str
    """The word of the legend: ``shared pool``, ``reserved``, ``isolated``, ``offline``,
    ``online`` where nobody gives out CPUs, ``idle sibling``, ``unseen by the kubelet``."""
    cpus: CPUs
    paint: Paint


class SceneContainer(Record, frozen=True, kw_only=True):
    """A container of a pod."""

    name: str
    kind: str = ""
    """``init``, ``sidecar``, how it has ended; empty where there is nothing to say."""
    cpus: CPUs
    """Where it may run."""
    exclusive: bool
    owner: str | None = None
    """The key of its owner, where CPUs are its own."""
    remark: str = ""
    extras: Sequence[str] = ()
    """What it has beside CPUs, in words."""


class ScenePod(Record, frozen=True, kw_only=True):
    """A pod, or one that was refused."""

    namespace: str
    name: str
    uid: str = ""
    word: str
    """Its QoS class while it runs, its phase otherwise."""
    admitted: bool
    ended: bool = False
    reason: str | None = None
    """Why it was refused or has failed, the kubelet's word."""
    message: str | None = None
    workload: str | None = None
    """Who has created it, such as ``deployment/web``."""
    whole: Sequence[str] = ()
    """What the pod has as a whole, in words."""
    containers: Sequence[SceneContainer] = ()
    why: Sequence[str] | UnsetType = UNSET
    """The lines of ``pinfold explain``, where they are told beforehand."""


class SceneGauge(Record, frozen=True, kw_only=True):
    """How much of something is given out."""

    name: str
    used: float | None
    """0 to 1; null where there is nothing, or nobody counts."""
    text: str
    """Such as ``24 of 64 GiB``."""


class SceneZone(Record, frozen=True, kw_only=True):
    """The memory and devices of a NUMA node."""

    title: str
    gauges: Sequence[SceneGauge]


class SceneFact(Record, frozen=True, kw_only=True):
    """A line below the pods."""

    name: str
    """Such as ``Allocatable``."""
    value: str
    remark: str = ""


class Scene(Document, frozen=True, kw_only=True):
    """A node as it is drawn; a scene replaces the one before it."""

    title: str
    subtitle: str
    at: float | None
    """The moment, in seconds since the epoch; null for a plan."""
    live: bool
    """Whether it is how the node is now."""
    summary: str
    """One line, such as ``32 CPUs · 12 exclusive · 18 shared · 2 reserved``."""
    root: SceneBox | UnsetType = UNSET
    """Where the CPUs are; on a stream left out while it is as before."""
    owners: Sequence[SceneOwner]
    states: Sequence[SceneState]
    """With the owners, each CPU of the machine once."""
    pods: Sequence[ScenePod]
    zones: Sequence[SceneZone] = ()
    facts: Sequence[SceneFact] = ()
    """The sets of CPUs, the cores that are free, quotas, resizes: what a plan says in text."""
    notes: Sequence[str] = ()
    marked: CPUs = ""
    """CPUs that are to be outlined, such as those that differ in a comparison."""


class ScenePage(Document, frozen=True, kw_only=True):
    """What a page that needs no server shows: one scene, or several beside each other."""

    title: str
    scenes: Sequence[Scene]
    changes: Sequence[str] | None = None
    """What differs between them, a line each; null where nothing is compared."""
    details: Mapping[str, str] = {}
    """What else is told of it, by its heading."""

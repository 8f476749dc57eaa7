"""What a change of the books is to lead to, before anything is done; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.json import encode

from pinfold.admission.admission import Node, NodeState
from pinfold.core.pod.workload import Workload
from pinfold.documents.history import Displaced, Drifted, Started
from pinfold.node.active_pod import ActivePod
from pinfold.node.pod_table import PodTable, UnknownPodError
from pinfold.node.settings import NodeSettings
from pinfold.node.view import View
from pinfold.ports.records import Batch, HistoryEntry, NodeRecord, PodRecord

_T = TypeVar("_T")

Document: TypeAlias = str | Displaced | Drifted | Started
Who: TypeAlias = tuple[str | None, str | None]
"""A pod: its uid, and ``namespace/name``."""

NODE: Final[Who] = (None, None)
"""What concerns the node."""


class Unwritten(Enum):
    """What becomes of a change that cannot be written down."""

    REFUSED = "refused"
    """Nothing is changed, and :class:`StoreError` is raised."""
    OWED = "owed"
    """It has happened, and holds.  It is written with whatever is written next, so that nothing
    new can be decided before."""
    REPORTED = "reported"
    """It holds; a later agent finds it out again."""


class DraftedPod(Struct, frozen=True):
    """What is to be written of an active pod."""

    pod: ActivePod
    workload: Workload
    record: PodRecord


class Outcome(Struct, frozen=True):
    """What is written (``node`` is the whole of the node's part), what holds then, who is gone."""

    batch: Batch
    node: NodeRecord
    view: View
    pods: tuple[DraftedPod, ...]
    gone: tuple[PodRecord, ...]


class Drafted:
    """What is drafted; ``node`` and ``state`` are those that are to hold.

    Attributes:
        before: what the pods were at first; None: they were not there.
        grows: whether the shared pool may grow, though the state does not say so.
    """

    def __init__(self, view: View, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.before: dict[str, DraftedPod | None] = {}
        self.grows = False
        self.start_over(view)

    def start_over(self, view: View) -> None:
        """Nothing more is drafted; what was holds."""
        self._active = view.pods.active
        self.node: Node = view.node
        self.state: NodeState = view.state
        self.pods: dict[str, DraftedPod] = {}
        self._ended: dict[str, PodRecord | None] = {}
        self._remembered: dict[str, PodRecord] = {}
        self._forgotten: dict[str, None] = {}
        self._history: list[HistoryEntry] = []

    def admit(self, workload: Workload, record: PodRecord) -> ActivePod:
        """A new pod that owns what the state says."""
        pod = ActivePod(workload, record)
        self.before[pod.uid] = None
        self.pods[pod.uid] = DraftedPod(pod, workload, record)
        return pod

    def put(self, pod: ActivePod, record: PodRecord, workload: Workload | None = None) -> None:
        """Another record of an active pod.

        Raises:
            UnknownPodError: it is active no more, and nothing brings it back.
        """
        if self._active.get(pod.uid) is not pod:
            raise UnknownPodError(f"pod {pod.name} is over")
        self.before.setdefault(pod.uid, DraftedPod(pod, pod.workload, pod.record))
        self.pods[pod.uid] = DraftedPod(pod, workload or pod.workload, record)

    def end(self, pod: ActivePod, last: PodRecord | None) -> None:
        """Nothing is left of an active pod; ``last`` is remembered (None: it is forgotten)."""
        self.pods.pop(pod.uid, None)
        self._ended[pod.uid] = last
        self.grows = True

    def remember(self, record: PodRecord) -> None:
        """Keep a pod that owns nothing for ``status``; too many push the oldest out."""
        self._remembered[record.uid] = record

    def forget(self, *uids: str) -> None:
        """Forget pods that are remembered."""
        self._forgotten.update(dict.fromkeys(uids))

    def note(
        self, kind: str, pod: Who = NODE, document: Document = "{}", at: float | None = None
    ) -> None:
        """An entry of the history, with what is written next; ``at`` None is now."""
        self._history.append(self.entry(kind, pod, document, at))

    def entry(
        self, kind: str, pod: Who = NODE, document: Document = "{}", at: float | None = None
    ) -> HistoryEntry:
        """The same, not written."""
        uid, name = pod
        text = document if isinstance(document, str) else encode(document).decode()
        return HistoryEntry(self._clock() if at is None else at, kind, uid, name, text)

    @property
    def subject(self) -> str | None:
        """Whom it is about, as ``namespace/name``."""
        return next((one.pod.name for one in self.pods.values()), None)

    def differs(self, view: View) -> bool:
        """Whether anything is to be other than it is."""
        return (
            self.node is not view.node
            or self.state is not view.state
            or any((self.pods, self._ended, self._remembered, self._forgotten, self._history))
        )

    def outcome(self, view: View, written: NodeRecord | None, above: int) -> Outcome:
        """What it leads to where ``view`` holds, and ``written`` is on record of the node."""
        lasts = {uid: one for uid, one in self._ended.items() if one is not None}
        active, ended = view.pods.active, view.pods.ended
        out: list[str] = []
        if self._forgotten or self._remembered or lasts:
            left = {uid: one for uid, one in ended.items() if uid not in self._forgotten}
            ended = left | self._remembered | lasts
            out = list(ended)[: max(len(ended) - view.settings.kept_pods, 0)]
        if self._ended or not active.keys() >= self.pods.keys():
            active = {**active, **{uid: one.pod for uid, one in self.pods.items()}}
            active = {uid: pod for uid, pod in active.items() if uid not in self._ended}
        put = (*(one.record for one in self.pods.values()), *self._remembered.values())
        node = _node_record(self.state, view.settings)
        batch = Batch(
            None if node == written else node,
            tuple(one for one in (*put, *lasts.values()) if one.uid not in out),
            (*self._forgotten, *(self._ended.keys() - lasts.keys()), *out),
            tuple(self._history),
            above,
        )
        gone = (*(view.pods.ended[uid] for uid in self._forgotten), *(ended[uid] for uid in out))
        ended = {uid: one for uid, one in ended.items() if uid not in out} if out else ended
        now = View(self.node, self.state, table(active, ended), view.settings)
        return Outcome(batch, node, now, tuple(self.pods.values()), gone)


def table(active: Mapping[str, ActivePod], ended: Mapping[str, PodRecord]) -> PodTable:
    """Pods that nobody can change."""
    return PodTable(_frozen(active), _frozen(ended))


def _frozen(pods: Mapping[str, _T]) -> Mapping[str, _T]:
    return pods if isinstance(pods, MappingProxyType) else MappingProxyType(dict(pods))


def _node_record(state: NodeState, settings: NodeSettings) -> NodeRecord:
    """What is written down of the node."""
    ledger = state.ledger
    return NodeRecord(
        policy_name=ledger.policy_name,
        default=ledger.default,
        reserved=ledger.limits.reserved,
        machine=ledger.limits.machine,
        memory_policy="None" if state.memory is None else "Static",
        runtime=settings.runtime,
        cgroups=settings.cgroups,
    )

"""What a change of the books is to lead to, before anything is done; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import encode
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState
from pinfold.admission.moves import with_claims
from pinfold.core.moves.gone import gone, is_gone
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.workload import Workload
from pinfold.documents.explanation import Ended
from pinfold.documents.history import (
    CacheGiven,
    Controlled,
    Displaced,
    Drifted,
    InterruptsKeptOff,
    QuotaChanged,
    Resized,
    SchedulingDomain,
    Started,
    StaysShared,
    TakenBack,
)
from pinfold.documents.move_plan import MovePlan
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.pod_table import PodTable, UnknownPodError
from pinfold.node.settings import NodeSettings
from pinfold.node.view import View
from pinfold.ports.records import (
    Batch,
    HistoryEntry,
    NodeRecord,
    ObjectKey,
    ObjectRecord,
    PendingMove,
    PodRecord,
)
from pinfold.state.ledger import Ledger

_T = TypeVar("_T")

Document: TypeAlias = (
    str
    | CacheGiven
    | Controlled
    | Displaced
    | Drifted
    | Ended
    | MovePlan
    | QuotaChanged
    | Resized
    | InterruptsKeptOff
    | SchedulingDomain
    | TakenBack
    | Started
    | StaysShared
)
Who: TypeAlias = tuple[str | None, str | None]
"""A pod: its uid, and ``namespace/name``."""

NODE: Final[Who] = (None, None)
"""What concerns the node."""


class StalePodError(Exception):
    """A pod was to be changed that is not the one of the draft: its record would be an old one."""


class Unwritten(Enum):
    """What becomes of a change that cannot be written down."""

    REFUSED = "refused"
    """Nothing is changed, and :class:`StoreError` is raised."""
    OWED = "owed"
    """It has happened, and holds.  It is written with whatever is written next, so that nothing
    new can be decided before."""
    REPORTED = "reported"
    """It holds; a later agent finds it out again."""


class Outcome(Struct, frozen=True):
    """What is written (``node`` is the whole of the node's part), what holds then, who is gone."""

    batch: Batch
    node: NodeRecord
    view: View
    gone: tuple[PodRecord, ...]


class Drafted:
    """What is drafted; ``node``, ``state`` and ``move`` are those that are to hold.

    ``grows`` tells that the shared pool may grow, though the state does not say so.
    """

    def __init__(self, view: View, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.grows = False
        self.start_over(view)

    def start_over(self, view: View) -> None:
        """Nothing more is drafted; what was holds."""
        self._active = view.pods.active
        self.node: Node = view.node
        self.state: NodeState = view.state
        self.move: PendingMove | None = view.move
        self._moved = view.move
        self._pods: dict[str, AdmittedPod] = {}
        self._put: dict[str, None] = {}
        self._ended: dict[str, PodRecord | None] = {}
        self._remembered: dict[str, PodRecord] = {}
        self._forgotten: dict[str, None] = {}
        self._objects: dict[ObjectKey, ObjectRecord | None] = {}
        self._history: list[HistoryEntry] = []

    def pod(self, uid: str) -> AdmittedPod | None:
        """An active pod as it is to be; None where there is none."""
        return None if uid in self._ended else self._pods.get(uid, self._active.get(uid))

    def _check(self, pod: AdmittedPod) -> None:
        now = self.pod(pod.uid)
        if now is None:
            raise UnknownPodError(f"pod {pod.name} is over")
        if now is not pod:
            raise StalePodError(f"pod {pod.name} has changed since it was looked up")

    def admit(self, workload: Workload, record: PodRecord) -> None:
        """A new pod that owns what the state says."""
        self._pods[record.uid] = AdmittedPod(workload, record)
        self._put[record.uid] = None

    def put(self, pod: AdmittedPod, record: PodRecord, workload: Workload | None = None) -> None:
        """Another record of an active pod.

        Raises:
            UnknownPodError: it is active no more, and nothing brings it back.
            StalePodError: it is another one by now.
        """
        self._check(pod)
        self._pods[pod.uid] = replace(pod, record=record, workload=workload or pod.workload)
        self._put[pod.uid] = None

    def let_end(self, pod: AdmittedPod) -> None:
        """Somebody ends an active pod, which is not written down; raises as :meth:`put`."""
        self._check(pod)
        self._pods[pod.uid] = replace(pod, ends=True)

    def end(self, pod: AdmittedPod, last: PodRecord | None) -> None:
        """Nothing is left of an active pod; ``last`` is remembered (None: it is forgotten).

        Raises as :meth:`put`.
        """
        self._check(pod)
        self._pods.pop(pod.uid, None)
        self._put.pop(pod.uid, None)
        self._ended[pod.uid] = last
        self.grows = True

    def carry(self, move: PendingMove | None) -> None:
        """The plan in flight is to be this one, with what its owners claim; None: it is over.

        Raises:
            InvariantError: the claims are somebody else's, or nobody's to give.
        """
        ledger, plans = self.state.ledger, [one.plan for one in (self.move, move) if one]
        owners = {owner for plan in plans for owner in plan.start.placed}
        if move is not None:
            ledger = with_claims(ledger, move.on_record)
        else:
            for owner in filter(is_gone, owners):
                ledger = ledger.without(*owner)
        self.move = move
        self._hold(ledger, owners)

    def _hold(self, ledger: Ledger, owners: Iterable[Owner]) -> None:
        """Another ledger, with the records of the pods of these owners."""
        self.state = replace(self.state, ledger=ledger)
        for uid in {owner.pod_uid for owner in owners}:
            assignments = dict(ledger.assignments.get(uid, {}))
            pod = self.pod(uid)
            if pod is not None and pod.record.assignments != assignments:
                self.put(pod, replace(pod.record, assignments=assignments))

    def keep_claims(self) -> None:
        """Let the claims of owners that end stay until the plan in flight is over.

        Whoever ends a container or a pod need not know of the plan.
        """
        move, ledger = self.move, self.state.ledger
        if move is None or move is not self._moved:
            return
        ended = [one for one in move.plan.start.placed if ledger.cpus_of(*one) is None]
        if not ended:
            return
        names = {one: gone(one, with_pod=self.pod(one.pod_uid) is None) for one in ended}
        for owner, name in names.items():
            ledger = ledger.with_assignment(*name, move.on_record.claims[owner])
        self.move = move.renamed(names)
        self._hold(ledger, names.values())

    def take_back(self, before: View, failed: PodRecord | None) -> None:
        """All is to be as before, but CPUs that are offline; ``failed`` is left of a new pod."""
        self.node, self.state = before.node, replace(before.state, offline=self.state.offline)
        self.move = before.move
        for uid, pod in self._active.items():
            if (was := before.pods.active.get(uid)) is None:
                self.end(pod, failed)
            elif was is not pod:
                self.put(pod, was.record, was.workload)

    def remember(self, record: PodRecord) -> None:
        """Keep a pod that owns nothing for ``status``; too many push the oldest out."""
        self._remembered[record.uid] = record

    def forget(self, *uids: str) -> None:
        """Forget pods that are remembered."""
        self._forgotten.update(dict.fromkeys(uids))

    def put_object(self, key: ObjectKey, record: ObjectRecord | None) -> None:
        """Another record of an object beside the pods; None: it is forgotten."""
        self._objects[key] = record

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
        return next((pod.name for pod in self._pods.values()), None)

    def differs(self, view: View) -> bool:
        """Whether anything is to be other than it is."""
        return (
            self.node is not view.node
            or self.state is not view.state
            or self.move is not view.move
            or any((self._pods, self._ended, self._remembered, self._forgotten, self._history))
            or bool(self._objects)
        )

    def outcome(
        self,
        view: View,
        written: NodeRecord | None,
        move: PendingMove | UnsetType | None,
        above: int,
    ) -> Outcome:
        """What it leads to where ``view`` holds.

        ``written`` is on record of the node, and ``move`` of moves (UNSET: nobody knows).
        """
        self.keep_claims()
        lasts = {uid: one for uid, one in self._ended.items() if one is not None}
        active, ended = view.pods.active, view.pods.ended
        out: list[str] = []
        if self._forgotten or self._remembered or lasts:
            left = {uid: one for uid, one in ended.items() if uid not in self._forgotten}
            ended = left | self._remembered | lasts
            out = list(ended)[: max(len(ended) - view.settings.kept_pods, 0)]
        if self._ended or self._pods:
            there = {**active, **self._pods}
            active = {uid: pod for uid, pod in there.items() if uid not in self._ended}
        put = (*(self._pods[uid].record for uid in self._put), *self._remembered.values())
        node = _node_record(self.state, view.settings)
        batch = Batch(
            None if node == written else node,
            tuple(one for one in (*put, *lasts.values()) if one.uid not in out),
            (*self._forgotten, *(self._ended.keys() - lasts.keys()), *out),
            tuple(self._history),
            above,
            UNSET if self.move is move else self.move,
            dict(self._objects),
        )
        gone = (*(view.pods.ended[uid] for uid in self._forgotten), *(ended[uid] for uid in out))
        ended = {uid: one for uid, one in ended.items() if uid not in out} if out else ended
        now = View(
            self.node,
            self.state,
            table(active, ended),
            view.settings,
            self.move,
            objects=_with(view.objects, self._objects) if self._objects else view.objects,
        )
        return Outcome(batch, node, now, gone)


def _with(
    objects: Mapping[ObjectKey, ObjectRecord], changed: Mapping[ObjectKey, ObjectRecord | None]
) -> Mapping[ObjectKey, ObjectRecord]:
    found = {**objects, **changed}
    return MappingProxyType({key: one for key, one in found.items() if one is not None})


def table(active: Mapping[str, AdmittedPod], ended: Mapping[str, PodRecord]) -> PodTable:
    """Pods that nobody can change; what is given is not copied, and nobody else's any more."""
    return PodTable(_frozen(active), _frozen(ended))


def _frozen(pods: Mapping[str, _T]) -> Mapping[str, _T]:
    return pods if isinstance(pods, MappingProxyType) else MappingProxyType(pods)


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
        kubelet_version=settings.kubelet_version.full,
    )

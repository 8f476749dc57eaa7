"""Resizes of running containers: decided by the rules of KEP-5554, carried out as moves.

While a shrink is announced and not made, its owner may ask again: a second shrink, or a grow that
ends below the size before, is announced anew; one that needs what was to be taken gives it up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.quota import FORBIDDEN
from pinfold.admission.resize import Resize, plan_resize
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.resize import ResizeDecision, exclusive_in, resized
from pinfold.core.moves.steps import MovePlan
from pinfold.core.pod.pod import Pod
from pinfold.core.quota.charge import Refused
from pinfold.core.values.cpuset import NO_CPUS
from pinfold.documents.history import Resized
from pinfold.documents.move_plan import RESIZE
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.moves.finishing import draft_cpus
from pinfold.node.moves.infeasible import Infeasible
from pinfold.node.moves.mover import Mover
from pinfold.node.moves.moving import Moving
from pinfold.node.pod_table import UnknownContainerError, UnknownPodError
from pinfold.node.view import View
from pinfold.ports.podresources import PodDevices
from pinfold.ports.records import PendingResize, PodPhase, PodRecord


class Answered(Struct, frozen=True):
    """The answer to a resize; ``moving`` is the plan that carries it out, None where nothing moves.

    ``pod`` is ``namespace/name``, ``cpus`` how many were asked for, whole or not.
    """

    pod: str
    cpus: float
    decision: ResizeDecision
    moving: Moving | None = None


def decide(  # noqa: PLR0913 - who, what for, and what there is
    draft: Draft,
    view: View,
    owner: Owner,
    cpus: int,
    *,
    replaces: bool,
    devices: PodDevices | None = None,
) -> tuple[ResizeDecision, MovePlan | None]:
    """Decide about a resize, and plan its moves; nothing is changed.

    Args:
        draft: what holds.
        view: the books.
        owner: a container of an active pod.
        cpus: how many CPUs it is to have; 0 for what is no whole number.
        replaces: whether what is under way is a resize of this owner that can be given up.
        devices: what a kubelet has given to the pod; None where this node gives devices itself.

    Returns:
        The answer, and the plan where it is feasible.
    """
    active = view.pods.active[owner.pod_uid]
    pod, move = active.workload.pod, draft.move
    coming = move.plan.end.placed[owner] if replaces and move is not None else None
    baseline = active.record.baseline(owner.container)
    return plan_resize(
        draft.node,
        draft.state,
        pod,
        Resize.as_annotated(pod, owner.container, cpus, baseline, coming),
        view.move_options,
        grace=view.settings.scale_down_grace_period,
        devices=devices,
    )


async def begin(draft: Draft, mover: Mover, plan: MovePlan, owner: Owner, cpus: int) -> Moving:
    """Begin the moves of a resize; a grown number is in the pod's record from now on.

    Raises:
        BusyError, StoreError: see :meth:`Mover.begin`.
    """
    replaces = mover.may_replace(owner)
    was = len(plan.start.placed[owner])
    if cpus > was:
        draft_cpus(draft, *owner, cpus)
    resize = PendingResize(owner, was, cpus)
    return await mover.begin(draft, plan, why=RESIZE, resize=resize, replaces=replaces)


def resized_document(answer: Answered) -> Resized:
    """What the history says of it."""
    decision = answer.decision
    return Resized(
        container=decision.owner.container,
        cpus=answer.cpus,
        before=str(decision.before),
        after=str(decision.after),
        reason=decision.reason,
        message=decision.message,
    )


def _nothing() -> None:
    """Nobody asks."""


Refuse: TypeAlias = Callable[[View, AdmittedPod, Pod, Callable[[], float]], Refused | None]
"""Why a quota does not let a pod ask for what it is to be, by a clock."""


def _no_quotas(*_: object) -> None:
    """Nobody counts."""


class Resizing:
    """Resizes the containers of pods that this agent runs; ``refuse`` are their quotas."""

    def __init__(self, books: Books, mover: Mover, refuse: Refuse = _no_quotas) -> None:
        self._books = books
        self._mover = mover
        self._refuse = refuse
        self._infeasible = Infeasible(books)

    async def resize(
        self, name: str, container: str | None, cpus: float, *, begun: Callable[[], None] = _nothing
    ) -> Answered:
        """Decide about a resize, once no other moves are under way, and begin it.

        Args:
            name: the pod, by uid, ``namespace/name`` or name.
            container: whose CPUs; None: the pod's only one's.
            cpus: how many, in steps of 0.001; see
                :func:`pinfold.core.moves.resize.exclusive_in`.
            begun: called before anything is changed; what it raises is passed on.

        Raises:
            UnknownPodError, UnknownContainerError: there is none.
            StoreError: it cannot be written down; nothing was changed.
        """
        books, mover = self._books, self._mover
        while True:
            async with books.change() as draft:
                await draft.look_at_cpus()
                active = self._active(name)
                owner = Owner(active.uid, _named(active, container))
                replaces = mover.may_replace(owner)
                if (busy := mover.in_flight) is None or replaces:
                    begun()
                    return await self._answer(draft, active, owner, cpus, replaces=replaces)
            await busy.ended()

    async def _answer(
        self, draft: Draft, active: AdmittedPod, owner: Owner, asked: float, *, replaces: bool
    ) -> Answered:
        cpus = exclusive_in(active.workload.pod, owner.container, asked)
        decision, plan = self._forbidden(active, owner, cpus), None
        if decision is None:
            decision, plan = decide(draft, self._books.view, owner, cpus, replaces=replaces)
        answer = Answered(active.name, asked, decision)
        document = resized_document(answer)
        if plan is None:
            self._infeasible.note(draft, owner, active.name, document)
            return answer
        if not plan.steps and not replaces:
            return answer
        draft.note("resized", (active.uid, active.name), document)
        moving = await begin(draft, self._mover, plan, owner, cpus)
        return replace(answer, moving=moving)

    def _forbidden(self, active: AdmittedPod, owner: Owner, cpus: int) -> ResizeDecision | None:
        """The answer where a quota refuses: it is charged before it is granted."""
        view = self._books.view
        wanted = resized(active.workload.pod, owner.container, cpus)
        refused = self._refuse(view, active, wanted, self._books.observers.clock)
        if refused is None or not cpus:
            return None
        refusals = self._books.counters.quota_refusals
        refusals[f"{active.record.namespace}/{refused.quota}"] += 1
        has = view.state.ledger.cpus_of(*owner) or NO_CPUS
        return ResizeDecision(owner, has, has, has, FORBIDDEN, refused.message)

    def _active(self, name: str) -> AdmittedPod:
        pods = self._books.view.pods
        uid = pods.find(name)
        if (active := pods.active.get(uid)) is None or active.is_ending:
            raise UnknownPodError(f"pod {name} {_end_of(pods.ended.get(uid))}")
        return active


def _end_of(record: PodRecord | None) -> str:
    if record is not None and record.phase is PodPhase.REJECTED:
        return f"was rejected ({record.reason})"
    return "has ended"


def _named(active: AdmittedPod, container: str | None) -> str:
    pod = active.workload.pod
    names = [one.name for one in pod.all_containers]
    if container is None and len(pod.containers) == 1:
        return pod.containers[0].name
    if container not in names or container is None:
        what = "has several containers" if container is None else f"has no container {container!r}"
        raise UnknownContainerError(f"pod {active.name} {what}; name one of {', '.join(names)}")
    return container

"""The quotas of a plan: those among the manifests, and what its pods use of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import Decision, NodeState
from pinfold.admission.quota import FORBIDDEN, Quotas
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.resize import ResizeDecision, exclusive_in, resized
from pinfold.core.pod.pod import Pod
from pinfold.core.quota.charge import Refused
from pinfold.core.quota.counted_pod import CountedPod
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.values.cpuset import CPUSet


class Made(NamedTuple):
    """A decision, the state that it was made in, and the quotas after it."""

    decision: Decision
    before: NodeState
    quotas: Quotas


class PlannedQuotas(Struct, frozen=True):
    """ResourceQuotas, and of each pod, by uid, what decides about it in their eyes."""

    quotas: tuple[ResourceQuota, ...] = ()
    pods: Mapping[str, CountedPod] = {}

    @property
    def empty(self) -> Quotas:
        """The quotas with nothing in use."""
        return self.used_by(())

    def used_by(self, pods: Iterable[tuple[Pod, bool]]) -> Quotas:
        """The quotas with these pods, each with whether it runs."""
        counted = (self.counted(pod) if runs else self.ended(pod) for pod, runs in pods)
        return Quotas.of(self.quotas, counted, 0.0)

    def counted(self, pod: Pod) -> CountedPod:
        """A pod as quotas see it."""
        known = self.pods.get(pod.uid)
        return CountedPod(pod, may_decline=False) if known is None else replace(known, pod=pod)

    def ended(self, pod: Pod) -> CountedPod:
        """A pod that its node has rejected: the object is there, and asks for nothing more."""
        return replace(self.counted(pod), phase="Failed")

    def denied(
        self, used: Quotas, pod: Pod, owner: Owner, asked: float, has: CPUSet
    ) -> ResizeDecision | None:
        """The answer to a resize that a quota refuses: nobody asks the node then."""
        wanted = resized(pod, owner.container, exclusive_in(pod, owner.container, asked))
        charged = used.resize(self.counted(pod), self.counted(wanted))
        if not isinstance(charged, Refused):
            return None
        return ResizeDecision(owner, has, has, has, FORBIDDEN, charged.message)

    def after(self, before: Quotas, charged: Quotas, decision: Decision) -> Quotas:
        """The quotas once the node has decided about a pod that they let in."""
        if decision.admitted:
            return charged
        ended = before.admit(self.ended(decision.pod))
        return charged if isinstance(ended, Refused) else ended


NOT_PLANNED = PlannedQuotas()

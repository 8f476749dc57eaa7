"""The quotas of a plan: those among the manifests, and what its pods use of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import NodeState
from pinfold.admission.decision import Decision
from pinfold.admission.quota import FORBIDDEN, Quotas
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.resize import ResizeDecision, exclusive_in, resized
from pinfold.core.pod.pod import Pod
from pinfold.core.quota.charge import Refused
from pinfold.core.quota.claims import NO_CLAIMS, ClaimedCPUs, Claims
from pinfold.core.quota.counted_pod import CountedPod
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.values.cpuset import CPUSet

ClaimName: TypeAlias = tuple[str, str]
"""Its namespace, and its name."""


class Made(NamedTuple):
    """A decision, the state that it was made in, and the quotas after it."""

    decision: Decision
    before: NodeState
    quotas: Quotas


class PlannedQuotas(Struct, frozen=True):
    """ResourceQuotas, and of each pod, by uid, what decides about it in their eyes.

    ``claims`` are the CPUs of those of each namespace that were let in, and of all templates;
    ``refused`` is why the others were not, ``templates`` what the templates ask for, both by
    namespace and name.  ``capacity`` is what a CPU is called in a claim.
    """

    quotas: tuple[ResourceQuota, ...] = ()
    pods: Mapping[str, CountedPod] = {}
    claims: Mapping[str, Claims] = {}
    refused: Mapping[ClaimName, Refused] = {}
    templates: Mapping[ClaimName, ClaimedCPUs] = {}
    capacity: str = ""

    @staticmethod
    def of(
        quotas: tuple[ResourceQuota, ...],
        pods: Mapping[str, CountedPod],
        claims: Mapping[ClaimName, ClaimedCPUs],
        templates: Mapping[ClaimName, ClaimedCPUs],
        capacity: str,
    ) -> PlannedQuotas:
        """Charge the claims first, one after the other: who shares one comes after it."""
        charged, refused = Quotas.of(quotas, (), 0.0), {}
        let_in: dict[str, dict[str, int]] = {}
        for (namespace, name), claimed in claims.items():
            answer = charged.admit_claim(namespace, name, claimed, capacity)
            if isinstance(answer, Refused):
                refused[namespace, name] = answer
            else:
                charged = answer
                let_in.setdefault(namespace, {})[name] = claimed.cpus
        made: dict[str, dict[str, int]] = {}
        for (namespace, name), claimed in templates.items():
            made.setdefault(namespace, {})[name] = claimed.cpus
        known = {one: Claims(let_in.get(one, {}), made.get(one, {})) for one in {**let_in, **made}}
        return PlannedQuotas(quotas, pods, known, refused, templates, capacity)

    @property
    def empty(self) -> Quotas:
        """The quotas before any pod."""
        return self.used_by(())

    def used_by(self, pods: Iterable[tuple[Pod, bool]]) -> Quotas:
        """The quotas with these pods, each with whether it runs."""
        claims = {name: dict(one.claims) for name, one in self.claims.items()}
        counted = []
        for pod, runs in pods:
            one = self.counted(pod) if runs else self.ended(pod)
            counted.append(one)
            for name, claimed in self._made_for(one) if runs else ():
                claims.setdefault(pod.namespace, {})[name] = claimed.cpus
        known = {name: replace(self._claims(name), claims=held) for name, held in claims.items()}
        return Quotas.of(self.quotas, counted, 0.0, known)

    def admit(self, quotas: Quotas, pod: Pod) -> Quotas | Refused:
        """Charge a new pod, and the claims that are made for it.

        Without a claim of its own, or one that it names, a pod would wait for ever: it is refused.
        """
        counted = self.counted(pod)
        for one in counted.claims:
            if (why := self.refused.get((pod.namespace, one.claim or ""))) is not None:
                return why
        answer = quotas.admit(counted, self._claims(pod.namespace))
        for name, claimed in self._made_for(counted):
            if not isinstance(answer, Refused):
                answer = answer.admit_claim(pod.namespace, name, claimed, self.capacity)
        return answer

    def _made_for(self, counted: CountedPod) -> Iterator[tuple[str, ClaimedCPUs]]:
        """Yield the claims that are made of templates for a pod."""
        for one in counted.claims:
            template = self.templates.get((counted.pod.namespace, one.template or ""))
            if template is not None:
                yield f"{counted.pod.name}-{one.name}", template

    def _claims(self, namespace: str) -> Claims:
        return self.claims.get(namespace, NO_CLAIMS)

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
        claims = self._claims(pod.namespace)
        charged = used.resize(self.counted(pod), self.counted(wanted), claims)
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

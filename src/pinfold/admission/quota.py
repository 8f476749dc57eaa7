"""Quotas of namespaces, beside a node: a pod that is refused by one is never shown to the node.

As with an API server, they apply when a pod is created, or a resize is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from pinfold.admission.decision import Decision
from pinfold.core.pod.pod import Pod, Resources
from pinfold.core.quota.charge import (
    CREATE,
    RESIZE,
    UPDATE,
    Charged,
    Refused,
    Request,
    charge,
    charge_claim,
)
from pinfold.core.quota.claims import NO_CLAIMS, ClaimedCPUs, Claims
from pinfold.core.quota.counted_pod import CountedPod
from pinfold.core.quota.in_use import in_use
from pinfold.core.quota.names import EXISTS
from pinfold.core.quota.quota import ResourceQuota, ScopeRequirement
from pinfold.core.quota.remarks import uncounted
from pinfold.core.quota.scopes import ScopeError
from pinfold.documents.plan import QuotaUse

FORBIDDEN: Final = "Forbidden"
"""The reason of a refusal, which is the API server's."""

_ANY_VERSION: Final = "1"
_NO_CLAIMS: Final[Mapping[str, Claims]] = MappingProxyType({})


class Quotas(Struct, frozen=True):
    """The quotas of all namespaces, each with what is in use of it.

    ``now`` is the time at which pods are looked at, in seconds since the epoch.
    """

    by_namespace: Mapping[str, tuple[ResourceQuota, ...]] = MappingProxyType({})
    now: float = 0.0

    @staticmethod
    def of(
        quotas: Iterable[ResourceQuota],
        pods: Iterable[CountedPod],
        now: float,
        claims: Mapping[str, Claims] = _NO_CLAIMS,
    ) -> Quotas:
        """Count what ``pods`` use, and the ``claims`` of each namespace."""
        found: dict[str, list[ResourceQuota]] = {}
        for quota in quotas:
            found.setdefault(quota.namespace, []).append(quota)
        there: dict[str, list[CountedPod]] = {name: [] for name in found}
        for pod in pods:
            if pod.pod.namespace in there:
                there[pod.pod.namespace].append(pod)
        return Quotas(
            {
                name: tuple(
                    one.with_status(_used(one, there[name], now, claims.get(name, NO_CLAIMS)))
                    for one in held
                )
                for name, held in found.items()
            },
            now,
        )

    def admit(self, pod: CountedPod, claims: Claims = NO_CLAIMS) -> Quotas | Refused:
        """Charge a new pod; ``claims`` are those of its namespace."""
        return self._charged(Request(CREATE, pod), claims)

    def resize(
        self, old: CountedPod, pod: CountedPod, claims: Claims = NO_CLAIMS
    ) -> Quotas | Refused:
        """Charge what a pod asks for more than before; what it needs less is counted later."""
        known = replace(old, resource_version=old.resource_version or _ANY_VERSION)
        return self._charged(Request(UPDATE, pod, known, RESIZE), claims)

    def admit_claim(
        self, namespace: str, name: str, claimed: ClaimedCPUs, capacity: str
    ) -> Quotas | Refused:
        """Charge a new ResourceClaim; ``capacity`` is what a CPU is called in it."""
        quotas = self.by_namespace.get(namespace, ())
        return self._after(namespace, charge_claim(quotas, name, claimed, capacity))

    def _charged(self, request: Request, claims: Claims) -> Quotas | Refused:
        namespace = request.pod.pod.namespace
        quotas = self.by_namespace.get(namespace)
        if quotas is None:
            return self
        return self._after(namespace, charge(quotas, request, self.now, claims=claims))

    def _after(self, namespace: str, answer: Charged | Refused) -> Quotas | Refused:
        if isinstance(answer, Refused):
            return answer
        return replace(self, by_namespace={**self.by_namespace, namespace: answer.quotas})

    @property
    def quotas(self) -> tuple[ResourceQuota, ...]:
        """All of them, by namespace and name."""
        found = (one for held in self.by_namespace.values() for one in held)
        return tuple(sorted(found, key=lambda one: (one.namespace, one.name)))


NO_QUOTAS: Final = Quotas()


def _used(
    quota: ResourceQuota, pods: Iterable[CountedPod], now: float, claims: Claims
) -> Resources:
    """What is in use; nobody knows of a quota whose scopes have no meaning: it lets nobody in."""
    try:
        return in_use(quota, pods, now, claims)
    except ScopeError:
        return {}


def forbidden(pod: Pod, refused: Refused) -> Decision:
    """The decision about a pod that a quota refuses."""
    return Decision(pod, admitted=False, reason=FORBIDDEN, message=refused.message)


def quota_use(quotas: Quotas) -> list[QuotaUse]:
    """The documents of quotas; names that are not about pods have no use here."""
    return [
        QuotaUse(
            namespace=quota.namespace,
            name=quota.name,
            scopes=[_scope(one) for one in quota.requirements],
            hard={name: str(amount) for name, amount in sorted(quota.hard.items())},
            used={name: str(amount) for name, amount in sorted(quota.used.items())},
            notes=list(uncounted(quota)) or UNSET,
        )
        for quota in quotas.quotas
    ]


def _scope(one: ScopeRequirement) -> str:
    plain = one.operator == EXISTS and not one.values
    return one.scope_name if plain else str(one).strip("{}")

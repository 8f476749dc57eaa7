"""The nearest changes that would let in a pod that a quota refuses; every one of them is tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from pinfold.admission.quota import Quotas
from pinfold.core.pod.pod import Pod, Resources
from pinfold.core.quota.charge import Refused
from pinfold.core.quota.counted_pod import CountedPod
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.quota.resource_list import as_text, exceeded, mask
from pinfold.core.values.quantity import Quantity
from pinfold.planning.quotas import PlannedQuotas

_AMPLE: Final = Quantity(10**18)


def quota_remedies(
    planned: PlannedQuotas, quotas: Quotas, pod: Pod, before: Sequence[tuple[Pod, bool]]
) -> Iterator[str]:
    """Yield changes: to the limits, to the other pods.

    Args:
        planned: the quotas of the plan.
        quotas: them, with what was in use when the pod was refused.
        pod: the refused one.
        before: the pods that were created before it, each with whether it runs.
    """
    counted = planned.counted(pod)
    yield from _higher_limits(quotas, counted)
    for other, runs in before:
        if runs and other.namespace == pod.namespace:
            without = planned.used_by(one for one in before if one[0] is not other)
            if not isinstance(without.admit(counted), Refused):
                yield f"remove pod {other.full_name}, or create this one before it"
                return


def _higher_limits(quotas: Quotas, pod: CountedPod) -> Iterator[str]:
    """With limits that are beyond everything, it is seen which of them it would exceed."""
    namespace = pod.pod.namespace
    held = quotas.by_namespace.get(namespace, ())
    answer = _with(quotas, namespace, {one.name: one.hard for one in held}, _AMPLE).admit(pod)
    if isinstance(answer, Refused):
        return
    after = answer.by_namespace[namespace]
    needed = {
        one.name: mask(later.used, exceeded(later.used, one.hard))
        for one, later in zip(held, after, strict=True)
        if later.used != one.used
    }
    told = {name: needs for name, needs in needed.items() if needs}
    if told and not isinstance(_with(quotas, namespace, told).admit(pod), Refused):
        limits = (f"{as_text(needs)} in ResourceQuota {namespace}/{n}" for n, needs in told.items())
        yield f"raise spec.hard to {', and to '.join(limits)}"


def _with(
    quotas: Quotas, namespace: str, limits: Mapping[str, Resources], amount: Quantity | None = None
) -> Quotas:
    """The quotas with other limits for some names, each of them ``amount`` where that is given."""

    def changed(quota: ResourceQuota) -> ResourceQuota:
        more = limits.get(quota.name, {})
        hard = {**quota.hard, **(more if amount is None else dict.fromkeys(more, amount))}
        return replace(quota, hard=hard).with_status(quota.used)

    held = tuple(map(changed, quotas.by_namespace.get(namespace, ())))
    return replace(quotas, by_namespace={**quotas.by_namespace, namespace: held})

"""The nearest changes that would let in a pod that a quota refuses; every one of them is tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from pinfold.admission.quota import Quotas
from pinfold.core.moves.resize import resized
from pinfold.core.pod.pod import CPU, Pod, Resources, guaranteed_cpus
from pinfold.core.pod.pod_level import cpu_budget, takes_part
from pinfold.core.quota.charge import Refused
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.quota.resource_list import as_text, exceeded, mask
from pinfold.core.values.quantity import Quantity
from pinfold.planning.quotas import PlannedQuotas
from pinfold.planning.remedies.whole import is_valid, with_budget
from pinfold.planning.wants import describe_amount

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
    yield from _fewer_cpus(planned, quotas, pod)
    yield from _smaller_budget(planned, quotas, pod)
    yield from _higher_limits(planned, quotas, pod)
    for other, runs in before:
        if runs and other.namespace == pod.namespace:
            without = planned.used_by(one for one in before if one[0] is not other)
            if not isinstance(planned.admit(without, pod), Refused):
                yield f"remove pod {other.full_name}, or create this one before it"
                return


def _fewer_cpus(planned: PlannedQuotas, quotas: Quotas, pod: Pod) -> Iterator[str]:
    """The most CPUs with which one of the containers would be let in, others as they are."""
    for container in pod.containers:
        for count in range(guaranteed_cpus(pod, container) - 1, 0, -1):
            if not isinstance(planned.admit(quotas, resized(pod, container.name, count)), Refused):
                cpus = f"{count} CPU{'s' * (count != 1)}"
                yield f"ask for no more than {cpus} in container {container.name}"
                break


def _smaller_budget(planned: PlannedQuotas, quotas: Quotas, pod: Pod) -> Iterator[str]:
    """The most CPUs as a whole with which a pod with resources of its own would be let in."""
    if not takes_part(pod):
        return
    for count in range(cpu_budget(pod) - 1, 0, -1):
        changed = with_budget(pod, count)
        if is_valid(changed) and not isinstance(planned.admit(quotas, changed), Refused):
            yield f"ask for no more than {describe_amount(CPU, count)} for the pod as a whole"
            break


def _higher_limits(planned: PlannedQuotas, quotas: Quotas, pod: Pod) -> Iterator[str]:
    """With limits that are beyond everything, it is seen which of them it would exceed."""
    namespace = pod.namespace
    held = quotas.by_namespace.get(namespace, ())
    ample = _with(quotas, namespace, {one.name: one.hard for one in held}, _AMPLE)
    answer = planned.admit(ample, pod)
    if isinstance(answer, Refused):
        return
    after = answer.by_namespace[namespace]
    needed = {
        one.name: mask(later.used, exceeded(later.used, one.hard))
        for one, later in zip(held, after, strict=True)
        if later.used != one.used
    }
    told = {name: needs for name, needs in needed.items() if needs}
    if told and not isinstance(planned.admit(_with(quotas, namespace, told), pod), Refused):
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

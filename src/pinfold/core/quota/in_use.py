"""What of a quota is in use, counted anew from what there is.

Source: upstream ``pkg/quota/v1`` (``CalculateUsage``, 1.34).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pinfold.core.quota.claims import NO_CLAIMS, Claims
from pinfold.core.quota.counted_pod import CountedPod
from pinfold.core.quota.names import EXCLUSIVE_CPUS, matching_resources
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.quota.resource_list import add, mask
from pinfold.core.quota.scopes import matches
from pinfold.core.quota.usage import usage_of
from pinfold.core.values.quantity import Quantity

_ZERO: Final = Quantity(0)


def in_use(
    quota: ResourceQuota, pods: Iterable[CountedPod], now: float, claims: Claims = NO_CLAIMS
) -> dict[str, Quantity]:
    """What pods and claims of the quota's namespace use of it.

    Names that are not about pods are left out: nobody here knows what there is of them.

    Raises:
        ScopeError: a requirement of the quota has no meaning.
    """
    names = matching_resources(quota.hard)
    used = dict.fromkeys(names, _ZERO)
    in_force = quota.with_status({})
    for pod in pods:
        if matches(in_force, pod):
            used = add(used, mask(usage_of(quota, pod, now, claims), names))
    if EXCLUSIVE_CPUS in used and quota.counts_claims:
        used[EXCLUSIVE_CPUS] += Quantity(sum(claims.claims.values()))
    return used

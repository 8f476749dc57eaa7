"""Whether quotas let something in, and what is in use then.

Source: upstream ``apiserver/pkg/admission/plugin/resourcequota/controller.go`` (1.34): its order of
looking, its texts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.pod.pod import Resources
from pinfold.core.quota.claims import NO_CLAIMS, ClaimedCPUs, Claims
from pinfold.core.quota.counted_pod import CountedPod
from pinfold.core.quota.names import EXCLUSIVE_CPUS, matching_resources
from pinfold.core.quota.quota import ResourceQuota, ScopeRequirement
from pinfold.core.quota.resource_list import (
    add,
    as_text,
    exceeded,
    mask,
    names_as_text,
    negative,
    subtract_to_zero,
    without_zeros,
)
from pinfold.core.quota.scopes import ScopeError, matches, matching_scopes, uncovered
from pinfold.core.quota.usage import unspecified, usage, usage_of
from pinfold.core.values.quantity import Quantity

CREATE: Final = "CREATE"
UPDATE: Final = "UPDATE"
RESIZE: Final = "resize"
PODS: Final = "pods"
RESOURCE_CLAIMS: Final = "resourceclaims.resource.k8s.io"


class Request(Struct, frozen=True):
    """What the API server is asked to do: an operation on a pod, or on a subresource of it."""

    operation: str
    pod: CountedPod
    old_pod: CountedPod | None = None
    subresource: str = ""

    @property
    def is_counted(self) -> bool:
        """Whether quotas look at it: a new pod, a resize, or one that comes under other scopes."""
        if self.operation == UPDATE and not self.subresource:
            old = self.old_pod
            return old is not None and old.is_terminating != self.pod.is_terminating
        return (self.operation, self.subresource) in ((CREATE, ""), (UPDATE, RESIZE))


class LimitedResource(Struct, frozen=True):
    """What may only be used where a quota covers it (``limitedResources`` of the API server).

    ``match_contains`` are parts of names, ``match_scopes`` what a pod meets.
    """

    resource: str
    match_contains: tuple[str, ...] = ()
    match_scopes: tuple[ScopeRequirement, ...] = ()


class Rules(Struct, frozen=True):
    """What holds besides the quotas.

    ``only_own`` charges ``pinfold.dev/exclusive-cpus`` alone: beside an API server that counts
    everything else itself.
    """

    limited: tuple[LimitedResource, ...] = ()
    only_own: bool = False


class Charged(Struct, frozen=True):
    """It may come in; ``quotas`` are those given, each with what is in use then.

    ``charged`` is what each of those that count it has more (or less) in use, by name.
    """

    quotas: tuple[ResourceQuota, ...]
    charged: Mapping[str, Resources] = {}


class Refused(Struct, frozen=True):
    """It may not; ``message`` is the API server's, ``quota`` the one that is against it, or ""."""

    message: str
    quota: str = ""


class _Asked(Struct, frozen=True):
    """What is to be charged, of whatever kind it is.

    ``grown`` is what it asks for more than before, and ``wanted`` what it asks of a quota for more
    than that counted before.
    """

    resource: str
    name: str
    usage: Resources
    grown: Resources
    wanted: Callable[[ResourceQuota], Resources]
    counts: Callable[[ResourceQuota], bool]
    names: Callable[[Collection[str]], tuple[str, ...]]
    unspecified: Callable[[Collection[str]], str]


def charge(
    quotas: Sequence[ResourceQuota],
    request: Request,
    now: float,
    rules: Rules = Rules(),  # noqa: B008 - frozen
    claims: Claims = NO_CLAIMS,
) -> Charged | Refused:
    """Charge a pod to the quotas of its namespace, all of them or none.

    Args:
        quotas: those of the namespace; their status says what is enforced and in use.
        request: what is asked for.
        now: the time, in seconds since the epoch.
        rules: what is counted, and what may only be used where a quota covers it.
        claims: what is known of the claims of the namespace.
    """
    limited = rules.limited
    if not request.is_counted:
        return Charged(tuple(quotas))
    pod = request.pod
    try:
        limits = [one for each in limited for one in matching_scopes(pod, each.match_scopes)]
    except ScopeError:
        # So does the API server: a limit that nobody understands limits nothing.
        return Charged(tuple(quotas))
    met: list[ScopeRequirement] = []
    for quota in quotas:
        try:
            met += matching_scopes(pod, quota.requirements)
        except ScopeError as error:
            return Refused(f"error matching scopes of quota {quota.name}, err: {error}", quota.name)
    total = usage(pod, now, claims)
    old = request.old_pod if request.operation == UPDATE else None
    if old is None or not old.resource_version:
        # Without a version it is created by the update: it is charged as if it were new.
        old = None

    def wanted(quota: ResourceQuota) -> Resources:
        of_quota = usage_of(quota, pod, now, claims)
        # What comes under a quota that did not count it before is charged in full.
        if old is None or not matches(quota, old):
            return of_quota
        return subtract_to_zero(of_quota, usage_of(quota, old, now, claims))

    asked = _Asked(
        PODS,
        pod.pod.name,
        total,
        grown=total if old is None else subtract_to_zero(total, usage(old, now, claims)),
        wanted=wanted,
        counts=lambda quota: matches(quota, pod),
        names=_own if rules.only_own else matching_resources,
        unspecified=lambda names: unspecified(pod, names),
    )
    needed = _limited_names(asked.usage, [one for one in limited if one.resource == PODS])
    return _charge(quotas, asked, needed, uncovered(limits, met))


def charge_claim(
    quotas: Sequence[ResourceQuota], name: str, claimed: ClaimedCPUs, capacity: str
) -> Charged | Refused:
    """Charge a new ResourceClaim its CPUs: once, however many pods are to share it.

    ``capacity`` is what a CPU is called in it (:class:`~pinfold.core.quota.claims.ClaimRules`).

    A quota with scopes is about pods, and counts no claim.  A claim of which nobody knows how many
    CPUs it will be given is refused where a quota counts them.
    """
    cpus = {EXCLUSIVE_CPUS: Quantity(claimed.cpus)}
    missing = ",".join(sorted(claimed.unspecified))
    asked = _Asked(
        RESOURCE_CLAIMS,
        name,
        cpus,
        grown=cpus,
        wanted=lambda _: cpus,
        counts=lambda quota: quota.counts_claims and EXCLUSIVE_CPUS in quota.status_hard,
        names=_own,
        unspecified=lambda _: f"must specify {capacity} for: {missing}" if missing else "",
    )
    return _charge(quotas, asked, frozenset(), ())


def _charge(
    quotas: Sequence[ResourceQuota],
    asked: _Asked,
    needed: Collection[str],
    scopes: Sequence[ScopeRequirement],
) -> Charged | Refused:
    def refused(problem: str, quota: str = "") -> Refused:
        return Refused(f'{asked.resource} "{asked.name}" is forbidden: {problem}', quota)

    counting = []
    covered: set[str] = set()
    for quota in quotas:
        if not asked.counts(quota):
            continue
        names = asked.names(quota.status_hard)
        if not names:
            continue
        if problem := asked.unspecified(names):
            return refused(f"failed quota: {quota.name}: {problem}", quota.name)
        if not quota.used.keys() >= set(names):
            unknown = f"status unknown for quota: {quota.name}, resources: {names_as_text(names)}"
            return refused(unknown, quota.name)
        counting.append((quota, names))
        covered.update(names)
    if wrong := negative(asked.usage):
        return refused(f"quota usage is negative for resource(s): {names_as_text(wrong)}")
    wanted = {quota.name: without_zeros(asked.wanted(quota)) for quota, _ in counting}
    if not any(wanted.values() if counting else without_zeros(asked.grown)):
        return Charged(tuple(quotas))
    if without := set(needed) - covered:
        return refused(f"insufficient quota to consume: {names_as_text(without)}")
    if scopes:
        shown = " ".join(map(str, scopes))
        return Refused(f"insufficient quota to match these scopes: [{shown}]")
    charged: dict[str, Resources] = {}
    after: dict[str, ResourceQuota] = {}
    for quota, names in counting:
        more = charged[quota.name] = mask(wanted[quota.name], names)
        used = add(quota.used, more)
        if beyond := exceeded(mask(used, more), quota.status_hard):
            parts = (more, quota.used, quota.status_hard)
            requested, in_use, most = (as_text(mask(part, beyond)) for part in parts)
            return refused(
                f"exceeded quota: {quota.name}, requested: {requested}, used: {in_use}, "
                f"limited: {most}",
                quota.name,
            )
        after[quota.name] = replace(quota, used=used)
    return Charged(tuple(after.get(one.name, one) for one in quotas), charged)


def _own(names: Collection[str]) -> tuple[str, ...]:
    return (EXCLUSIVE_CPUS,) if EXCLUSIVE_CPUS in names else ()


def _limited_names(used: Resources, limited: Sequence[LimitedResource]) -> frozenset[str]:
    """What is used of what is limited; ``cpu`` in a limit is not about CPUs of one's own."""
    parts = [part for each in limited for part in each.match_contains]
    return frozenset(
        name
        for name, quantity in used.items()
        if quantity.sign > 0
        and any(part == name if name == EXCLUSIVE_CPUS else part in name for part in parts)
    )

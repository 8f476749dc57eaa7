"""Replays ``quota`` cases: what pods are charged, which quotas count them, what is admitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.pod.api import pod_from_api, quantities_from_api
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.pod import Resources
from pinfold.core.quota import resource_list
from pinfold.core.quota.charge import Charged, LimitedResource, Request, Rules, charge
from pinfold.core.quota.counted_pod import CountedPod, counted_pod_from_api
from pinfold.core.quota.names import EXCLUSIVE_CPUS, matching_resources
from pinfold.core.quota.quota import quota_from_api, requirements_from_api
from pinfold.core.quota.scopes import ScopeError, matches, matching_scopes
from pinfold.core.quota.usage import unspecified, usage
from pinfold.core.quota.validation import spec_problems
from tests.vectors import Case, Outcome

FIELDS = {
    "usage": {"usage", "pod", "now"},
    "match": {"matching_scopes", "constraint_error"},
    "admit": {"quotas", "used_after"},
    "update": {"quotas", "used_after"},
    "math": {"subtract_nonneg"},
    "validate": {"errors_sorted"},
}
NOW = datetime.fromisoformat("2025-09-01T12:00:00+00:00").timestamp()
Row = tuple[str, object, object]


def claims(case: Case) -> bool:
    """A case of a quota; hugepages have ``validate`` cases of their own, by other fields."""
    fields = FIELDS.get(str(case.get("kind")))
    of_quota = str(case.get("id", "")).startswith("quota-")
    return fields is not None and of_quota and case.keys() >= fields


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:  # noqa: ARG001 - contract
    """Compute every recorded field and compare."""
    problems = [
        f"{name}: want {want!r}, got {got!r}"
        for name, got, want in KINDS[case["kind"]](case)
        if got != want
    ]
    return Outcome(passed=not problems, detail="; ".join(problems))


def _usage(case: Case) -> Iterator[Row]:
    now = datetime.fromisoformat(case["now"]).timestamp()
    yield "usage", _texts(usage(_pod(case["pod"]), now)), case["usage"]


def _match(case: Case) -> Iterator[Row]:
    quota, pod = quota_from_api({"spec": case["spec"]}), _pod(case["pod"])
    quota = quota.with_status({})
    names = matching_resources(quota.hard)
    yield "resources", list(names), case["matching_resources_sorted"]
    yield "constraint", unspecified(pod, names) or None, case["constraint_error"]
    try:
        matched, error = matches(quota, pod), None
    except ScopeError as refused:
        matched, error = False, str(refused)
    yield "match_error", error, case["match_error"]
    yield "matches", matched, case["matches"]
    try:
        scopes, error = list(matching_scopes(pod, quota.requirements)), None
    except ScopeError as refused:
        scopes, error = [], str(refused)
    yield "matching_scopes_error", error, case["matching_scopes_error"]
    wanted = requirements_from_api(case["matching_scopes"], "matching_scopes")
    yield "matching_scopes", scopes, list(wanted)


def _admit(case: Case) -> Iterator[Row]:
    quotas = [quota_from_api(one) for one in case["quotas"]]
    old = case.get("old_pod")
    request = Request(
        case["op"],
        _pod(case["pod"], defaulted=bool(case.get("defaulted"))),
        None if old is None else _pod(old),
        case.get("subresource") or "",
    )
    limited = tuple(
        LimitedResource(
            one["resource"],
            tuple(one.get("matchContains") or ()),
            requirements_from_api(one.get("matchScopes"), "matchScopes"),
        )
        for one in case.get("limited") or ()
    )
    answer = charge(quotas, request, NOW, Rules(limited))
    if not isinstance(answer, Charged):
        yield "error", answer.message, case["error"]
        yield "allowed", False, case["allowed"]
        return
    yield "allowed", True, case["allowed"]
    after = {quota.name: _texts(quota.used) for quota in answer.quotas}
    yield "used_after", after, case["used_after"]


def _math(case: Case) -> Iterator[Row]:
    a, b = (quantities_from_api(case[key], key) for key in "ab")
    beyond = resource_list.exceeded(a, b)
    yield "add", _texts(resource_list.add(a, b)), case["add"]
    yield "subtract", _texts(resource_list.subtract(a, b)), case["subtract"]
    yield "nonneg", _texts(resource_list.subtract_to_zero(a, b)), case["subtract_nonneg"]
    yield "max", _texts(resource_list.maximum(a, b)), case["max"]
    yield "mask", _texts(resource_list.mask(a, b)), case["mask_a_by_b_names"]
    yield "exceeded", list(beyond), sorted(case["exceeded"])
    yield "less_than_or_equal", not beyond, case["less_than_or_equal"]
    yield "negative", list(resource_list.negative(a)), sorted(case["negative_a"])
    yield "without_zeros", _texts(resource_list.without_zeros(a)), case["remove_zeros_a"]
    yield "is_zero", resource_list.is_zero(a), case["is_zero_a"]
    yield "equals", dict(a) == dict(b), case["equals"]


def _validate(case: Case) -> Iterator[Row]:
    found = spec_problems(quota_from_api({"spec": case["spec"]}))
    yield "errors", sorted(map(str, found)), case["errors_sorted"]


KINDS = {
    "usage": _usage,
    "match": _match,
    "admit": _admit,
    "update": _admit,
    "math": _math,
    "validate": _validate,
}


def _pod(manifest: dict[str, Any], *, defaulted: bool = False) -> CountedPod:
    pod = counted_pod_from_api(manifest)
    return replace(pod, pod=apply_defaults(pod_from_api(manifest))) if defaulted else pod


def _texts(resources: Resources) -> dict[str, str]:
    """As recorded, which knows nothing of CPUs of one's own."""
    return {name: str(one) for name, one in resources.items() if name != EXCLUSIVE_CPUS}

"""What the API server would refuse in a ResourceQuota, in its words, and what to do about it.

Source: upstream ``pkg/apis/core/validation`` (``ValidateResourceQuota``, 1.34).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.fields import mapping, text_of
from pinfold.core.pod.manifest.names import refused
from pinfold.core.quota.names import (
    BEST_EFFORT,
    DOES_NOT_EXIST,
    EXISTS,
    EXISTS_ONLY,
    IN,
    NOT_BEST_EFFORT,
    NOT_IN,
    NOT_TERMINATING,
    OPERATORS,
    SCOPES,
    STANDARD,
    TERMINATING,
    as_go_json,
    is_counted_whole,
    is_scope,
    is_standard,
    is_standard_of_quota,
    may_have,
    names_with,
)
from pinfold.core.quota.quota import ResourceQuota, ScopeRequirement, quota_from_api
from pinfold.core.values.names import label_problems, qualified_name_problems, subdomain_problems

_CONFLICTS: Final = ((BEST_EFFORT, NOT_BEST_EFFORT), (TERMINATING, NOT_TERMINATING))
_THERE_ARE: Final = f"there are {', '.join(SCOPES)}"
_A_DOMAIN: Final = "what is no resource of Kubernetes has a domain, such as requests.nvidia.com/gpu"
_NO_NAME: Final = "Required value: name or generateName is required"
_MALFORMED: Final = "must match the regular expression"


class QuotaError(PodError):
    """Something that the API server would refuse, in its words; ``remedy`` is in ours, or ""."""

    def __init__(self, path: str, problem: str, remedy: str = "") -> None:
        super().__init__(path, problem)
        self.remedy = remedy


def valid_quota(manifest: Mapping[str, Any]) -> ResourceQuota:
    """Read a ResourceQuota that an API server would take.

    Raises:
        PodError: the first thing that it would refuse, and what to do about it.
    """
    try:
        quota = quota_from_api(manifest)
    except PodError as error:
        if _MALFORMED in error.problem:
            raise PodError(error.path, f"{error.problem}; such as 4, 500m or 16Gi") from None
        raise
    for one in quota_problems(quota):
        remedy = f"; {one.remedy}" if one.remedy else ""
        raise PodError(one.path, f"{one.problem}{remedy}")
    return quota


def namespace_name(manifest: Mapping[str, Any]) -> str:
    """The name of a Namespace; raises PodError where the API server would refuse it."""
    metadata = mapping(manifest.get("metadata"), "metadata")
    name = text_of(metadata.get("name"), "metadata.name")
    if not name:
        raise PodError("metadata.name", _NO_NAME)
    for problem in refused(name, label_problems, "metadata.name"):
        raise problem
    return name


def quota_problems(quota: ResourceQuota) -> Iterator[QuotaError]:
    """Yield everything that the API server would refuse."""
    if not quota.name:
        yield QuotaError("metadata.name", _NO_NAME)
    else:
        yield from _named(quota.name, subdomain_problems, "metadata.name")
    yield from _named(quota.namespace, label_problems, "metadata.namespace")
    yield from spec_problems(quota)


def spec_problems(quota: ResourceQuota) -> Iterator[QuotaError]:
    """Yield everything that the API server would refuse in the ``spec``."""
    for name, quantity in quota.hard.items():
        path = f"spec.hard[{name}]"
        near = difflib.get_close_matches(name, STANDARD, n=1)
        meant = f"did you mean {near[0]}?" if near else _A_DOMAIN
        yield from (_invalid(path, name, problem, meant) for problem in _name_problems(name))
        if quantity.sign < 0:
            yield _invalid(path, str(quantity), "must be greater than or equal to 0")
        if is_counted_whole(name) and quantity.milli_value() % 1000:
            yield _invalid(path, str(quantity), "must be an integer")
    yield from _scope_problems(quota)
    yield from _selector_problems(quota)


def _name_problems(name: str) -> Iterator[str]:
    malformed = list(qualified_name_problems(name))
    yield from malformed
    if "/" in name:
        return
    if not malformed and not is_standard(name):
        yield "must be a standard resource type or fully qualified"
    if not is_standard_of_quota(name):
        yield "must be a standard resource for quota"


def _scope_problems(quota: ResourceQuota) -> Iterator[QuotaError]:
    path, scopes = "spec.scopes", list(quota.scopes)
    for scope in scopes:
        if not is_scope(scope):
            yield _invalid(path, scopes, "unsupported scope", _THERE_ARE)
        yield from _not_together(quota, scope, path, scopes)
    yield from _conflicts(scopes, quota, path)


def _selector_problems(quota: ResourceQuota) -> Iterator[QuotaError]:
    if quota.selector is None:
        return
    path = "spec.scopeSelector.matchExpressions"
    shown = {
        "MatchExpressions": [
            {"ScopeName": one.scope_name, "Operator": one.operator, "Values": one.values}
            for one in quota.selector
        ]
    }
    for one in quota.selector:
        if not is_scope(one.scope_name):
            yield _invalid(f"{path}.scopeName", one.scope_name, "unsupported scope", _THERE_ARE)
        yield from _not_together(quota, one.scope_name, path, shown)
        yield from _operator_problems(one, path)
    yield from _conflicts([one.scope_name for one in quota.selector], quota, path)


def _operator_problems(one: ScopeRequirement, path: str) -> Iterator[QuotaError]:
    if one.scope_name in EXISTS_ONLY and one.operator != EXISTS:
        yield _invalid(
            f"{path}.operator",
            one.operator,
            "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, "
            "ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, "
            "ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
        )
    if one.operator in (IN, NOT_IN):
        if not one.values:
            yield QuotaError(
                f"{path}.values",
                "Required value: must be at least one value when `operator` is 'In' or 'NotIn' "
                "for scope selector",
            )
    elif one.operator in (EXISTS, DOES_NOT_EXIST):
        if one.values:
            yield _invalid(
                f"{path}.values",
                one.values,
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
            )
    else:
        operators = f"there are {', '.join(OPERATORS)}"
        yield _invalid(f"{path}.operator", one.operator, "not a valid selector operator", operators)


def _not_together(
    quota: ResourceQuota, scope: str, path: str, shown: object
) -> Iterator[QuotaError]:
    for name in quota.hard:
        if not may_have(scope, name):
            remedy = f"{name} does not go with {scope}, but {', '.join(names_with(scope))} may"
            yield _invalid(path, shown, "unsupported scope applied to resource", remedy)


def _conflicts(scopes: list[str], quota: ResourceQuota, path: str) -> Iterator[QuotaError]:
    for pair in _CONFLICTS:
        if set(pair) <= set(scopes):
            yield _invalid(
                path, list(quota.scopes) or None, "conflicting scopes", "make a quota for each"
            )


def _named(name: str, problems: Callable[[str], Iterator[str]], path: str) -> Iterator[QuotaError]:
    return (QuotaError(one.path, one.problem) for one in refused(name, problems, path))


def _invalid(path: str, value: object, problem: str, remedy: str = "") -> QuotaError:
    return QuotaError(path, f"Invalid value: {as_go_json(value)}: {problem}", remedy)

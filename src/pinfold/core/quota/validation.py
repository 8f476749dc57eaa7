"""What the API server would refuse in a ResourceQuota, in its words.

Source: upstream ``pkg/apis/core/validation`` (``ValidateResourceQuota``, 1.34).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pinfold.core.pod.api import PodError
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
    TERMINATING,
    as_go_json,
    is_counted_whole,
    is_scope,
    is_standard,
    is_standard_of_quota,
    may_have,
)
from pinfold.core.quota.quota import ResourceQuota, ScopeRequirement
from pinfold.core.values.names import label_problems, qualified_name_problems, subdomain_problems

_CONFLICTS: Final = ((BEST_EFFORT, NOT_BEST_EFFORT), (TERMINATING, NOT_TERMINATING))


def validate_quota(quota: ResourceQuota) -> None:
    """Check a quota.

    Raises:
        PodError: the first thing that the API server would refuse.
    """
    for problem in quota_problems(quota):
        raise problem


def quota_problems(quota: ResourceQuota) -> Iterator[PodError]:
    """Yield everything that the API server would refuse."""
    if not quota.name:
        yield PodError("metadata.name", "Required value: name or generateName is required")
    else:
        yield from refused(quota.name, subdomain_problems, "metadata.name")
    yield from refused(quota.namespace, label_problems, "metadata.namespace")
    yield from spec_problems(quota)


def spec_problems(quota: ResourceQuota) -> Iterator[PodError]:
    """Yield everything that the API server would refuse in the ``spec``."""
    for name, quantity in quota.hard.items():
        path = f"spec.hard[{name}]"
        yield from (_invalid(path, name, problem) for problem in _name_problems(name))
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


def _scope_problems(quota: ResourceQuota) -> Iterator[PodError]:
    path, scopes = "spec.scopes", list(quota.scopes)
    for scope in scopes:
        if not is_scope(scope):
            yield _invalid(path, scopes, "unsupported scope")
        for name in quota.hard:
            if not may_have(scope, name):
                yield _invalid(path, scopes, "unsupported scope applied to resource")
    yield from _conflicts(scopes, quota, path)


def _selector_problems(quota: ResourceQuota) -> Iterator[PodError]:
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
            yield _invalid(f"{path}.scopeName", one.scope_name, "unsupported scope")
        for name in quota.hard:
            if not may_have(one.scope_name, name):
                yield _invalid(path, shown, "unsupported scope applied to resource")
        yield from _operator_problems(one, path)
    yield from _conflicts([one.scope_name for one in quota.selector], quota, path)


def _operator_problems(one: ScopeRequirement, path: str) -> Iterator[PodError]:
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
            yield PodError(
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
        yield _invalid(f"{path}.operator", one.operator, "not a valid selector operator")


def _conflicts(scopes: list[str], quota: ResourceQuota, path: str) -> Iterator[PodError]:
    for pair in _CONFLICTS:
        if set(pair) <= set(scopes):
            yield _invalid(path, list(quota.scopes) or None, "conflicting scopes")


def _invalid(path: str, value: object, problem: str) -> PodError:
    return PodError(path, f"Invalid value: {as_go_json(value)}: {problem}")

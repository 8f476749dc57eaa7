"""Which pods a quota counts, and which of its names are about pods.

Source: upstream ``pkg/quota/v1/evaluator/core/pods.go`` and ``apiserver/pkg/quota/v1/generic``
(1.34).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from pinfold.core.quota.counted_pod import CountedPod
from pinfold.core.quota.names import (
    BEST_EFFORT,
    CROSS_NAMESPACE,
    DOES_NOT_EXIST,
    EXISTS,
    IN,
    NOT_BEST_EFFORT,
    NOT_IN,
    NOT_TERMINATING,
    PRIORITY_CLASS,
    TERMINATING,
    as_go_json,
    is_of_pods,
)
from pinfold.core.quota.quota import ResourceQuota, ScopeRequirement
from pinfold.core.values.names import invalid, label_value_problems

_SCOPES: Final[Mapping[str, Callable[[CountedPod], bool]]] = {
    TERMINATING: lambda pod: pod.is_terminating,
    NOT_TERMINATING: lambda pod: not pod.is_terminating,
    BEST_EFFORT: lambda pod: pod.is_best_effort,
    NOT_BEST_EFFORT: lambda pod: not pod.is_best_effort,
    CROSS_NAMESPACE: lambda pod: pod.cross_namespace_affinity,
}
_UNREADABLE: Final = "failed to parse and convert selector: "


class ScopeError(ValueError):
    """A requirement that cannot be looked at; the message is the API server's."""


def meets(pod: CountedPod, requirement: ScopeRequirement) -> bool:
    """Whether a pod meets a requirement of a quota; a scope that is not of pods is met by none.

    Raises:
        ScopeError: the requirement has no meaning.
    """
    if requirement.scope_name == PRIORITY_CLASS:
        return _has_class(pod.pod.priority_class_name or "", requirement)
    look = _SCOPES.get(requirement.scope_name)
    return look is not None and look(pod)


def matching_scopes(
    pod: CountedPod, requirements: Iterable[ScopeRequirement]
) -> tuple[ScopeRequirement, ...]:
    """The requirements that a pod meets, in their order.

    Raises:
        ScopeError: one has no meaning; the message names it.
    """
    met = []
    for requirement in requirements:
        try:
            if meets(pod, requirement):
                met.append(requirement)
        except ScopeError as error:
            raise ScopeError(f"error on matching scope {requirement}: {error}") from None
    return tuple(met)


def matches(quota: ResourceQuota, pod: CountedPod) -> bool:
    """Whether a quota counts the pod: something of its ``status.hard`` is of pods, all scopes fit.

    Raises:
        ScopeError: a requirement has no meaning.
    """
    # All are looked at: one without a meaning is an error whatever the others say.
    met = [meets(pod, requirement) for requirement in quota.requirements]
    return all(met) and any(is_of_pods(name) for name in quota.status_hard)


def uncovered(
    limited: Iterable[ScopeRequirement], covered: Iterable[ScopeRequirement]
) -> tuple[ScopeRequirement, ...]:
    """The requirements of a limit whose scope no quota has."""
    scopes = {requirement.scope_name for requirement in covered}
    return tuple(one for one in limited if one.scope_name not in scopes)


def _has_class(name: str, requirement: ScopeRequirement) -> bool:
    """A priority class as the value of a label; a pod without one has no such label."""
    operator, values = requirement.operator, requirement.values or ()
    if operator == EXISTS:
        # Looked at before values are: upstream takes this way out, too.
        return bool(name)
    if operator not in (IN, NOT_IN, DOES_NOT_EXIST):
        raise ScopeError(f'{_UNREADABLE}"{operator}" is not a valid scope selector operator')
    problems = list(_value_problems(requirement))
    if problems:
        text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
        raise ScopeError(f"{_UNREADABLE}{text}")
    if operator == DOES_NOT_EXIST:
        return not name
    # What has no class is in no list: ``NotIn`` holds for it.
    return (name in values if name else False) == (operator == IN)


def _value_problems(requirement: ScopeRequirement) -> Iterator[str]:
    values = requirement.values or ()
    shown = f"values: Invalid value: {as_go_json(requirement.values)}: "
    if requirement.operator == DOES_NOT_EXIST and values:
        yield f"{shown}values set must be empty for exists and does not exist"
    if requirement.operator != DOES_NOT_EXIST and not values:
        yield f"{shown}for 'in', 'notin' operators, values set can't be empty"
    for index, value in enumerate(values):
        if problems := "; ".join(label_value_problems(value)):
            path = f"values[{index}][{requirement.scope_name}]"
            yield f"{path}: {invalid(value, problems)}"

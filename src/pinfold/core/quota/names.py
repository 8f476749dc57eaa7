"""What the names in ``spec.hard`` of a quota are about, and the words of its scopes.

Source: upstream ``pkg/apis/core/helper``, ``pkg/quota/v1/evaluator/core/pods.go`` (1.34).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from pinfold.core.pod.pod import CPU, HUGEPAGES_PREFIX, MEMORY, is_hugepages
from pinfold.core.values.resource_names import is_extended, is_native

EXCLUSIVE_CPUS: Final = "pinfold.dev/exclusive-cpus"
"""CPUs of one's own.

Not with ``requests.`` before it: the API server's own quotas take every such name for theirs, and
would keep its use at 0.
"""

EPHEMERAL_STORAGE: Final = "ephemeral-storage"
REQUESTS: Final = "requests."
LIMITS: Final = "limits."
PODS: Final = "pods"
COUNT_PODS: Final = "count/pods"

TERMINATING: Final = "Terminating"
NOT_TERMINATING: Final = "NotTerminating"
BEST_EFFORT: Final = "BestEffort"
NOT_BEST_EFFORT: Final = "NotBestEffort"
PRIORITY_CLASS: Final = "PriorityClass"
CROSS_NAMESPACE: Final = "CrossNamespacePodAffinity"
VOLUME_ATTRIBUTES_CLASS: Final = "VolumeAttributesClass"
"""Of claims of volumes: no pod has it, and so it is of no matter here."""

IN: Final = "In"
NOT_IN: Final = "NotIn"
EXISTS: Final = "Exists"
DOES_NOT_EXIST: Final = "DoesNotExist"

CONTAINERS_SPECIFY: Final = frozenset(
    f"{prefix}{name}" for prefix in ("", REQUESTS, LIMITS) for name in (CPU, MEMORY)
)
"""What each container has to say itself where a quota has it."""

_OF_PODS: Final = CONTAINERS_SPECIFY | {
    COUNT_PODS,
    PODS,
    EXCLUSIVE_CPUS,
    *(f"{prefix}{EPHEMERAL_STORAGE}" for prefix in ("", REQUESTS, LIMITS)),
}
_CLAIMS: Final = "persistentvolumeclaims"
_STORAGE: Final = f"{REQUESTS}storage"
_COUNTED: Final = frozenset(
    {PODS, "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps"}
    | {_CLAIMS, "services.nodeports", "services.loadbalancers"}
)
STANDARD: Final = (_COUNTED | _OF_PODS | {_STORAGE}) - {COUNT_PODS, EXCLUSIVE_CPUS}
"""The names without a domain, but for those of huge pages."""

_OF_SCOPE: Final = {
    **dict.fromkeys(
        (TERMINATING, NOT_TERMINATING, NOT_BEST_EFFORT, PRIORITY_CLASS, CROSS_NAMESPACE),
        CONTAINERS_SPECIFY | {PODS},
    ),
    BEST_EFFORT: frozenset({PODS}),
    VOLUME_ATTRIBUTES_CLASS: frozenset({_CLAIMS, _STORAGE}),
}

SCOPES: Final = tuple(_OF_SCOPE)
OPERATORS: Final = (IN, NOT_IN, EXISTS, DOES_NOT_EXIST)

EXISTS_ONLY: Final = frozenset(
    {TERMINATING, NOT_TERMINATING, BEST_EFFORT, NOT_BEST_EFFORT, CROSS_NAMESPACE}
)
"""Scopes that have no values."""


def is_of_pods(name: str) -> bool:
    """Whether a name in ``spec.hard`` counts pods, or what they ask for."""
    return (
        name in _OF_PODS
        or name.startswith((HUGEPAGES_PREFIX, REQUESTS + HUGEPAGES_PREFIX))
        or (name.startswith(REQUESTS) and not is_native(name))
    )


def matching_resources(names: Iterable[str]) -> tuple[str, ...]:
    """The names in ``spec.hard`` that are about pods, sorted."""
    return tuple(sorted(filter(is_of_pods, names)))


def is_standard_of_quota(name: str) -> bool:
    """Whether a quota may have the name without a domain."""
    return name in STANDARD or is_hugepages(name) or is_hugepages(name.removeprefix(REQUESTS))


def is_standard(name: str) -> bool:
    """Whether it is a resource that Kubernetes itself knows, of a quota or not."""
    return name in STANDARD or name == "storage" or is_standard_of_quota(name)


def is_counted_whole(name: str) -> bool:
    """Whether there are only whole ones: objects, and extended resources."""
    return name in _COUNTED or is_extended(name)


def is_scope(scope: str) -> bool:
    """Whether the API has such a scope."""
    return scope in _OF_SCOPE


def may_have(scope: str, name: str) -> bool:
    """Whether a quota with the scope may have the name; of names with a domain nothing is said."""
    names = _OF_SCOPE.get(scope)
    return names is None or name in names or not is_standard_of_quota(name)


def names_with(scope: str) -> tuple[str, ...]:
    """The names without a domain that a quota with the scope may have."""
    return tuple(sorted(_OF_SCOPE.get(scope, ())))


def as_go_json(value: object) -> str:
    """A value as the API server shows it in an error."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text

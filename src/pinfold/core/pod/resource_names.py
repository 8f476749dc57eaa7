"""What the name of a resource says about it, and what the API server refuses in one.

Source: upstream ``pkg/apis/core/helper`` and ``apimachinery/pkg/util/validation`` (1.34).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pinfold.core.pod.pod import CPU, MEMORY, is_hugepages
from pinfold.core.values.names import qualified_name_problems

_NATIVE_DOMAIN: Final = "kubernetes.io/"
_QUOTA_PREFIX: Final = "requests."
_STANDARD: Final = frozenset({CPU, MEMORY, "ephemeral-storage"})


def is_native(name: str) -> bool:
    """Whether Kubernetes itself owns the name: it has no domain, or one of kubernetes.io."""
    return "/" not in name or is_prefixed_native(name)


def is_prefixed_native(name: str) -> bool:
    """Whether the name is in a domain of kubernetes.io."""
    return _NATIVE_DOMAIN in name


@lru_cache(maxsize=1024)
def is_extended(name: str) -> bool:
    """Whether it is an extended resource: one that a device plugin or an operator may announce.

    A name that would not be valid in a quota (with ``requests.`` before it) is none.
    """
    if is_native(name) or name.startswith(_QUOTA_PREFIX):
        return False
    return not any(qualified_name_problems(f"{_QUOTA_PREFIX}{name}"))


def may_be_overcommitted(name: str) -> bool:
    """Whether requests may be below limits: not of huge pages, nor of extended resources."""
    return is_native(name) and not is_hugepages(name)


def container_resource_problem(name: str) -> str:
    """Why no container can ask for a resource of this name; "" where one can."""
    for problem in qualified_name_problems(name):
        return problem
    if "/" not in name:
        known = name in _STANDARD or is_hugepages(name)
        return "" if known else "must be a standard resource for containers"
    if is_native(name) or is_extended(name):
        return ""
    return "doesn't follow extended resource name standard"

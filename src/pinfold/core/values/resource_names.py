"""Which names of resources are Kubernetes' own, and which an operator or a device plugin may give.

Source: upstream ``pkg/apis/core/helper`` (1.34).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pinfold.core.values.names import qualified_name_problems

_NATIVE_DOMAIN: Final = "kubernetes.io/"
_QUOTA_PREFIX: Final = "requests."


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

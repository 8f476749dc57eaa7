"""What the name of a resource says about it, and what the API server refuses in one.

Source: upstream ``pkg/apis/core/helper`` and ``apimachinery/pkg/util/validation`` (1.34).
"""

from __future__ import annotations

from typing import Final

from pinfold.core.pod.pod import CPU, MEMORY, is_hugepages
from pinfold.core.values.names import qualified_name_problems
from pinfold.core.values.resource_names import is_extended, is_native

_STANDARD: Final = frozenset({CPU, MEMORY, "ephemeral-storage"})


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

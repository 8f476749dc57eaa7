"""What a topology manager is configured with: policy, scope and policy options.

Names, limits and texts are the kubelet's (``topologymanager/policy_options.go``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Self

from msgspec import Struct

from pinfold.core.kubelet.policy_options import (
    DEFAULT_MAX_ALLOWABLE_NUMA_NODES,
    MAX_ALLOWABLE_NUMA_NODES,
    PREFER_CLOSEST_NUMA_NODES,
    TOPOLOGY_MANAGER_OPTIONS,
    PolicyOptionError,
    parse_go_bool,
)
from pinfold.core.kubelet.versions import DEFAULT_VERSION, KubeletVersion
from pinfold.core.topology_manager.merge import NamedHints, only_single_numa

_GO_INT = re.compile(r"[+-]?[0-9]{1,4000}", re.ASCII)


class Policy(Enum):
    """``topologyManagerPolicy``."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"

    def eligible(self, resources: Sequence[NamedHints]) -> Sequence[NamedHints]:
        """The hints that the policy lets into the merge."""
        return only_single_numa(resources) if self is Policy.SINGLE_NUMA_NODE else resources

    def accepts(self, *, preferred: bool) -> bool:
        """Whether a pod may run with a merged hint that is ``preferred`` or not."""
        return preferred or self is Policy.NONE or self is Policy.BEST_EFFORT


class Scope(Enum):
    """``topologyManagerScope``."""

    CONTAINER = "container"
    POD = "pod"


class TopologyManagerOptions(Struct, frozen=True):
    """``topologyManagerPolicyOptions``, parsed."""

    prefer_closest_numa_nodes: bool = False
    max_allowable_numa_nodes: int = DEFAULT_MAX_ALLOWABLE_NUMA_NODES

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        feature_gates: Mapping[str, bool] | None = None,
        version: KubeletVersion = DEFAULT_VERSION,
    ) -> Self:
        """Read the options (strings, as the configuration has them).

        Raises:
            PolicyOptionError: unknown, not enabled, no boolean or integer, or below the minimum.
        """
        closest, highest = False, DEFAULT_MAX_ALLOWABLE_NUMA_NODES
        for name, text in options.items():
            TOPOLOGY_MANAGER_OPTIONS.check_available(name, feature_gates or {}, version)
            if name == PREFER_CLOSEST_NUMA_NODES:
                closest = parse_go_bool(name, text)
            elif name == MAX_ALLOWABLE_NUMA_NODES:
                highest = _parse_max_nodes(name, text)
        return cls(closest, highest)


def _parse_max_nodes(name: str, text: str) -> int:
    fault = "invalid syntax"
    if _GO_INT.fullmatch(text):
        value = int(text)
        if -(2**63) <= value < 2**63:
            if value < DEFAULT_MAX_ALLOWABLE_NUMA_NODES:
                raise PolicyOptionError(
                    f'the minimum value of "{name}" should not be less than '
                    f"{DEFAULT_MAX_ALLOWABLE_NUMA_NODES}"
                )
            return value
        fault = "value out of range"
    raise PolicyOptionError(
        f'unable to convert policy option to integer "{name}": '
        f'strconv.Atoi: parsing "{text}": {fault}'
    )

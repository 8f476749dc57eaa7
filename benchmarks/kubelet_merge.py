"""The merges of which the kubelet's own figures are known, for the ratios.

Every provider offers every mask and prefers single nodes, under the policy best-effort.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pinfold.core.topology_manager.hints import NUMAInfo, TopologyHint, iter_numa_masks
from pinfold.core.topology_manager.merge import merge_hints


def _every_mask(nodes: int, providers: int) -> Callable[[], object]:
    hints = [TopologyHint(mask, mask.bit_count() == 1) for mask in iter_numa_masks(range(nodes))]
    resources = [list(hints) for _ in range(providers)]
    numa = NUMAInfo(tuple(range(nodes)))
    return lambda: merge_hints(resources, numa)


WORKLOADS: Final = {
    f"merge.{nodes}x{providers}.single": partial(_every_mask, nodes, providers)
    for nodes, providers in ((4, 2), (4, 4), (6, 3), (8, 1), (8, 2), (8, 3), (8, 4))
}

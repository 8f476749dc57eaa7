"""How a pod that has memory as a whole divides it among its containers.

Gate ``PodLevelResourceManagers`` under topology manager scope ``pod``.  A container that is
exclusive has its own requests; an ordinary init container that shares has what the sidecars before
it leave, since it runs while nobody else does; all others share what is left at the end.  Sizes are
bytes by kind.  Source: observed of kubelet 1.36.2 (KEP-5526).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pinfold.core.memory.memory import UINT64, Block
from pinfold.core.pod.pod import Container, Pod, most_at_once
from pinfold.core.pod.pod_level import memory_is_shared
from pinfold.core.values.quantity import Format, Quantity

Sizes = Mapping[str, int]


def parts_of(
    pod: Pod, budget: Sizes, own: Mapping[str, Sizes], nodes: tuple[int, ...]
) -> dict[str, tuple[Block, ...]]:
    """Container name -> its blocks, all on the nodes of the pod.

    Where containers have what the budget does not, the remainder wraps around, as an unsigned
    64-bit number does: see :func:`overdrawn`.

    Args:
        pod: a pod with resources of its own, and a sound one.
        budget: what the pod has as a whole.
        own: container name -> what it has for itself; nothing for those that share.
        nodes: the NUMA nodes of all of it, ascending.
    """
    parts = {c.name: own[c.name] for c in pod.all_containers if not memory_is_shared(c)}
    left = dict(budget)
    for init in pod.init_containers:
        if init.is_sidecar:
            # A kind that the budget does not have is passed over here, and only here.
            left = _minus(left, {k: size for k, size in own[init.name].items() if k in budget})
        elif init.name not in parts:
            parts[init.name] = _without_zeros(left)
    for container in pod.containers:
        left = _minus(left, own[container.name])
    pool = _without_zeros(left)
    return {
        container.name: tuple(
            Block(nodes, kind, size)
            for kind, size in sorted(parts.get(container.name, pool).items())
        )
        for container in pod.all_containers
    }


def overdrawn(pod: Pod, budget: Sizes, own: Mapping[str, Sizes]) -> str | None:
    """Why what containers have for themselves does not fit into the budget; None: it does.

    A kubelet does not look.
    """
    for kind in sorted({kind for sizes in own.values() for kind in sizes}):
        most = most_at_once(pod, partial(_size, own, kind))
        if most > budget.get(kind, 0):
            return (
                f"its containers request {_told(most)} of {kind} for themselves, the pod as a "
                f"whole {_told(budget.get(kind, 0))}"
            )
    return None


def _size(own: Mapping[str, Sizes], kind: str, container: Container) -> int:
    return own[container.name].get(kind, 0)


def _minus(sizes: Sizes, less: Sizes) -> dict[str, int]:
    changed = {kind: (sizes.get(kind, 0) - size) & UINT64 for kind, size in less.items()}
    return {**sizes, **changed}


def _without_zeros(sizes: Sizes) -> Sizes:
    return {kind: size for kind, size in sizes.items() if size}


def _told(size: int) -> str:
    return str(Quantity(size, 0, Format.BINARY_SI)) if size else "none"

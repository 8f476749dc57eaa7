"""Whether a node that has been provided has what a class needs, as an autoscaler asks.

Source: the design proposal "New Resource API" (kubernetes/community#782), ``ProvisionConfig``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pinfold.core.classes.resource_class import ResourceClass

READY: Final = "ready"
COMING: Final = "coming"
NOT_VIABLE: Final = "not viable"
NOT_HERE: Final = "not here"


class Readiness(Struct, frozen=True):
    """What can be said of a class on one node.

    ``expected`` is how many its labels promise, None where no label says; ``exported`` how many
    there are; ``wait`` the seconds for which it is worth waiting, None for no bound.
    """

    state: str
    expected: int | None
    exported: int
    wait: float | None = None


def readiness(
    one: ResourceClass, labels: Mapping[str, str], exported: int, age: float
) -> Readiness:
    """Whether to wait for a node's resources of a class, or to give it up.

    Args:
        one: the class.
        labels: the node's.
        exported: how many resources of the class the node tells of (allocatable).
        age: seconds since the node was made.
    """
    provision = one.provision
    said = [labels[key] for key in provision.capacity_node_label_keys if key in labels]
    counts = [int(text) for text in said if text.isascii() and text.isdecimal()]
    expected = sum(counts) if counts else None
    if one.is_cluster_level:
        return Readiness(READY, expected, exported)
    if expected is None and not exported:
        return Readiness(NOT_HERE, None, 0)
    if exported >= (expected or 0):
        return Readiness(READY, expected, exported)
    bound = provision.provision_seconds
    if bound is None:
        return Readiness(COMING, expected, exported)
    left = bound - age
    if left > 0:
        return Readiness(COMING, expected, exported, left)
    return Readiness(NOT_VIABLE, expected, exported)

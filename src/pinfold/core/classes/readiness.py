"""Whether a node that has been provided has what a class needs, as an autoscaler asks.

Source: the design proposal "New Resource API" (kubernetes/community#782), ``ProvisionConfig``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.placing import Matcher, count_of, pool_of
from pinfold.core.classes.resource_class import ResourceClass
from pinfold.core.values.quantity import Quantity

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


def exported(
    one: ResourceClass,
    matcher: Matcher,
    node_name: str,
    allocatable: Mapping[str, Quantity],
    resources: Collection[ComputeResource],
) -> int:
    """How many resources of a class a node tells of.

    A raw name counts as far as the node has it as allocatable: what was published of it before its
    plugin has come back is not there yet.  Where nothing was published, its devices have the
    properties that all have.

    Args:
        one: the class.
        matcher: of all classes of nodes, as those of a higher priority come first.
        node_name: the node.
        allocatable: what it has, by raw name.
        resources: the compute resources of this node.
    """
    total = 0
    for raw, amount in allocatable.items():
        has = max(0, amount.value())
        said = [each for each in resources if each.resource_name == raw]
        if said:
            has = min(has, _of_class(one.name, matcher, said, has))
        elif one.name not in matcher.names(ComputeResource("", node_name, raw)):
            has = 0
        total += has
    return total


def _of_class(name: str, matcher: Matcher, said: Collection[ComputeResource], has: int) -> int:
    """How many of what a node has under a raw name are of a class, by what is said of it."""
    mine = [each for each in said if name in matcher.names(each)]
    if all(map(count_of, mine)):
        return pool_of(matcher, mine).capacity
    # One that lists nothing stands for all that is not the others'.
    listed = {id_ for each in mine for id_ in each.devices}
    others = {id_ for each in said if each not in mine for id_ in each.devices}
    return max(0, has - len(others - listed))

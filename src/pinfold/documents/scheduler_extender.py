"""What kube-scheduler asks an extender, and what it is answered.

Source: ``k8s.io/kube-scheduler/extender/v1``.  Its types have no JSON names of their own, so the
fields are those of Go: a scheduler sends ``NodeNames``, and reads any case.  Fields of the objects
that are of no matter here are passed over; nodes are given back as they came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Raw, Struct, field

MOST_NODES: Final = 20_000
"""In one question; Kubernetes is made for 5,000."""

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]
"""A DNS name, as pods, namespaces and nodes have them."""


class NodeList(Struct, frozen=True):
    """Nodes, as they came: for a scheduler that does not say ``nodeCacheCapable``."""

    items: Annotated[tuple[Raw, ...], Meta(max_length=MOST_NODES)] | None = None


class ExtenderArgs(Struct, frozen=True, rename="pascal"):
    """Which of some nodes suit a pod; one of ``nodes`` and ``node_names`` is there."""

    pod: Raw
    nodes: NodeList | None = None
    node_names: Annotated[tuple[str, ...], Meta(max_length=MOST_NODES)] | None = None


class ExtenderFilterResult(Struct, frozen=True, rename="pascal", omit_defaults=True):
    """Those that fit, in the form in which they came, and why the others do not.

    Attributes:
        nodes: those that fit.
        node_names: the same by name.
        failed_nodes: why a node does not fit.
        failed_and_unresolvable_nodes: those of them for which a scheduler is not to look whether it
            could evict somebody; schedulers before 1.21 do not know it, so they are among
            ``failed_nodes``, too.
        error: why nobody can say.
    """

    nodes: NodeList | None = None
    node_names: Sequence[str] | None = None
    failed_nodes: Mapping[str, str] = {}
    failed_and_unresolvable_nodes: Mapping[str, str] = {}
    error: str = ""


class HostPriority(Struct, frozen=True, rename="pascal"):
    """How well a node suits, from 0 to 10."""

    host: str
    score: int


class ExtenderBindingArgs(Struct, frozen=True):
    """A pod that is to be on a node."""

    name: Name = field(name="PodName")
    namespace: Name = field(name="PodNamespace")
    uid: Annotated[str, Meta(min_length=1)] = field(name="PodUID")
    node: Name = field(name="Node")


class ExtenderBindingResult(Struct, frozen=True, rename="pascal", omit_defaults=True):
    """Whether it is; ``error`` says why not."""

    error: str = ""

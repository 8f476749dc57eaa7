"""A plan of several nodes: what ``pinfold plan --node ... -o json`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET, UnsetType

from pinfold.documents.plan import Plan, QuotaUse
from pinfold.documents.records import Document, Record


class RefusingNodes(Record, frozen=True, kw_only=True):
    """Nodes that do not do, all for one reason."""

    reason: str
    """The scheduler's words, such as ``Insufficient cpu``; of classes the extender's."""
    nodes: Sequence[str]


class ClusterPod(Record, frozen=True, kw_only=True):
    """A pod, and the node that it is bound to."""

    namespace: str
    name: str
    uid: str
    node: str | None
    """Null: it is on none."""
    admitted: bool
    """Whether its node has let it in."""
    reason: str | None
    """Why not: the node's word, ``Unschedulable`` where no node does, or ``Forbidden``, where it is
    never created."""
    message: str | None
    refused_by: Sequence[RefusingNodes] | UnsetType = UNSET
    """Of one that is unschedulable: the nodes, by the reason."""
    binding: Mapping[str, str] | UnsetType = UNSET
    """Of one that asks for classes: what each container has for them, as its annotations say."""


class ClusterNode(Record, frozen=True, kw_only=True):
    """A node, with the plan of the pods that are bound to it."""

    name: str
    plan: Plan


class ClusterPlan(Document, frozen=True, kw_only=True):
    """Where a scheduler would bind some pods, and what their nodes decide."""

    pods: Sequence[ClusterPod]
    """In the order of their creation."""
    nodes: Sequence[ClusterNode]
    """In the order in which they were named."""
    quotas: Sequence[QuotaUse] | UnsetType = UNSET
    """As they are with all pods that were created; one that waits counts, too."""
    notes: Sequence[str]
    """What was passed over while reading."""

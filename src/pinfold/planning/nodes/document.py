"""A plan of several nodes as a document."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from pinfold.admission.quota import quota_use
from pinfold.documents.cluster_plan import (
    ClusterNode,
    ClusterPlan,
    ClusterPod,
    RefusingNodes,
)
from pinfold.planning.nodes.planned import NodesPlan, Outcome
from pinfold.planning.plan_document import plan_document


def nodes_document(plan: NodesPlan, notes: Sequence[str]) -> ClusterPlan:
    """The document: what ``pinfold plan --node ... -o json`` prints."""
    return ClusterPlan(
        pods=list(map(_pod, plan.outcomes)),
        nodes=[ClusterNode(name=name, plan=plan_document(one)) for name, one in plan.plans.items()],
        quotas=quota_use(plan.quotas) or UNSET,
        notes=notes,
    )


def _pod(outcome: Outcome) -> ClusterPod:
    pod = outcome.pod
    return ClusterPod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node=outcome.node,
        admitted=outcome.admitted,
        reason=outcome.reason,
        message=outcome.message,
        refused_by=[
            RefusingNodes(reason=reason, nodes=nodes)
            for reason, nodes in outcome.refused_by.items()
        ]
        or UNSET,
        binding=dict(outcome.binding) or UNSET,
    )

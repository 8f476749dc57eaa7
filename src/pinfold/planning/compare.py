"""Two plans of the same pods, and what differs between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from pinfold.core.kubelet.feature_gates import FEATURE_GATES, FeatureGate
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.version_rules import VERSION_RULES
from pinfold.documents.plan import Comparison, PodName
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Plan, PodPlacement


def changed_pods(before: Plan, after: Plan) -> list[tuple[PodPlacement, PodPlacement]]:
    """The pods whose admission, reason, exclusive CPUs, memory or devices differ, in order.

    A shared container's CPUs follow the shared pool and count as no change of the pod.
    """
    later = {(p.pod.namespace, p.pod.name): p for p in after.pods}
    pairs = [(p, later[p.pod.namespace, p.pod.name]) for p in before.pods]
    return [(old, new) for old, new in pairs if _outcome(old) != _outcome(new)]


def _outcome(placement: PodPlacement) -> tuple[object, ...]:
    exclusive = {c.name: (c.cpus, c.mixed) for c in placement.containers if c.exclusive}
    given = {c.name: (c.memory, dict(c.devices)) for c in placement.containers}
    bubble = placement.bubble
    whole = None if bubble is None else (bubble.cpus, bubble.parts, bubble.memory)
    return (placement.admitted, placement.decision.reason, exclusive, given, whole)


def differences(before: NodeConfig, after: NodeConfig) -> Iterator[str]:
    """What two versions of the kubelet have or do otherwise, a sentence each."""
    versions = (before.kubelet_version, after.kubelet_version)
    if versions[0] == versions[1]:
        return
    for gate in FEATURE_GATES:
        specs = [gate.at(version) for version in versions]
        # Of a gate that is on for good it changes nothing that it is there.
        for_good = None in specs and any(spec is not None and spec.locked for spec in specs)
        words = [_state(gate, config) for config in (before, after)]
        if not for_good and words[0] != words[1]:
            yield f"feature gate {gate.name}: {words[0]} → {words[1]}"
    for rule in VERSION_RULES:
        new = rule.at(versions[1])
        matters = not rule.gate or before.gate(rule.gate) or after.gate(rule.gate)
        if matters and rule.at(versions[0]) != new:
            yield rule.text if new else f"only in kubelet {versions[0].full}: {rule.text}"


def _state(gate: FeatureGate, config: NodeConfig) -> str:
    if gate.at(config.kubelet_version) is None:
        return "there is none"
    return "on" if config.gate(gate.name) else "off"


def compare_document(
    before: Plan, after: Plan, notes: Sequence[str], refused: Sequence[str] = ()
) -> Comparison:
    """Both plans and the names of the pods that differ.

    ``refused`` is what the second kubelet says of settings that it does not start with.
    """
    configs = (before.planner.config, after.planner.config)
    return Comparison(
        changed=[
            PodName(namespace=old.pod.namespace, name=old.pod.name)
            for old, _ in changed_pods(before, after)
        ],
        before=plan_document(before),
        after=plan_document(after),
        refused=refused or UNSET,
        differences=list(differences(*configs)) or UNSET,
        notes=notes,
    )

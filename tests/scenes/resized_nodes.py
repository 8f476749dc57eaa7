"""Nodes on which resizes are tried, under all options that go together."""

from __future__ import annotations

from itertools import product
from typing import Any

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.model import build_node, empty_state
from pinfold.admission.settling import settle
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.policy_options import (
    CPU_MANAGER_OPTIONS,
    PolicyOptionError,
    StaticPolicyOptions,
)
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.pod import Pod
from pinfold.core.values.cpuset import CPUSet

GATES = {"CPUManagerPolicyAlphaOptions": True}
NAMES = [option.name for option in CPU_MANAGER_OPTIONS.options]
POLICIES = ["none", "best-effort", "restricted", "single-numa-node"]


def permitted() -> list[dict[str, str]]:
    """All combinations of policy options that a kubelet starts with."""
    found = []
    for values in product((False, True), repeat=len(NAMES)):
        options = {name: "true" for name, on in zip(NAMES, values, strict=True) if on}
        try:
            StaticPolicyOptions.parse(options, GATES)
        except PolicyOptionError:
            continue
        found.append(options)
    return found


def node(form: str = "2s2n8c2t", **config: Any) -> tuple[Node, NodeState]:
    machine = parse_short_form(form)
    usual: dict[str, Any] = {
        "cpu_manager_policy": "static",
        "reserved_system_cpus": CPUSet([0, 1]),
        "feature_gates": GATES,
        "eviction_hard": {},
    }
    built = build_node(machine, NodeConfig(**usual | config))
    return built, empty_state(built, machine.online)


def admitted(where: Node, state: NodeState, what: Pod) -> NodeState:
    decision = decide(where, state, what)
    assert decision.admitted, decision.message
    return settle(state, decision)


def cpus(text: str) -> CPUSet:
    return CPUSet.parse(text)

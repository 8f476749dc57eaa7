"""A node whose policy is ``dynamic``."""

from __future__ import annotations

from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import DynamicOptions, OwnPolicies


def dynamic_config(dynamic: DynamicOptions | None) -> NodeConfig:
    """Its configuration; None: the policy is another one."""
    if dynamic is None:
        return NodeConfig(cpu_manager_policy="static", own=OwnPolicies())
    return NodeConfig(cpu_manager_policy="dynamic", own=OwnPolicies(dynamic=dynamic))

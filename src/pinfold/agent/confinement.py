"""Everything else on the machine, away from the CPUs of the pods."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from pinfold.adapters.machines.online import online_cpus
from pinfold.adapters.shield import raise_shield
from pinfold.config.agent import AgentConfig
from pinfold.planning.planner import Planner

SHIELD: Final = "shield.json"

log = structlog.get_logger("pinfold")


async def confine_system(config: AgentConfig, planner: Planner) -> None:
    """Move everything else on this machine to the reserved CPUs.

    Raises:
        ShieldError: it cannot be done; as far as it was, ``pinfold shield --off`` undoes it.
    """
    policy = planner.node.cpu_policy
    reserved = config.node.reserved_system_cpus if policy is None else policy.reserved
    cpus = online_cpus() & planner.view.topology.cpus - reserved
    if not reserved or not cpus:
        log.warning("unconfined", problem="no CPUs are reserved for the system, or all are")
        return
    parent = config.own.cgroup_parent or "/"
    keep = (f"{parent.rstrip('/')}/{config.own.cgroup_name}",)
    record = Path(config.own.state_dir) / SHIELD
    report = await raise_shield(cpus, keep=keep, record=record)
    log.info("confined", system=str(reserved), moved=report.moved, left=list(report.left))

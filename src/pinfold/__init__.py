"""Pinfold keeps containers on their CPUs: the kubelet's CPU manager as a library.

>>> from pinfold import CPUSet, NodeConfig, Planner, parse_short_form
>>> machine = parse_short_form("1s4c2t")
>>> config = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0, 1]))
>>> plan = Planner(machine, config).plan([])
>>> str(plan.shared), str(plan.allocatable)
('0-7', '2-7')

A plan is the newest recorded kubelet's; another one is asked for by its version:

>>> from pinfold import named_version
>>> older = NodeConfig(kubelet_version=named_version("1.34").version)
>>> older.gate("PodLevelResourceManagers"), str(older.kubelet_version)
(False, '1.34')
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pinfold.adapters.kubernetes.manifests import read_manifests
    from pinfold.adapters.machines.source import open_machine
    from pinfold.core.kubelet.node_config import NodeConfig
    from pinfold.core.kubelet.versions import KubeletVersion, NamedVersion, named_version
    from pinfold.core.machine.kubelet_view import KubeletView, kubelet_view
    from pinfold.core.machine.machine import Machine
    from pinfold.core.machine.short_form import parse_short_form
    from pinfold.core.machine.topology import CPUTopology
    from pinfold.core.moves.resize_wish import ResizeWish
    from pinfold.core.pod.pod import Container, Pod
    from pinfold.core.values.cpuset import CPUSet
    from pinfold.core.values.quantity import Quantity
    from pinfold.documents.simulation.results import Simulation
    from pinfold.planning.planner import Plan, Planner
    from pinfold.planning.simulation.experiment.loading import LoadedExperiment, load_experiment
    from pinfold.planning.simulation.library import simulate
    from pinfold.planning.simulation.tables import (
        fits_table,
        reasons_table,
        runs_table,
        series_table,
    )

_HOMES = {
    "CPUSet": "pinfold.core.values.cpuset",
    "CPUTopology": "pinfold.core.machine.topology",
    "Container": "pinfold.core.pod.pod",
    "KubeletVersion": "pinfold.core.kubelet.versions",
    "KubeletView": "pinfold.core.machine.kubelet_view",
    "LoadedExperiment": "pinfold.planning.simulation.experiment.loading",
    "Machine": "pinfold.core.machine.machine",
    "NamedVersion": "pinfold.core.kubelet.versions",
    "NodeConfig": "pinfold.core.kubelet.node_config",
    "Plan": "pinfold.planning.planner",
    "Planner": "pinfold.planning.planner",
    "Pod": "pinfold.core.pod.pod",
    "Quantity": "pinfold.core.values.quantity",
    "ResizeWish": "pinfold.core.moves.resize_wish",
    "Simulation": "pinfold.documents.simulation.results",
    "fits_table": "pinfold.planning.simulation.tables",
    "kubelet_view": "pinfold.core.machine.kubelet_view",
    "load_experiment": "pinfold.planning.simulation.experiment.loading",
    "named_version": "pinfold.core.kubelet.versions",
    "open_machine": "pinfold.adapters.machines.source",
    "parse_short_form": "pinfold.core.machine.short_form",
    "read_manifests": "pinfold.adapters.kubernetes.manifests",
    "reasons_table": "pinfold.planning.simulation.tables",
    "runs_table": "pinfold.planning.simulation.tables",
    "series_table": "pinfold.planning.simulation.tables",
    "simulate": "pinfold.planning.simulation.library",
}

__all__ = [
    "CPUSet",
    "CPUTopology",
    "Container",
    "KubeletVersion",
    "KubeletView",
    "LoadedExperiment",
    "Machine",
    "NamedVersion",
    "NodeConfig",
    "Plan",
    "Planner",
    "Pod",
    "Quantity",
    "ResizeWish",
    "Simulation",
    "fits_table",
    "kubelet_view",
    "load_experiment",
    "named_version",
    "open_machine",
    "parse_short_form",
    "read_manifests",
    "reasons_table",
    "runs_table",
    "series_table",
    "simulate",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that nobody waits for what is not."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pinfold' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

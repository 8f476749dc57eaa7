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
    from pinfold.adapters.executors.pool import ExecutorError
    from pinfold.adapters.kubernetes.files import ManifestError
    from pinfold.adapters.kubernetes.manifests import Manifests, read_manifests
    from pinfold.adapters.machines.source import open_machine
    from pinfold.admission.decision import Decision
    from pinfold.admission.model import NodeError
    from pinfold.config.devices_file import LoadedDevices, load_devices
    from pinfold.config.kubelet import LoadedConfig, load_kubelet_config
    from pinfold.config.values import ConfigError
    from pinfold.core.devices.devices import Device, DeviceResource
    from pinfold.core.kubelet.node_config import NodeConfig
    from pinfold.core.kubelet.versions import (
        KubeletVersion,
        KubeletVersionError,
        NamedVersion,
        named_version,
    )
    from pinfold.core.machine.kubelet_view import KubeletView, UnseenMachineError, kubelet_view
    from pinfold.core.machine.machine import Machine, MachineError
    from pinfold.core.machine.short_form import parse_short_form
    from pinfold.core.machine.topology import CPUTopology, TopologyError
    from pinfold.core.moves.owners import MoveError
    from pinfold.core.moves.resize_wish import ResizeError, ResizeWish
    from pinfold.core.pod.api import PodError, pod_from_api
    from pinfold.core.pod.defaults import apply_defaults
    from pinfold.core.pod.named import UnknownPodError
    from pinfold.core.pod.pod import Container, Pod, PodResources, QOSClass
    from pinfold.core.values.cpuset import CPUSet, CPUSetError
    from pinfold.core.values.errors import PinfoldError
    from pinfold.core.values.quantity import Quantity, QuantityError
    from pinfold.documents.simulation.results import Simulation
    from pinfold.planning.compare import changed_pods
    from pinfold.planning.explaining.decision import Explanation, explain_pod
    from pinfold.planning.plan_document import plan_document
    from pinfold.planning.planner import Plan, Planner, PodPlacement
    from pinfold.planning.simulation.campaign.running import RunError
    from pinfold.planning.simulation.experiment.loading import LoadedExperiment, load_experiment
    from pinfold.planning.simulation.library import simulate
    from pinfold.planning.simulation.tables import (
        fits_table,
        reasons_table,
        runs_table,
        series_table,
    )
    from pinfold.ports.arrivals import TraceError

_HOMES = {
    "CPUSet": "pinfold.core.values.cpuset",
    "CPUSetError": "pinfold.core.values.cpuset",
    "CPUTopology": "pinfold.core.machine.topology",
    "ConfigError": "pinfold.config.values",
    "Container": "pinfold.core.pod.pod",
    "Decision": "pinfold.admission.decision",
    "Device": "pinfold.core.devices.devices",
    "DeviceResource": "pinfold.core.devices.devices",
    "ExecutorError": "pinfold.adapters.executors.pool",
    "Explanation": "pinfold.planning.explaining.decision",
    "KubeletVersion": "pinfold.core.kubelet.versions",
    "KubeletVersionError": "pinfold.core.kubelet.versions",
    "KubeletView": "pinfold.core.machine.kubelet_view",
    "LoadedConfig": "pinfold.config.kubelet",
    "LoadedDevices": "pinfold.config.devices_file",
    "LoadedExperiment": "pinfold.planning.simulation.experiment.loading",
    "Machine": "pinfold.core.machine.machine",
    "MachineError": "pinfold.core.machine.machine",
    "ManifestError": "pinfold.adapters.kubernetes.files",
    "Manifests": "pinfold.adapters.kubernetes.manifests",
    "MoveError": "pinfold.core.moves.owners",
    "NamedVersion": "pinfold.core.kubelet.versions",
    "NodeConfig": "pinfold.core.kubelet.node_config",
    "NodeError": "pinfold.admission.model",
    "PinfoldError": "pinfold.core.values.errors",
    "Plan": "pinfold.planning.planner",
    "Planner": "pinfold.planning.planner",
    "Pod": "pinfold.core.pod.pod",
    "PodError": "pinfold.core.pod.api",
    "PodPlacement": "pinfold.planning.planner",
    "PodResources": "pinfold.core.pod.pod",
    "QOSClass": "pinfold.core.pod.pod",
    "Quantity": "pinfold.core.values.quantity",
    "QuantityError": "pinfold.core.values.quantity",
    "ResizeError": "pinfold.core.moves.resize_wish",
    "ResizeWish": "pinfold.core.moves.resize_wish",
    "RunError": "pinfold.planning.simulation.campaign.running",
    "Simulation": "pinfold.documents.simulation.results",
    "TopologyError": "pinfold.core.machine.topology",
    "TraceError": "pinfold.ports.arrivals",
    "UnknownPodError": "pinfold.core.pod.named",
    "UnseenMachineError": "pinfold.core.machine.kubelet_view",
    "apply_defaults": "pinfold.core.pod.defaults",
    "changed_pods": "pinfold.planning.compare",
    "explain_pod": "pinfold.planning.explaining.decision",
    "fits_table": "pinfold.planning.simulation.tables",
    "kubelet_view": "pinfold.core.machine.kubelet_view",
    "load_devices": "pinfold.config.devices_file",
    "load_experiment": "pinfold.planning.simulation.experiment.loading",
    "load_kubelet_config": "pinfold.config.kubelet",
    "named_version": "pinfold.core.kubelet.versions",
    "open_machine": "pinfold.adapters.machines.source",
    "parse_short_form": "pinfold.core.machine.short_form",
    "plan_document": "pinfold.planning.plan_document",
    "pod_from_api": "pinfold.core.pod.api",
    "read_manifests": "pinfold.adapters.kubernetes.manifests",
    "reasons_table": "pinfold.planning.simulation.tables",
    "runs_table": "pinfold.planning.simulation.tables",
    "series_table": "pinfold.planning.simulation.tables",
    "simulate": "pinfold.planning.simulation.library",
}

__all__ = [
    "CPUSet",
    "CPUSetError",
    "CPUTopology",
    "ConfigError",
    "Container",
    "Decision",
    "Device",
    "DeviceResource",
    "ExecutorError",
    "Explanation",
    "KubeletVersion",
    "KubeletVersionError",
    "KubeletView",
    "LoadedConfig",
    "LoadedDevices",
    "LoadedExperiment",
    "Machine",
    "MachineError",
    "ManifestError",
    "Manifests",
    "MoveError",
    "NamedVersion",
    "NodeConfig",
    "NodeError",
    "PinfoldError",
    "Plan",
    "Planner",
    "Pod",
    "PodError",
    "PodPlacement",
    "PodResources",
    "QOSClass",
    "Quantity",
    "QuantityError",
    "ResizeError",
    "ResizeWish",
    "RunError",
    "Simulation",
    "TopologyError",
    "TraceError",
    "UnknownPodError",
    "UnseenMachineError",
    "__version__",
    "apply_defaults",
    "changed_pods",
    "explain_pod",
    "fits_table",
    "kubelet_view",
    "load_devices",
    "load_experiment",
    "load_kubelet_config",
    "named_version",
    "open_machine",
    "parse_short_form",
    "plan_document",
    "pod_from_api",
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

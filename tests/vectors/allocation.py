"""Replays ``take_packed`` and ``take_distributed`` cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from pinfold.core.cpu.allocation import take_packed
from pinfold.core.cpu.distribution import take_distributed
from pinfold.core.kubelet.faults import (
    COMBINATION_OVERWRITTEN,
    CPUS_NOT_FREE,
    DISTRIBUTION_HANGS,
    KUBELET,
    KubeletFault,
    UpstreamFaultError,
)
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.topology_manager.hints import AllocationError
from pinfold.core.values.cpuset import CPUSet
from tests.vectors import Case, Outcome


def claims(case: Case) -> bool:
    """A single allocation: free CPUs, a number, a sorting strategy."""
    return {"topo", "avail", "n", "sort", "want"} <= case.keys()


def replay(case: Case, topologies: Mapping[str, CPUTopology]) -> Outcome:
    """Allocate by the kubelet's rules and compare; check the sound answer where it is recorded."""
    topology = topologies[case["topo"]]
    available = CPUSet.parse(case["avail"])
    want: dict[str, Any] = case["want"]
    got, fault = _allocate(case, topology, available)
    if got != {key: want[key] for key in want if key != "without_aliasing"}:
        return Outcome(passed=False, detail=f"want {want}, got {got}")
    if "without_aliasing" in want:
        fault = COMBINATION_OVERWRITTEN
        sound = {"cpus": str(_without_aliasing(case, topology, available))}
        if sound != want["without_aliasing"]:
            return Outcome(passed=False, detail=f"without aliasing: want {want}, got {sound}")
    return Outcome(passed=True, fault=fault.slug if fault else None)


def _allocate(
    case: Case, topology: CPUTopology, available: CPUSet
) -> tuple[dict[str, object], KubeletFault | None]:
    spread = case["sort"] == "spread"
    try:
        if "group" in case:
            mask = take_distributed(
                topology, available.mask, case["n"], case["group"], spread=spread
            )
        else:
            mask = take_packed(
                topology, available.mask, case["n"], spread=spread, align_uncore=case["uncore"]
            )
    except AllocationError as error:
        return {"err": str(error)}, None
    except UpstreamFaultError as error:
        return {"hang": True} if error.fault is DISTRIBUTION_HANGS else {}, error.fault
    cpus = CPUSet.from_mask(mask)
    return {"cpus": str(cpus)}, None if cpus <= available else CPUS_NOT_FREE


def _without_aliasing(case: Case, topology: CPUTopology, available: CPUSet) -> CPUSet:
    spread = case["sort"] == "spread"
    rules = replace(KUBELET, shared_combinations=False)
    mask = take_distributed(
        topology, available.mask, case["n"], case["group"], spread=spread, rules=rules
    )
    return CPUSet.from_mask(mask)

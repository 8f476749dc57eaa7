"""All that one run of a simulation needs: plain values, the same in every process."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.devices.devices import DeviceInventory
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.kernel import Kernel
from pinfold.core.machine.machine import Machine
from pinfold.ports.arrivals import ArrivalSource


class FleetKind(Struct, frozen=True):
    """Nodes that are alike; they are called ``name-0``, ``name-1`` and so on."""

    name: str
    machine: Machine
    count: int
    devices: DeviceInventory = {}
    kernel: Kernel = Kernel()


def scaled(kinds: Iterable[FleetKind], factor: float) -> tuple[FleetKind, ...]:
    """A fleet with so many times the nodes of each kind, rounded up."""
    # A product such as 100 * 1.1 is a bit above the number that is meant.
    return tuple(replace(kind, count=max(1, ceil(round(kind.count * factor, 6)))) for kind in kinds)


class Guarantee(Struct, frozen=True):
    """Which pods are Guaranteed.

    ``whole``: those that ask for whole CPUs, ``traced``: as the trace tells; of these those that
    ask for a multiple of ``multiple_of`` CPUs, and ``share`` of them, drawn from the seed.
    """

    pods: Literal["whole", "traced", "all", "none"] = "whole"
    multiple_of: int = 1
    share: float = 1.0


class Scheduling(Struct, frozen=True):
    """How a node is chosen; ``candidates`` are asked by ``TopologyAware`` at most."""

    scorer: Literal["LeastAllocated", "MostAllocated", "TopologyAware"] = "LeastAllocated"
    candidates: int = 16


class Retry(Struct, frozen=True):
    """A pod that found no place comes again after ``backoff`` seconds, ``limit`` times at most."""

    backoff: float = 10.0
    limit: int = 5


class RunSpec(Struct, frozen=True):
    """One configuration with one seed.

    Attributes:
        configuration: its name, with the options of a point of a sweep in it.
        config: the kubelet's settings.
        kinds: the fleet.
        arrivals: where the pods come from.
        guarantee: which of them are Guaranteed.
        scheduling: how a node is chosen.
        retry: what happens to who found no place.
        seed: all that is drawn comes from it.
        warm_up: seconds from the first arrival that are not counted.
        stop_after: seconds from the first arrival.
        stop_arrivals: as many pods come; None: all.
        replay_every: of that many decisions one is made once more from the node's whole state.
    """

    configuration: str
    config: NodeConfig
    kinds: tuple[FleetKind, ...]
    arrivals: ArrivalSource
    guarantee: Guarantee = Guarantee()
    scheduling: Scheduling = Scheduling()
    retry: Retry = Retry()
    seed: int = 1
    warm_up: float = 0.0
    stop_after: float = inf
    stop_arrivals: int | None = None
    replay_every: int = 1000

"""What an agent is put together from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from pinfold.adapters.podfiles import PodFileFolder
from pinfold.adapters.store import SQLiteStore
from pinfold.core.workload import Workload
from pinfold.node.cgroup_ports import Cgroups
from pinfold.node.counters import Figure
from pinfold.node.device_ports import DevicePlugins
from pinfold.node.ports import Runtime

PODS: Final = "pods"
"""The folder in the state directory with what pods are told of their CPUs, and their volumes."""

CRI_BATCH: Final = 16
"""Containers that a runtime is told of at once: the shared pool holds still meanwhile."""

Report = Callable[[str | None, str], None]
"""Takes a problem for the operator; the pod as ``namespace/name``, or None."""

Parse = Callable[[str], Workload]
"""Reads a manifest; raises ValueError."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside world of an agent; a test may put something in front of any of them."""

    cgroups: Cgroups
    runtime: Runtime
    store: SQLiteStore
    files: PodFileFolder
    plugins: DevicePlugins | None = None


@dataclass(frozen=True, slots=True)
class Companion:
    """Something that goes on beside the agent's own loops, and ends with them.

    ``run`` is called once the agent serves; ``problem`` says why it is not at work ("" while it
    is), ``about`` what ``/v1/status`` tells of it, ``figures`` what it counts for the metrics.
    """

    name: str
    run: Callable[[asyncio.Event], Coroutine[Any, Any, None]]
    problem: Callable[[], str] = str
    about: Callable[[], Mapping[str, Any]] = dict
    figures: Callable[[], Iterable[Figure]] = tuple


def own_version() -> str:
    """The version of the installed package."""
    try:
        return version("pinfold")
    except PackageNotFoundError:
        return "not installed"

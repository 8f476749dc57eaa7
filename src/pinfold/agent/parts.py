"""What an agent is put together from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct, field

from pinfold.adapters.podfiles import PodFileFolder
from pinfold.adapters.store import SQLiteStore
from pinfold.core.pod.workload import Workload
from pinfold.linux.locks import PATIENCE
from pinfold.ports.cgroups import Cgroups
from pinfold.ports.devices import DevicePlugins
from pinfold.ports.figures import Figure
from pinfold.ports.runtime import Runtime
from pinfold.retry.loops import Loops

PODS: Final = "pods"
"""The folder in the state directory with what pods are told of their CPUs, and their volumes."""

LOGS: Final = "logs"
"""The folder in the state directory with what containers write."""

GATES: Final = "gates.json"
"""The file in the state directory with what a kubelet's cpusets had before they were used."""

CRI_BATCH: Final = 16
"""Containers that a runtime is told of at once: the shared pool holds still meanwhile."""

Report = Callable[[str | None, str], None]
"""Takes a problem for the operator; the pod as ``namespace/name``, or None."""

Parse = Callable[[str], Workload]
"""Reads a manifest; raises ValueError."""


class Ports(Struct, frozen=True):
    """The outside world of an agent; a test may put something in front of any of them."""

    cgroups: Cgroups
    runtime: Runtime
    store: SQLiteStore
    files: PodFileFolder
    plugins: DevicePlugins | None = None
    loops: Loops = field(default_factory=Loops)
    """What the work in the background goes through."""


Run = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Goes on until the event is set, or for ever."""


async def _nothing() -> None: ...


class Claim(Protocol):
    """What an agent has for itself, so that no other works on the same containers."""

    def take(self, *, patience: float = PATIENCE) -> None:
        """Keep others out; nothing where that is so already.

        Args:
            patience: seconds for another that was just killed to let go; nothing else goes on.

        Raises:
            PortError: another agent has it.
        """

    def missing(self) -> str:
        """What of it is gone, or was never had; "" while all is there and ours."""

    def release(self) -> None:
        """Let others have it; again is no error."""


class Companion(Struct, frozen=True):
    """Something that goes on beside the agent's own loops, and ends with them.

    ``run`` and ``also`` (by name) are called once the agent serves, and again when they fail;
    ``problem`` says why it is not at work ("" while it is), ``about`` what ``/v1/status`` tells of
    it, ``figures`` what it counts for the metrics.  ``close`` is called at the end.  An agent whose
    configuration asks for what cannot be had (``must_start``) ends when ``run`` says so at first,
    with a :class:`PortError`.
    """

    name: str
    run: Run
    also: Mapping[str, Run] = field(default_factory=dict)
    problem: Callable[[], str] = str
    about: Callable[[], Mapping[str, Any]] = dict
    figures: Callable[[], Iterable[Figure]] = tuple
    close: Callable[[], Coroutine[Any, Any, None]] = _nothing
    must_start: bool = False

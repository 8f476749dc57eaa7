"""What goes on beside an agent, each begun and ended with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog
from msgspec import Struct, field

from pinfold.agent.reports import report_of_node
from pinfold.config.agent import pod_resources_socket
from pinfold.config.section import AgentSection
from pinfold.core.kubelet.version_rules import PODRESOURCES_TELL_POOLS_ONCE
from pinfold.core.kubelet.versions import KubeletVersion
from pinfold.documents import status as documents
from pinfold.documents.status import Part
from pinfold.linux.socket_places import is_stale
from pinfold.node.exits import Exits
from pinfold.node.observation.pod_resources import ManagedPodResources
from pinfold.node.pods.device_health import DeviceHealth
from pinfold.node.pods.manager import Manager
from pinfold.node.view import Reader
from pinfold.ports.devices import DevicePlugins
from pinfold.ports.errors import PortError
from pinfold.ports.figures import Figure
from pinfold.ports.logs import BoundedLogs
from pinfold.ports.runtime import Runtime

LOG_PERIOD: Final = 1.0
"""Seconds between two looks at logs, a tenth of the kubelet's: as much may be written beyond."""

log = structlog.get_logger("pinfold")

Run = Callable[[], Coroutine[Any, Any, None]]
"""Goes on for ever, until it is cancelled."""


async def _nothing() -> None: ...


class Runnable(Struct, frozen=True):
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
    about: Callable[[], Part | None] = lambda: None
    figures: Callable[[], Iterable[Figure]] = tuple
    close: Callable[[], Coroutine[Any, Any, None]] = _nothing
    must_start: bool = False


def bounded_logs(runtime: BoundedLogs) -> Runnable:
    """Keeps a runtime's logs within their bound, where the one who writes does not."""

    async def run() -> None:
        told: list[str] = []
        while True:
            problems = await runtime.bound_logs()
            if problems != told:
                for text in problems:
                    log.warning("logs", problem=text)
            told = problems
            await asyncio.sleep(LOG_PERIOD)

    return Runnable("logs", run)


def device_plugins(manager: Manager, plugins: DevicePlugins, folder: Path | None) -> Runnable:
    """Keeps the node's devices those that the plugins list."""
    health = DeviceHealth(manager)
    plugins.subscribe(health.changed)
    health.changed(plugins.inventory())

    async def run() -> None:
        # Also what changed while this had failed.
        health.changed(plugins.inventory())
        await health.follow()

    def about() -> documents.DevicePlugins:
        devices = manager.books.view.state.devices
        allocatable = devices.allocatable()
        return documents.DevicePlugins(
            folder=None if folder is None else str(folder),
            resources={
                name: documents.OfferedDevices(
                    capacity=count,
                    allocatable=allocatable[name],
                    in_use=len(devices.in_use(name)),
                    connected=devices.inventory[name].connected,
                )
                for name, count in sorted(devices.capacity().items())
            },
        )

    return Runnable("devicePlugins", run, about=about)


def container_exits(exits: Exits, runtime: Runtime) -> Runnable:
    """Tells those who wait for a container's end, as the runtime tells of it."""

    async def run() -> None:
        await exits.follow(runtime.exits())

    return Runnable("exits", run)


def check_pod_resources(own: AgentSection) -> None:
    """See that nobody serves where the agent is to; raises PortError."""
    if (place := pod_resources_socket(own)) is None:
        return
    elsewhere = "give this agent another podResourcesSocket"
    try:
        is_stale(place, who="another process", elsewhere=elsewhere)
    except OSError as error:
        raise PortError(f"{place}: {error.strerror}", elsewhere) from None


def pod_resources(
    books: Reader, place: Path, group: str | None, version: KubeletVersion, stop: asyncio.Event
) -> Runnable:
    """Serves podresources as a kubelet of this version, also to a group, until the agent stops."""
    pools_once = PODRESOURCES_TELL_POOLS_ONCE.at(version)

    async def run() -> None:
        from pinfold.adapters.podresources import serve_pod_resources  # noqa: PLC0415 - 31 ms

        await serve_pod_resources(
            ManagedPodResources(books, pools_once=pools_once),
            place,
            stop=stop,
            group=group,
            report=report_of_node,
        )

    about = documents.PodResources(socket=str(place))
    return Runnable("podResources", run, about=lambda: about, must_start=True)

"""What every replica has: sockets, certificates, health, work without an end, and a slow goodbye.

What it serves comes as :class:`Parts`.  Each goes on for ever, and what fails is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
from msgspec import Struct
from starlette.applications import Starlette

from pinfold.adapters.certificates import X509
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.agent.replica.settings import ReplicaSettings
from pinfold.cluster.certificates.keeper import CertificateKeeper
from pinfold.linux import durable
from pinfold.linux.descriptors import raise_file_limit
from pinfold.ports.errors import PortError
from pinfold.ports.kubernetes import Kubernetes
from pinfold.retry.loops import Loops
from pinfold.web.addresses import listen
from pinfold.web.limited_connection import LimitedConnection, Limits
from pinfold.web.replica.certificate import ServedCertificate
from pinfold.web.replica.figures import Figures
from pinfold.web.replica.health import HealthConnection, make_health
from pinfold.web.server import Service, serve_on

FINISH: Final = 5.0
"""Seconds for what is under way when a replica stops: as long as an API server waits."""

log = structlog.get_logger("pinfold")


class Door(Struct, frozen=True, kw_only=True):
    """A server over TLS, with the certificate of the replica.

    Attributes:
        told: what the log calls its port.
        address: where it listens.
        app: what answers.
        connection: the class of its connections.
        limits: what a client may take.
        client_authority: a file with the authority of those who may ask; None: whoever reaches it.
    """

    told: str
    address: str
    app: Starlette
    connection: type[LimitedConnection]
    limits: Limits
    client_authority: Path | None


class Parts(Struct, frozen=True, kw_only=True):
    """What a replica serves and does.

    Attributes:
        doors: where it is asked.
        work: what it does all the time, by the names that the log has for it.
        problems: why it is not to be asked now.
    """

    doors: Sequence[Door]
    work: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
    problems: Callable[[], Sequence[str]]


async def serve_parts(
    settings: ReplicaSettings, made: Callable[[Kubernetes, Figures], Parts], metrics: str
) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends it at once.

    Args:
        settings: how it is run.
        made: makes what it serves, for a client of the API server.
        metrics: how the names of its metrics begin.

    Raises:
        PortError: an address, a folder or a file of the settings cannot be used.
    """
    raise_file_limit()
    if settings.makes_certificates:
        _make_folder(settings.certificates)
    client = KubeObjects(settings.access)
    figures = Figures()
    try:
        parts = made(client, figures)
        replica = _Replica(settings, client, parts, figures, metrics)
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(listen(door.address)) for door in parts.doors]
            health = stack.enter_context(listen(settings.health_listen))
            await replica.run(sockets, health)
    finally:
        await client.close()


class _Replica:
    def __init__(
        self,
        settings: ReplicaSettings,
        client: Kubernetes,
        parts: Parts,
        figures: Figures,
        metrics: str,
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._figures = figures
        folder = settings.certificates
        # One certificate for all; who may ask is another matter at each door.
        self._served = {
            authority: ServedCertificate(folder / "tls.crt", folder / "tls.key", authority)
            for authority in dict.fromkeys(door.client_authority for door in parts.doors)
        }
        self._certificate = next(iter(self._served.values()))
        self._x509 = X509()
        self._keeper = CertificateKeeper(
            client,
            self._x509,
            settings.names,
            self._place,
            self._certificate.held,
            told=lambda what: log.info("certificates", done=what),
        )
        self._certificate.changed = self._keeper.look
        figures.gauge(
            f"{metrics}_certificate_end_seconds",
            "When the certificate that is served ends, in seconds since the epoch; 0: none is.",
            self._certificate_end,
        )
        self._stopping = asyncio.Event()
        self._stop = asyncio.Event()
        self._loops = Loops(_report)

    def problems(self) -> list[str]:
        """Why this replica is not to be asked."""
        found = ["this replica is stopping"] if self._stopping.is_set() else []
        found += [one.problem for one in self._served.values() if not one.count]
        return [*found, *self._parts.problems()]

    async def run(self, sockets: Sequence[socket.socket], health: socket.socket) -> None:
        """Serve until it is told to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        background = {
            loop.create_task(self._loops.keep(name, work), name=name)
            for name, work in self._work().items()
        }
        doors = list(zip(self._parts.doors, sockets, strict=True))
        servers = {
            loop.create_task(
                serve_on(
                    door.app,
                    sock,
                    stop=self._stop,
                    limits=door.limits,
                    service=Service(
                        door.connection, self._served[door.client_authority].context, FINISH
                    ),
                )
            )
            for door, sock in doors
        }
        servers.add(
            loop.create_task(
                serve_on(
                    make_health(self.problems, self._figures),
                    health,
                    stop=self._stop,
                    service=Service(HealthConnection),
                )
            )
        )
        ports = {door.told: sock.getsockname()[1] for door, sock in doors}
        log.info("serving", **ports, health_port=health.getsockname()[1])
        draining = loop.create_task(self._drain())
        try:
            await asyncio.gather(*servers)
        finally:
            for task in (*background, *servers, draining):
                task.cancel()
            await asyncio.gather(*background, *servers, draining, return_exceptions=True)
            log.info("stopped")

    def _work(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        work = dict(self._parts.work)
        for number, one in enumerate(self._served.values(), 1):
            work[f"the certificate at door {number}"] = one.follow
        if self._settings.makes_certificates:
            work["the own certificates"] = self._keeper.run
        return work

    def _end(self) -> None:
        if self._stopping.is_set():
            self._stop.set()
        self._stopping.set()

    async def _drain(self) -> None:
        """Go on while endpoints still name this replica, which is unready from now on."""
        await self._stopping.wait()
        log.info("stopping", asked_for=self._settings.drain)
        await asyncio.sleep(self._settings.drain)
        self._stop.set()

    async def _place(self, certificate: bytes, key: bytes) -> None:
        files = ((self._certificate.files[1], key), (self._certificate.files[0], certificate))
        try:
            for file, content in files:
                durable.replace(file, content, sync=False)
        except OSError as error:
            raise PortError(f"{error.filename}: {error.strerror or error}") from None

    def _certificate_end(self) -> float:
        pem = self._certificate.pem
        return self._x509.about(pem).ends if pem else 0.0


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PortError(
            f"{folder}: {error.strerror or error}", "give another --certificates"
        ) from None


def reporter(name: str) -> Callable[[str], None]:
    """Tells the log each problem of a part; "" is its end."""
    return lambda problem: _report(name, problem)


def _report(name: str, problem: str) -> None:
    if problem:
        log.warning(name, problem=problem)
    else:
        log.info(name, problem="is over")

"""One replica of ``pinfold quota serve``: the webhook, its certificates, and what keeps the quotas.

This is where its parts are put together; each goes on for ever, and what fails is tried again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog
from msgspec import Struct

from pinfold.adapters.certificates import X509
from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.cluster.lease import Election
from pinfold.cluster.quota.admission import Admission
from pinfold.cluster.quota.certificate_keeper import CertificateKeeper, Names
from pinfold.cluster.quota.charging import Charging
from pinfold.cluster.quota.keeping import keep_quotas
from pinfold.cluster.quota.known import Quotas
from pinfold.cluster.quota.status import QuotaStatus
from pinfold.core.quota.claims import ClaimRules
from pinfold.linux import durable
from pinfold.linux.descriptors import raise_file_limit
from pinfold.ports.errors import PortError
from pinfold.retry.loops import Loops
from pinfold.web.server import Service, serve_on
from pinfold.web.webhook.addresses import listen
from pinfold.web.webhook.app import make_webhook
from pinfold.web.webhook.certificate import ServedCertificate
from pinfold.web.webhook.connection import LIMITS, HealthConnection, WebhookConnection
from pinfold.web.webhook.figures import Requests
from pinfold.web.webhook.health import make_health

FINISH: Final = 5.0
"""Seconds for what is under way when a replica stops: as long as an API server waits."""

log = structlog.get_logger("pinfold")


class QuotaSettings(Struct, frozen=True, kw_only=True):
    """How a replica is run.

    Attributes:
        access: the API server.
        names: its namespace, and what belongs together there.
        identity: of this replica, for the election.
        listen: where API servers ask, ``HOST:PORT``.
        health_listen: where kubelets and Prometheus ask.
        certificates: the folder with ``tls.crt`` and ``tls.key``.
        makes_certificates: whether it makes them itself.
        client_authority: a file with the authority of those who may ask; None: whoever reaches it.
        claims: which claims of DRA are for CPUs; None: there are none in this cluster.
        drain: seconds for which it is asked still, once it is told to stop.
    """

    access: Access
    names: Names
    identity: str
    listen: str
    health_listen: str
    certificates: Path
    makes_certificates: bool
    client_authority: Path | None
    claims: ClaimRules | None
    drain: float


async def serve_quota(settings: QuotaSettings) -> None:
    """Serve until SIGTERM or SIGINT; a second one ends it at once.

    Raises:
        PortError: an address, a folder or a file of the settings cannot be used.
    """
    raise_file_limit()
    if settings.makes_certificates:
        _make_folder(settings.certificates)
    client = KubeObjects(settings.access)
    try:
        with listen(settings.listen) as sock, listen(settings.health_listen) as health:
            await _Replica(settings, client).run(sock, health)
    finally:
        await client.close()


class _Replica:
    def __init__(self, settings: QuotaSettings, client: KubeObjects) -> None:
        self._settings = settings
        rules = settings.claims
        self._quotas = Quotas(client, _reporter("quotas"))
        self._status = QuotaStatus(client, self._quotas, claims=rules, report=_reporter("status"))
        self._election = Election(
            client,
            settings.names.namespace,
            settings.names.service,
            settings.identity,
            report=_reporter("election"),
        )
        self._charging = Charging(client, self._quotas, claims=rules)
        folder = settings.certificates
        self._certificate = ServedCertificate(
            folder / "tls.crt", folder / "tls.key", settings.client_authority
        )
        self._x509 = X509()
        self._keeper = CertificateKeeper(
            client,
            self._x509,
            settings.names,
            self._place,
            told=lambda what: log.info("certificates", done=what),
        )
        self._requests = Requests()
        self._requests.gauge(
            "pinfold_quota_certificate_end_seconds",
            "When the certificate that is served ends, in seconds since the epoch; 0: none is.",
            self._certificate_end,
        )
        self._stopping = asyncio.Event()
        self._stop = asyncio.Event()
        self._loops = Loops(_report)

    def problems(self) -> list[str]:
        """Why this replica is not to be asked."""
        found = ["this replica is stopping"] if self._stopping.is_set() else []
        if not self._certificate.count:
            found.append(self._certificate.problem)
        return [*found, *self._charging.problems()]

    async def run(self, sock: Any, health: Any) -> None:  # noqa: ANN401 - sockets
        """Serve until it is told to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        background = {
            loop.create_task(self._loops.keep(name, work), name=name)
            for name, work in self._work().items()
        }
        admission = Admission(self._charging, self._settings.claims or ClaimRules())
        service = Service(WebhookConnection, self._certificate.context, FINISH)
        servers = {
            loop.create_task(serving)
            for serving in (
                serve_on(
                    make_webhook(admission.decide, self._requests),
                    sock,
                    stop=self._stop,
                    limits=LIMITS,
                    service=service,
                ),
                serve_on(
                    make_health(self.problems, self._requests),
                    health,
                    stop=self._stop,
                    service=Service(HealthConnection),
                ),
            )
        }
        log.info("serving", port=sock.getsockname()[1], health_port=health.getsockname()[1])
        draining = loop.create_task(self._drain())
        try:
            await asyncio.gather(*servers)
        finally:
            for task in (*background, *servers, draining):
                task.cancel()
            await asyncio.gather(*background, *servers, draining, return_exceptions=True)
            log.info("stopped")

    def _work(self) -> dict[str, Callable[[], Any]]:
        work: dict[str, Callable[[], Any]] = {
            "the certificate": self._certificate.follow,
            "the quotas": lambda: keep_quotas(self._quotas, self._status, self._election),
        }
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


def _reporter(name: str) -> Callable[[str], None]:
    return lambda problem: _report(name, problem)


def _report(name: str, problem: str) -> None:
    if problem:
        log.warning(name, problem=problem)
    else:
        log.info(name, problem="is over")


def identity_of(host: str) -> str:
    """A name for this process that no other one has, nor a later one of the same pod."""
    return f"{host}_{os.getpid()}_{time.time_ns():x}"

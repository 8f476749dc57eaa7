"""A webhook on a socket of its own, and an API server's side of it: HTTPS with an authority."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pinfold.adapters.certificates import X509
from pinfold.documents.admission_review import AdmissionRequest, AdmissionResponse
from pinfold.ports.certificates import KeyPair
from pinfold.web.addresses import listen
from pinfold.web.bodies import Room
from pinfold.web.limited_connection import Limits
from pinfold.web.replica.certificate import ServedCertificate
from pinfold.web.replica.figures import Figures, Requests
from pinfold.web.server import Service, serve_on
from pinfold.web.webhook.app import DEADLINE, PATH, Decide, make_webhook
from pinfold.web.webhook.connection import LIMITS, WebhookConnection
from tests.scenes.waiting import PATIENCE

NAME = "pinfold-quota.pinfold.svc"
DAYS = 30


def pod(name: str = "a", *, cpus: str = "2", uid: str = "u-1", **metadata: Any) -> dict[str, Any]:
    """A Guaranteed pod, as an API server shows it to validating admission."""
    resources = {"cpu": cpus, "memory": "1Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **metadata,
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "img",
                    "resources": {"requests": resources, "limits": resources},
                }
            ]
        },
    }


def review(
    created: Mapping[str, Any] | None = None,
    *,
    uid: str = "705ab4f5-6393-11e8-b7cc-42010a800002",
    **fields: Any,
) -> dict[str, Any]:
    """An AdmissionReview of a pod that is created, as an API server (1.34) sends it."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    created = pod() if created is None else created
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": uid,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": created["metadata"].get("name", ""),
            "namespace": created["metadata"].get("namespace", ""),
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "uid": "6d1f0d2e-7b2c-4c37-a5a8-0b6bdb4b3a7b",
                "groups": ["system:serviceaccounts", "system:authenticated"],
                "extra": {"authentication.kubernetes.io/credential-id": ["JTI=1"]},
            },
            "object": created,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            **fields,
        },
    }


async def allow(request: AdmissionRequest) -> AdmissionResponse:
    """Everything is allowed."""
    return AdmissionResponse(uid=request.uid, allowed=True)


class Served:
    """A webhook in a thread of its own; its files are in ``folder``."""

    def __init__(
        self,
        folder: Path,
        decide: Decide = allow,
        *,
        limits: Limits = LIMITS,
        deadline: float = DEADLINE,
        room: Room | None = None,
        finish: float = 5.0,
        clients: Path | None = None,
    ) -> None:
        self.made = X509()
        self.authority = self.made.authority("test", time.time(), DAYS)
        self.files = (folder / "tls.crt", folder / "tls.key")
        self.renew()
        self.certificate = ServedCertificate(*self.files, clients)
        self.figures = Figures()
        requests = Requests(self.figures, "pinfold_quota_review", "Reviews", ("pods",))
        self._app = make_webhook({PATH: decide}, requests, deadline=deadline, room=room)
        self._limits, self._finish = limits, finish
        self.stop = asyncio.Event()
        self._ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def renew(self) -> KeyPair:
        """Another certificate in the files."""
        pair = self.made.serving(self.authority, [NAME], time.time(), DAYS)
        self.files[0].write_bytes(pair.certificate)
        self.files[1].write_bytes(pair.key)
        return pair

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.certificate.load()
        following = asyncio.create_task(self.certificate.follow())
        with listen("127.0.0.1:0") as sock:
            self.port: int = sock.getsockname()[1]
            service = Service(
                WebhookConnection,
                self.certificate.context,
                finish=self._finish,
                handshake=20 * PATIENCE,
            )
            serving = serve_on(
                self._app, sock, stop=self.stop, limits=self._limits, service=service
            )
            self.loop.call_soon(self._ready.set)
            await serving
        following.cancel()

    def start(self) -> None:
        """Return when it listens."""
        self.thread.start()
        assert self._ready.wait(20)

    def end(self) -> None:
        """Stop it; returns when it has ended."""
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.stop.set)
            self.thread.join(20)
        assert not self.thread.is_alive()

    def trusting(self) -> ssl.SSLContext:
        """TLS of who trusts the authority."""
        return ssl.create_default_context(cadata=self.authority.certificate.decode())

    def connect(self, tls: ssl.SSLContext | None = None) -> http.client.HTTPSConnection:
        """A connection, as the API server makes it: the name is the service's."""
        return _Named("127.0.0.1", self.port, context=tls or self.trusting(), timeout=30)

    def post(
        self, body: object, path: str = "/validate?timeout=5s", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        """One request on a connection of its own."""
        connection = self.connect()
        try:
            return ask(connection, body, path, **headers)
        finally:
            connection.close()

    def ask_at_once(
        self, count: int, created: Mapping[str, Any] | None = None
    ) -> list[tuple[int, bool, str]]:
        """So many requests, each on a connection of its own, all of them open together."""
        tls = self.trusting()

        async def one(number: int, opening: asyncio.Semaphore) -> tuple[int, bool, str]:
            async with opening:  # a client is no quicker with more handshakes at a time
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", self.port, ssl=tls, server_hostname=NAME
                )
            body = json.dumps(review(created, uid=str(number))).encode()
            head = f"POST /validate HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answered = (await reader.readuntil(b"\r\n\r\n")).decode()
            size = int(re.findall(r"(?i)^content-length: (\d+)", answered, re.MULTILINE)[0])
            document = json.loads(await reader.readexactly(size))
            writer.transport.abort()
            response = document["response"]
            return int(answered.split()[1]), response["allowed"], response["uid"]

        async def all_of_them() -> list[tuple[int, bool, str]]:
            opening = asyncio.Semaphore(8)
            answers = await asyncio.gather(*(one(number, opening) for number in range(count)))
            await asyncio.sleep(0)  # what was aborted is closed in the next turn
            return answers

        return asyncio.run(all_of_them())


class _Named(http.client.HTTPSConnection):
    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        context: ssl.SSLContext = self._context  # type: ignore[attr-defined] # it has no other name
        self.sock = context.wrap_socket(self.sock, server_hostname=NAME)


def ask(
    connection: http.client.HTTPSConnection,
    body: object,
    path: str = "/validate?timeout=5s",
    **headers: str,
) -> tuple[int, dict[str, Any]]:
    """One request; status and document of the answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, content, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@contextmanager
def served(folder: Path, decide: Decide = allow, **settings: Any) -> Iterator[Served]:
    """A webhook, until the block ends."""
    world = Served(folder, decide, **settings)
    world.start()
    try:
        yield world
    finally:
        world.end()


def client_of(authority: KeyPair) -> bytes:
    """A certificate of an API server with its key, PEM; nothing of ours makes such."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "api-server")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(signer, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def at_once(answer: Callable[[AdmissionRequest], AdmissionResponse]) -> Decide:
    """A decision that needs no waiting."""

    async def decide(request: AdmissionRequest) -> AdmissionResponse:
        return answer(request)

    return decide

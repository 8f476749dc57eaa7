"""An API server for tests: HTTPS on a real socket, documents as Kubernetes has them.

Certificates are made once a run with ``openssl``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from pinfold.adapters.kubernetes.client import OPERATIONS, KubeClient, Operation
from pinfold.adapters.kubernetes.kubeconfig import from_kubeconfig
from pinfold.planning.fake_kubernetes import merged

TOKEN = "secret-of-tests"  # noqa: S105 - nobody else's


@dataclass(frozen=True)
class Certificates:
    """An authority, a server's certificate for localhost, and a user's."""

    folder: Path

    def path(self, name: str) -> Path:
        return self.folder / name

    def data(self, name: str) -> str:
        return base64.b64encode(self.path(name).read_bytes()).decode()


_NAMES = "subjectAltName = DNS:localhost,DNS:kubernetes,IP:127.0.0.1\n"
_NO_IDENTIFIERS = "subjectKeyIdentifier = none\nauthorityKeyIdentifier = none\n"
_IDENTIFIERS = "subjectKeyIdentifier = hash\nauthorityKeyIdentifier = keyid\n"
_AUTHORITY = "basicConstraints = critical,CA:TRUE\n"
_MAY_SIGN = "keyUsage = critical,keyCertSign\n"


def make_certificates(
    folder: Path, *, complete: bool = True, intermediate: bool = False
) -> Certificates:
    """Make them; skips the test where there is no openssl.

    Without ``complete`` no certificate has a key identifier, nor the authority a key usage, which
    RFC 5280 asks for and many clusters go without.  With ``intermediate`` the authority is one that
    another has signed, which nobody is given.
    """
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make certificates")
    identifiers = _IDENTIFIERS if complete else _NO_IDENTIFIERS
    (folder / "leaf").write_text(_NAMES + identifiers)
    (folder / "authority").write_text(_AUTHORITY + identifiers + _MAY_SIGN * complete)
    (folder / "request").write_text("[req]\ndistinguished_name = name\n[name]\n")
    chain = [("root", "root"), ("ca", "root")] if intermediate else [("ca", "ca")]
    chain += [("server", "ca"), ("user", "ca")]
    for name, signer in chain:
        curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        kind = "leaf" if name in {"server", "user"} else "authority"
        signed = (
            f"-signkey {name}.key" if name == signer else f"-CA {signer}.crt -CAkey {signer}.key"
        )
        if name != signer:
            signed += " -CAcreateserial"
        for step in (
            f"req -config request {curve} -keyout {name}.key -out {name}.csr -subj /CN={name}",
            f"x509 -req -in {name}.csr {signed} -extfile {kind} -days 2 -out {name}.crt",
        ):
            subprocess.run(["openssl", *step.split()], cwd=folder, check=True, capture_output=True)
    return Certificates(folder)


@dataclass
class Request:
    """What came in; ``client`` is the common name of the client's certificate."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    client: str

    @property
    def operation(self) -> Operation | None:
        """The request of the client's table that this is."""
        for operations in OPERATIONS.values():
            for one in operations:
                pattern = re.escape(one.path).replace(r"\{namespace\}", "[^/]+")
                pattern = pattern.replace(r"\{name\}", "[^/]+")
                if one.method == self.method and re.fullmatch(pattern, self.path):
                    return one
        return None


Answer = tuple[int, Any]


@dataclass
class KubeApiPeer:
    """The server; ``objects`` by path, ``failing`` answers instead of it."""

    certificates: Certificates
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    failing: Callable[[Request], Answer | None] = lambda _: None
    token: str = TOKEN
    port: int = 0
    retry_after: str = ""
    """What it says with each 429; "" for nothing."""

    @property
    def server(self) -> str:
        return f"https://localhost:{self.port}"

    def of(self, method: str, part: str = "") -> list[Request]:
        """The requests of a method whose path has this part."""
        return [one for one in self.requests if one.method == method and part in one.path]

    def events(self) -> list[dict[str, Any]]:
        return [object_ for object_ in self.objects.values() if object_["kind"] == "Event"]

    def put_pod(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        place = f"/api/v1/namespaces/{metadata.get('namespace', 'default')}/pods"
        self.objects[f"{place}/{metadata['name']}"] = {"apiVersion": "v1", "kind": "Pod", **pod}

    def put_node(self, name: str) -> None:
        metadata = {
            "name": name,
            "uid": f"uid-of-{name}",
            "resourceVersion": "1",
            "labels": {"kubernetes.io/os": "linux"},
        }
        self.objects[f"/api/v1/nodes/{name}"] = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": metadata,
        }

    def kubeconfig(self, file: Path, **user: str) -> Path:
        """Write one for this server; without a user, with the token."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "tests", "user": "agent"}}],
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {
                        "server": self.server,
                        "certificate-authority-data": self.certificates.data("ca.crt"),
                    },
                }
            ],
            "users": [{"name": "agent", "user": user or {"token": self.token}}],
        }
        file.write_text(yaml.safe_dump(document))
        return file

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        if (failed := self.failing(request)) is not None:
            return failed
        if request.headers.get("authorization") != f"Bearer {self.token}" and not request.client:
            return 401, refusal(401, "Unauthorized")
        operation = request.operation
        if operation is None:
            return 404, refusal(404, "the server could not find the requested resource")
        if (
            request.method != "GET"
            and request.headers.get("content-type") != operation.content_type
        ):
            return 415, refusal(415, "the body of the request was in an unknown format")
        path = request.path.partition("?")[0]
        if request.method == "POST":
            return self._create(path, request.body)
        if path not in self.objects and "create" not in operation.verbs:
            name = path.rpartition("/")[2]
            return 404, refusal(404, f'{operation.resource} "{name}" not found')
        if request.method == "PATCH":
            before = self.objects.get(path, {})
            now = before.get("metadata", {}).get("resourceVersion")
            said = request.body.get("metadata", {}).get("resourceVersion", now)
            if said != now:
                return 409, refusal(409, "the object has been modified")
            after = self.objects[path] = merged(before, request.body)
            if now is not None:
                after["metadata"]["resourceVersion"] = str(int(now) + 1)
        return 200, self.objects[path]

    def _create(self, path: str, body: dict[str, Any]) -> Answer:
        metadata = body["metadata"]
        if body["kind"] == "Event":
            problem = event_problem(path, body)
            if problem:
                return 422, refusal(422, problem)
        place = f"{path}/{metadata['name']}"
        if place in self.objects:
            return 409, refusal(409, f"{metadata['name']} already exists")
        self.objects[place] = body
        return 201, body


def event_problem(path: str, event: dict[str, Any]) -> str:
    """What an API server finds wrong with an Event, as far as the documentation says."""
    involved = event["involvedObject"]
    namespace = path.split("/")[4]
    if event["metadata"]["namespace"] != namespace:
        return "metadata.namespace: does not match the request"
    if involved.get("namespace", "default") != namespace:
        return "involvedObject.namespace: Invalid value: does not match event.namespace"
    name = event["metadata"]["name"]
    if len(name) > 253 or not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name):
        return "metadata.name: Invalid value: a lowercase RFC 1123 subdomain is required"
    if len(event["message"]) > 1024 or len(event["reason"]) > 128:
        return "message: Too long"
    return ""


def refusal(code: int, message: str) -> dict[str, Any]:
    """A ``metav1.Status``."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "code": code,
    }


@contextmanager
def serving(certificates: Certificates) -> Iterator[KubeApiPeer]:
    """A server for the time of a with block."""
    peer = KubeApiPeer(certificates)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body at once: a client that acknowledges late would have each answer wait.
        wbufsize = -1

        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            raw = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = json.loads(raw) if raw else None
            request = Request(self.command, self.path, headers, body, self.user())
            status, document = peer.answer(request)
            text = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.send_header("Content-Type", "application/json")
            if status == 429 and peer.retry_after:
                self.send_header("Retry-After", peer.retry_after)
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = handle_any  # noqa: N815 - http.server's names

        def user(self) -> str:
            assert isinstance(self.connection, ssl.SSLSocket)
            shown: Any = self.connection.getpeercert() or {}
            names = [pair for part in shown.get("subject", ()) for pair in part]
            return next((value for key, value in names if key == "commonName"), "")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
            del format, args

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that goes away, or does not trust us, is part of the tests."""

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.path("server.crt"), certificates.path("server.key"))
    tls.load_verify_locations(certificates.path("ca.crt"))
    tls.verify_mode = ssl.CERT_OPTIONAL
    server = Server(("127.0.0.1", 0), Handler)
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    peer.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield peer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Reports(list[str]):
    """Problems that were told."""

    def of_pod(self, pod: str | None, problem: str) -> None:
        self.append(f"{pod}: {problem}")


@asynccontextmanager
async def at_work(*runs: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def connected(peer: KubeApiPeer, folder: Path) -> AsyncIterator[KubeClient]:
    client = KubeClient(from_kubeconfig(peer.kubeconfig(folder / "config")), timeout=5)
    try:
        yield client
    finally:
        await client.close()


def failing(status: int, method: str = "") -> Callable[[Request], Answer | None]:
    return lambda request: (
        (status, refusal(status, "no")) if method in ("", request.method) else None
    )

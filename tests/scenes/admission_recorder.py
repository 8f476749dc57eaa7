"""What an API server asks its webhooks, word for word: each form of a request that they may see."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Protocol, Self

import yaml

from tests.scenes.kube_api_peer import Certificates, make_certificates
from tests.scenes.waiting import wait_until
from tests.scenes.webhook_world import pod

NAMESPACE: Final = "recorded"
_LABEL: Final = "kubernetes.io/metadata.name"


class Server(Protocol):
    """An API server, real or not, and a kubectl for it."""

    folder: Path

    @property
    def version(self) -> tuple[int, int]: ...
    def kubectl(self, *words: str, given: str = "") -> str: ...
    def apply(self, *documents: Mapping[str, Any]) -> str: ...
    def make_namespace(self, name: str) -> None: ...


class Recorder:
    """A webhook that allows everything, and keeps what it was asked."""

    def __init__(self, certificates: Certificates) -> None:
        self.asked: list[dict[str, Any]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                review = json.loads(body)
                recorder.asked.append(
                    {"path": self.path, "headers": dict(self.headers), "review": review}
                )
                response = {"uid": review["request"]["uid"], "allowed": True}
                about = {key: review[key] for key in ("kind", "apiVersion")}
                answer = json.dumps({**about, "response": response}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates.path("server.crt"), certificates.path("server.key"))
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._certificates = certificates

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def configuration(self, kind: str) -> dict[str, Any]:
        """One that asks it of all that happens to pods in its namespace."""
        path = "mutate" if kind.startswith("Mutating") else "validate"
        port = self._server.server_address[1]
        url = f"https://localhost:{port}/{path}"
        rule = {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["*"],
            "resources": ["pods", "pods/*"],
            "scope": "Namespaced",
        }
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "recorder"},
            "webhooks": [
                {
                    "name": "recorder.pinfold.dev",
                    "clientConfig": {"url": url, "caBundle": self._certificates.data("ca.crt")},
                    "rules": [rule],
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                    "timeoutSeconds": 5,
                    "namespaceSelector": {"matchLabels": {_LABEL: NAMESPACE}},
                }
            ],
        }


def _pod(name: str, **metadata: Any) -> dict[str, Any]:
    made = pod(name, **metadata)
    for field in ("uid", "creationTimestamp"):
        del made["metadata"][field]
    made["metadata"]["namespace"] = NAMESPACE
    if not name:
        del made["metadata"]["name"]
    return made


@contextmanager
def recorder(control: Server) -> Iterator[Recorder]:
    """One that a cluster asks, in a namespace of its own."""
    folder = control.folder / "recorder"
    folder.mkdir(exist_ok=True)
    control.make_namespace(NAMESPACE)
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    with Recorder(make_certificates(folder)) as found:
        control.apply(*map(found.configuration, kinds))
        try:

            def is_asked() -> bool:
                control.kubectl(
                    *("create", "--dry-run=server", "-f", "-"), given=yaml.safe_dump(_pod("look"))
                )
                return {one["path"].partition("?")[0] for one in found.asked} == {
                    "/mutate",
                    "/validate",
                }

            wait_until(is_asked, 60)
            yield found
        finally:
            for kind in kinds:
                control.kubectl("delete", kind.lower(), "recorder")
            control.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def recorded(control: Server, *, controllers: bool = True) -> Mapping[str, dict[str, Any]]:
    """By a name of what happened: what was asked of it, path, headers and review.

    ``controllers``: there are some, which create pods themselves.
    """
    found: dict[str, dict[str, Any]] = {}
    with recorder(control) as record:

        def take(name: str, *, wanted: str = "validate") -> None:
            (one,) = [one for one in record.asked if one["path"].startswith(f"/{wanted}")]
            found[name] = one

        def kubectl(*words: str, given: Mapping[str, Any] | None = None) -> None:
            record.asked.clear()
            control.kubectl(*words, given=json.dumps(given) if given else "")

        in_it = ("-n", NAMESPACE)
        kubectl("create", "-f", "-", given=_pod("a"))
        take("create")
        take("create-mutating", wanted="mutate")
        kubectl("create", "-f", "-", given=_pod("", generateName="some-"))
        take("create-of-a-generated-name")
        take("create-of-a-generated-name-mutating", wanted="mutate")
        kubectl("create", "--dry-run=server", "-f", "-", given=_pod("dry"))
        take("create-dry-run")
        kubectl("label", "pod", "a", "x=y", *in_it)
        take("update-of-a-label")
        kubectl("annotate", "pod", "a", "exclusive-cpus.pinfold.dev/pod=false", *in_it)
        take("update-of-an-annotation")
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=_pod("a"))
        take("server-side-apply")
        made = {"kind": "Binding", "apiVersion": "v1", "metadata": {"name": "a", **_IN}}
        made |= {"target": {"kind": "Node", "name": "node-1"}}
        kubectl(
            "create",
            "--raw",
            f"/api/v1/namespaces/{NAMESPACE}/pods/a/binding",
            "-f",
            "-",
            given=made,
        )
        take("binding")
        if control.version >= (1, 33):
            kubectl("patch", "pod", "a", "--subresource=resize", "-p", json.dumps(_RESIZED), *in_it)
            take("resize")
        kubectl("delete", "pod", "a", "--wait=false", *in_it)
        take("delete")
        if controllers:
            record.asked.clear()
            control.apply(_set())
            wait_until(lambda: len(record.asked) >= 2, 60)
            take("create-by-a-replica-set")
    return found


_IN: Final = {"namespace": NAMESPACE}
_MORE: Final = {"cpu": "3", "memory": "1Gi"}
_RESIZED: Final = {
    "spec": {"containers": [{"name": "main", "resources": {"requests": _MORE, "limits": _MORE}}]}
}


def _set() -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": _pod("")["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "set", **_IN},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": template},
    }


_KEPT: Final = ("name", "generateName", "namespace", "uid", "creationTimestamp", "resourceVersion")


def form(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What all servers ask alike: but for names and numbers, and what a pod is given by default."""
    request = asked["review"]["request"]
    told = {
        "path": asked["path"],
        "headers": {name: asked["headers"].get(name) for name in ("User-Agent", "Accept")},
        "review": {key: asked["review"][key] for key in ("kind", "apiVersion")},
        "fields": sorted(request),
        "options": {
            key: one for key, one in request["options"].items() if key in {"kind", "dryRun"}
        },
        "user": sorted(request["userInfo"]),
    }
    same = ("kind", "resource", "subResource", "requestKind", "requestSubResource", "operation")
    told |= {key: request.get(key) for key in (*same, "namespace", "dryRun")}
    for which in ("object", "oldObject"):
        found = request[which]
        told[which] = found and {
            "kind": found["kind"],
            "metadata": {
                key: found["metadata"][key] is not None for key in _KEPT if key in found["metadata"]
            },
        }
    return told

"""An API server with the pods of agents, in which the real kubectl runs commands.

What is run in a pod is run here, by the streaming protocol that kubectl speaks (WebSocket, fifth
version of the remote commands' channels), with the socket of an agent in its environment.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

_PROTOCOL = "v5.channel.k8s.io"
_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_OUTPUT, _ERRORS, _STATUS = 1, 2, 3
_PODS = "/api/v1/namespaces/pinfold/pods"


@dataclass
class AgentsInPods:
    """The server: ``nodes`` with an agent, and the rights that whoever asks has not."""

    nodes: tuple[str, ...]
    socket: Path
    forbidden: set[str] = field(default_factory=set)
    """``list`` of pods, ``exec``."""
    asked: list[str] = field(default_factory=list)
    ran: list[list[str]] = field(default_factory=list)
    port: int = 0

    def kubeconfig(self, file: Path) -> Path:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "tests", "user": "me"}}],
            "clusters": [{"name": "tests", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "me", "user": {}}],
        }
        file.write_text(yaml.safe_dump(document))
        return file

    def pod(self, node: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"pinfold-{node}", "namespace": "pinfold"},
            "spec": {"nodeName": node, "containers": [{"name": "agent"}, {"name": "page"}]},
            "status": {"phase": "Running"},
        }

    def listed(self, query: dict[str, list[str]]) -> dict[str, Any]:
        assert query["labelSelector"] == ["app.kubernetes.io/name=pinfold"]
        selected = dict(one.split("=") for one in query["fieldSelector"][0].split(","))
        assert selected["status.phase"] == "Running"
        found = [self.pod(node) for node in self.nodes if node == selected["spec.nodeName"]]
        return {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": found}

    def run(self, words: list[str]) -> subprocess.CompletedProcess[bytes]:
        """Run what is to be run in a pod, as it stands there."""
        self.ran.append(words)
        assert words[:3] == ["python", "-m", "pinfold"]
        return subprocess.run(
            [sys.executable, *words[1:]],
            capture_output=True,
            check=False,
            env={**os.environ, "PINFOLD_SOCKET": str(self.socket)},
        )


def _refusal(what: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": "Forbidden",
        "code": 403,
        "message": f'{what} is forbidden: User "me" cannot do this',
    }


@contextmanager
def agents_in_pods(nodes: tuple[str, ...], socket: Path) -> Iterator[AgentsInPods]:
    """The server on a port of its own."""
    peer = AgentsInPods(nodes, socket)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            peer.asked.append(parts.path)
            if parts.path == "/api":
                self.tell({"kind": "APIVersions", "versions": ["v1"]})
            elif parts.path == "/apis":
                self.tell({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})
            elif parts.path == "/api/v1":
                kind = {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["get", "list"]}
                kind |= {"singularName": "pod", "shortNames": ["po"]}
                self.tell({"kind": "APIResourceList", "groupVersion": "v1", "resources": [kind]})
            elif parts.path == _PODS:
                if "list" in peer.forbidden:
                    self.tell(_refusal("pods"), 403)
                else:
                    self.tell(peer.listed(query))
            elif parts.path.endswith("/exec"):
                if "exec" in peer.forbidden:
                    self.tell(_refusal("pods/exec"), 403)
                else:
                    assert query["container"] == ["agent"]
                    self.run_there(query["command"])
            else:
                self.tell(peer.pod(parts.path.rpartition("/pinfold-")[2]))

        do_POST = do_GET  # noqa: N815 - as http.server has it

        def tell(self, document: dict[str, Any], status: int = 200) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def run_there(self, words: list[str]) -> None:
            if self.headers.get("Upgrade", "").lower() != "websocket":
                self.tell(_refusal("SPDY"), 403)
                return
            key = self.headers["Sec-WebSocket-Key"] + _MAGIC
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()  # noqa: S324 - RFC 6455
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", accept)
            self.send_header("Sec-WebSocket-Protocol", _PROTOCOL)
            self.end_headers()
            done = peer.run(words)
            status: dict[str, Any] = {"metadata": {}, "status": "Success"}
            if done.returncode:
                cause = {"reason": "ExitCode", "message": str(done.returncode)}
                status = {
                    "metadata": {},
                    "status": "Failure",
                    "reason": "NonZeroExitCode",
                    "message": f"command terminated with non-zero exit code {done.returncode}",
                    "details": {"causes": [cause]},
                }
            told = ((_OUTPUT, done.stdout), (_ERRORS, done.stderr))
            for channel, text in (*told, (_STATUS, json.dumps(status).encode())):
                if text:
                    self.frame(0x82, bytes([channel]) + text)
            self.frame(0x88, struct.pack("!H", 1000))
            self.close_connection = True

        def frame(self, kind: int, payload: bytes) -> None:
            """One frame of the server: unmasked, with its length as that needs it."""
            size = len(payload)
            if size < 126:
                head = struct.pack("!BB", kind, size)
            elif size < 1 << 16:
                head = struct.pack("!BBH", kind, 126, size)
            else:
                head = struct.pack("!BBQ", kind, 127, size)
            self.wfile.write(head + payload)
            self.wfile.flush()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    peer.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield peer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

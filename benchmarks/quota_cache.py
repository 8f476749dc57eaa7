"""The controller of quotas on a cluster with 100,000 pods: to know them all, and then to be idle.

An API server that answers from memory is one process, and the controller another, whose figures
these are: the CPU time and memory until the status of all quotas is written, and the CPU time of
some seconds in which nothing happens.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from benchmarks.agent_measuring import Detailed, detailed
from benchmarks.agent_scene import GivenUpError
from benchmarks.measure import Result

PODS: Final = 100_000
_CHUNK: Final = 500
_NAMESPACES: Final = 100
_IDLE: Final = 10.0


def _pod(number: int) -> dict[str, Any]:
    """A pod of some 3 kB, as a cluster has them; one of twenty kinds."""
    amounts = {"cpu": str(number % 20 + 1), "memory": "1Gi"}
    resources = {"requests": amounts, "limits": amounts}
    when = "2026-01-01T00:00:00Z"
    types = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    fields: dict[str, Any] = {
        "f:status": {"f:conditions": {}, "f:containerStatuses": {}, "f:podIP": {}}
    }
    container = {
        "name": "main",
        "image": "registry.example/team/app:1.2.3",
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": f"SETTING_{one}", "value": "x" * 20} for one in range(8)],
        "resources": resources,
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/serviceaccount"}],
    }
    status = {
        "name": "main",
        "ready": True,
        "restartCount": 0,
        "image": "registry.example/team/app:1.2.3",
        "containerID": f"containerd://{number:064x}",
        "state": {"running": {"startedAt": when}},
        "allocatedResources": amounts,
        "resources": resources,
    }
    return {
        "metadata": {
            "name": f"app-{number}",
            "namespace": f"team-{number % _NAMESPACES}",
            "uid": f"{number:08x}-0000-4000-8000-000000000000",
            "resourceVersion": str(number + 1),
            "creationTimestamp": when,
            "labels": {"app": f"app-{number % 20}", "pod-template-hash": "5d9c8f7b6d"},
            "annotations": {"example.com/restarted-at": when},
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": fields}],
        },
        "spec": {
            "nodeName": f"node-{number % 1000}",
            "restartPolicy": "Always",
            "containers": [container],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
        },
        "status": {
            "phase": "Running",
            "qosClass": "Guaranteed",
            "conditions": [
                {"type": one, "status": "True", "lastTransitionTime": when} for one in types
            ],
            "containerStatuses": [status],
        },
    }


class _Server:
    """Lists and watches of pods and quotas, and a quota's status."""

    def __init__(self) -> None:
        self._parts = [
            json.dumps(
                {
                    "metadata": {
                        "resourceVersion": str(PODS),
                        "continue": str(begin + _CHUNK) if begin + _CHUNK < PODS else "",
                    },
                    "items": [_pod(number) for number in range(begin, begin + _CHUNK)],
                }
            ).encode()
            for begin in range(0, PODS, _CHUNK)
        ]
        quotas = [
            {
                "metadata": {"name": "cpus", "namespace": f"team-{one}", "resourceVersion": "1"},
                "spec": {"hard": {"pinfold.dev/exclusive-cpus": "1000000"}},
            }
            for one in range(_NAMESPACES)
        ]
        listed = {"metadata": {"resourceVersion": "1"}, "items": quotas}
        self._quotas = json.dumps(listed).encode()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            request, *headers = head.decode().split("\r\n")
            lengths = [one.split(":")[1] for one in headers if one.lower().startswith("content-l")]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            url = urlsplit(request.split()[1])
            query = parse_qs(url.query)
            if "watch" in query:
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                await writer.drain()
                continue
            if body:
                written = json.loads(body)
                written["metadata"]["resourceVersion"] = "2"
                answer = json.dumps(written).encode()
            elif url.path.endswith("/pods"):
                answer = self._parts[int(query.get("continue", ["0"])[0]) // _CHUNK]
            else:
                answer = self._quotas
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer))
            writer.write(answer)
            await writer.drain()


async def _head(reader: asyncio.StreamReader) -> bytes:
    """The next request's, or nothing where there is no other."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def serve() -> None:
    """Serve until the end of the input; tell where."""
    made = _Server()
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0, limit=1 << 26)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


async def control(port: str) -> None:
    """Be the controller; tell the figures as JSON."""
    from pinfold.adapters.kubernetes.access import Access  # noqa: PLC0415 - not the server's
    from pinfold.adapters.kubernetes.objects import KubeObjects  # noqa: PLC0415 - the same
    from pinfold.cluster.quota.known import Quotas  # noqa: PLC0415 - the same
    from pinfold.cluster.quota.status import QuotaStatus  # noqa: PLC0415 - the same

    client = KubeObjects(Access(f"http://127.0.0.1:{port}", None))
    quotas = Quotas(client)
    status = QuotaStatus(client, quotas)
    before = _megabytes()
    began, used = time.perf_counter(), time.process_time()
    following = asyncio.create_task(quotas.follow())
    keeping = asyncio.create_task(status.run())
    while status.written < _NAMESPACES:
        await asyncio.sleep(0.005)
        for task in (following, keeping):
            if task.done():
                task.result()
    figures = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - used,
        "memory_mb": _megabytes() - before,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    used = time.process_time()
    await asyncio.sleep(_IDLE)
    figures["idle_ms_per_s"] = (time.process_time() - used) / _IDLE * 1000
    print(json.dumps(figures), flush=True)
    for task in (following, keeping):
        task.cancel()
    await asyncio.gather(following, keeping, return_exceptions=True)
    await client.close()


def _megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def _measured() -> Detailed:
    command = (sys.executable, "-m", "benchmarks.quota_cache")
    with subprocess.Popen(
        (*command, "serve"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        if server.stdin is None or server.stdout is None:
            raise GivenUpError("the server has no pipes")
        port = server.stdout.readline().strip()
        try:
            done = subprocess.run((*command, port), capture_output=True, check=True, text=True)
        finally:
            server.stdin.close()
    figures = json.loads(done.stdout)
    return detailed([figures["cpu_seconds"] * 1e9], **figures)


MEASURED: Final[Mapping[str, Callable[[], Result]]] = {f"quota.cache.{PODS}": _measured}


if __name__ == "__main__":
    asyncio.run(serve() if sys.argv[1] == "serve" else control(sys.argv[1]))

"""A podresources server on a real socket, what it serves, and a reader with raw calls."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc

from pinfold.adapters.podresources import podresources_pb2 as v1
from pinfold.adapters.podresources import serve_pod_resources
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.podresources import (
    AllocatableResources,
    ContainerResources,
    PodResources,
)

LISTER = "/v1.PodResourcesLister/"


def some_pod(name: str = "web", *cpus: int) -> PodResources:
    return PodResources("prod", name, (ContainerResources("main", CPUSet(cpus)),))


@dataclass
class Rows:
    """A source whose rows a test changes."""

    rows: list[PodResources] = field(default_factory=lambda: [some_pod("web", 2, 3)])
    cpus: CPUSet = field(default_factory=lambda: CPUSet(range(1, 8)))

    def pods(self) -> Sequence[PodResources]:
        return self.rows

    def pod(self, namespace: str, name: str) -> PodResources | None:
        return next((r for r in self.rows if (r.namespace, r.name) == (namespace, name)), None)

    def allocatable(self) -> AllocatableResources:
        return AllocatableResources(self.cpus)


class Reader:
    """A reader as those for the kubelet are: a channel to a path, messages of up to 16 MiB."""

    def __init__(self, path: Path) -> None:
        self.channel = grpc.aio.insecure_channel(
            f"unix:{quote(str(path))}",
            options=[
                ("grpc.max_receive_message_length", 16 << 20),
                # Each reader is another client; by default they would share a connection.
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 100),
            ],
        )

    async def raw(self, method: str, request: bytes = b"") -> bytes:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            method, request_serializer=bytes, response_deserializer=bytes
        )
        return await call(request, timeout=20, wait_for_ready=True)

    async def list_pods(self) -> v1.ListPodResourcesResponse:
        return v1.ListPodResourcesResponse.FromString(await self.raw(LISTER + "List"))

    async def names(self) -> list[str]:
        return [pod.name for pod in (await self.list_pods()).pod_resources]

    async def get(self, namespace: str, name: str) -> v1.GetPodResourcesResponse:
        request = v1.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        raw = await self.raw(LISTER + "Get", request.SerializeToString())
        return v1.GetPodResourcesResponse.FromString(raw)

    async def allocatable(self) -> v1.AllocatableResourcesResponse:
        raw = await self.raw(LISTER + "GetAllocatableResources")
        return v1.AllocatableResourcesResponse.FromString(raw)


class ServerTask:
    """A server in this loop."""

    def __init__(self, source: Rows, path: Path, group: str | int | None = None) -> None:
        self.path = path
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        self.reports: list[str] = []
        self.task = asyncio.create_task(
            serve_pod_resources(
                source,
                path,
                stop=self.stop,
                group=group,
                ready=self.ready,
                report=self.reports.append,
                look_period=0.02,
            )
        )

    async def started(self) -> None:
        ready = asyncio.create_task(self.ready.wait())
        await asyncio.wait({ready, self.task}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self.task.done():
            await self.task

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 20)


@asynccontextmanager
async def serving(
    source: Rows, path: Path, group: str | int | None = None
) -> AsyncIterator[ServerTask]:
    """A server that answers; ended, and seen to leave nothing, afterwards."""
    server = ServerTask(source, path, group)
    await server.started()
    try:
        yield server
    finally:
        await server.end()


@asynccontextmanager
async def reading(path: Path) -> AsyncIterator[Reader]:
    reader = Reader(path)
    try:
        yield reader
    finally:
        await reader.channel.close()


def inode(path: Path) -> int:
    return os.lstat(path).st_ino


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7


def fields(data: bytes) -> list[tuple[int, Any]]:
    """The fields in the order in which they stand: number, then an int or bytes."""
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
            found.append((key >> 3, value))
        else:
            assert key & 7 == 2, "podresources has varints and lengths only"
            length, at = varint(data, at)
            assert at + length <= len(data)
            found.append((key >> 3, data[at : at + length]))
            at += length
    return found


def numbers(data: bytes) -> list[int]:
    """A packed list of varints."""
    found = []
    at = 0
    while at < len(data):
        value, at = varint(data, at)
        found.append(value)
    return found


METHODS = "v1.PodResourcesLister"


@dataclass(frozen=True)
class Answer:
    status: int
    message: str
    body: bytes


def ask(socket: Path, method: str, request: bytes = b"") -> Answer:
    """One call: a frame with its length in, a frame and the trailers out."""
    done = subprocess.run(
        [
            *("curl", "--silent", "--show-error", "--max-time", "20"),
            *("--http2-prior-knowledge", "--unix-socket", str(socket)),
            *("--header", "content-type: application/grpc", "--header", "te: trailers"),
            *("--data-binary", "@-", "--dump-header", "/dev/stderr"),
            f"http://localhost/{METHODS}/{method}",
        ],
        input=struct.pack(">BI", 0, len(request)) + request,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    headers = dict(
        line.split(": ", 1) for line in done.stderr.decode().splitlines() if ": " in line
    )
    body = done.stdout
    if body:
        compressed, length = struct.unpack(">BI", body[:5])
        assert (compressed, length) == (0, len(body) - 5)
    return Answer(int(headers["grpc-status"]), headers.get("grpc-message", ""), body[5:])

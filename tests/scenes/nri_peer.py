"""The two sides of NRI for tests: a handler that records, and a runtime in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import Message as Protobuf

from pinfold.adapters.nri import NriPlugin, PluginSettings
from pinfold.adapters.nri import nri_pb2 as nri
from pinfold.adapters.nri import ttrpc_pb2 as envelope
from pinfold.adapters.nri.frames import (
    Message,
    MessageReader,
    MessageType,
    Splitter,
    encode_message,
)
from pinfold.ports.nri import (
    Container,
    ContainerAdjustment,
    ContainerUpdate,
    PodSandbox,
    Resources,
)
from tests.scenes.waiting import PATIENCE

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"


def cpus(container_id: str, cpus: str, *, ignore_failure: bool = False) -> ContainerUpdate:
    return ContainerUpdate(container_id, Resources(cpus=cpus), ignore_failure=ignore_failure)


@dataclass
class Recorder:
    """Events that are written down; ``on`` says what else happens, by method."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    seen: dict[str, Container] = field(default_factory=dict)
    pods: dict[str, PodSandbox] = field(default_factory=dict)
    wanted: list[Resources] = field(default_factory=list)
    on: dict[str, Callable[[str], Awaitable[None]]] = field(default_factory=dict)
    adjustment: ContainerAdjustment = field(default_factory=ContainerAdjustment)
    updates: Sequence[ContainerUpdate] = ()
    running: int = 0
    taken_by: list[str] = field(default_factory=list)

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.calls]

    async def _note(self, method: str, name: str) -> None:
        assert self.running == 0, "two calls at a time"
        self.running += 1
        try:
            self.calls.append((method, name))
            if method in self.on:
                await self.on[method](name)
        finally:
            self.running -= 1

    async def _container(self, method: str, pod: PodSandbox, container: Container) -> None:
        self.seen[container.name] = container
        self.pods[pod.name] = pod
        await self._note(method, container.name)

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[Container]
    ) -> None:
        self.pods |= {pod.name: pod for pod in pods}
        self.seen |= {container.name: container for container in containers}
        await self._note("synchronize", f"{len(pods)} {len(containers)}")

    async def run_pod_sandbox(self, pod: PodSandbox) -> None:
        self.pods[pod.name] = pod
        await self._note("run_pod_sandbox", pod.name)

    async def stop_pod_sandbox(self, pod: PodSandbox) -> None:
        await self._note("stop_pod_sandbox", pod.name)

    async def remove_pod_sandbox(self, pod: PodSandbox) -> None:
        await self._note("remove_pod_sandbox", pod.name)

    async def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        await self._container("create_container", pod, container)
        return self.adjustment

    async def post_create_container(self, pod: PodSandbox, container: Container) -> None:
        await self._container("post_create_container", pod, container)

    async def start_container(self, pod: PodSandbox, container: Container) -> None:
        await self._container("start_container", pod, container)

    async def post_start_container(self, pod: PodSandbox, container: Container) -> None:
        await self._container("post_start_container", pod, container)

    async def update_container(
        self, pod: PodSandbox, container: Container, wanted: Resources
    ) -> Sequence[ContainerUpdate]:
        self.wanted.append(wanted)
        await self._container("update_container", pod, container)
        return self.updates

    async def post_update_container(self, pod: PodSandbox, container: Container) -> None:
        await self._container("post_update_container", pod, container)

    async def stop_container(
        self, pod: PodSandbox, container: Container
    ) -> Sequence[ContainerUpdate]:
        await self._container("stop_container", pod, container)
        return self.updates

    async def remove_container(self, pod: PodSandbox, container: Container) -> None:
        await self._container("remove_container", pod, container)


@asynccontextmanager
async def running_plugin(
    events: Recorder, settings: PluginSettings, reports: list[str]
) -> AsyncIterator[NriPlugin]:
    """A plugin that runs until the end of the block."""
    plugin = NriPlugin(events, settings, report=reports.append, taken=events.taken_by.append)
    task = asyncio.create_task(plugin.run())
    try:
        yield plugin
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class RuntimePeer:
    """The runtime's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.stream = -1
        self.answers: dict[int, asyncio.Future[envelope.Response]] = {}
        self.requests: asyncio.Queue[tuple[int, envelope.Request]] = asyncio.Queue()
        self.closed = asyncio.Event()
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        splitter, readers = Splitter(), {1: MessageReader(), 2: MessageReader()}
        with suppress(OSError):
            while data := await self.reader.read(1 << 16):
                for connection, piece in splitter.feed(data):
                    for message in readers[connection].feed(piece):
                        if connection == 1:
                            answer = envelope.Response.FromString(message.body)
                            self.answers.pop(message.stream).set_result(answer)
                        else:
                            request = envelope.Request.FromString(message.body)
                            self.requests.put_nowait((message.stream, request))
        self.closed.set()

    def send(self, stream: int, body: bytes, kind: int = MessageType.REQUEST) -> None:
        connection = 1 if kind == MessageType.REQUEST else 2
        self.writer.write(encode_message(connection, Message(stream, kind, body)))

    def ask(
        self,
        method: str,
        request: Protobuf | bytes,
        *,
        service: str = PLUGIN,
        timeout: float = 0,
    ) -> asyncio.Future[envelope.Response]:
        """Send a request; the future is its answer."""
        self.stream += 2
        payload = request if isinstance(request, bytes) else request.SerializeToString()
        body = envelope.Request(
            service=service, method=method, payload=payload, timeout_nano=int(timeout * 1e9)
        )
        return self.ask_raw(body.SerializeToString(), self.stream)

    def ask_raw(self, body: bytes, stream: int) -> asyncio.Future[envelope.Response]:
        future = asyncio.get_running_loop().create_future()
        self.answers[stream] = future
        self.send(stream, body)
        return future

    async def asked(self, method: str) -> tuple[int, bytes]:
        """Take the plugin's next request."""
        async with asyncio.timeout(10 * PATIENCE):
            stream, request = await self.requests.get()
        assert (request.service, request.method) == ("nri.pkg.api.v1alpha1.Runtime", method)
        return stream, request.payload

    def reply(self, stream: int, answer: Protobuf | None = None, *, error: str = "") -> None:
        body = envelope.Response(payload=answer.SerializeToString() if answer else b"")
        if error:
            body.status.code, body.status.message = 2, error
        self.send(stream, body.SerializeToString(), MessageType.RESPONSE)

    async def register(self, **configure: object) -> nri.RegisterPluginRequest:
        """Take the registration and configure, up to Synchronize."""
        stream, payload = await self.asked("RegisterPlugin")
        self.reply(stream, nri.Empty())
        request = nri.ConfigureRequest(runtime_name="peer", runtime_version="1", **configure)  # type: ignore[arg-type] # the tests' own keywords
        answer = await self.ask("Configure", request)
        assert answer.status.code == 0
        return nri.RegisterPluginRequest.FromString(payload)

    async def synchronize(self, **configure: object) -> nri.SynchronizeResponse:
        """Take the registration, and synchronize with nothing."""
        await self.register(**configure)
        answer = await self.ask("Synchronize", nri.SynchronizeRequest())
        return nri.SynchronizeResponse.FromString(answer.payload)

    def hang_up(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def runtime(socket: Path) -> AsyncIterator[asyncio.Queue[RuntimePeer]]:
    """A runtime's socket; the queue has the connections that are made to it."""
    peers: asyncio.Queue[RuntimePeer] = asyncio.Queue()
    every: list[RuntimePeer] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        every.append(RuntimePeer(reader, writer))
        peers.put_nowait(every[-1])

    server = await asyncio.start_unix_server(accept, socket)
    try:
        yield peers
    finally:
        server.close()
        for peer in every:
            peer.hang_up()
            peer.reading.cancel()
        await asyncio.gather(*(peer.reading for peer in every), return_exceptions=True)

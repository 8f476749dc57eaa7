"""A container runtime that misbehaves on a real unix socket, for faults that no real one shows."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from pinfold.adapters.cri import CriClient, CriRuntime, CriSettings
from pinfold.adapters.cri import cri_pb2 as pb

Answer = Callable[[bytes], Awaitable[bytes]]


@dataclass
class Peer:
    """Answers by method name; what it has no answer for is UNIMPLEMENTED.

    ``asked`` counts the requests by method.
    """

    folder: Path
    answers: dict[str, Answer | bytes | grpc.StatusCode] = field(default_factory=dict)
    events: list[bytes] | None = None
    asked: dict[str, int] = field(default_factory=dict)
    _server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"unix://{self.folder}/cri.sock"

    async def start(self) -> None:
        peer = self

        class Handler(grpc.GenericRpcHandler):
            def service(
                self, handler_call_details: grpc.HandlerCallDetails
            ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
                method = handler_call_details.method.rpartition("/")[2]
                if method == "GetContainerEvents":
                    if peer.events is None:
                        return None
                    return grpc.unary_stream_rpc_method_handler(peer._stream)
                if method not in peer.answers:
                    return None

                async def answer(
                    request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
                ) -> bytes:
                    return await peer._answer(method, request, context)

                return grpc.unary_unary_rpc_method_handler(answer)

        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((Handler(),))
        self._server.add_insecure_port(f"unix:{self.folder}/cri.sock")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def listened_to(self, times: int) -> None:
        """Wait until its events were asked for so often."""
        while self.asked.get("GetContainerEvents", 0) < times:  # noqa: ASYNC110 - counts, no event
            await asyncio.sleep(0.02)

    async def _answer(
        self, method: str, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        self.asked[method] = self.asked.get(method, 0) + 1
        answer = self.answers[method]
        if isinstance(answer, bytes):
            return answer
        if isinstance(answer, grpc.StatusCode):
            await context.abort(answer, "as asked")
        return await answer(request)

    async def _stream(
        self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        del request, context
        self.asked["GetContainerEvents"] = self.asked.get("GetContainerEvents", 0) + 1
        for event in self.events or ():
            yield event
        await asyncio.sleep(3600)


@asynccontextmanager
async def peer(**answers: Answer | bytes | grpc.StatusCode) -> AsyncIterator[Peer]:
    """A started peer in a short folder (a socket's path has 108 bytes at most)."""
    with tempfile.TemporaryDirectory(prefix="cri-", dir="/tmp") as folder:
        found = Peer(Path(folder), dict(answers))
        await found.start()
        try:
            yield found
        finally:
            await found.stop()


@asynccontextmanager
async def client_of(peer: Peer, *, quick: float = 5.0) -> AsyncIterator[CriClient]:
    client = CriClient(peer.address, quick=quick, long=quick)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def runtime_on(
    peer: Peer, *, quick: float = 5.0, protects_memory: bool = False
) -> AsyncIterator[CriRuntime]:
    settings = CriSettings(
        peer.folder / "logs", peer.folder / "volumes", protects_memory=protects_memory
    )
    runtime = CriRuntime(CriClient(peer.address, quick=quick, long=quick), settings)
    try:
        yield runtime
    finally:
        await runtime.close()


async def hanging(_: bytes) -> bytes:
    await asyncio.sleep(3600)
    return b""


def a_container(container_id: str, state: pb.ContainerState, **labels: str) -> pb.Container:
    ours = {
        "pinfold.dev/managed": "true",
        "io.kubernetes.pod.uid": "uid-1",
        "io.kubernetes.container.name": "main",
    }
    return pb.Container(
        id=container_id,
        pod_sandbox_id="sandbox",
        metadata=pb.ContainerMetadata(name="main"),
        state=state,
        labels={**ours, **labels},
    )

"""A kubelet's podresources, asked over a real socket: the project's own server, and worse ones."""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from pinfold.adapters.podresources import podresources_pb2 as v1
from pinfold.adapters.podresources_client import PodResourcesClient
from pinfold.core.devices.devices import Device
from pinfold.node.nri.kubelet_devices import KubeletDevices
from pinfold.ports.errors import PortError
from pinfold.ports.podresources import (
    ContainerDevices,
    ContainerResources,
    PodDevices,
    PodResources,
)
from tests.scenes.podresources_world import Rows, serving

NIC = "example.com/nic"
GPU = "example.com/gpu"
LIMIT = 5.0
"""Seconds; long enough for a busy machine."""

Handler = Callable[[bytes, "grpc.aio.ServicerContext[Any, Any]"], Awaitable[bytes]]


def entry(resource: str, device: str, node: int | None = None) -> ContainerDevices:
    """What a kubelet tells of one device and one of its NUMA nodes."""
    return ContainerDevices(resource, (device,), None if node is None else (node,))


ROWS = [
    PodResources(
        "prod",
        "web",
        (
            ContainerResources(
                "main",
                devices=(
                    entry(NIC, "n0", 1),
                    entry(NIC, "n1", 0),
                    entry(NIC, "n1", 1),
                    entry(GPU, "g0"),
                ),
            ),
            ContainerResources("side"),
        ),
    ),
    PodResources("test", "web", (ContainerResources("main", devices=(entry(GPU, "g1", 0),)),)),
]
WEB: PodDevices = {
    "main": {
        NIC: (Device("n0", numa_nodes=(1,)), Device("n1", numa_nodes=(0, 1))),
        GPU: (Device("g0"),),
    },
    "side": {},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@asynccontextmanager
async def asking(path: Path) -> AsyncIterator[PodResourcesClient]:
    client = PodResourcesClient(path)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def misbehaving(path: Path, **methods: Handler) -> AsyncIterator[None]:
    """A server with these methods of the service, and no others."""
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        name: grpc.unary_unary_rpc_method_handler(handler) for name, handler in methods.items()
    }
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)]
    )
    server.add_insecure_port(f"unix:{quote(str(path))}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


def list_of(*pods: tuple[str, str]) -> Handler:
    async def answer(_request: bytes, _context: object) -> bytes:
        return v1.ListPodResourcesResponse(
            pod_resources=[
                v1.PodResources(
                    namespace=namespace,
                    name=name,
                    containers=[
                        v1.ContainerResources(
                            name="main",
                            devices=[v1.ContainerDevices(resource_name=GPU, device_ids=["g"])],
                        )
                    ],
                )
                for namespace, name in pods
            ]
        ).SerializeToString()

    return answer


def refusing(code: grpc.StatusCode, text: str, asked: list[str] | None = None) -> Handler:
    async def answer(_request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        if asked is not None:
            asked.append(text)
        await context.abort(code, text)

    return answer


async def never(_request: bytes, _context: object) -> bytes:
    await asyncio.sleep(3600)
    return b""


async def rubbish(_request: bytes, _context: object) -> bytes:
    return b"\xff\xff\xff\xff"


async def problem(client: PodResourcesClient, within: float = LIMIT) -> str:
    with pytest.raises(PortError) as raised:
        await client.pod("prod", "web", within)
    text = str(raised.value)
    assert text.startswith(f"{client.path}: ")
    assert "kubeletPodResources" in text, "the remedy names the setting"
    return text


def test_it_reads_what_the_own_server_tells(path: Path) -> None:
    async def scenario() -> None:
        async with serving(Rows(ROWS), path), asking(path) as client:
            assert await client.pod("prod", "web", LIMIT) == WEB
            assert await client.pod("prod", "nobody", LIMIT) == {}
            assert await client.pods(LIMIT) == {
                ("prod", "web"): WEB,
                ("test", "web"): {"main": {GPU: (Device("g1", numa_nodes=(0,)),)}},
            }

    asyncio.run(scenario())


def test_a_limit_of_requests_is_waited_for(path: Path) -> None:
    async def scenario() -> None:
        async with serving(Rows(ROWS), path), asking(path) as client:
            answers = await asyncio.gather(*(client.pod("prod", "web", LIMIT) for _ in range(30)))
            assert all(answer == WEB for answer in answers)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "get",
    [None, refusing(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")],
    ids=["1.26", "gate off"],
)
def test_a_kubelet_without_get_is_asked_for_its_list(path: Path, get: Handler | None) -> None:
    async def scenario() -> None:
        methods = {"List": list_of(("prod", "web")), **({"Get": get} if get else {})}
        async with misbehaving(path, **methods), asking(path) as client:
            for _ in range(2):
                assert await client.pod("prod", "web", LIMIT) == {"main": {GPU: (Device("g"),)}}
            assert await client.pod("prod", "nobody", LIMIT) == {}

    asyncio.run(scenario())


def test_it_is_not_asked_again_for_what_it_does_not_have(path: Path) -> None:
    async def scenario() -> None:
        asked: list[str] = []
        off = refusing(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled", asked)
        async with misbehaving(path, Get=off, List=list_of()), asking(path) as client:
            for _ in range(3):
                await client.pod("prod", "web", LIMIT)
        assert len(asked) == 1

    asyncio.run(scenario())


def test_a_kubelet_that_never_answers_is_left(path: Path) -> None:
    async def scenario() -> None:
        async with misbehaving(path, Get=never, List=never), asking(path) as client:
            began = time.monotonic()
            assert "no answer within 0.2 s" in await problem(client, 0.2)
            with pytest.raises(PortError, match=r"no answer within 0\.2 s"):
                await client.pods(0.2)
            assert time.monotonic() - began < 3

    asyncio.run(scenario())


def test_both_questions_together_have_one_limit(path: Path) -> None:
    async def slow(_request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        await asyncio.sleep(0.3)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method Get")

    async def scenario() -> None:
        async with misbehaving(path, Get=slow, List=never), asking(path) as client:
            began = time.monotonic()
            await problem(client, 0.5)
            assert time.monotonic() - began < 2

    asyncio.run(scenario())


def test_rubbish_is_no_answer(path: Path) -> None:
    async def scenario() -> None:
        async with misbehaving(path, Get=rubbish, List=rubbish), asking(path) as client:
            assert "none of podresources v1" in await problem(client)
            with pytest.raises(PortError, match="none of podresources v1"):
                await client.pods(LIMIT)

    asyncio.run(scenario())


def test_a_refusal_is_told(path: Path) -> None:
    async def scenario() -> None:
        no = refusing(grpc.StatusCode.PERMISSION_DENIED, "who are you")
        async with misbehaving(path, Get=no), asking(path) as client:
            assert "PERMISSION_DENIED: who are you" in await problem(client)

    asyncio.run(scenario())


def test_an_answer_that_is_too_big_is_left(path: Path) -> None:
    async def huge(_request: bytes, _context: object) -> bytes:
        return bytes((16 << 20) + 1)

    async def scenario() -> None:
        async with misbehaving(path, Get=huge), asking(path) as client:
            assert "RESOURCE_EXHAUSTED" in await problem(client)

    asyncio.run(scenario())


def test_nobody_there(path: Path) -> None:
    async def scenario() -> None:
        async with asking(path) as client:
            began = time.monotonic()
            assert "UNAVAILABLE" in await problem(client)
            path.write_text("no socket")
            assert "UNAVAILABLE" in await problem(client)
            assert time.monotonic() - began < LIMIT, "nobody is waited for"
        async with asking(path.parent / ("x" * 120)) as client:
            assert "107 bytes" in await problem(client)

    asyncio.run(scenario())


def test_who_speaks_another_language_is_left(path: Path) -> None:
    async def scenario() -> None:
        async def chat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await reader.read(1)
            writer.close()

        server = await asyncio.start_unix_server(chat, str(path))
        async with server, asking(path) as client:
            await problem(client, 0.5)

    asyncio.run(scenario())


def test_who_takes_no_connection_is_left(path: Path) -> None:
    async def scenario() -> None:
        with socket.socket(socket.AF_UNIX) as full:
            full.bind(str(path))
            full.listen(0)
            async with asking(path) as client:
                assert "no answer within 0.2 s" in await problem(client, 0.2)

    asyncio.run(scenario())


def test_a_kubelet_that_was_gone_is_asked_again_at_once(path: Path) -> None:
    async def scenario() -> None:
        async with asking(path) as client:
            await problem(client)
            for _ in range(2):
                async with serving(Rows(ROWS), path):
                    assert await client.pod("prod", "web", LIMIT) == WEB
                await problem(client)

    asyncio.run(scenario())


def test_an_answer_takes_a_few_milliseconds(path: Path) -> None:
    """A container waits that long more; 300 ms are the limit."""

    async def scenario() -> None:
        reports: list[str] = []
        rows = [PodResources("prod", f"p{n}", ROWS[0].containers) for n in range(250)]
        async with serving(Rows(rows), path), asking(path) as client:
            devices = KubeletDevices(client, lambda _pod, text: reports.append(text))
            times = []
            for number in range(9):
                began = time.perf_counter()
                assert await devices.of_pod("prod", f"p{number}") == WEB
                times.append(time.perf_counter() - began)
            assert statistics.median(times) < 0.1
            assert len(await devices.of_all()) == 250
        assert reports == []

    asyncio.run(scenario())

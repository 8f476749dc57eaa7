"""What the sample device plugin says of its kubelet while that is not there, or refuses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from tests.scenes.sample_plugin import SamplePlugin, skip_unless_the_sample_plugin_can_run
from tests.scenes.waiting import until


class Kubelet:
    """Refuses registrations with ``problem`` as long as there is one."""

    def __init__(self) -> None:
        self.problem = ""
        self.asked = 0

    async def register(
        self, _request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        self.asked += 1
        if self.problem:
            await context.abort(grpc.StatusCode.UNKNOWN, self.problem)
        return b""

    @asynccontextmanager
    async def at(self, path: Path) -> AsyncIterator[None]:
        server = grpc.aio.server()
        method: grpc.RpcMethodHandler[bytes, bytes]
        method = grpc.unary_unary_rpc_method_handler(self.register)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": method}),)
        )
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)
            path.unlink(missing_ok=True)


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[SamplePlugin]:
    skip_unless_the_sample_plugin_can_run()
    (tmp_path / "plugins").mkdir()
    plugin = SamplePlugin(tmp_path / "plugins")
    try:
        yield plugin
    finally:
        plugin.stop()


def test_each_trouble_is_said_once(plugin: SamplePlugin) -> None:
    socket = plugin.folder / "kubelet.sock"
    kubelet = Kubelet()

    async def scenario() -> None:
        waiting = f"waiting for {socket}, which is not there"
        plugin.start()
        await until(lambda: plugin.said(waiting) > 0)
        await asyncio.sleep(0.5)  # it looks five times a second
        kubelet.problem = "no widgets here"
        async with kubelet.at(socket):
            await until(lambda: kubelet.asked == 3)
            kubelet.problem = ""
            await until(lambda: plugin.said(" registered example.com/widget at ") == 1)
        await until(lambda: plugin.said(waiting) == 2)
        assert plugin.said("not registered, and tries again: no widgets here") == 1

    asyncio.run(scenario())
    assert plugin.said(socket.name) == 2

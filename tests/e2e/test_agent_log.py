"""What the agent's log does not have: the libraries' own lines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from pinfold.adapters.deviceplugin import deviceplugin_pb2 as pb
from tests.agent_process import AgentProcess, skip_unless_an_agent_can_run

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_REASON = bytes(4) + (11).to_bytes(4, "big") + b"too_many_pings"
GOAWAY = len(_REASON).to_bytes(3, "big") + bytes([7, 0, 0, 0, 0, 0]) + _REASON
"""Frames of HTTP/2: what a server says first, and that it wants no more of this client."""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path)
    (tmp_path / "plugins").mkdir()
    agent.config["pinfold"]["devicePluginDir"] = str(tmp_path / "plugins")
    try:
        agent.start()
        yield agent
    finally:
        agent.clean_up()


def test_a_peer_that_hangs_up_is_told_of_in_the_agents_own_words(agent: AgentProcess) -> None:
    folder = agent.folder / "plugins"
    calls = 0
    again = asyncio.Event()

    async def rude(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        calls += 1
        writer.write(SETTINGS + GOAWAY)
        await writer.drain()
        writer.close()
        if calls > 1:  # so it has read what it was told the first time
            again.set()

    async def scenario() -> None:
        async with (
            await asyncio.start_unix_server(rude, folder / "rude.sock"),
            grpc.aio.insecure_channel(f"unix:{folder}/kubelet.sock") as channel,
        ):
            asked = pb.RegisterRequest(
                version="v1beta1", endpoint="rude.sock", resource_name="example.com/rude"
            )
            register: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            register = channel.unary_unary("/v1beta1.Registration/Register")
            call = register(asked.SerializeToString(), timeout=60)
            async with asyncio.timeout(60):
                await again.wait()
            call.cancel()

    asyncio.run(scenario())
    assert agent.client.get("/healthz") == "ok"
    agent.stop()
    assert [line for line in agent.log().splitlines() if ".cc:" in line] == []

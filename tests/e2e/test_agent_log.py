"""What the agent's log does not have: the libraries' own lines."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pinfold.adapters.deviceplugin import deviceplugin_pb2 as pb
from tests.scenes.agent_process import AgentProcess, skip_unless_an_agent_can_run

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
    asked = pb.RegisterRequest(
        version="v1beta1", endpoint="rude.sock", resource_name="example.com/rude"
    )
    with (
        socket.socket(socket.AF_UNIX) as rude,
        grpc.insecure_channel(f"unix:{folder}/kubelet.sock") as channel,
    ):
        rude.bind(str(folder / "rude.sock"))
        rude.listen()
        rude.settimeout(60)
        register: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        register = channel.unary_unary("/v1beta1.Registration/Register")
        call = register.future(asked.SerializeToString(), timeout=60)
        connection, _ = rude.accept()
        with connection:
            connection.sendall(SETTINGS + GOAWAY)
            time.sleep(0.5)  # nothing tells when it has been read
        call.cancel()
    assert agent.client.get("/healthz") == "ok"
    agent.stop()
    assert [line for line in agent.log().splitlines() if ".cc:" in line] == []

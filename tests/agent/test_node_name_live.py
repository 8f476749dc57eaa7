"""What an agent says that its node is called, on the running kernel."""

from __future__ import annotations

import json
import socket

import pytest

from tests.scenes.agent_process import AgentProcess, an_agent

node = pytest.fixture(an_agent)


def test_a_node_is_called_as_its_host_is(node: AgentProcess) -> None:
    node.start()
    told = json.loads(node.run("status", "-o", "json").stdout)
    assert told["agent"]["node"] == socket.gethostname().lower()
    shown = node.run("status").stdout.splitlines()
    assert shown[0].startswith(told["agent"]["node"])

"""A reader's folder, and the agent in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roots import ROOT
from tests.scenes.agent_process import AgentProcess, skip_unless_an_agent_can_run


@pytest.fixture
def scene() -> Iterator[Path]:
    """The folder in which a reader works; its name is short, for there are sockets in it.

    The path of a socket has 107 characters at the most, and a test's folder may have 80 of them.
    """
    with tempfile.TemporaryDirectory(prefix="pinfold-") as folder:
        yield Path(shutil.copytree(ROOT / "examples", Path(folder, "e")))


@pytest.fixture
def node(scene: Path) -> Iterator[AgentProcess]:
    """An agent as the page describes it, in the reader's folder ``try``."""
    skip_unless_an_agent_can_run()
    (scene / "try").mkdir()
    agent = AgentProcess(scene / "try")
    try:
        yield agent
    finally:
        agent.clean_up()

"""The sample device plugin of ``examples`` as a process of its own, beside a real agent."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.roots import ROOT
from tests.scenes.agent_process import (
    AgentProcess,
)
from tests.scenes.waiting import PATIENCE, eventually

PROGRAM: Final = ROOT / "examples" / "device-plugin" / "plugin.py"
WIDGET: Final = "example.com/widget"
PLUGIN_SECONDS: Final = 30.0
"""For something to come of a plugin: a busy machine takes long to load gRPC and its compiler."""


def skip_unless_the_sample_plugin_can_run() -> None:
    """Skip the test, with the reason, where what its messages are compiled with is absent."""
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("the sample plugin needs grpcio-tools")


class SamplePlugin:
    """Starts, kills and starts again one plugin; ``folder`` is the agent's."""

    def __init__(self, folder: Path, *options: str, resource: str = WIDGET) -> None:
        self.folder = folder
        self.resource = resource
        self.options = options
        self._log = folder.parent / f"{resource.replace('/', '-')}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Start it, and do not wait; one that still runs is ended."""
        self.stop()
        command = [sys.executable, str(PROGRAM), "--folder", str(self.folder)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--resource", self.resource, *self.options, *more],
                stdout=log,
                stderr=log,
            )

    def stop(self, number: int = signal.SIGKILL) -> None:
        """End it; one that was never started, or has ended, is no error."""
        if self.process is not None:
            process, self.process = self.process, None
            process.send_signal(number)  # one that has ended is no error
            try:
                process.wait(20 * PATIENCE)
            finally:
                # Where it did not heed the signal, that is a failure, and no reason to leave it.
                process.kill()
                process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to it and go on."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def log(self) -> str:
        """All that it has said."""
        return self._log.read_text() if self._log.exists() else ""

    def said(self, words: str) -> int:
        """How often it has said this."""
        return self.log().count(words)


def giving(**fields: Any) -> tuple[str, str]:
    """The option that has containers get this: fields of ContainerAllocateResponse."""
    return "--give", json.dumps(fields)


def offered(agent: AgentProcess, resource: str = WIDGET) -> dict[str, Any] | None:
    """What ``/v1/status`` says of a resource."""
    about = agent.client.get("/v1/status")["agent"]["devicePlugins"]
    found: dict[str, Any] | None = about["resources"].get(resource)
    return found


def until_offered(
    agent: AgentProcess, capacity: int, allocatable: int, resource: str = WIDGET
) -> None:
    """Wait until a resource counts so many devices."""

    def counts() -> tuple[int, int] | None:
        now = offered(agent, resource)
        return None if now is None else (now["capacity"], now["allocatable"])

    eventually(counts, (capacity, allocatable), PLUGIN_SECONDS)

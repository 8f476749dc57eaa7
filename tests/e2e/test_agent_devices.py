"""A whole agent and the sample device plugin: devices reach plain processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent_process import (
    IDLE,
    AgentProcess,
    eventually,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.sample_plugin import (
    WIDGET,
    SamplePlugin,
    offered,
    skip_unless_the_sample_plugin_can_run,
    until_offered,
)


class Scene:
    """An agent with a folder for plugins, and one plugin that is not started yet."""

    def __init__(self, folder: Path) -> None:
        self.agent = AgentProcess(folder)
        self.folder = folder / "plugins"
        self.folder.mkdir()
        self.agent.config["pinfold"]["devicePluginDir"] = str(self.folder)
        self.plugin = SamplePlugin(self.folder, "--pre-start")

    def env(self, pod: str) -> dict[str, str]:
        """The environment of a pod's only process."""
        (pid,) = self.agent.pids(pod).values()
        entries = Path(f"/proc/{pid}/environ").read_text().split("\0")[:-1]
        return dict(entry.split("=", 1) for entry in entries)


def asking(name: str, number: int = 1, resource: str = WIDGET, **spec: Any) -> dict[str, Any]:
    """A pod that asks for devices."""
    pod = manifest(name, ("main", IDLE, ""), **spec)
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: str(number)}}
    return pod


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    skip_unless_an_agent_can_run()
    skip_unless_the_sample_plugin_can_run()
    scene = Scene(tmp_path)
    try:
        scene.agent.start()
        yield scene
    finally:
        scene.plugin.stop()
        scene.agent.clean_up()


def test_a_pod_gets_devices(scene: Scene) -> None:
    agent, plugin = scene.agent, scene.plugin
    assert offered(agent) is None
    plugin.start()
    until_offered(agent, 4, 4)
    agent.apply(asking("app", 2))
    assert scene.env("app")["WIDGETS"] == "widget-0,widget-1"
    assert plugin.said("prepared widget-0, widget-1") == 1
    now = offered(agent)
    assert now == {"capacity": 4, "allocatable": 4, "in_use": 2, "connected": True}
    agent.client.delete("/v1/pods/default/app", grace=0)
    eventually(lambda: (offered(agent) or {})["in_use"], 0)

"""The page about devices is true: its commands run against a real agent and the sample plugin."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.scenes.agent_process import AgentProcess
from tests.scenes.reader import HOW_TO, check, configuration_of_the_page, configure, marked
from tests.scenes.sample_plugin import (
    PLUGIN_SECONDS,
    SamplePlugin,
    skip_unless_the_sample_plugin_can_run,
    until_offered,
)
from tests.scenes.waiting import eventually

PAGE = HOW_TO / "devices.md"


@pytest.fixture
def plugin(scene: Path, node: AgentProcess) -> Iterator[SamplePlugin]:
    """What the page starts in two terminals."""
    skip_unless_the_sample_plugin_can_run()
    configuration_of_the_page(scene)
    block = re.search(r"^```sh\n(mkdir .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    subprocess.run(["/bin/sh", "-ec", block[1]], cwd=scene, check=True)
    configure(node, yaml.safe_load((scene / "try" / "config.yaml").read_text()))
    node.start()
    shown = re.search(
        r"^\$ python device-plugin/plugin.py --folder (\S+) (.*)$", PAGE.read_text(), re.MULTILINE
    )
    assert shown is not None
    options = shown[2].replace("try/", f"{scene}/try/").split()
    plugin = SamplePlugin(scene / shown[1], *options)
    try:
        plugin.start()
        until_offered(node, 4, 4)
        yield plugin
    finally:
        print(plugin.log())  # noqa: T201 - shown where the test has failed
        plugin.stop()


def has_logged(scene: Path) -> bool:
    """Whether the container has said something; the agent does not wait for that."""
    logs = (scene / "try" / "state" / "logs").glob("default_widget_*/worker/0.log")
    return any(log.read_text() for log in logs)


def test_commands_that_need_an_agent_with_devices(
    scene: Path, node: AgentProcess, plugin: SamplePlugin
) -> None:
    commands = marked(PAGE, "needs an agent with devices")
    assert len(commands) > 5
    for command in commands:
        if command.text.startswith("pinfold logs"):
            eventually(lambda: has_logged(scene), expected=True, seconds=PLUGIN_SECONDS)
        check(command, PAGE, scene, node.socket)
        if "> try/sick" in command.text:
            # What a reader sees who is not as quick as this test.
            eventually(lambda: node.pod("widget")["phase"], "Failed", PLUGIN_SECONDS)
    assert plugin.said("allocated widget-0, widget-1") == 1

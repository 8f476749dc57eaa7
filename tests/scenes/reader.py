"""A reader who follows the pages about the agent: their commands, their configuration."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import yaml

from pinfold.cli.client import Client
from pinfold.core.values.cpuset import CPUSet
from tests.roots import ROOT
from tests.scenes.agent_process import AgentProcess
from tests.scenes.console import Command, commands, matches, run

HOW_TO = ROOT / "docs" / "how-to"
TRY = HOW_TO / "run-an-agent.md"
PROGRAMS = Path(sysconfig.get_path("scripts"))
CPUS = CPUSet(os.sched_getaffinity(0))


def marked(document: Path, reason: str) -> list[Command]:
    """The commands that need this to be run, and no others."""
    text = document.read_text()
    others = list(commands(text))
    # An empty line in its place: line numbers stay.
    unmarked = text.replace(f"<!-- not run: {reason} -->\n", "\n")
    return [command for command in commands(unmarked) if command not in others]


def check(command: Command, document: Path, scene: Path, socket: Path) -> None:
    """Run a command with this socket, as the only user of the machine, and compare."""
    places = {"PINFOLD_SOCKET": socket, "PINFOLD_RUN_DIR": scene / "run"}
    given = "".join(f"export {name}={shlex.quote(str(at))}\n" for name, at in places.items())
    text = f"{given}{command.text}"
    done = run(dataclasses.replace(command, text=text), scene, PROGRAMS)
    where = f"{document.name}:{command.line}: {command.text}"
    assert done.returncode == command.status, f"{where}\n{done.stdout}"
    if CPUSet([0, 1]) == CPUS:
        assert matches(command.output, done.stdout), f"{where}\n{done.stdout}"


def configure(agent: AgentProcess, config: dict[str, Any]) -> None:
    """Take a document's configuration, with a cgroup of the test's own."""
    section = {**config["pinfold"], "cgroupName": agent.name}
    agent.config = {**config, "pinfold": section}
    agent.socket = Path(section["socket"])
    agent.client = Client(str(agent.socket), timeout=60.0)


def configuration_of_the_page(scene: Path) -> dict[str, Any]:
    """What the reader's shell writes."""
    block = re.search(r"^```sh\n(mkdir .*?)^```$", TRY.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    subprocess.run(["/bin/sh", "-ec", block[1]], cwd=scene, check=True, env={"PATH": os.defpath})
    config: dict[str, Any] = yaml.safe_load((scene / "try" / "config.yaml").read_text())
    return config

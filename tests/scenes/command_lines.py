"""One command line of each command of the program, which prints something and needs no root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from pinfold.cli import main
from pinfold.logs.folders import LogFolders
from tests.roots import ROOT
from tests.scenes.manager_harness import manifest
from tests.scenes.small_experiment import experiment_file
from tests.scenes.web_world import Served, served

_EXAMPLES: Final = ROOT / "examples"
_CAPTURE: Final = _EXAMPLES / "profile" / "node.tar.xz"
_STATE: Final = _EXAMPLES / "state" / "cpu_manager_state"

SILENT: Final = frozenset({"agent", "run", "serve", "quota serve", "classes serve"})
"""Those whose standard output is another's, or nobody's, and who stays; of them there is the help
only."""


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Each command that runs by itself, such as ``state check``."""
    with click.Context(main) as context:
        yield from _below(main, context, "")


def _below(
    group: click.Group, context: click.Context, before: str
) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _below(command, context, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


class Lines:
    """A folder with what the lines need, and an agent on fakes that those ask who ask one."""

    def __init__(self, folder: Path, agent: Served) -> None:
        self.folder, self.agent, self.socket = folder, agent, agent.path
        self._pods = 0
        pages = folder / "huge/sys/kernel/mm/hugepages/hugepages-2048kB"
        pages.mkdir(parents=True)
        for what in ("nr", "free", "surplus", "resv"):
            (pages / f"{what}_hugepages").write_text("0\n")
        self.words: dict[str, tuple[object, ...]] = {
            "topology": ("--machine", "2s4c2t"),
            "plan": ("--machine", "2s4c2t", _EXAMPLES / "pods"),
            "simulate": (experiment_file(folder, after="1h"), "--workers", "1"),
            "explain": ("pod/db",),
            "convert": (_EXAMPLES / "classes" / "classes.yaml",),
            "readiness": (_EXAMPLES / "readiness" / "nodes.yaml",),
            "state show": (_STATE,),
            "state check": (_STATE,),
            "state versions": (_STATE,),
            "state repair": (_STATE, "--dry-run"),
            "state convert": (_STATE, "--to", "json"),
            "audit": ("--state", _STATE),
            "profile check": ("--machine", _CAPTURE),
            "profile show": (),
            "capture": ("--root", _CAPTURE, "--force", "-o", folder / "node.tar"),
            "resize": ("pod/db", "--cpus", "2"),
            "apply": (folder / "pod.json",),
            "delete": (),
            "logs": ("pod/db",),
            "status": (),
            "history": (),
            "rebalance": ("--dry-run",),
            "shield": ("--record", folder / "shield.json"),
            "hugepages show": ("--root", folder / "huge"),
            "hugepages allocate": ("2Mi", "--total", "0", "--root", folder / "huge"),
            "hugepages release": ("2Mi", "--root", folder / "huge"),
            "classes scheduler-config": (_EXAMPLES / "classes" / "classes.yaml", "--insecure"),
            "schema": (),
            "completion": ("bash",),
            "man": ("plan",),
        }

    def of(self, command: str) -> list[str]:
        """The whole line; one that changes something has something else to change each time."""
        if command in ("apply", "delete"):
            self._pods += 1
            pod = manifest(f"new-{self._pods}", "")
            (self.folder / "pod.json").write_text(json.dumps(pod))
            if command == "delete":
                self.agent.ask("POST", "/v1/pods", pod)
                self.words[command] = (f"pod/new-{self._pods}",)
        return [sys.executable, "-m", "pinfold", *command.split(), *map(str, self.words[command])]

    def run(self, line: list[str], how: str) -> subprocess.CompletedProcess[bytes]:
        """Run a line with standard streams as a shell is told, such as ``>&-``."""
        return subprocess.run(
            ["sh", "-c", f'exec "$@" {how}', "sh", *line],
            capture_output=True,
            check=False,
            timeout=120,
            cwd=self.folder,
            env={**os.environ, "PINFOLD_SOCKET": str(self.socket)},
        )


@contextmanager
def command_lines(folder: Path) -> Iterator[Lines]:
    """The lines, with an agent that has the pod ``db``, which has written."""
    with served(folder / "s") as agent:
        agent.node.books.containers.logs = LogFolders(folder / "logs")
        agent.ask("POST", "/v1/pods", manifest("db", "2"))
        written = folder / "logs" / "default_db_uid-db" / "c0"
        written.mkdir(parents=True)
        (written / "0.log").write_text("2026-01-31T12:00:00.000000000Z stdout F one\n")
        yield Lines(folder, agent)

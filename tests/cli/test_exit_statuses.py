"""Every row of the table of exit statuses happens in the real program, which has no others."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click import Command, Context

from pinfold.cli.start import exit_statuses as table
from pinfold.cli.start.exit_statuses import GENERAL, OF_COMMANDS, ExitStatus, statuses_of
from tests.roots import ROOT
from tests.scenes.command_lines import Lines, command_lines, leaves
from tests.scenes.manager_harness import manifest

_EXAMPLES: Final = ROOT / "examples"
_CLASSES: Final = _EXAMPLES / "classes" / "classes.yaml"
_CAPTURE: Final = _EXAMPLES / "profile" / "node.tar.xz"
_STATE: Final = str(_EXAMPLES / "state" / "cpu_manager_state")
_PODS: Final = str(_EXAMPLES / "pods")
_NODES: Final = str(_EXAMPLES / "readiness" / "nodes.yaml")
_UNRESERVED: Final = ("--machine", "1s2c1t", "--policy", "static")
_SERVE: Final = (
    *("--kubeconfig", "kubeconfig", "--namespace", "x", "--certificates", "."),
    *("--listen", "192.0.2.1:1", "--health-listen", "127.0.0.1:0"),
)

HERE: Final[dict[ExitStatus, tuple[tuple[str, ...], ...]]] = {
    table.ANSWERED: (("schema",),),
    table.REFUSED: (("delete", "pod/nobody"),),
    table.USAGE: (("plann",), ("plan", "--no-such-option"), ("plan", "nowhere.yaml")),
    table.REJECTION_TOLD: (("plan", *_UNRESERVED, "--reserved-cpus", "0", _PODS),),
    table.NO_START: (
        ("plan", *_UNRESERVED, _PODS),
        ("explain", *_UNRESERVED, "--pod", "web", _PODS),
        ("rebalance", "--dry-run", *_UNRESERVED, _PODS),
    ),
    table.NO_CLUSTER: (
        ("plan", "--node", "a", "--kubeconfig", "kubeconfig"),
        ("explain", "pod/a", "--kubeconfig", "kubeconfig"),
    ),
    table.NO_POD: (("explain", "pod/nobody"),),
    table.NOT_IN_MANIFESTS: (("explain", "--machine", "1s2c1t", "--pod", "nobody", _PODS),),
    table.NOT_CONVERTED: (("convert", "--strict", str(_CLASSES)),),
    table.GIVEN_UP: (("readiness", _NODES, "--at", "2026-01-31T12:35:00Z"),),
    table.COMING: (("readiness", _NODES, "--at", "2026-01-31T12:05:00Z"),),
    table.FINDINGS: (("state", "check", _STATE, "--machine", "1s2c1t"),),
    table.NOT_TAKEN: (("state", "versions", _STATE, "--kubelet-version", "1.34"),),
    table.UNMENDED: (("state", "repair", "--dry-run", _STATE, "--kubelet-version", "1.34"),),
    table.UNUSABLE: (
        ("state", "show", "garbage"),
        ("state", "check", "garbage"),
        ("state", "versions", "garbage"),
        ("state", "repair", "garbage"),
        ("state", "convert", "--to", "v2", "garbage"),
    ),
    table.DIFFERS: (("audit", "--state", _STATE),),
    table.UNFIT: (("profile", "check", "--machine", str(_CAPTURE), "--profile", "tuned"),),
    table.EXISTS: (("capture", "--root", str(_CAPTURE), "-o", "taken.tar"),),
    table.NO_NODE: (
        ("agent", "--state-dir", "/proc/nowhere", "--cgroup-parent", "/pinfold-test-no-node"),
    ),
    table.NO_PAGE: (("serve", "--listen", "192.0.2.1:1"),),
    table.NO_PLACE: (("quota", "serve", *_SERVE), ("classes", "serve", *_SERVE)),
    table.NOT_RESIZED: (
        ("resize", "pod/nobody", "--cpus", "2"),
        ("resize", "pod/db", "--cpus", "999"),
    ),
    table.NOT_RUN: (("run", "--cpus", "9999", "--", "true"),),
    table.NOBODY_TO_RUN: (("run", "--detach", "--socket", "nobody", "--", "true"),),
    table.REJECTED: (("apply", "big.json"),),
    table.NOT_DELETED: (("delete", "pod/nobody", "pod/nobody-else"),),
    table.NO_AGENTS_POD: tuple(
        (name, "--node", "a") for name in ("status", "history", "topology", "audit")
    ),
    table.NO_LOG: (("logs", "pod/nobody"), ("logs", "pod/db", "-c", "nobody")),
    table.NOT_READY: (("status", "--ready"),),
    table.NOT_MOVED: (("rebalance",),),
    table.NOBODYS: (("rebalance", "--dry-run", "--machine", "1s2c1t", _PODS),),
    table.NO_PAGES: (
        ("hugepages", "allocate", "1Gi", "1", "--root", "huge"),
        ("hugepages", "release", "1Gi", "1", "--root", "huge"),
    ),
    table.NO_AGENT: (
        ("explain", "pod/db", "--socket", "nobody"),
        ("resize", "pod/db", "--cpus", "2", "--socket", "nobody"),
        ("apply", "big.json", "--socket", "nobody"),
        ("delete", "pod/db", "--socket", "nobody"),
        ("logs", "pod/db", "--socket", "nobody"),
        ("status", "--socket", "nobody"),
        ("status", "--ready", "--socket", "nobody"),
        ("history", "--socket", "nobody"),
        ("rebalance", "--socket", "nobody"),
    ),
}
"""What each row is shown by: command lines, carried out below.

``run`` without ``--socket nobody`` finds an agent on fakes, which can run nothing.
"""

ELSEWHERE: Final = {
    table.INTERRUPTED: ("tests/cli/test_interrupted.py", "test_at_any_moment"),
    table.TERMINATED: ("tests/cli/test_interrupted.py", "test_at_any_moment"),
    table.UNREAD: ("tests/cli/test_streams.py", "test_who_reads_no_more_is_not_told"),
    table.NO_RUN: (
        "tests/cli/test_simulate_faults.py",
        "test_a_worker_that_is_killed_is_told_with_its_run",
    ),
    table.CUT_SHORT: (
        "tests/cli/test_simulate_faults.py",
        "test_an_interrupted_simulation_tells_what_there_is",
    ),
    table.STOPPED: (
        "tests/cluster/quota/test_quota_serve.py",
        "test_pods_come_in_until_the_quota_is_full",
    ),
    table.OWN_STATUS: (
        "tests/agent/test_agent_live.py",
        "test_run_passes_status_streams_and_signals",
    ),
    table.NOT_FOUND: (
        "tests/agent/test_agent_live.py",
        "test_run_passes_status_streams_and_signals",
    ),
    table.NOT_EXECUTABLE: ("tests/cli/test_exit_statuses.py", "test_a_command_without_an_agent"),
    table.NOT_SHIELDED: ("tests/e2e/test_shield_cli.py", "test_without_root_it_refuses"),
}
"""Those that need time, root or an agent, and the tests that have it."""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    with command_lines(tmp_path_factory.mktemp("lines")) as found:
        found.agent.backend.told_problems = ["the agent is starting"]
        (found.folder / "garbage").write_text("{")
        (found.folder / "taken.tar").touch()
        (found.folder / "big.json").write_text(json.dumps(manifest("big", "64")))
        (found.folder / "kubeconfig").write_text(_KUBECONFIG)
        yield found


_KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {}}]
current-context: a
"""


def test_every_row_is_shown() -> None:
    rows = {*GENERAL, *OF_COMMANDS}
    assert len(rows) == len(GENERAL) + len(OF_COMMANDS)
    named = {row for row in vars(table).values() if isinstance(row, ExitStatus)}
    assert named == rows, "no row is used that is not in the table"
    assert {*HERE} | {*ELSEWHERE} == rows
    assert not {*HERE} & {*ELSEWHERE}
    for row, shown in HERE.items():
        for command in row.commands:
            words = tuple(command.split())
            asked = [line for line in shown if line[: len(words)] == words]
            assert asked or row == table.REJECTION_TOLD
    for path, name in ELSEWHERE.values():
        tree = ast.parse((ROOT / path).read_text())
        assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}


def test_rows_are_of_commands_that_there_are() -> None:
    assert {name for row in OF_COMMANDS for name in row.commands} <= {name for name, _ in leaves()}


@pytest.mark.parametrize(
    ("row", "words"),
    [(row, words) for row, shown in HERE.items() for words in shown],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else str(one.status),
)
def test_a_status(lines: Lines, row: ExitStatus, words: tuple[str, ...]) -> None:
    done = lines.run([sys.executable, "-m", "pinfold", *words], "")
    assert done.returncode == row.code, done.stderr
    assert b"Traceback" not in done.stderr
    if row.code == table.USAGE.code and words[:2] != ("state", "check"):
        assert done.stderr.decode().splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("/nowhere/at/all",), table.NOT_FOUND.code),
        (("/etc/passwd",), table.NOT_EXECUTABLE.code),
    ],
)
def test_a_command_without_an_agent(words: tuple[str, ...], status: int, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "pinfold", "run", "--socket", str(tmp_path / "s"), "--", *words]
    env = {**os.environ, "PINFOLD_RUN_DIR": str(tmp_path / "list")}
    done = subprocess.run(line, capture_output=True, check=False, env=env, timeout=60)
    assert done.returncode == status, done.stderr


@pytest.mark.parametrize(("name", "command"), [*leaves()], ids=[name for name, _ in leaves()])
def test_the_help_ends_with_the_statuses(name: str, command: Command) -> None:
    with Context(command, info_name=name) as context:
        words = " ".join(command.get_help(context).split())
    told = words.partition("Exit status: ")[2]
    assert told
    for row in statuses_of(name):
        assert row.meaning in told
        assert row.status is None or f"{row.status} " in told
    assert "xit status" not in (command.help or "")

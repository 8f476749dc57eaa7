"""What a command makes of an answer of an agent that called what it rejected ``Failed``."""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.roots import ROOT

MANIFEST = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db"}, "spec": {}}


def answer(phase: str, state: str = "Waiting", exit_code: int | None = None) -> dict[str, Any]:
    """A decided pod, as an agent has answered it since its first version."""
    container = {
        "name": "main",
        "kind": "container",
        "cpus": "",
        "exclusive": False,
        "numa_nodes": [],
        "memory": [],
        "devices": {},
        "state": state,
        "pid": None,
        "restarts": 0,
        "exit_code": exit_code,
    }
    return {
        "version": 1,
        "namespace": "default",
        "name": "db",
        "uid": "u",
        "qos": "Guaranteed",
        "phase": phase,
        "reason": "UnexpectedAdmissionError",
        "message": "not enough cpus",
        "source": "api",
        "admitted_at": 1.0,
        "containers": [container],
        "warnings": [],
    }


class Agent(socketserver.ThreadingUnixStreamServer):
    """Answers each pod alike."""

    daemon_threads = True

    def __init__(self, path: Path, told: dict[str, Any]) -> None:
        self.told = json.dumps(told).encode()
        super().__init__(str(path), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Agent

    def do_GET(self) -> None:
        self._answer(b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(self.server.told)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name above
        pass


@pytest.fixture
def pinfold(tmp_path: Path) -> Iterator[Any]:
    agents: list[Agent] = []

    def ask(told: dict[str, Any], *args: str) -> subprocess.CompletedProcess[str]:
        place = tmp_path / f"{len(agents)}.sock"
        agents.append(Agent(place, told))
        threading.Thread(target=agents[-1].serve_forever, daemon=True).start()
        command = [sys.executable, "-m", "pinfold", args[0], f"--socket={place}", *args[1:]]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    yield ask
    for agent in agents:
        agent.shutdown()
        agent.server_close()


@pytest.mark.parametrize("phase", ["Failed", "Rejected", "Succeeded", "Dreaming"])
def test_a_command_whose_pod_does_not_run_is_never_let_go(
    pinfold: Any, tmp_path: Path, phase: str
) -> None:
    ran = tmp_path / "ran"
    done = pinfold(answer(phase), "run", "--cpus=2", "--", "touch", str(ran))
    assert (done.returncode, ran.exists()) == (1, False), done.stderr
    assert "UnexpectedAdmissionError: not enough cpus" in done.stderr


def test_a_pod_that_does_not_run_for_no_reason_is_named_by_its_phase(pinfold: Any) -> None:
    told = answer("Terminating", "RUNNING") | {"reason": None, "message": None}
    done = pinfold(told, "run", "--", "true")
    assert done.returncode == 1
    assert "the pod of the command is Terminating" in done.stderr


@pytest.mark.parametrize("phase", ["Admitted", "Running"])
def test_one_whose_pod_does_is(pinfold: Any, tmp_path: Path, phase: str) -> None:
    ran = tmp_path / "ran"
    done = pinfold(answer(phase, "RUNNING"), "run", "--", "touch", str(ran))
    assert (done.returncode, ran.exists()) == (0, True), done.stderr


@pytest.mark.parametrize("phase", ["Failed", "Rejected"])
def test_what_was_rejected_is_not_called_admitted(pinfold: Any, tmp_path: Path, phase: str) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(json.dumps(MANIFEST))
    done = pinfold(answer(phase), "apply", str(file))
    assert done.returncode == 1
    assert done.stdout == "pod/db rejected: UnexpectedAdmissionError: not enough cpus\n"
    detached = pinfold(answer(phase), "run", "--detach", "--cpus=2", "--", "true")
    assert (detached.returncode, detached.stdout) == (1, "")


@pytest.mark.parametrize(("state", "exit_code"), [("EXITED", None), ("Waiting", 3)])
def test_what_ran_and_failed_was_admitted(
    pinfold: Any, tmp_path: Path, state: str, exit_code: int | None
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(json.dumps(MANIFEST))
    done = pinfold(answer("Failed", state, exit_code), "apply", str(file))
    assert done.returncode == 0
    assert "admitted" in done.stdout

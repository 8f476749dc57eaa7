"""A real agent in a process of its own, with everything in a temporary place."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pinfold.adapters.cgroup import CgroupError, open_cgroups
from pinfold.cli.client import Client, NoAgentError, RefusedError
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.mounting import mounts_below, unmount
from tests.roots import ROOT
from tests.scenes.waiting import PATIENCE, wait_until


def skip_unless_an_agent_can_run() -> None:
    """Skip the test, with the reason, where there is no root, no cgroup tree or one CPU only."""
    cpus = CPUSet(os.sched_getaffinity(0))
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if len(cpus) < 2 or min(cpus) != 0:
        pytest.skip("needs CPU 0 and another one")
    try:
        open_cgroups()
    except CgroupError as error:
        pytest.skip(f"no cgroup tree that can be written: {error}")


class AgentProcess:
    """Starts, kills and cleans up after agents; ``config`` may be changed between two."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.folder = folder
        self.name = f"pinfold-test-{secrets.token_hex(4)}"
        self.socket = folder / "s.sock"
        self.manifests = folder / "manifests"
        self.manifests.mkdir()
        self.config: dict[str, Any] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cpuManagerPolicy": "static",
            "reservedSystemCPUs": "0",
            "cpuManagerReconcilePeriod": "1h",
            "staticPodPath": str(self.manifests),
            "pinfold": {
                "stateDir": str(folder / "state"),
                "socket": str(self.socket),
                "cgroupName": self.name,
            },
            **config,
        }
        self.program: tuple[str, ...] = ("-m", "pinfold")
        self.open_files: tuple[int, int] | None = None
        self.environment: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None
        self.client = Client(str(self.socket), timeout=60.0)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def launch(self, *flags: str) -> subprocess.Popen[str]:
        """Start it, and do not wait."""
        file = self.folder / "config.yaml"
        file.write_text(yaml.safe_dump(self.config))
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [*self._limited(), *self.program, "agent", "--config", str(file), *flags],
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
                start_new_session=True,
                env=os.environ | self.environment,
            )
        return self.process

    def _limited(self) -> list[str]:
        """What runs a command with the limits on open files, in its own place."""
        if self.open_files is None:
            return [sys.executable]
        soft, hard = self.open_files
        return ["sh", "-c", f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$0" "$@"', sys.executable]

    def start(self, *flags: str) -> None:
        """Start it, and wait until it serves."""
        self.launch(*flags)
        self.started()

    def started(self) -> None:
        """Wait until the one that was launched serves."""
        process = self.process
        assert process is not None
        deadline = time.monotonic() + 30 * PATIENCE
        while True:
            try:
                self.client.get("/healthz")
            except NoAgentError:
                pass
            except RefusedError as error:
                if error.status:  # 0: it listens before it answers, and may be refused
                    raise
            else:
                return
            assert process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def refused(self, *flags: str) -> tuple[int, str]:
        """Start one that is to refuse: its exit status, and what it printed."""
        before = len(self.log())
        status = self.launch(*flags).wait(30 * PATIENCE)
        self.process = None
        return status, self.log()[before:]

    def kill(self) -> None:
        """As if the kernel had ended it."""
        self.stop(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(20 * PATIENCE)
            self.process = None

    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "log").read_text()
        return ""

    def begin(self, *args: str) -> subprocess.Popen[str]:
        """One command of the command line, which is not waited for."""
        return subprocess.Popen(
            [sys.executable, "-m", "pinfold", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PINFOLD_SOCKET": str(self.socket)},
        )

    def run(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """One command of the command line."""
        return subprocess.run(
            [sys.executable, "-m", "pinfold", *args],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            timeout=60 * PATIENCE,
            env={**os.environ, "PINFOLD_SOCKET": str(self.socket)},
            **options,
        )

    def apply(self, manifest: Mapping[str, Any]) -> Any:
        return self.client.post("/v1/pods", manifest)

    def pod(self, name: str) -> Any:
        return self.client.get(f"/v1/pods/default/{name}")

    def pids(self, name: str) -> dict[str, int]:
        """The main processes of a pod by container, once all run."""
        pod: Any = None

        def running() -> bool:
            nonlocal pod
            pod = self.pod(name)
            return all(container["pid"] for container in pod["containers"])

        wait_until(running)
        return {container["name"]: container["pid"] for container in pod["containers"]}

    def clean_up(self) -> None:
        """Leave no agent, no container, no cgroup and no mount."""
        self.kill()
        with contextlib.suppress(CgroupError):
            asyncio.run(_remove(self.name))
        for folder in (self.state / "containers").glob("*"):
            for pid in _supervisors(folder):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        for found in reversed(mounts_below(self.state)):
            with contextlib.suppress(OSError):
                unmount(found.path)


def an_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """One that is not started yet: ``node = pytest.fixture(an_agent)``."""
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path_factory.mktemp("agent"))
    try:
        yield agent
    finally:
        agent.clean_up()


async def _remove(name: str) -> None:
    cgroups = open_cgroups(name=name)
    for key in (await cgroups.observe()).containers:
        # Who is on the idle side of a busy machine dies slowly.
        await cgroups.kill(key, wait=20 * PATIENCE)
        await cgroups.remove(key)
    await cgroups.close(remove=True)


def _supervisors(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(folder) in (entry / "cmdline").read_text():
                found.append(int(entry.name))
    return found


def manifest(name: str, *containers: tuple[str, Sequence[str], str], **spec: Any) -> dict[str, Any]:
    """A pod of containers: name, command, CPU limit ("" for none)."""
    items = []
    for container, command, cpus in containers:
        limits = {"cpu": cpus, "memory": "64Mi"} if cpus else {}
        items.append(
            {
                "name": container,
                "command": list(command),
                "resources": {"limits": limits, "requests": limits},
            }
        )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": items, **spec},
    }


BUSY = ("sh", "-c", "while :; do :; done")
IDLE = ("sleep", "1000")


def allowed(pid: int) -> CPUSet:
    """Where the kernel lets a process run."""
    return CPUSet(os.sched_getaffinity(pid))


def document(text: str) -> Any:
    return json.loads(text)

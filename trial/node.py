"""One agent under trial: its process, its places, and its API as any client sees it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from trial import warm
from trial.observed import born
from trial.patience import PATIENCE

ANSWER: Final = 60.0 * PATIENCE
"""Seconds in which every request has to be answered, whatever the state of disk and machine."""

READY: Final = 60.0 * PATIENCE
"""Seconds from the start of an agent, or the end of a fault, until it is ready."""


class NoAnswerError(Exception):
    """Nobody answered: there is no agent, or it took too long."""


class Refused(Exception):  # noqa: N818 - the request was refused, as it may be
    """The agent answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:300]}")
        self.status = status


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("pinfold", timeout=seconds)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Node:
    """An agent with everything in ``folder``; its record may be on a small disk of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.disk = folder / "disk"
        self.state = self.disk / "state"
        self.socket = folder / "s"
        self.process: subprocess.Popen[bytes] | warm.Agent | None = None
        self._starter: warm.Starter | None = None
        self.policy = "static"
        self.is_ready = False
        self.starts = 0
        self.slowest_start = 0.0

    # ---------------------------------------------------------------------------- the program

    def configuration(self, **section: object) -> Path:
        """A file with the configuration; ``section`` is put over the agent's own."""
        own = {
            "stateDir": str(self.state),
            "socket": str(self.socket),
            "cgroupName": self.name,
            "devicePluginDir": "",
            **section,
        }
        document = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cpuManagerPolicy": self.policy,
            "reservedSystemCPUs": "0",
            "cpuManagerReconcilePeriod": "1s",
            "containerLogMaxSize": "1Mi",
            "containerLogMaxFiles": 2,
            "pinfold": own,
        }
        file = self.folder / f"config-{own['cgroupName']}-{abs(hash(str(section))) % 10_000}.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        return file

    def launch(
        self, *flags: str, config: Path | None = None
    ) -> subprocess.Popen[bytes] | warm.Agent:
        """Start an agent, and do not wait."""
        file = config or self.configuration()
        if PATIENCE > 1:
            self._starter = self._starter or warm.Starter()
            words = ["agent", "--config", str(file), *flags]
            return self._starter.launch(words, self.folder / "log")
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "pinfold", "agent", "--config", str(file), *flags],
                # Whoever tries it may have told the command line of another agent.
                env={k: v for k, v in os.environ.items() if not k.startswith("PINFOLD_")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start(self, *flags: str) -> str:
        """Start the agent and wait until it is ready; why it did not become so, else ""."""
        began = time.monotonic()
        self.is_ready = False
        self.process = self.launch(*flags)
        problem = self.until_ready()
        self.starts += 1
        self.slowest_start = max(self.slowest_start, time.monotonic() - began)
        return problem

    def until_ready(self, seconds: float = READY) -> str:
        """Wait until the agent says that it is ready; what it said last, else ""."""
        deadline = time.monotonic() + seconds
        last = "it never answered"
        while time.monotonic() < deadline:
            if self.process is not None and (status := self.process.poll()) is not None:
                return f"the agent exited with {status}: {self.last_words()}"
            try:
                self.ask("GET", "/readyz", seconds=5 * PATIENCE)
            except (NoAnswerError, Refused) as error:
                last = str(error)
            else:
                self.is_ready = True
                return ""
            time.sleep(0.05 * PATIENCE)
        return f"not ready after {seconds:.0f} s: {last}"

    def kill(self) -> None:
        """SIGKILL."""
        self.is_ready = False
        if self.process is not None:
            with suppress(OSError):
                self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> int | None:
        """SIGTERM; its exit status, None where it had to be killed."""
        if self.process is None:
            return None
        self.process.terminate()
        try:
            return self.process.wait(30 * PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        finally:
            self.process = None

    def last_words(self) -> str:
        """The end of its log."""
        with suppress(OSError):
            return (self.folder / "log").read_bytes()[-600:].decode(errors="replace")
        return ""

    # -------------------------------------------------------------------------------- the API

    def ask(self, method: str, path: str, body: object = None, *, seconds: float = ANSWER) -> Any:  # noqa: ANN401 - JSON
        """One request.

        Raises:
            Refused: the answer is an error.
            NoAnswerError: there is none.
        """
        connection = _Connection(self.socket, seconds)
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswerError(f"{method} {path}: {type(error).__name__} {error}") from None
        finally:
            connection.close()
        if answer.status >= 400:
            raise Refused(answer.status, text)
        if "json" not in (answer.getheader("Content-Type") or ""):
            return text
        return json.loads(text)

    def pods(self) -> dict[str, Mapping[str, Any]]:
        """The agent's pods by name."""
        return {pod["name"]: pod for pod in self.ask("GET", "/v1/pods")["pods"]}

    def supervisors(self) -> list[int]:
        """The processes that stand over containers: known by the folder in their command line."""
        mark = f"{self.state}/containers/".encode()
        found = []
        for name in os.listdir("/proc"):  # noqa: PTH208 - names
            if name.isdigit():
                with suppress(OSError):
                    words = Path(f"/proc/{name}/cmdline").read_bytes()
                    if mark in words and b"agent" not in words.split(b"\0")[3:4]:
                        found.append(int(name))
        return [pid for pid in found if born(pid) is not None]

    # ------------------------------------------------------------------------------- the disk

    def mount(self, megabytes: int) -> bool:
        """Give the record a small disk of its own; whether that could be."""
        self.disk.mkdir()
        options = f"size={megabytes}m,mode=0700"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, f"trial-{self.name}", str(self.disk)],
            check=False,
            capture_output=True,
        )
        return done.returncode == 0

    def unmount(self) -> None:
        """Take the disk away."""
        subprocess.run(["umount", "-l", str(self.disk)], check=False, capture_output=True)

    def cgroups(self) -> list[Path]:
        """The agent's folders in all hierarchies."""
        top = Path("/sys/fs/cgroup")
        return [found for found in (top / self.name, *top.glob(f"*/{self.name}")) if found.exists()]

    def remove_everything(self) -> None:
        """End what is left, however: the trial is over."""
        self.begin_anew()
        self.unmount()
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin_anew(self) -> None:
        """End what is left, and forget the record: the next agent is the first one here."""
        self.kill()
        for _ in range(50):
            pids = [
                int(pid)
                for folder in self.cgroups()
                for file in folder.rglob("cgroup.procs")
                for pid in _words(file)
            ]
            for pid in {*pids, *self.supervisors()}:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for folder in self.cgroups():
                for thaw in folder.rglob("freezer.state"):
                    with suppress(OSError):
                        thaw.write_text("THAWED", encoding="ascii")
                for inner in sorted(folder.rglob("*/"), key=lambda one: -len(one.parts)):
                    with suppress(OSError):
                        inner.rmdir()
                with suppress(OSError):
                    folder.rmdir()
            if not self.cgroups() and not self.supervisors():
                break
            time.sleep(0.1)
        shutil.rmtree(self.state, ignore_errors=True)


def _words(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text(encoding="ascii").split()
    return []

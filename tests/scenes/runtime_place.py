"""Cgroups as a runtime makes them, below one of the test's own, with processes that sleep."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from pinfold.adapters.cgroup.files import write
from pinfold.adapters.cgroup.hierarchy import find_hierarchies
from pinfold.core.values.cpuset import CPUSet


class Place:
    """A cgroup of the test's own, in which a runtime would make those of containers."""

    def __init__(self) -> None:
        found = find_hierarchies()
        self.version = found.version
        mount = found.unified if self.version == 2 else found.v1["cpuset"]
        assert mount is not None
        self.path = f"/pinfold-test-{secrets.token_hex(4)}"
        self.root = mount.point / self.path.lstrip("/")
        self.cpus = CPUSet(os.sched_getaffinity(0))
        self.low, self.high = CPUSet([min(self.cpus)]), CPUSet([max(self.cpus)])
        self.pids: list[int] = []
        self._make(self.root)

    def _make(self, folder: Path) -> None:
        folder.mkdir()
        if self.version == 1:
            for name in ("cpuset.cpus", "cpuset.mems"):
                write(folder / name, (folder.parent / name).read_text().strip())
        else:
            write(folder.parent / "cgroup.subtree_control", "+cpuset")

    def container(self, *names: str) -> tuple[str, int]:
        """A cgroup below, with a process in it; its path."""
        folder = self.root
        for name in names:
            folder /= name
            if not folder.exists():
                self._make(folder)
        pid = os.posix_spawnp("sleep", ["sleep", "1000"], os.environ)
        self.pids.append(pid)
        write(folder / "cgroup.procs", str(pid))
        return "/".join((self.path, *names)), pid

    def allowed(self, pid: int) -> CPUSet:
        return CPUSet(os.sched_getaffinity(pid))

    def reap(self, pid: int) -> None:
        os.waitpid(pid, 0)

    def clean(self) -> None:
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for folder in sorted(self.root.glob("**/"), reverse=True):
            folder.rmdir()

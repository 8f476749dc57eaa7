"""The world of plain processes: a folder, commands that every machine has, and what is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from pinfold.adapters.process import ProcessRuntime
from pinfold.core.pod.workload import Process
from tests.roots import ROOT
from tests.scenes.waiting import PATIENCE, wait_until


@dataclass
class ProcessWorld:
    """A folder of containers; fulfils :class:`tests.scenes.runtime_contract.World`."""

    folder: Path
    patience: float = 10 * PATIENCE
    """Of the next runtime, in seconds."""
    _marks: count[int] = field(default_factory=count)

    @property
    def root(self) -> Path:
        return self.folder / "containers"

    def open(self) -> ProcessRuntime:
        return ProcessRuntime(self.root, patience=self.patience)

    def lasting(self) -> Process:
        return Process(("sleep", "1000"))

    def ending(self, code: int) -> Process:
        return Process(("sh", "-c", f"exit {code}"))

    def missing(self) -> Process:
        return Process(("no-such-command-anywhere",))

    @contextlib.contextmanager
    def of_patience(self, seconds: float) -> Iterator[None]:
        """Who opens the world in here waits so long, and whoever comes later as long as before."""
        before, self.patience = self.patience, seconds
        try:
            yield
        finally:
            self.patience = before

    def marking(self) -> tuple[Process, Callable[[], bool]]:
        mark = self.folder / f"mark-{next(self._marks)}"
        return Process(("sh", "-c", f"echo > {mark}; exec sleep 1000")), mark.exists

    def clear(self) -> None:
        """Remove every container; nothing may be left of them."""

        async def remove_all() -> None:
            runtime = self.open()
            for status in await runtime.containers():
                await runtime.remove(status.id)
            await runtime.close()

        asyncio.run(remove_all())
        wait_until(lambda: not self.processes())

    def processes(self) -> list[int]:
        """The supervisors of this world, and what was forked of them and not executed."""
        return processes_of(str(self.root))


AGENT = """
import asyncio, os, resource, signal, sys
from msgspec.structs import replace
from pathlib import Path
from pinfold.adapters.process import ProcessRuntime
from pinfold.core.pod.workload import Process
from tests.scenes.log_texts import text_of
from tests.scenes.runtime_contract import a_spec, next_exit, started
async def main():
    runtime = ProcessRuntime(Path(sys.argv[1]), patience=10)
    {}
    await runtime.close()
asyncio.run(main())
"""


def a_process_world(tmp_path: Path) -> Iterator[ProcessWorld]:
    """A fixture: a world, of which nothing is left at the end."""
    world = ProcessWorld(tmp_path)
    yield world
    world.clear()


def agent(world: ProcessWorld, *script: str, under: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start an agent of its own process, which does the ``script`` with its ``runtime``."""
    return subprocess.Popen(
        [*under, sys.executable, "-c", AGENT.format("\n    ".join(script)), str(world.root)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(world: ProcessWorld, *script: str, under: Sequence[str] = ()) -> str:
    """What such an agent prints until it ends."""
    with agent(world, *script, under=under) as process:
        text, _ = process.communicate(timeout=30 * PATIENCE)
    assert process.returncode == 0
    return text


def processes_of(argument: str) -> list[int]:
    """The processes that have a text in their command lines."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if argument.encode() in line and int(entry) != os.getpid():
                found.append(int(entry))
    return found


def process_state(pid: int) -> str:
    """The kernel's letter for what a process does, such as ``T`` (stopped); "" when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return process_state(pid) not in ("", "Z", "X")


@contextlib.contextmanager
def no_files() -> Iterator[None]:
    """No more files can be open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

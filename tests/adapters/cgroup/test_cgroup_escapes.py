"""Processes that leave their container's cgroup, on this machine's kernel."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from pinfold.adapters.cgroup import escapes, open_cgroups
from pinfold.linux.processes import began
from pinfold.ports.cgroups import ObservedCgroups, Placement
from pinfold.ports.errors import ContainerKey
from tests.scenes.cgroup_kernel import Kernel, a_kernel, only_cpusets
from tests.scenes.cgroups_contract import (
    FORKER,
)
from tests.scenes.waiting import wait_until

kernel = pytest.fixture(a_kernel)
cpuset_only = pytest.fixture(only_cpusets)

# Tests of this machine's other processes have other pods.
SHARED = ContainerKey(f"uid-shared-{os.getpid()}", "main")
OWNER = ContainerKey(f"uid-owner-{os.getpid()}", "main")

ESCAPE = """
import os, signal, sys
how, *files = sys.argv[1:]
def escape():
    for file in files:
        open(file, "w").write("0")
def tell():
    print(os.getpid(), flush=True)
    signal.pause()
if how == "later":
    signal.signal(signal.SIGUSR1, lambda *_: escape())
if os.fork() == 0:
    if how == "later":
        while True:
            tell()
    if how == "orphan":
        os.setsid()
        if os.fork():
            os._exit(0)
    escape()
    tell()
if how == "orphan":
    os.wait()
signal.pause()
"""


class Families:
    """Starts processes one of whose children leaves; ends them all."""

    def __init__(self, kernel: Kernel, stack: ExitStack) -> None:
        self._kernel = kernel
        self._stack = stack

    @property
    def outside(self) -> list[str]:
        """The files of the cgroups above the tree, in every hierarchy."""
        return [str(tree.parent / "cgroup.procs") for tree in self._kernel.trees]

    def start(self, key: ContainerKey, *command: str) -> subprocess.Popen[str]:
        """A main process, held until it is told to go on; and what a container's knows."""
        env = {**os.environ, "PINFOLD_POD_UID": key.pod_uid, "PINFOLD_CONTAINER": key.name}
        gate = ["sh", "-c", 'read word; exec "$@"', "sh", *command]
        child = subprocess.Popen(
            gate,
            env=env,
            text=True,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._stack.callback(self._end, child)
        return child

    async def escape(self, key: ContainerKey, how: str, *files: str) -> tuple[int, int]:
        """Enter a container, then have a child leave; main process and child."""
        command = (sys.executable, "-S", "-c", ESCAPE, how, *(files or self.outside))
        child = self.start(key, *command)
        await self._kernel.cgroups.enter(key, child.pid)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        stray = int(child.stdout.readline())
        self._stack.callback(_kill, stray)
        return child.pid, stray

    def _end(self, child: subprocess.Popen[str]) -> None:
        _kill(-child.pid)
        child.communicate()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def families(kernel: Kernel) -> Iterator[Families]:
    with ExitStack() as stack:
        yield Families(kernel, stack)


def run(kernel: Kernel, scenario: Callable[[Families], Awaitable[None]]) -> None:
    async def whole(started: Families) -> None:
        await kernel.cgroups.open(kernel.cpus)
        await kernel.cgroups.place(SHARED, Placement())
        await kernel.cgroups.place(OWNER, Placement(cpus=kernel.cpus))
        await scenario(started)

    with families(kernel) as started:
        asyncio.run(whole(started))


def strays(observed: ObservedCgroups) -> dict[ContainerKey, set[int]]:
    return {
        key: {stray.pid for stray in one.strays}
        for key, one in observed.containers.items()
        if one.strays
    }


def place_of(kernel: Kernel, pid: int) -> list[str]:
    """The cgroups of a process in the tree."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return [line for line in lines if kernel.name in line]


def folders_of(kernel: Kernel, pid: int) -> list[Path]:
    files = kernel.files("cgroup.procs")
    return [file.parent for file in files if str(pid) in file.read_text().split()]


@pytest.mark.parametrize("key", [SHARED, OWNER])
@pytest.mark.parametrize("how", ["now", "orphan"])
@pytest.mark.parametrize("which", ["kernel", "cpuset_only"])
def test_who_leaves_is_found_and_brought_back(
    key: ContainerKey, how: str, which: str, request: pytest.FixtureRequest
) -> None:
    kernel: Kernel = request.getfixturevalue(which)

    async def scenario(started: Families) -> None:
        cgroups = kernel.cgroups
        main, stray = await started.escape(key, how)
        assert not place_of(kernel, stray)
        assert strays(await cgroups.observe()) == {key: {stray}}
        await cgroups.enter(key, stray)
        assert place_of(kernel, stray) == place_of(kernel, main)
        assert strays(await cgroups.observe()) == {}

    run(kernel, scenario)


@pytest.mark.parametrize("how", ["now", "orphan"])
@pytest.mark.parametrize("which", ["kernel", "cpuset_only"])
def test_who_has_left_is_ended_with_its_container(
    how: str, which: str, request: pytest.FixtureRequest
) -> None:
    """Nobody has looked since it left."""
    kernel: Kernel = request.getfixturevalue(which)

    async def scenario(started: Families) -> None:
        main, stray = await started.escape(SHARED, how)
        await kernel.cgroups.kill(SHARED)
        assert not kernel.alive(main)
        assert not kernel.alive(stray)
        await kernel.cgroups.remove(SHARED)
        assert strays(await kernel.cgroups.observe()) == {}

    run(kernel, scenario)


def test_who_was_seen_inside_is_found_without_any_relative(kernel: Kernel) -> None:
    """It needs no environment; its parent may be gone."""

    async def scenario(started: Families) -> None:
        cgroups = kernel.cgroups
        main, child = await started.escape(OWNER, "later")
        assert strays(await cgroups.observe()) == {}
        os.kill(child, signal.SIGUSR1)
        wait_until(lambda: not place_of(kernel, child))
        os.kill(main, signal.SIGKILL)
        wait_until(lambda: not kernel.alive(main))
        assert strays(await cgroups.observe()) == {OWNER: {child}}
        await cgroups.kill(OWNER)
        assert not kernel.alive(child)

    run(kernel, scenario)


def test_who_moves_into_another_container_is_a_stray_of_its_own(kernel: Kernel) -> None:
    async def scenario(started: Families) -> None:
        cgroups = kernel.cgroups
        host, _ = await started.escape(OWNER, "later")
        inside = [
            str(file)
            for file in kernel.files("cgroup.procs")
            if str(host) in file.read_text().split()
        ]
        main, child = await started.escape(SHARED, "later", *inside)
        assert strays(await cgroups.observe()) == {}
        os.kill(child, signal.SIGUSR1)
        wait_until(lambda: place_of(kernel, child) == place_of(kernel, host))
        assert strays(await cgroups.observe()) == {SHARED: {child}}
        await cgroups.enter(SHARED, child)
        assert place_of(kernel, child) == place_of(kernel, main)
        assert strays(await cgroups.observe()) == {}

    run(kernel, scenario)


def test_a_container_in_a_container_is_none_of_its(kernel: Kernel) -> None:
    """``pinfold run`` in a pod: its process is handed over, and belongs to the new pod."""

    async def scenario(started: Families) -> None:
        cgroups = kernel.cgroups
        main, child = await started.escape(SHARED, "later")
        await cgroups.observe()
        await cgroups.enter(OWNER, child)
        assert strays(await cgroups.observe()) == {}
        await cgroups.kill(SHARED)
        assert not kernel.alive(main)
        assert kernel.alive(child)

    run(kernel, scenario)


def test_what_a_container_makes_below_is_inside(kernel: Kernel) -> None:
    async def scenario(started: Families) -> None:
        host, child = await started.escape(OWNER, "later")
        for folder in folders_of(kernel, host):
            inner = folder / "inner"
            inner.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (inner / name).exists():
                    (inner / name).write_text((folder / name).read_text())
            (inner / "cgroup.procs").write_text(str(child))
        assert strays(await kernel.cgroups.observe()) == {}

    run(kernel, scenario)


DAEMON = "import os, subprocess as s, sys; print(s.Popen(sys.argv[1:]).pid, flush=True); os.wait()"


def test_strangers_are_left_alone(kernel: Kernel) -> None:
    """Also one whom a daemon has started with a container's environment, as ``at`` does."""
    marks = (f"PINFOLD_POD_UID={SHARED.pod_uid}", f"PINFOLD_CONTAINER={SHARED.name}")
    daemon = ("env", "-i", sys.executable, "-S", "-c", DAEMON, "env", *marks, "sleep", "1000")

    async def scenario(started: Families, job: int) -> None:
        cgroups = kernel.cgroups
        main, stray = await started.escape(SHARED, "now")
        assert strays(await cgroups.observe()) == {SHARED: {stray}}
        await cgroups.kill(SHARED)
        assert not kernel.alive(main)
        assert kernel.alive(job)

    with subprocess.Popen(daemon, text=True, stdout=subprocess.PIPE) as atd:
        assert atd.stdout is not None
        job = int(atd.stdout.readline())
        try:
            run(kernel, lambda started: scenario(started, job))
        finally:
            _kill(job)


def test_who_left_while_no_agent_was_there_is_ended_by_the_next(kernel: Kernel) -> None:
    async def scenario(started: Families) -> None:
        main, stray = await started.escape(SHARED, "orphan")
        os.kill(main, signal.SIGKILL)
        wait_until(lambda: not kernel.alive(main))
        again = open_cgroups(name=kernel.name)
        await again.open(kernel.cpus)
        assert strays(await again.observe()) == {}
        await again.kill(SHARED)
        assert not kernel.alive(stray)

    run(kernel, scenario)


def test_the_orphans_of_another_agent_are_its_own(kernel: Kernel) -> None:
    """Pods of the same name have the same uid there."""

    async def scenario(started: Families) -> None:
        other = kernel.another()
        await other.open(kernel.cpus)
        await other.place(SHARED, Placement())
        _, stray = await started.escape(SHARED, "orphan")
        assert strays(await kernel.cgroups.observe()) == {SHARED: {stray}}
        _, orphan = await started.escape(SHARED, "orphan")
        await other.enter(SHARED, orphan)
        assert strays(await kernel.cgroups.observe()) == {SHARED: {stray}}
        await kernel.cgroups.kill(SHARED)
        assert not kernel.alive(stray)
        assert kernel.alive(orphan)

    run(kernel, scenario)


def test_who_forks_outside_is_ended_to_the_last(kernel: Kernel) -> None:
    async def scenario(started: Families) -> None:
        main = started.start(SHARED, *FORKER)
        await kernel.cgroups.enter(SHARED, main.pid)
        for file in started.outside:
            Path(file).write_text(str(main.pid))
        assert main.stdin is not None
        main.stdin.write("go\n")
        main.stdin.flush()
        wait_until(lambda: len(kernel.family(main.pid)) > 2, 60)
        await kernel.cgroups.kill(SHARED)
        wait_until(lambda: not kernel.family(main.pid))

    run(kernel, scenario)


def test_a_pid_that_is_used_again_is_nobody_to_end(kernel: Kernel) -> None:
    pid = kernel.start()
    escapes._kill(pid, (began(pid) or 0) - 1)  # noqa: SLF001 - a pid that comes again cannot be had
    assert kernel.alive(pid)
    escapes._kill(pid, began(pid) or 0)  # noqa: SLF001 - the same
    wait_until(lambda: not kernel.alive(pid))


def test_an_orphan_is_found_whoever_is_looking_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was looked at before anybody knew of its container, which ended without an agent."""
    key = ContainerKey(f"uid-late-{os.getpid()}", "main")
    env = {**os.environ, "PINFOLD_POD_UID": key.pod_uid, "PINFOLD_CONTAINER": key.name}
    command = ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"]
    orphan = int(subprocess.run(command, env=env, capture_output=True, check=True).stdout)

    async def scenario() -> None:
        found = escapes.Escapes(lambda _text: None)
        assert await found.look({}) == {}
        monkeypatch.setattr(escapes, "_AT_ONCE", 1)
        other = asyncio.create_task(found.look({}))
        for _ in range(3):
            await asyncio.sleep(0)
        await found.end(key, wait=5)
        await other

    try:
        asyncio.run(scenario())
        assert began(orphan) is None
    finally:
        _kill(orphan)

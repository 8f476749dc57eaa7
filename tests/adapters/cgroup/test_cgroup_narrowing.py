"""Owners that lose CPUs on this machine's kernel: it is over when none of their tasks has them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from pinfold.adapters.cgroup import CgroupError
from pinfold.adapters.cgroup.runtime.runtime_cgroups import RuntimeCgroups
from pinfold.adapters.cgroup.v1 import CgroupsV1
from pinfold.adapters.cgroup.v2 import CgroupsV2
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Cgroups, Placement
from tests.scenes.cgroup_kernel import Kernel, a_kernel
from tests.scenes.contract_node import OWNER

kernel = pytest.fixture(a_kernel)

_THREADS: Final = {CgroupsV1: "tasks", CgroupsV2: "cgroup.threads"}

BEARING: Final = (
    sys.executable,
    "-S",
    "-c",
    """
import os, time
end = time.monotonic() + 120
while time.monotonic() < end:
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
""",
)
"""Always has a child that is being born, and never more than one: pids are everybody's."""

OBSERVER: Final = """
import os, sys
for line in sys.stdin:
    session, cpu = line.split()
    seen, found = 0, []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, _, _, of = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[:4]
            status = open(f"/proc/{pid}/status").read()
        except OSError:
            continue
        if of != session or state in "ZX":
            continue
        seen += 1
        for part in status.split("Cpus_allowed_list:")[1].split()[0].split(","):
            first, _, last = part.partition("-")
            if int(first) <= int(cpu) <= int(last or first):
                found.append(pid)
    print(seen, *found, flush=True)
"""
"""Who of a session may run on a CPU, by what proc says: how many there are, and who."""


@contextmanager
def observer() -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-I", "-S", "-c", OBSERVER)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def ask(child: subprocess.Popen[str], session: int, cpu: int) -> tuple[int, list[str]]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{session} {cpu}\n")
    child.stdin.flush()
    seen, *found = child.stdout.readline().split()
    return int(seen), found


@pytest.mark.parametrize("mixed", [False, True])
def test_an_owner_that_forks_without_pause_is_off_the_cpus_that_it_lost(
    kernel: Kernel, mixed: bool
) -> None:
    async def scenario(looks: subprocess.Popen[str]) -> None:
        cgroups = kernel.cgroups
        lost, kept = CPUSet([min(kernel.cpus)]), kernel.cpus - CPUSet([min(kernel.cpus)])
        await cgroups.open(kept)
        await cgroups.place(OWNER, Placement(cpus=kernel.cpus, mixed=mixed))
        pid = kernel.start(*BEARING)
        await cgroups.enter(OWNER, pid)
        for _ in range(6):
            await cgroups.place(OWNER, Placement(cpus=kept, mixed=mixed))
            for _ in range(2):
                seen, found = ask(looks, pid, min(lost))
                assert seen, "it has ended"
                assert found == []
            await cgroups.place(OWNER, Placement(cpus=kernel.cpus, mixed=mixed))
            assert ask(looks, pid, min(lost))[1], "who looks sees nobody at all"
        await cgroups.kill(OWNER)

    with observer() as looks:
        asyncio.run(scenario(looks))


@contextmanager
def a_late_child(kernel: Kernel, threads: Path, folder: Path) -> Iterator[int]:
    """A task that the kernel lists in a cgroup, and that may run anywhere.

    That is what a child has been that was born in the middle of a narrowing, on kernels where it
    takes its parent's mask too early; here the list has somebody else in it.
    """
    stranger = kernel.start()
    os.sched_setaffinity(stranger, kernel.cpus)
    listed = folder / "threads"
    listed.write_text(f"{stranger}\n")
    if subprocess.run(["mount", "--bind", listed, threads], check=False).returncode:
        pytest.skip("takes the right to mount")
    try:
        yield stranger
    finally:
        subprocess.run(["umount", threads], check=True)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_narrowing_is_not_over_while_a_task_may_run_elsewhere(
    kernel: Kernel, tmp_path: Path, mixed: bool
) -> None:
    """Nor is the next try, which has nothing to write any more."""

    async def scenario() -> None:
        cgroups = kernel.cgroups
        kept = kernel.cpus - CPUSet([min(kernel.cpus)])
        narrow = Placement(cpus=kept, mixed=mixed)
        await cgroups.open(kept)
        await cgroups.place(OWNER, Placement(cpus=kernel.cpus, mixed=mixed))
        await cgroups.enter(OWNER, kernel.start())
        await _check_refused(cgroups, kernel, tmp_path, narrow)
        await cgroups.place(OWNER, narrow)

    asyncio.run(scenario())


@pytest.mark.parametrize("mixed", [False, True])
def test_nor_is_that_of_a_container_that_a_runtime_has_made(
    kernel: Kernel, tmp_path: Path, mixed: bool
) -> None:
    async def scenario() -> None:
        kept = kernel.cpus - CPUSet([min(kernel.cpus)])
        narrow = Placement(cpus=kept, mixed=mixed)
        await kernel.cgroups.open(kernel.cpus)
        await kernel.cgroups.place(OWNER, Placement(cpus=kernel.cpus))
        pid = kernel.start()
        await kernel.cgroups.enter(OWNER, pid)
        found = RuntimeCgroups()
        await found.open(kept)
        await found.place(OWNER, Placement(cpus=kernel.cpus, mixed=mixed))
        await found.enter(OWNER, pid)
        await _check_refused(found, kernel, tmp_path, narrow)
        await found.place(OWNER, narrow)
        await found.close(remove=False)

    asyncio.run(scenario())


async def _check_refused(cgroups: Cgroups, kernel: Kernel, folder: Path, narrow: Placement) -> None:
    (threads,) = (kernel.tree / "exclusive").glob(f"*/*/{_THREADS[type(kernel.cgroups)]}")
    with a_late_child(kernel, threads, folder) as pid:
        for _ in range(2):
            with pytest.raises(CgroupError, match=f"thread {pid} may still run on"):
                await cgroups.place(OWNER, narrow)

"""Scheduling domains of cgroup v1, on this machine's kernel, whose root cpuset is put back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.cgroup import DomainSettings, open_cgroups
from pinfold.adapters.cgroup.hierarchy import find_hierarchies
from pinfold.adapters.cgroup.v1 import CgroupsV1
from pinfold.adapters.cgroup.v1_domains import FLAG, RELAX
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.processes import stat_of
from pinfold.ports.cgroups import Partition, Placement
from pinfold.ports.errors import ContainerKey
from tests.scenes.agent_process import IDLE, AgentProcess, manifest
from tests.scenes.waiting import wait_until

OWNER = ContainerKey("uid-domains", "main")
OWN = CPUSet([1])


class Others:
    """The cpusets of everybody else, whose flags are put back at the end."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.name = f"pinfold-test-{secrets.token_hex(4)}"
        self._before = {top / FLAG: (top / FLAG).read_text()}

    def off(self) -> None:
        """No other cpuset is a domain, also none that has come meanwhile."""
        for flag in self.top.glob(f"*/**/{FLAG}"):
            if self.top / self.name not in flag.parents:
                with contextlib.suppress(OSError):
                    self._before.setdefault(flag, flag.read_text())
                    flag.write_text("0")

    def back(self) -> None:
        for flag, text in self._before.items():
            with contextlib.suppress(FileNotFoundError):
                flag.write_text(text)


@pytest.fixture
def others() -> Iterator[Others]:
    found = find_hierarchies()
    if os.geteuid() != 0 or found.version != 1 or not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs root, cgroup v1 and CPUs 0 and 1")
    scene = Others(found.v1["cpuset"].point)
    try:
        yield scene
    finally:
        scene.back()


@pytest.fixture
def busy(others: Others) -> Iterator[list[int]]:
    """Processes of the root cpuset that have begun on CPU 0, and may use CPU 1."""
    command = [sys.executable, "-c", "while True: pass"]
    children = [subprocess.Popen(command) for _ in range(6)]
    pids = [child.pid for child in children]
    try:
        for pid in pids:
            (others.top / "tasks").write_text(str(pid))
        yield pids
    finally:
        for child in children:
            child.kill()
            child.wait()


def gather(busy: list[int]) -> None:
    """All of them to CPU 0, from which the kernel may balance them."""
    for pid in busy:
        os.sched_setaffinity(pid, {0})
    for pid in busy:
        os.sched_setaffinity(pid, {0, 1})


def spread(busy: list[int]) -> bool:
    return any((stat := stat_of(pid)) is not None and stat.processor == 1 for pid in busy)


def is_balanced(busy: list[int]) -> None:
    gather(busy)
    wait_until(lambda: spread(busy))


def is_not_balanced(busy: list[int], others: Others) -> None:
    def stays() -> bool:
        others.off()
        gather(busy)
        for _ in range(20):
            if spread(busy):
                return False
            time.sleep(0.05)  # nothing is to happen, and nobody tells of that
        return True

    # Again where somebody else has made a cpuset meanwhile.
    wait_until(stays)


def settings(folder: Path, *, has_root: bool = True) -> DomainSettings:
    return DomainSettings(folder / "state" / "domains.json", has_root=has_root)


def opened(name: str, settings: DomainSettings) -> CgroupsV1:
    cgroups = open_cgroups(name=name, domains=settings)
    assert isinstance(cgroups, CgroupsV1)
    return cgroups


def flag(folder: Path) -> bool:
    return (folder / FLAG).read_text().strip() == "1"


ISOLATED = Placement(cpus=OWN, partition=Partition.ISOLATED)


async def says(cgroups: CgroupsV1, others: Others) -> str:
    others.off()
    return (await cgroups.observe()).containers[OWNER].partition or ""


def test_an_owner_has_no_domain_while_it_asks_for_it(
    others: Others, busy: list[int], tmp_path: Path
) -> None:
    cgroups = opened(others.name, settings(tmp_path))

    async def wish(partition: Partition) -> str:
        assert await cgroups.place(OWNER, replace(ISOLATED, partition=partition)) == ""
        return await says(cgroups, others)

    async def scenario() -> None:
        others.off()
        is_balanced(busy)
        await cgroups.open(CPUSet([0]))
        # The rest of the machine goes on balancing, without the root's flag.
        assert not flag(others.top)
        is_balanced(busy)
        assert await wish(Partition.ISOLATED) == "isolated"
        is_not_balanced(busy, others)
        assert await wish(Partition.MEMBER) == "member"
        is_balanced(busy)
        assert await wish(Partition.ROOT) == "root"
        is_not_balanced(busy, others)
        await cgroups.remove(OWNER)
        is_balanced(busy)

    try:
        asyncio.run(scenario())
    finally:
        asyncio.run(cgroups.close(remove=True))
    assert flag(others.top)


def test_whoever_else_balances_is_named(others: Others, tmp_path: Path) -> None:
    cgroups, foreign = opened(others.name, settings(tmp_path)), others.top / f"{others.name}-other"

    async def scenario() -> None:
        others.off()
        await cgroups.open(CPUSet([0]))
        await cgroups.place(OWNER, ISOLATED)
        others.off()
        foreign.mkdir()
        (foreign / "cpuset.cpus").write_text("0-1")
        told = (await cgroups.observe()).containers[OWNER].partition or ""
        assert told.startswith("isolated invalid (")
        assert str(foreign) in told
        assert await says(cgroups, others) == "isolated"
        await cgroups.remove(OWNER)

    try:
        asyncio.run(scenario())
    finally:
        foreign.rmdir()
        asyncio.run(cgroups.close(remove=True))


def test_an_agent_that_was_killed_is_followed_by_another(others: Others, tmp_path: Path) -> None:
    last = opened(others.name, settings(tmp_path, has_root=False))

    async def scenario() -> None:
        others.off()
        first, second = (opened(others.name, settings(tmp_path)) for _ in range(2))
        await first.open(CPUSet([0]))
        await first.place(OWNER, ISOLATED)
        # Killed: the next one goes on.
        await second.open(CPUSet([0]))
        await second.place(OWNER, ISOLATED)
        assert await says(second, others) == "isolated"
        await second.remove(OWNER)
        # Killed again: one that is not to have the flag gives it back.
        await last.open(CPUSet([0]))
        assert flag(others.top)
        assert not settings(tmp_path).record.exists()

    try:
        asyncio.run(scenario())
    finally:
        asyncio.run(last.close(remove=True))


def test_the_flag_comes_back_at_the_end(others: Others, tmp_path: Path) -> None:
    cgroups = opened(others.name, replace(settings(tmp_path), relax_level=1))

    async def scenario() -> None:
        await cgroups.open(CPUSet([0]))
        assert not flag(others.top)
        wish = Placement(cpus=OWN, partition=Partition.ROOT)
        note = await cgroups.place(OWNER, wish)
        folder = cgroups.folder_of(OWNER, "cpuset")
        owners = (
            folder or others.top / others.name / "exclusive" / f"pod-{OWNER.pod_uid}" / OWNER.name
        )
        assert (owners / RELAX).read_text().strip() == "1" or RELAX in note
        await cgroups.remove(OWNER)
        # One that was refused the tree has taken nothing, and gives nothing back.
        await opened(others.name, settings(tmp_path)).close(remove=False)
        assert not flag(others.top)

    try:
        asyncio.run(scenario())
    finally:
        asyncio.run(cgroups.close(remove=True))
    assert flag(others.top)


def test_without_the_setting_nothing_is_touched(others: Others, tmp_path: Path) -> None:
    cgroups = opened(others.name, settings(tmp_path, has_root=False))

    async def scenario() -> str:
        await cgroups.open(CPUSet([0]))
        assert flag(others.top)
        note = await cgroups.place(OWNER, Placement(cpus=OWN, partition=Partition.ISOLATED))
        assert (await cgroups.observe()).containers[OWNER].partition is None
        await cgroups.remove(OWNER)
        return note

    try:
        assert "rootLoadBalance" in asyncio.run(scenario())
    finally:
        asyncio.run(cgroups.close(remove=True))


def test_an_agent_has_the_flag_while_it_runs(others: Others, tmp_path: Path) -> None:
    node = AgentProcess(tmp_path)
    node.name = others.name
    node.config["pinfold"] |= {
        "cgroupName": node.name,
        "partition": "isolated",
        "rootLoadBalance": False,
    }
    node.config["cpuManagerReconcilePeriod"] = "1s"
    try:
        node.start()
        assert not flag(others.top)
        pod = manifest("feed", ("main", IDLE, "1"))
        pod["metadata"]["annotations"] = {"load-balance.pinfold.dev/pod": "false"}
        node.apply(pod)
        node.pids("feed")

        def found() -> str:
            others.off()
            told = node.client.get("/v1/status")["agent"].get("schedulingDomains")
            return "" if told is None else str(told["containers"][0]["found"])

        wait_until(lambda: found() == "isolated")
        node.kill()
        assert not flag(others.top)
        node.start()
        wait_until(lambda: found() == "isolated")
        node.stop()
        assert flag(others.top)
        # Killed, and the next one is not to have it.
        node.start()
        node.kill()
        del node.config["pinfold"]["rootLoadBalance"]
        node.start()
        assert flag(others.top)
    finally:
        node.clean_up()

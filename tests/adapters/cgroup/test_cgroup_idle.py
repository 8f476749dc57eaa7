"""The idle side on this machine's kernel, whichever version of cgroups it has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pinfold.adapters.cgroup import CgroupError, open_cgroups
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.processes import parse_cgroups
from pinfold.ports.cgroups import Limits, Partition, Placement
from tests.scenes.cgroup_kernel import Kernel, a_kernel, only_cpusets, only_v2
from tests.scenes.cgroups_contract import FORKER, headless_process
from tests.scenes.contract_node import BORROWER, OWNER, SHARED
from tests.scenes.waiting import PATIENCE, wait_until

kernel = pytest.fixture(a_kernel)
cpuset_only = pytest.fixture(only_cpusets)
v2_kernel = pytest.fixture(only_v2)


def ranks(kernel: Kernel) -> dict[str, str]:
    """``cpu.idle`` of every cgroup of the tree that has it, by its path below the tree."""
    return {
        str(file.parent.relative_to(tree)): file.read_text().strip()
        for tree in kernel.trees
        for file in tree.rglob("cpu.idle")
    }


def rank_of(kernel: Kernel, pid: int) -> str:
    """The group below which a process runs only when nobody else wants to; "" for none."""
    own = parse_cgroups(Path(f"/proc/{pid}/cgroup").read_text())
    path = Path(own.get("cpu", own.get("", "/")))
    for above in (path, *path.parents):
        for tree in kernel.trees:
            file = tree.parent / str(above).lstrip("/") / "cpu.idle"
            if kernel.name in above.parts and file.exists() and file.read_text() == "1\n":
                return above.name
    return ""


async def lend_to(kernel: Kernel, pid: int) -> CPUSet:
    """A borrower, and an owner of the last CPU who lends it; that CPU."""
    own = CPUSet([max(kernel.cpus)])
    cgroups = kernel.cgroups
    await cgroups.open(kernel.cpus - own)
    await cgroups.place(OWNER, Placement(cpus=own, limits=Limits(cpu_shares=1024)))
    await cgroups.enter(OWNER, kernel.start())
    await cgroups.place(BORROWER, Placement(idle=True, limits=Limits(cpu_shares=2)))
    await cgroups.enter(BORROWER, pid)
    await cgroups.lend(own)
    return own


def test_only_the_idle_side_is_ranked_below_its_siblings(kernel: Kernel) -> None:
    async def scenario() -> None:
        pid = kernel.start()
        own = await lend_to(kernel, pid)
        assert {path for path, rank in ranks(kernel).items() if rank == "1"} == {"idle"}
        assert rank_of(kernel, pid) == "idle"
        assert kernel.allowed(pid) == kernel.cpus
        # Weights are written below it, and once more, while it is idle.
        await kernel.cgroups.place(BORROWER, Placement(idle=True, limits=Limits(cpu_shares=128)))
        # Off what is lent, it is everybody's equal again.
        await kernel.cgroups.place(BORROWER, Placement(limits=Limits(cpu_shares=2)))
        assert rank_of(kernel, pid) == ""
        assert kernel.allowed(pid) == kernel.cpus - own
        assert set(ranks(kernel).values()) == {"1", "0"}, "what is lent is so for the next one"
        await kernel.cgroups.lend(CPUSet())
        assert set(ranks(kernel).values()) == {"0"}
        assert kernel.files("../idle/cpuset.cpus") == []

    asyncio.run(scenario())


def test_who_forks_is_off_what_is_returned(kernel: Kernel) -> None:
    """Children being born included, whichever side they are brought to."""

    async def scenario() -> None:
        forkers = [kernel.start(*FORKER) for _ in range(2)]
        wait_until(lambda: all(len(kernel.family(pid)) > 1 for pid in forkers), 60)
        own = await lend_to(kernel, forkers[0])
        await kernel.cgroups.enter(BORROWER, forkers[1])
        for _ in range(8):
            await kernel.cgroups.lend(CPUSet())
            for pid in kernel.family(*forkers):
                allowed = kernel.allowed_if_alive(pid)
                assert allowed is None or allowed.isdisjoint(own)
            await kernel.cgroups.lend(own)
        await kernel.cgroups.place(BORROWER, Placement())
        for pid in kernel.family(*forkers):
            allowed = kernel.allowed_if_alive(pid)
            assert allowed is None or allowed.isdisjoint(own)
        await kernel.cgroups.kill(BORROWER)
        wait_until(lambda: not kernel.family(*forkers))

    asyncio.run(scenario())


def test_a_thread_without_its_first_is_off_what_is_returned(kernel: Kernel) -> None:
    async def scenario() -> None:
        own = await lend_to(kernel, kernel.start())
        # Where the borrower is, and (v1) the cpuset that has no folder for it.
        homes = [kernel.tree / "idle", *kernel.files("main")]
        places = [
            home / "cgroup.procs"
            for home in homes
            if home.parent.name != "pod-uid-owner" and not list(home.glob("pod-*"))
        ]
        with headless_process(*places) as pid:
            tids = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
            assert any(kernel.allowed_if_alive(tid) == kernel.cpus for tid in tids)
            await kernel.cgroups.lend(CPUSet())
            for tid in tids:
                allowed = kernel.allowed_if_alive(tid)
                assert allowed is None or allowed.isdisjoint(own)

    asyncio.run(scenario())


def test_what_others_write_is_seen_and_made_right(kernel: Kernel) -> None:
    async def scenario() -> None:
        pid = kernel.start()
        own = await lend_to(kernel, pid)
        cgroups = kernel.cgroups
        (rank,) = (one for one in kernel.files("cpu.idle") if one.parent.name == "idle")
        rank.write_text("0")
        seen = (await cgroups.observe()).idle
        assert seen is not None
        assert not seen.is_idle
        await cgroups.lend(own)
        assert rank.read_text() == "1\n"
        # Somebody takes a borrower out of the group that is idle, and (v1) out of no other.
        for file in rank.parent.parent.rglob("cgroup.procs"):
            if file.parent.name == OWNER.name and OWNER.pod_uid in str(file):
                file.write_text(str(pid))
        assert rank_of(kernel, pid) == ""
        found = (await cgroups.observe()).containers[BORROWER]
        assert found.strays or not found.idle
        await cgroups.place(BORROWER, Placement(idle=True))
        await cgroups.enter(BORROWER, pid)
        assert rank_of(kernel, pid) == "idle"
        assert (await cgroups.observe()).containers[BORROWER].idle

    asyncio.run(scenario())


def test_another_agent_takes_the_idle_side_over_and_lends_nothing(kernel: Kernel) -> None:
    async def scenario() -> None:
        pid = kernel.start()
        own = await lend_to(kernel, pid)
        await kernel.cgroups.cap_idle(0.5)
        rest = kernel.cpus - own
        again = open_cgroups(name=kernel.name)
        # As after kill -9: nobody has let go of anything, and the pool comes later.
        await again.open(CPUSet())
        seen = (await again.observe()).idle
        assert seen is not None
        assert (seen.effective, seen.is_idle, seen.quota) == (rest, True, None)
        assert kernel.allowed(pid) == rest
        await again.open(rest)
        assert (await again.observe()).containers[BORROWER].idle
        await again.kill(BORROWER)
        await again.remove(BORROWER)
        assert (await again.observe()).idle is None

    asyncio.run(scenario())


def test_nothing_is_left_behind(kernel: Kernel) -> None:
    async def scenario() -> None:
        await lend_to(kernel, kernel.start())
        for key in (OWNER, BORROWER):
            await kernel.cgroups.kill(key)
            await kernel.cgroups.remove(key)
        await kernel.cgroups.close(remove=True)
        assert not any(tree.exists() for tree in kernel.trees)

    asyncio.run(scenario())


def test_without_the_cpu_controller_there_is_none(cpuset_only: Kernel) -> None:
    async def scenario() -> None:
        cgroups = cpuset_only.cgroups
        await cgroups.open(cpuset_only.cpus)
        assert "cpu controller" in cgroups.no_idle_side
        with pytest.raises(CgroupError, match="cpu controller"):
            await cgroups.place(SHARED, Placement(idle=True))

    asyncio.run(scenario())


@pytest.mark.parametrize("partition", [Partition.ROOT, Partition.ISOLATED])
def test_what_is_a_partition_cannot_be_lent(v2_kernel: Kernel, partition: Partition) -> None:
    async def scenario() -> None:
        cgroups, pid = v2_kernel.cgroups, v2_kernel.start()
        own = CPUSet([max(v2_kernel.cpus)])
        rest = v2_kernel.cpus - own
        await cgroups.open(rest)
        granted = await cgroups.place(OWNER, Placement(cpus=own, partition=partition))
        if granted:
            pytest.skip(granted)
        await cgroups.place(BORROWER, Placement(idle=True))
        await cgroups.enter(BORROWER, pid)
        with pytest.raises(CgroupError, match="cannot be lent"):
            await cgroups.lend(own)
        assert v2_kernel.allowed(pid) == rest
        seen = (await cgroups.observe()).containers[OWNER]
        assert (seen.partition, seen.effective) == (partition.value, own)

    asyncio.run(scenario())


class Told:
    """Hears what others have changed, beside an owner, whose CPUs somebody changes to be heard."""

    def __init__(self, kernel: Kernel, own: CPUSet) -> None:
        self._kernel, self._own = kernel, own
        self._keys: asyncio.Queue[object] = asyncio.Queue()
        self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for key in self._kernel.cgroups.changes():
            self._keys.put_nowait(key)

    async def next(self) -> object:
        """What is told next."""
        async with asyncio.timeout(20 * PATIENCE):
            return await self._keys.get()

    async def until_now(self) -> list[object]:
        """What is told of all that was written before: it is told in this order."""
        file = self._kernel.tree / "exclusive/pod-uid-owner/main/cpuset.cpus"
        file.write_text(str(self._kernel.cpus))
        found = []
        while (key := await self.next()) != OWNER:
            found.append(key)
        await self._kernel.cgroups.place(OWNER, Placement(cpus=self._own))
        return found

    async def close(self) -> None:
        self._listener.cancel()
        await asyncio.gather(self._listener, return_exceptions=True)


async def hearing(kernel: Kernel, own: CPUSet) -> Told:
    """One that hears already."""
    await kernel.cgroups.place(OWNER, Placement(cpus=own))
    told = Told(kernel, own)
    await asyncio.sleep(0)  # its watches are made in its first turn, which waits for nothing
    await told.until_now()
    return told


def test_another_rank_is_told_and_the_own_one_is_not(kernel: Kernel) -> None:
    async def scenario() -> None:
        cgroups = kernel.cgroups
        own = CPUSet([max(kernel.cpus)])
        await cgroups.open(kernel.cpus - own)
        told = await hearing(kernel, own)
        for _ in range(2):  # the idle side comes and goes
            await cgroups.lend(own)
            assert await told.until_now() == []
            (rank,) = (file for tree in kernel.trees for file in tree.glob("idle/cpu.idle"))
            rank.write_text("0")
            assert await told.next() is None
            await cgroups.set_shared(kernel.cpus - own)
            assert ranks(kernel)["idle"] == "1"
            await cgroups.lend(CPUSet())
            assert not rank.exists()
            # A write of ours to what is gone since may be told.
            assert set(await told.until_now()) <= {None}
        await told.close()

    asyncio.run(scenario())


def test_another_cap_is_told_and_the_own_one_is_not(kernel: Kernel) -> None:
    async def scenario() -> None:
        cgroups, own = kernel.cgroups, CPUSet([max(kernel.cpus)])
        await cgroups.open(kernel.cpus - own)
        await cgroups.lend(own)
        told = await hearing(kernel, own)
        ((file, uncapped),) = cgroups.undoing().uncapped.items()
        await cgroups.cap_idle(0.3333333)
        await cgroups.cap_idle(0.5)
        assert await told.until_now() == []
        (written,) = [one for one in cgroups.limits.written() if not one.pod_uid]
        assert written.folder == str(Path(file).parent)
        for name, text in written.files.items():
            assert (Path(file).with_name(name)).read_text().strip() == text
        Path(file).write_text(uncapped)
        assert await told.next() is None
        seen = (await cgroups.observe()).idle
        assert seen is not None
        assert seen.quota is None
        await cgroups.cap_idle(0.5)
        seen = (await cgroups.observe()).idle
        assert seen is not None
        assert seen.quota == 0.5
        await cgroups.cap_idle(None)
        assert [one for one in cgroups.limits.written() if not one.pod_uid] == []
        await told.close()

    asyncio.run(scenario())


def test_a_guardian_has_its_own_place_wherever_an_agent_is_limited(kernel: Kernel) -> None:
    asyncio.run(kernel.cgroups.open(kernel.cpus))
    homes = [Path(home).parent for home in kernel.cgroups.undoing().homes]
    for controller in ("freezer", "cpu", "memory"):
        places = [one for one in kernel.trees if f"/{controller}/" in str(one)]
        assert all(one in homes for one in places)
    assert homes

"""Others in our cgroups, CPUs that go, places that cannot be written: on this machine's kernel."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from pinfold.adapters.cgroup import CgroupError, open_cgroups
from pinfold.adapters.cgroup.v1 import CgroupsV1
from pinfold.adapters.cgroup.v2 import CgroupsV2
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey
from tests.scenes.cgroup_kernel import Kernel, a_cpu_switch, a_kernel, only_v2
from tests.scenes.contract_node import OWNER, SHARED
from tests.scenes.waiting import PATIENCE, wait_until

kernel = pytest.fixture(a_kernel)
unified = pytest.fixture(only_v2)
hotplug = pytest.fixture(a_cpu_switch)


def test_foreign_writes_and_foreign_groups_are_seen_and_survived(kernel: Kernel) -> None:
    async def scenario() -> None:
        cgroups, own = kernel.cgroups, CPUSet([max(kernel.cpus)])
        await cgroups.open(kernel.cpus - own)
        pid = kernel.start()
        await cgroups.place(OWNER, Placement(cpus=own))
        await cgroups.enter(OWNER, pid)
        folder = kernel.tree / "exclusive/pod-uid-owner/main"
        (folder / "cpuset.cpus").write_text(str(kernel.cpus))
        (folder / "foreign").mkdir()
        if isinstance(cgroups, CgroupsV1):
            # As containers do that manage their own cpusets; it blocks a naive shrinking.
            (folder / "foreign/cpuset.cpus").write_text(str(kernel.cpus))
        (folder.parent.parent / "not-ours").mkdir()
        seen = (await cgroups.observe()).containers
        assert seen[OWNER].effective == seen[OWNER].configured == kernel.cpus
        assert seen.keys() == {OWNER}
        await cgroups.place(OWNER, Placement(cpus=own))
        assert kernel.allowed(pid) == own
        await cgroups.kill(OWNER)
        await cgroups.remove(OWNER)
        assert not folder.exists()

    asyncio.run(scenario())


def test_a_process_that_was_moved_away_is_seen_and_brought_back(kernel: Kernel) -> None:
    if isinstance(kernel.cgroups, CgroupsV2):
        pytest.skip("cgroup v2 does not remember where a process was")

    async def scenario() -> None:
        cgroups, own = kernel.cgroups, CPUSet([max(kernel.cpus)])
        await cgroups.open(kernel.cpus - own)
        placements = {SHARED: Placement(), OWNER: Placement(cpus=own)}
        pids = {}
        for key, placement in placements.items():
            await cgroups.place(key, placement)
            pids[key] = kernel.start()
            await cgroups.enter(key, pids[key])
            Path("/sys/fs/cgroup/cpuset/cgroup.procs").write_text(str(pids[key]))
        seen = (await cgroups.observe()).containers
        assert {seen[key].effective for key in placements} == {kernel.cpus}
        for key, placement in placements.items():
            await cgroups.place(key, placement)
        seen = (await cgroups.observe()).containers
        assert seen[SHARED].effective == kernel.allowed(pids[SHARED]) == kernel.cpus - own
        assert seen[OWNER].effective == kernel.allowed(pids[OWNER]) == own

    asyncio.run(scenario())


def test_a_parent_that_somebody_has_narrowed_is_repaired(unified: Kernel) -> None:
    async def scenario() -> None:
        cgroups, own = unified.cgroups, CPUSet([max(unified.cpus)])
        await cgroups.open(unified.cpus - own)
        await cgroups.place(OWNER, Placement(cpus=own))
        exclusive = unified.tree / "exclusive"
        for folder in (exclusive, exclusive.parent):
            (folder / "cpuset.cpus").write_text("0")
            assert (await cgroups.observe()).containers[OWNER].effective != own
            await cgroups.place(OWNER, Placement(cpus=own))
            assert (await cgroups.observe()).containers[OWNER].effective == own

    asyncio.run(scenario())


def test_foreign_writes_are_told_and_own_ones_are_not(kernel: Kernel) -> None:
    async def scenario() -> None:
        cgroups, own = kernel.cgroups, CPUSet([max(kernel.cpus)])
        await cgroups.open(kernel.cpus - own)
        told: asyncio.Queue[ContainerKey | None] = asyncio.Queue()

        async def listen() -> None:
            async for key in cgroups.changes():
                told.put_nowait(key)

        listener = asyncio.create_task(listen())
        await asyncio.sleep(0)  # now it listens
        folder = kernel.tree / "exclusive/pod-uid-owner/main"
        pool = kernel.tree / "shared"

        async def foreign(place: Path, key: ContainerKey | None) -> None:
            """The kernel keeps the order: had an own write before it been told, that came first."""
            (place / "cpuset.cpus").write_text(str(kernel.cpus))
            assert await asyncio.wait_for(told.get(), 5 * PATIENCE) == key

        await cgroups.place(OWNER, Placement(cpus=own))
        await cgroups.place(SHARED, Placement(cpus=own))
        await cgroups.remove(SHARED)
        await foreign(pool, None)
        await cgroups.set_shared(CPUSet([min(kernel.cpus)]))
        await foreign(folder, OWNER)
        await cgroups.place(OWNER, Placement(cpus=own))
        await foreign(pool, None)
        await cgroups.set_shared(kernel.cpus - own)
        folder.rmdir()
        assert await asyncio.wait_for(told.get(), 5 * PATIENCE) == OWNER
        await cgroups.place(OWNER, Placement(cpus=own))
        await foreign(pool, None)
        assert told.empty()
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)

    asyncio.run(scenario())


def test_an_owner_keeps_what_is_left_when_a_cpu_goes_offline(kernel: Kernel, hotplug: Path) -> None:
    """And has all again when it is back; cgroup v1 leaves cpusets shrunk until then."""

    async def scenario() -> None:
        cgroups, gone = kernel.cgroups, CPUSet([max(kernel.cpus)])
        own = gone | CPUSet([sorted(kernel.cpus)[-2]])
        await cgroups.open(kernel.cpus - own)
        pid = kernel.start()
        await cgroups.place(OWNER, Placement(cpus=own))
        await cgroups.enter(OWNER, pid)
        hotplug.write_text("0")
        assert kernel.allowed(pid) == own - gone
        note = await cgroups.place(OWNER, Placement(cpus=own))
        assert f"CPUs {gone} are not in force" in note
        assert (await cgroups.observe()).containers[OWNER].effective == own - gone
        with pytest.raises(CgroupError, match="offline"):
            await cgroups.place(SHARED, Placement(cpus=gone))
        with pytest.raises(CgroupError, match="offline"):
            await cgroups.set_shared(kernel.cpus - own | gone)
        hotplug.write_text("1")
        await cgroups.set_shared(kernel.cpus - own)
        assert await cgroups.place(OWNER, Placement(cpus=own)) == ""
        assert (await cgroups.observe()).containers[OWNER].effective == own
        assert kernel.allowed(pid) == own

    asyncio.run(scenario())


def test_an_agent_steps_aside_in_the_cgroup_that_it_was_given(unified: Kernel) -> None:
    """A cgroup with processes cannot give controllers to its children."""
    given = Path(f"/sys/fs/cgroup/{unified.name}-given")
    given.mkdir()
    script = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from pinfold.adapters.cgroup import open_cgroups\n"
        "from pinfold.core.values.cpuset import CPUSet\n"
        "given = Path(sys.argv[1])\n"
        "(given / 'cgroup.procs').write_text(str(os.getpid()))\n"
        "async def main():\n"
        "    cgroups = open_cgroups(given.name)\n"
        "    await cgroups.open(CPUSet([0]))\n"
        "    print(Path('/proc/self/cgroup').read_text().strip())\n"
        "    print((given / 'pinfold/shared/cpuset.cpus.effective').read_text().strip())\n"
        "    await cgroups.close(remove=True)\n"
        "    print(Path('/proc/self/cgroup').read_text().strip())\n"
        "    print(sorted(path.name for path in given.iterdir() if path.is_dir()))\n"
        "asyncio.run(main())\n"
    )
    try:
        run = subprocess.run(
            [sys.executable, "-c", script, str(given)], capture_output=True, text=True, check=False
        )
        assert run.stdout.splitlines() == [
            f"0::/{given.name}/agent",
            "0",
            f"0::/{given.name}",
            "[]",
        ], run.stderr
    finally:
        wait_until(lambda: not (given / "cgroup.procs").read_text())
        given.rmdir()


def test_without_root_the_remedy_is_said(kernel: Kernel) -> None:
    script = (
        "import os\n"
        "from pinfold.adapters.cgroup import CgroupError, open_cgroups\n"
        "open_cgroups()\n"  # what Python loads late, it can read only as root here
        "os.setuid(65534)\n"
        "try:\n"
        f"    open_cgroups(name={kernel.name!r})\n"
        "except CgroupError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "no permission to make cgroups; run as root, or have the cgroup deleg" in run.stdout


@pytest.mark.parametrize("parent", ["/no/such/cgroup", "/../../tmp"])
def test_a_parent_that_cannot_be_is_refused(kernel: Kernel, parent: str) -> None:
    with pytest.raises(CgroupError, match=r"no such cgroup|no '\.\.'"):
        open_cgroups(parent, kernel.name)


def test_it_is_told_where_the_tree_is(kernel: Kernel) -> None:
    about = kernel.cgroups.describe()
    assert about.version == (1 if isinstance(kernel.cgroups, CgroupsV1) else 2)
    assert str(about.path).endswith(f"/{kernel.name}")
    assert "cpuset" in (about.controllers or ())

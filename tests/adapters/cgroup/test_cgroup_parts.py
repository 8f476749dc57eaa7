"""The parts of the cgroup adapter that need no kernel: what is mounted, names, limits."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.cgroup import tasks
from pinfold.adapters.cgroup.escapes import Escapes
from pinfold.adapters.cgroup.folders import children, is_populated, members
from pinfold.adapters.cgroup.hierarchy import (
    Hierarchies,
    find_hierarchies,
)
from pinfold.adapters.cgroup.limits import WEIGHING, Setting, v1_settings, v2_settings
from pinfold.adapters.cgroup.names import container_folder, key_of, pod_folder
from pinfold.adapters.cgroup.opening import open_cgroups
from pinfold.adapters.cgroup.v1 import CgroupsV1
from pinfold.adapters.cgroup.v2 import CgroupsV2
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.status import CgroupTree
from pinfold.linux.cgroup_mounts import CgroupMount, cgroup_mounts
from pinfold.linux.kernel_files import read_ids
from pinfold.linux.mounts import parse_mountinfo
from pinfold.linux.processes import began, lives, parse_cgroups, stat_of, threads
from pinfold.ports.cgroups import Limits
from pinfold.ports.errors import CgroupError, ContainerKey, NoRoomError

ROOT = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
V2 = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
CPUSET = "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
CPU = "35 31 0:32 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
NAMED = "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
HYBRID = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"


def mounted(text: str) -> tuple[CgroupMount | None, dict[str, CgroupMount]]:
    """The cgroup mounts of a ``mountinfo`` text."""
    return cgroup_mounts(parse_mountinfo(text))


def test_a_unified_hierarchy() -> None:
    assert mounted(V2) == (
        CgroupMount(Path("/sys/fs/cgroup"), "/", writable=True),
        {},
    )


def test_each_controller_with_its_hierarchy() -> None:
    unified, v1 = mounted(ROOT + CPUSET + CPU + NAMED + HYBRID)
    assert unified == CgroupMount(Path("/sys/fs/cgroup/unified"), "/", writable=True)
    together = CgroupMount(Path("/sys/fs/cgroup/cpu,cpuacct"), "/", writable=True)
    assert v1 == {
        "cpuset": CgroupMount(Path("/sys/fs/cgroup/cpuset"), "/", writable=True),
        "cpu": together,
        "cpuacct": together,
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(
            V2 + "9 8 0:30 /pod7 /run/x\\040y/cg rw - cgroup2 none rw\n",
            CgroupMount(Path("/sys/fs/cgroup"), "/", writable=True),
            id="the whole before a part",
        ),
        pytest.param(
            "9 8 0:30 /a /mnt ro - cgroup2 none rw\n9 8 0:30 /b /my\\040cg rw - cgroup2 none rw\n",
            CgroupMount(Path("/my cg"), "/b", writable=True),
            id="the writable one of equals",
        ),
        pytest.param(
            V2 + "9 8 0:30 / /sys/fs/cgroup ro - cgroup2 none rw\n",
            CgroupMount(Path("/sys/fs/cgroup"), "/", writable=False),
            id="the last on a mount point covers the others",
        ),
        pytest.param(
            "9 8 0:30 / /cg rw - cgroup2  ro\n",
            CgroupMount(Path("/cg"), "/", writable=False),
            id="an empty source, a read-only file system",
        ),
        pytest.param("", None, id="nothing"),
        pytest.param("no mountinfo - at all\n1 2 3 - cgroup2 x rw\n", None, id="other text"),
    ],
)
def test_which_mount_counts(text: str, found: CgroupMount | None) -> None:
    assert mounted(text)[0] == found


def test_where_a_process_sits() -> None:
    text = "12:cpu,cpuacct:/a\n3:cpuset:/b:c\n1:name=systemd:/init\n0::/user.slice\nnonsense\n"
    assert parse_cgroups(text) == {
        "cpu": "/a",
        "cpuacct": "/a",
        "cpuset": "/b:c",
        "name=systemd": "/init",
        "": "/user.slice",
    }


def test_own_folder_in_a_mount_of_a_part() -> None:
    mount = CgroupMount(Path("/sys/fs/cgroup"), "/docker/7", writable=True)
    found = Hierarchies(mount, {"cpu": mount}, {"": "/docker/7/x", "cpu": "/docker/77"})
    assert found.own_folder() == Path("/sys/fs/cgroup/x")
    assert found.own_folder("cpu") == Path("/sys/fs/cgroup/docker/77")


def test_the_version_is_that_of_the_cpuset_controller() -> None:
    mount = CgroupMount(Path("/cg"), "/", writable=True)
    assert Hierarchies(mount, {}, {}, frozenset({"cpuset", "cpu"})).version == 2
    assert Hierarchies(mount, {"cpuset": mount}, {}, frozenset({"cpu"})).version == 1
    with pytest.raises(CgroupError, match="no cgroup hierarchy has the cpuset controller"):
        _ = Hierarchies(mount, {"cpu": mount}, {}, frozenset({"memory"})).version


def test_hierarchies_are_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(CPUSET)
    with pytest.raises(CgroupError, match="self/cgroup: No such file"):
        find_hierarchies(tmp_path)
    (tmp_path / "self/cgroup").write_text("3:cpuset:/here\n")
    found = find_hierarchies(tmp_path)
    assert found.version == 1
    assert found.own_folder("cpuset") == Path("/sys/fs/cgroup/cpuset/here")


def _mount(folder: Path, *, writable: bool = True) -> CgroupMount:
    folder.mkdir()
    return CgroupMount(folder, "/", writable)


def test_a_hierarchy_that_is_mounted_read_only_is_refused(tmp_path: Path) -> None:
    mount = _mount(tmp_path / "cg", writable=False)
    unified = Hierarchies(mount, {}, {"": "/"}, frozenset({"cpuset"}))
    with pytest.raises(CgroupError, match=r"read-only \(mount -o remount,rw"):
        open_cgroups(found=unified)
    with pytest.raises(CgroupError, match="read-only"):
        open_cgroups(found=Hierarchies(None, {"cpuset": mount}, {}))


def test_a_controller_without_the_parent_or_the_permission_is_no_obstacle(tmp_path: Path) -> None:
    mounts = {name: _mount(tmp_path / name) for name in ("cpuset", "cpu", "freezer")}
    mounts["memory"] = _mount(tmp_path / "memory", writable=False)
    for name in ("cpuset", "cpu"):
        (tmp_path / name / "a").mkdir()
    cgroups = open_cgroups("/a", "mine", found=Hierarchies(None, mounts, {}))
    assert isinstance(cgroups, CgroupsV1)
    assert cgroups.describe() == CgroupTree(
        version=1,
        path=f"{tmp_path}/cpuset/a/mine",
        controllers=["cpu", "cpuset", "freezer"],
    )


def test_the_parent_in_a_unified_hierarchy(tmp_path: Path) -> None:
    mount = _mount(tmp_path / "cg")
    (mount.point / "a").mkdir()
    (mount.point / "a/cgroup.controllers").write_text("cpuset cpu pids\n")
    found = Hierarchies(mount, {}, {"": "/"}, frozenset({"cpuset"}))
    cgroups = open_cgroups("a", found=found)
    assert isinstance(cgroups, CgroupsV2)
    assert cgroups.describe() == CgroupTree(
        version=2,
        path=f"{mount.point}/a/pinfold",
        controllers=["cpu", "cpuset", "pids"],
    )


def test_a_pool_that_is_not_in_force_is_an_error(tmp_path: Path) -> None:
    """Files that nobody follows: what is in force stays as it was."""
    base, shared = tmp_path / "mine", tmp_path / "mine" / "shared"
    shared.mkdir(parents=True)
    for folder in (base, shared):
        for file in ("cpuset.cpus", "cpuset.mems"):
            (folder / file).write_text("0\n")
        (folder / "cpuset.cpus.effective").write_text("0-1\n")
        (folder / "cgroup.threads").write_text("")
    cgroups = CgroupsV2(tmp_path, "mine", tmp_path)
    with pytest.raises(CgroupError, match=r"/mine/shared: cpuset\.cpus is 1, but in force is 0-1 "):
        asyncio.run(cgroups.set_shared(CPUSet([1])))
    asyncio.run(cgroups.set_shared(CPUSet([0, 1])))
    assert (shared / "cpuset.cpus").read_text().strip() == "0-1"
    # What somebody had written above is no obstacle.
    assert [(base / file).read_text().strip() for file in ("cpuset.cpus", "cpuset.mems")] == [
        "",
        "",
    ]
    with pytest.raises(CgroupError, match="a cpuset with processes cannot be empty"):
        asyncio.run(cgroups.set_shared(CPUSet()))


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_tree_has_a_plain_name(name: str) -> None:
    with pytest.raises(CgroupError, match="cannot be a cgroup's name"):
        open_cgroups(name=name)


@given(st.text(min_size=1, max_size=16), st.text(min_size=1, max_size=16))
def test_names_come_back_and_are_safe(uid: str, name: str) -> None:
    key = ContainerKey(uid, name)
    pod, container = pod_folder(uid), container_folder(key)
    assert key_of(pod, container) == key
    for folder in (pod, container):
        assert folder.isascii()
        assert not set(folder) & {"/", ".", "\0", "\n", " "}
        assert folder not in {"tasks", "notify_on_release", "release_agent"}


@pytest.mark.parametrize("name", ["", "x" * 201, "ü" * 40, "\udc80"])
def test_names_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(CgroupError, match="name"):
        container_folder(ContainerKey("uid", name))


@pytest.mark.parametrize("folder", ["a=2", "=zz", "=61", "=ff", "tasks", "a.b", "=2F"])
def test_folders_of_others_are_no_containers(folder: str) -> None:
    assert key_of("pod-uid", folder) is None
    assert key_of(f"pod-{folder}", "main") is None
    assert key_of(folder, "main") is None


UNPROTECTED = (
    Setting("memory", "memory.min", "0", wished=False),
    Setting("memory", "memory.low", "0", wished=False),
    Setting("memory", "memory.high", "max", wished=False),
    Setting("pids", "pids.max", "max", wished=False),
    Setting("io", "io.weight", "100", wished=False, needs=WEIGHING, also=("io.bfq.weight",)),
)


def test_limits_as_cgroup_v2_has_them() -> None:
    limits = Limits(
        cpu_shares=2048, cpu_quota=150_000, memory=1 << 30, hugepages={2 << 20: 8 << 20, 1 << 30: 0}
    )
    assert list(v2_settings(limits)) == [
        Setting("cpu", "cpu.weight", "79", wished=True),
        Setting("cpu", "cpu.max", "150000 100000", wished=True),
        Setting("cpu", "cpu.max.burst", "0", wished=False, needs="Linux 5.14"),
        Setting("memory", "memory.max", "1073741824", wished=True),
        *UNPROTECTED,
        Setting("hugetlb", "hugetlb.2MB.max", "8388608", wished=True),
        Setting("hugetlb", "hugetlb.2MB.rsvd.max", "8388608", wished=False),
        Setting("hugetlb", "hugetlb.1GB.max", "0", wished=False),
        Setting("hugetlb", "hugetlb.1GB.rsvd.max", "0", wished=False),
    ]


def test_limits_as_cgroup_v1_has_them() -> None:
    limits = Limits(cpu_shares=2, cpu_quota=5000, cpu_period=10_000, hugepages={64 << 10: 1 << 20})
    assert list(v1_settings(limits)) == [
        Setting("cpu", "cpu.shares", "2", wished=True),
        Setting("cpu", "cpu.cfs_period_us", "10000", wished=False),
        Setting("cpu", "cpu.cfs_quota_us", "5000", wished=True),
        Setting("cpu", "cpu.cfs_burst_us", "0", wished=False, needs="Linux 5.14"),
        Setting("memory", "memory.limit_in_bytes", "-1", wished=False),
        Setting("pids", "pids.max", "max", wished=False),
        Setting("hugetlb", "hugetlb.64KB.limit_in_bytes", "1048576", wished=True),
        Setting("hugetlb", "hugetlb.64KB.rsvd.limit_in_bytes", "1048576", wished=False),
    ]


@pytest.mark.parametrize("quota", [None, 0, -1])
def test_no_limit_takes_a_former_one_away(quota: int | None) -> None:
    limits = Limits(cpu_quota=quota)
    assert list(v2_settings(limits)) == [
        Setting("cpu", "cpu.weight", "100", wished=False),
        Setting("cpu", "cpu.max", "max 100000", wished=False),
        Setting("cpu", "cpu.max.burst", "0", wished=False, needs="Linux 5.14"),
        Setting("memory", "memory.max", "max", wished=False),
        *UNPROTECTED,
    ]
    values = [setting.value for setting in v1_settings(limits)]
    assert values == ["1024", "100000", "-1", "0", "-1", "max"]
    assert not any(setting.wished for setting in v1_settings(limits))


@contextmanager
def no_files() -> Iterator[None]:
    """No more files can be open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    "look",
    [
        lambda _: lives(os.getpid()),
        lambda _: began(os.getpid()),
        lambda _: stat_of(os.getpid()),
        lambda _: threads(os.getpid()),
        lambda _: tasks.tree(os.getpid()),
        lambda folder: read_ids(folder / "cgroup.procs"),
        members,
        children,
        is_populated,
    ],
)
def test_where_no_file_can_be_open_nobody_is_said_to_be_gone(
    tmp_path: Path, look: Callable[[Path], object]
) -> None:
    (tmp_path / "pod").mkdir()
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (tmp_path / "cgroup.events").write_text("populated 1\n")
    assert look(tmp_path)
    with no_files(), pytest.raises(NoRoomError, match="Too many open files") as caught:
        look(tmp_path)
    assert "LimitNOFILE" in caught.value.remedy


def test_a_pool_that_cannot_be_read_is_not_confirmed(tmp_path: Path) -> None:
    file = tmp_path / "tasks"
    file.write_text(f"{os.getpid()}\n")

    async def run() -> None:
        with no_files(), pytest.raises(NoRoomError):
            await tasks.catch_strays(lambda: read_ids(file), CPUSet([8000]))

    asyncio.run(run())


def test_members_are_not_forgotten_where_no_file_can_be_open() -> None:
    key = ContainerKey("uid", "main")
    found = Escapes(lambda _: None)
    found.adopt(key, [os.getpid()])

    async def run() -> None:
        with no_files(), pytest.raises(CgroupError):
            await found.look({})
        (stray,) = (await found.look({}))[key]
        assert stray.pid == os.getpid()

    asyncio.run(run())

"""The audit of who may have huge pages by shmget."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.procfs.cgroups import find_hierarchies
from pinfold.adapters.procfs.files import KernelFiles, SnapshotError
from pinfold.adapters.procfs.hugepages import read_hugepage_users, read_shm_group
from pinfold.adapters.procfs.tasks import read_tasks
from pinfold.audit.audit import audit
from pinfold.audit.findings import AuditSeverity, Finding
from pinfold.audit.record import KnownContainer
from pinfold.audit.snapshot import HugepageUser
from tests.scenes.audited import CLEAN, RECORD
from tests.scenes.kernel_tree import V2, KernelTree

FILE = "/proc/sys/vm/hugetlb_shm_group"


def user(pid: int, *groups: int, may_lock: bool = False, cgroup: str = "/own/db") -> HugepageUser:
    return HugepageUser(pid, "db", cgroup, frozenset(groups), may_lock)


def findings(*users: HugepageUser, group: int | None = 7) -> tuple[Finding, ...]:
    snapshot = replace(CLEAN, hugepage_users=users, shm_group=group)
    return audit(snapshot, RECORD).findings


def test_who_has_neither_is_told_of() -> None:
    (one,) = findings(user(10, 1000), user(11, 7), user(12, 1000, may_lock=True))
    assert (one.kind.slug, one.severity) == ("shm-hugetlb", AuditSeverity.INFO)
    assert one.what == (
        "1 process of /own/db may have huge pages, and has neither CAP_IPC_LOCK nor the group 7 of "
        "vm.hugetlb_shm_group"
    )
    assert (one.where, one.examples, one.count) == (FILE, ("10 db",), 1)
    assert one.fix == (), "process 11 counts on the group that is named"


def test_a_group_that_all_are_in_is_proposed() -> None:
    (one,) = findings(user(10, 0, 1000, 7000), user(11, 0, 7000, cgroup="/own/web"))
    assert one.what.startswith("2 processes of /own/db and 1 more may have huge pages, and have")
    assert one.fix == (f"echo 7000 > {FILE}",)
    (one,) = findings(user(10, 0, 1000), user(11, 0, 7000))
    assert one.fix == ()


def test_nothing_is_told_where_there_is_nothing_to_tell() -> None:
    assert findings() == ()
    assert findings(user(10, 1000), group=None) == ()
    assert findings(user(10, 7)) == ()
    sandbox = KnownContainer(id="s" * 64, cgroup="/own/db", is_sandbox=True)
    record = replace(RECORD, containers={"/own/db": sandbox})
    snapshot = replace(CLEAN, hugepage_users=(user(10, 1000),), shm_group=7)
    assert not [one for one in audit(snapshot, record).findings if one.kind.slug == "shm-hugetlb"]


@given(
    st.lists(
        st.builds(
            HugepageUser,
            pid=st.integers(1, 99),
            comm=st.just("db"),
            cgroup=st.sampled_from(["/a", "/b"]),
            groups=st.frozensets(st.integers(0, 3)),
            may_lock=st.booleans(),
        ),
        max_size=6,
    ),
    st.integers(0, 3),
)
def test_the_command_helps_everybody_and_harms_nobody(
    users: list[HugepageUser], group: int
) -> None:
    def refused(named: int) -> list[HugepageUser]:
        return [one for one in users if not one.may_lock and named not in one.groups]

    found = findings(*users, group=group)
    assert bool(found) is bool(refused(group))
    for one in found:
        assert one.count == len(refused(group))
        for command in one.fix:
            named = int(command.split()[1])
            assert named > 0
            assert refused(named) == []


# ----------------------------------------------------------------------- as it is read


STATUS = """Name:\tdb
Groups:\t{groups}
Gid:\t1000\t1000\t1000\t{gid}
CapEff:\t{caps:016x}
Cpus_allowed_list:\t0-7
"""


@pytest.fixture
def tree(tmp_path: Path) -> KernelTree:
    made = KernelTree(tmp_path)
    made.machine()
    made.unified()
    made.write("proc/sys/vm/hugetlb_shm_group", "7\n")
    return made


def read(tree: KernelTree) -> tuple[HugepageUser, ...]:
    files = KernelFiles(tree.root)
    hierarchies = find_hierarchies(files)
    tasks, _ = read_tasks(files, hierarchies.get("cpuset"), hierarchies.get("cpu"))
    return read_hugepage_users(files, hierarchies, tasks)


def process(
    tree: KernelTree, pid: int, cgroup: str, *, gid: int = 1000, groups: str = "", caps: int = 0
) -> None:
    tree.task(pid, cgroup, "0-7", 0, comm="db")
    tree.write(f"proc/{pid}/cgroup", f"0::{cgroup}\n")
    tree.write(f"proc/{pid}/status", STATUS.format(groups=groups, gid=gid, caps=caps))


def test_processes_of_limited_cgroups_are_read(tree: KernelTree) -> None:
    for path, file, text in (
        ("pod", "hugetlb.2MB.max", "4194304"),
        ("pod/inner", "hugetlb.2MB.max", "max"),
        ("none", "hugetlb.1GB.max", "0"),
        ("none", "hugetlb.2MB.max", "0"),
        ("reserved", "hugetlb.2MB.rsvd.max", "4194304"),
        ("free", "hugetlb.2MB.max", "max"),
    ):
        tree.write(f"{V2}/{path}/{file}", f"{text}\n")
    process(tree, 10, "/pod", groups="4 24")
    process(tree, 11, "/pod/inner", gid=7, caps=1 << 14)
    for pid, path in ((12, "/none"), (13, "/free"), (14, "/"), (15, "/reserved")):
        process(tree, pid, path)
    process(tree, 16, "/pod", caps=1 << 14)
    tree.write("proc/16/uid_map", "         0     100000      65536\n")
    process(tree, 17, "/pod", caps=1 << 14)
    tree.write("proc/17/uid_map", "         0          0 4294967295\n")
    assert read(tree) == (
        HugepageUser(10, "db", "/pod", frozenset({4, 24, 1000}), may_lock=False),
        HugepageUser(11, "db", "/pod/inner", frozenset({7}), may_lock=True),
        HugepageUser(16, "db", "/pod", frozenset({1000}), may_lock=False),
        HugepageUser(17, "db", "/pod", frozenset({1000}), may_lock=True),
    )
    assert read_shm_group(KernelFiles(tree.root)) == 7


def test_a_hierarchy_of_version_1_is_read(tree: KernelTree) -> None:
    tree.write(
        "proc/self/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup/hugetlb rw shared:4 - cgroup cgroup rw,hugetlb\n",
    )
    for path, text in (("pod", "4194304"), ("free", "9223372036852678656")):
        tree.write(f"{V2}/hugetlb/{path}/hugetlb.2MB.limit_in_bytes", f"{text}\n")
    for pid, path in ((10, "/pod"), (11, "/free")):
        process(tree, pid, "/")
        tree.write(f"proc/{pid}/cgroup", f"5:hugetlb:{path}\n4:cpuset:/\n")
    assert [one.pid for one in read(tree)] == [10]


def test_files_of_no_use(tree: KernelTree) -> None:
    files = KernelFiles(tree.root)
    assert read(tree) == ()
    tree.write(f"{V2}/pod/hugetlb.2MB.max", "many\n")
    with pytest.raises(SnapshotError, match=r"pod/hugetlb\.2MB\.max"):
        read(tree)
    tree.write("proc/sys/vm/hugetlb_shm_group", "wheel\n")
    with pytest.raises(SnapshotError, match="'wheel' is no number"):
        read_shm_group(files)
    (tree.root / FILE.lstrip("/")).unlink()
    assert read_shm_group(files) is None

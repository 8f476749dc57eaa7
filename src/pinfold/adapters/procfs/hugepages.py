"""The processes that may have huge pages, and their right to have them by ``shmget``.

Source: proc_pid_status(5), user_namespaces(7), the kernel's ``cgroup-v2.rst`` (HugeTLB).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pinfold.adapters.procfs.cgroups import Hierarchy, read_hugepage_groups
from pinfold.adapters.procfs.files import KernelFiles, SnapshotError
from pinfold.audit.snapshot import HugepageUser, Task, lineage
from pinfold.core.pod.security import CAPABILITIES
from pinfold.linux.processes import parse_cgroups

_SHM_GROUP: Final = "/proc/sys/vm/hugetlb_shm_group"
_IPC_LOCK: Final = 1 << CAPABILITIES.index("IPC_LOCK")
_WHOLE_MACHINE: Final = ["0", "0", "4294967295"]
"""The map of users of a process that is in no user namespace of its own."""


def read_shm_group(files: KernelFiles) -> int | None:
    """``vm.hugetlb_shm_group``; None where it is not there.  Raises SnapshotError."""
    text = files.text(_SHM_GROUP)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise SnapshotError(f"{_SHM_GROUP}: {text.strip()[:40]!r} is no number") from None


def read_hugepage_users(
    files: KernelFiles, hierarchies: Mapping[str, Hierarchy], tasks: Iterable[Task]
) -> tuple[HugepageUser, ...]:
    """Those of the processes whose cgroups have a limit of huge pages that is above nothing.

    Raises:
        SnapshotError: a file of a cgroup is not what it should be.
    """
    hierarchy = hierarchies.get("hugetlb")
    limited = {} if hierarchy is None else read_hugepage_groups(files, hierarchy)
    if hierarchy is None or not any(limited.values()):
        return ()
    found = []
    for task in tasks:
        if task.pid != task.tid or task.is_kernel:
            continue
        place = parse_cgroups(files.text(f"/proc/{task.pid}/cgroup") or "")
        path = hierarchy.place(place.get(hierarchy.controller, "/"))
        if not next((limited[step] for step in lineage(path) if step in limited), False):
            continue
        status = _fields(files.text(f"/proc/{task.pid}/status") or "")
        # Whoever ends meanwhile has none.
        if {"Gid", "Groups", "CapEff"} <= status.keys():
            found.append(_user(task, status, files.text(f"/proc/{task.pid}/uid_map")))
    return tuple(found)


def _user(task: Task, status: Mapping[str, str], uid_map: str | None) -> HugepageUser:
    *_, of_files = status["Gid"].split()
    can = int(status["CapEff"], 16)
    at_home = uid_map is None or uid_map.split() == _WHOLE_MACHINE
    return HugepageUser(
        pid=task.pid,
        comm=task.comm,
        cgroup=task.cgroup,
        groups=frozenset(map(int, (of_files, *status["Groups"].split()))),
        may_lock=at_home and bool(can & _IPC_LOCK),
    )


def _fields(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.split("\n"))
    return {name: value.strip() for name, _, value in lines}

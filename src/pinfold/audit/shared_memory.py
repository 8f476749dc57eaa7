"""Who has huge pages, and may not have them as System V shared memory.

The kernel lets a process make a segment with ``SHM_HUGETLB`` that has CAP_IPC_LOCK or is in the
group ``vm.hugetlb_shm_group``.  Source: ``fs/hugetlbfs/inode.c``, ``admin-guide/sysctl/vm.rst``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pinfold.audit.containers import container_at, place_title
from pinfold.audit.findings import SHM_HUGETLB, Finding, first_few, write_command
from pinfold.audit.record import AuditRecord
from pinfold.audit.snapshot import HugepageUser, KernelSnapshot

_FILE: Final = "/proc/sys/vm/hugetlb_shm_group"
_ROOT: Final = 0


def shared_memory_findings(snapshot: KernelSnapshot, record: AuditRecord) -> Iterator[Finding]:
    """The processes that the kernel refuses huge pages by shmget."""
    group = snapshot.shm_group
    if group is None:
        return
    users = [
        user
        for user in snapshot.hugepage_users
        if (holder := container_at(record, user.cgroup)) is None or not holder.is_sandbox
    ]
    refused = [user for user in users if not user.may_lock and group not in user.groups]
    if not refused:
        return
    names = tuple(dict.fromkeys(place_title(record, user.cgroup) for user in refused))
    many = len(refused) > 1
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    yield Finding(
        SHM_HUGETLB,
        f"{len(refused)} process{'es' if many else ''} of {names[0]}{more} may have huge pages, "
        f"and {'have' if many else 'has'} neither CAP_IPC_LOCK nor the group {group} of "
        "vm.hugetlb_shm_group",
        _FILE,
        fix=_fix(refused, [user for user in users if user not in refused], group),
        owners=names,
        examples=first_few([f"{user.pid} {user.comm}" for user in refused]),
        count=len(refused),
    )


def _fix(refused: list[HugepageUser], others: list[HugepageUser], group: int) -> tuple[str, ...]:
    """Name a group that all of them are in, unless somebody counts on the one that is named."""
    if any(not user.may_lock and group in user.groups for user in others):
        return ()
    common = frozenset.intersection(*(user.groups for user in refused)) - {_ROOT}
    return (write_command(str(min(common)), _FILE),) if common else ()

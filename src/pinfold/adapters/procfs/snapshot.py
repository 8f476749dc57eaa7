"""One reading of the whole kernel, as the audit wants it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from pinfold.adapters.procfs.caches import read_caches
from pinfold.adapters.procfs.cgroups import (
    find_hierarchies,
    read_cpusets,
    read_idle,
    read_limits,
    read_quotas,
)
from pinfold.adapters.procfs.files import KernelFiles
from pinfold.adapters.procfs.hugepages import read_hugepage_users, read_shm_group
from pinfold.adapters.procfs.machine import read_irqs, read_nodes, read_online, read_siblings
from pinfold.adapters.procfs.tasks import read_tasks
from pinfold.audit.snapshot import KernelSnapshot
from pinfold.core.machine.boot import boot_isolation

_ATTEMPTS: Final = 5

_T = TypeVar("_T")


def read_beside(root: Path, read: Callable[[], _T]) -> tuple[KernelSnapshot, _T]:
    """A snapshot, and what ``read`` gives at the same moment: what has changed is read again.

    Raises:
        SnapshotError: there is no kernel there, or a file is not what it should be.
    """
    found = read()
    for _ in range(_ATTEMPTS):
        snapshot = read_snapshot(root)
        before, found = found, read()
        if before == found:
            break
    return snapshot, found


def read_snapshot(root: Path | str = "/") -> KernelSnapshot:
    """Read the running kernel, or a captured tree that has its ``proc`` and ``sys``.

    Nothing is written.  What could not be read is named in ``unseen``.

    Raises:
        SnapshotError: there is no kernel there, or a file is not what it should be.
    """
    files = KernelFiles(root)
    online = read_online(files)
    hierarchies = find_hierarchies(files)
    cpusets, quotas = hierarchies.get("cpuset"), hierarchies.get("cpu")
    unseen = []
    if cpusets is None:
        unseen.append("no cgroup hierarchy with the controller cpuset is mounted")
    if quotas is None:
        unseen.append("no cgroup hierarchy with the controller cpu is mounted")
    tasks, not_read = read_tasks(files, cpusets, quotas)
    boot = boot_isolation(
        files.text("/proc/cmdline"),
        files.cpus("/sys/devices/system/cpu/present") or online,
        isolated=files.cpus("/sys/devices/system/cpu/isolated"),
        nohz_full=files.text("/sys/devices/system/cpu/nohz_full"),
    )
    return KernelSnapshot(
        online=online,
        tasks=tasks,
        cpusets={} if cpusets is None else read_cpusets(files, cpusets),
        quotas={} if quotas is None else read_quotas(files, quotas),
        idle=frozenset() if quotas is None else read_idle(files, quotas),
        irqs=read_irqs(files),
        siblings=read_siblings(files, online),
        nodes=read_nodes(files),
        isolated=boot.isolated,
        nohz_full=boot.nohz_full,
        rcu_nocbs=boot.rcu_nocbs,
        default_irq_affinity=files.mask("/proc/irq/default_smp_affinity"),
        workqueue=files.mask("/sys/devices/virtual/workqueue/cpumask"),
        cgroup_version=None if cpusets is None else cpusets.version,
        has_systemd=files.is_folder("/run/systemd/system"),
        unseen=(*unseen, *not_read),
        caches=read_caches(files),
        limits=read_limits(files, hierarchies),
        hugepage_users=read_hugepage_users(files, hierarchies, tasks),
        shm_group=read_shm_group(files),
    )

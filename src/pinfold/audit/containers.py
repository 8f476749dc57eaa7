"""The containers of a machine as their runtime tells of them: names, and what it has on record."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from pinfold.audit.findings import (
    LIMIT_DIFFERS,
    QUOTA_CAPS,
    QUOTA_TIGHT,
    RUNTIME_RECORD,
    Finding,
    write_command,
)
from pinfold.audit.record import AuditRecord, KnownContainer, Owner
from pinfold.audit.snapshot import KernelSnapshot, Quota, Task, is_within, lineage
from pinfold.core.values.cpuset import CPUSet


def container_at(record: AuditRecord, path: str) -> KnownContainer | None:
    """The container in whose cgroup a path is."""
    if record.containers:
        for step in lineage(path):
            if (found := record.containers.get(step)) is not None:
                return found
    return None


def place_title(record: AuditRecord, path: str) -> str:
    """A cgroup as it is told of: its container where it is one's, else the path."""
    found = container_at(record, path)
    return path if found is None else str(found)


def runtime_findings(snapshot: KernelSnapshot, record: AuditRecord) -> Iterator[Finding]:
    """Where a runtime has other CPUs on record than the kernel lets a container use."""
    for path, container in record.containers.items():
        group = snapshot.cpusets.get(path)
        if group is None or container.recorded is None or container.has_ended:
            continue
        recorded = container.recorded & snapshot.online
        if not recorded or recorded == group.effective or not group.effective:
            continue
        owners = tuple(str(owner) for owner in record.owners if path in owner.cgroups)
        wanted = _wanted(record, path) & snapshot.online or group.effective
        endpoint = f"--runtime-endpoint {shlex.quote(record.runtime)} " if record.runtime else ""
        yield Finding(
            RUNTIME_RECORD,
            f"{container}: the runtime has {container.recorded} on record, the kernel has "
            f"{group.effective}",
            path,
            recorded ^ group.effective,
            (f"crictl {endpoint}update --cpuset-cpus {wanted} {shlex.quote(container.id)}",),
            owners=owners,
        )


def _wanted(record: AuditRecord, path: str) -> CPUSet:
    """The CPUs that a cgroup is to have; empty where that is not recorded."""
    for owner in record.owners:
        if path in owner.cgroups and not owner.is_pod:
            return owner.usable
    if path in record.shared_cgroups and record.shared:
        return record.shared
    return CPUSet()


def quota_findings(snapshot: KernelSnapshot, record: AuditRecord) -> Iterator[Finding]:
    """The quotas of owners and of the cgroups above them."""
    capped: dict[str, list[Owner]] = {}
    for owner in record.owners:
        for path in dict.fromkeys(step for own in owner.cpu_cgroups for step in lineage(own)):
            quota = snapshot.quotas.get(path)
            if quota is not None and quota.quota is not None:
                capped.setdefault(path, []).append(owner)
    for path, owners in sorted(capped.items()):
        yield _quota(snapshot.quotas[path], owners)


def _quota(quota: Quota, owners: list[Owner]) -> Finding:
    cpus = CPUSet(cpu for owner in owners for cpu in owner.used)
    share = (quota.quota or 0) / quota.period if quota.period else 0.0
    names = [str(owner) for owner in owners]
    unlimited = "max" if quota.file.endswith("cpu.max") else "-1"
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    place = quota.path
    if all(quota.path not in owner.cpu_cgroups for owner in owners) and owners[0].pod_name:
        own = {owner.pod for owner in owners}
        place = f"the pod of {names[0]}" if len(own) == 1 else place
    return Finding(
        QUOTA_CAPS if share < len(cpus) else QUOTA_TIGHT,
        f"{place}: the quota is {quota.quota} us of each {quota.period} us "
        f"({share:.4g} CPUs) for {names[0]}{more} on CPUs {cpus}",
        quota.path,
        cpus,
        (write_command(unlimited, quota.file),),
        owners=tuple(names),
    )


_UNLIMITED: Final = {
    "memory.min": "0",
    "memory.low": "0",
    "memory.high": "max",
    "memory.max": "max",
    "pids.max": "max",
    "cpu.max.burst": "0",
    "cpu.cfs_burst_us": "0",
}
"""What the kernel has where an agent limits nothing; the quotas of owners are told of apart."""


def limit_findings(snapshot: KernelSnapshot, record: AuditRecord) -> Iterator[Finding]:
    """Where a cgroup is limited, weighed or protected otherwise than an agent has written."""
    for made in record.limits:
        group = snapshot.limits.get(made.folder, {})
        wanted = {**{file: _UNLIMITED[file] for file in group if file in _UNLIMITED}, **made.files}
        wrong = {file: value for file, value in wanted.items() if group.get(file, value) != value}
        if wrong:
            has = _in_words({file: group[file] for file in wrong})
            yield Finding(
                LIMIT_DIFFERS,
                f"{made.title}: written {_in_words(wrong)}, the kernel has {has}",
                made.folder,
                fix=tuple(
                    write_command(value, f"{made.folder}/{file}") for file, value in wrong.items()
                ),
                owners=(made.title,),
            )


def _in_words(files: Mapping[str, str]) -> str:
    return ", ".join(f"{file} {value}" for file, value in sorted(files.items()))


def namespace_pids(snapshot: KernelSnapshot, record: AuditRecord) -> set[int]:
    """The processes whose namespace the audit has to know; none where there is no container.

    They are those of other cgroups that may run on exclusive CPUs, those that are not of their
    container's main process, and the main processes.
    """
    exclusive = record.exclusive & snapshot.online
    if not record.containers or not exclusive:
        return set()
    wanted: set[int] = set()
    owned = {path for owner in record.owners for path in owner.cgroups}
    inside: dict[str, KnownContainer | None] = {}
    for task in snapshot.tasks:
        if task.is_kernel:
            continue
        if task.cgroup not in inside:
            inside[task.cgroup] = container_at(record, task.cgroup)
        container = inside[task.cgroup]
        if container is None:
            if task.allowed & exclusive:
                wanted.add(task.pid)
        elif task.pid == container.pid or container.pid is None or container.cgroup in owned:
            wanted.add(task.pid)
    return wanted


class Namespaces(Struct, frozen=True):
    """Which container's mount namespace a process is in, where that is not the machine's."""

    of_pid: Mapping[int, str]
    holders: Mapping[str, KnownContainer]

    @classmethod
    def of(cls, snapshot: KernelSnapshot, record: AuditRecord) -> Namespaces:
        """Of what was read; see :func:`namespace_pids`."""
        read = snapshot.namespaces
        # Not even root may look at process 1 everywhere; the kernel's own threads are where it is.
        common = {read[pid] for pid in (1, 2) if pid in read}
        holders: dict[str, KnownContainer] = {}
        if read:
            for pid, container in _main_processes(snapshot, record):
                name = read.get(pid)
                if name is not None and name not in common:
                    holders.setdefault(name, container)
        return cls(read, holders)

    def entered(self, pid: int) -> KnownContainer | None:
        """The container in whose namespace a process is."""
        return self.holders.get(self.of_pid.get(pid, ""))

    def are_apart(self, pid: int, main: int) -> bool:
        """Whether a process is not in the namespace of a container's main process."""
        own, its = self.of_pid.get(pid), self.of_pid.get(main)
        return own is not None and its in self.holders and own != its


def _main_processes(
    snapshot: KernelSnapshot, record: AuditRecord
) -> Iterator[tuple[int, KnownContainer]]:
    oldest: dict[str, Task] = {}
    for task in snapshot.tasks:
        if task.pid != task.tid or task.is_kernel:
            continue
        container = container_at(record, task.cgroup)
        if container is not None and container.pid is None:
            best = oldest.get(container.cgroup)
            if best is None or (task.start_time, task.pid) < (best.start_time, best.pid):
                oldest[container.cgroup] = task
    for path, container in record.containers.items():
        if container.pid is not None:
            yield container.pid, container
        elif path in oldest:
            yield oldest[path].pid, container


def is_idle_sandbox(record: AuditRecord, task: Task, processes: int) -> bool:
    """Whether a task is the one that keeps a pod's namespaces, and sleeps."""
    container = container_at(record, task.cgroup)
    return (
        container is not None
        and container.is_sandbox
        and is_within(task.cgroup, container.cgroup)
        and (task.pid == container.pid if container.pid is not None else processes == 1)
    )

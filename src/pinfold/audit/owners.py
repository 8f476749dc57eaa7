"""The owners' own cgroups: CPUs, memory nodes, quotas, partitions; and the shared pool's."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sized

from pinfold.audit.containers import (
    limit_findings,
    place_title,
    quota_findings,
    runtime_findings,
)
from pinfold.audit.findings import (
    CGROUP_MISSING,
    CPU_OFFLINE,
    CPUSET_DIFFERS,
    MEMS_DIFFER,
    MEMS_REMOTE,
    MEMS_WIDER,
    PARTITION_INVALID,
    SHARED_OVERLAPS,
    Finding,
    first_few,
    write_command,
)
from pinfold.audit.record import AuditRecord, Owner
from pinfold.audit.snapshot import Cpuset, KernelSnapshot, is_within, lineage
from pinfold.core.values.cpuset import CPUSet


def owner_findings(snapshot: KernelSnapshot, record: AuditRecord) -> Iterator[Finding]:
    """What is wrong with the cgroups of the owners and of the shared pool."""
    there = {owner.pod for owner in record.owners if owner.cgroups}
    for owner in record.owners:
        yield from _offline(snapshot, owner)
        if owner.is_pod and not owner.cgroups and owner.pod in there:
            continue  # what a pod has as a whole, its containers are in
        if not owner.cgroups and (owner.has_ended or not owner.cpus & snapshot.online):
            # Without any CPU it is in the shared pool, or where the kernel has moved it (v1).
            continue
        if not owner.cgroups:
            yield _missing(record, owner)
        elif not owner.is_pod:
            # A pod's own cgroup is as wide as its parent; only its containers are pinned.
            for path in owner.cgroups:
                yield from _cpuset(snapshot, record, owner, path)
                yield from _mems(snapshot, owner, path)
    for sharer in record.sharers:
        for path in sharer.cgroups:
            yield from _mems(snapshot, sharer, path)
    yield from _partitions(snapshot, record)
    yield from quota_findings(snapshot, record)
    yield from limit_findings(snapshot, record)
    yield from runtime_findings(snapshot, record)
    yield from _shared(snapshot, record)


def cpuset_commands(snapshot: KernelSnapshot, path: str, cpus: CPUSet) -> tuple[str, ...]:
    """The commands that give the cgroup ``path`` exactly ``cpus``.

    Those above are widened first where they lack a CPU; on cgroup v1, where a child may have
    nothing that its parent lacks, those below are narrowed first.
    """
    nearest = snapshot.cpuset_of(path)
    if nearest is None or not cpus:
        return ()
    commands = [
        _write_cpus(above, above.cpus | cpus)
        for step in reversed([*lineage(path)][1:-1])
        if (above := snapshot.cpusets.get(step)) and above.cpus and not cpus <= above.cpus
    ]
    own = snapshot.cpusets.get(path)
    if own is None:
        # A v2 cgroup has the file once its parent hands the controller on.
        folder = nearest.folder
        rest = path.removeprefix(nearest.path.rstrip("/")).strip("/")
        for name in rest.split("/"):
            commands.append(write_command("+cpuset", f"{folder}/cgroup.subtree_control"))
            folder = f"{folder}/{name}"
        return (*commands, write_command(str(cpus), f"{folder}/cpuset.cpus"))
    if snapshot.cgroup_version == 1:
        below = [g for g in snapshot.cpusets.values() if is_within(g.path, path) and g is not own]
        commands += [
            _write_cpus(group, group.cpus & cpus or cpus)
            for group in sorted(below, key=lambda g: g.path.count("/"), reverse=True)
            if group.cpus and not group.cpus <= cpus
        ]
    if own.cpus != cpus or not commands:
        commands.append(_write_cpus(own, cpus))
    return tuple(commands)


def _write_cpus(group: Cpuset, cpus: CPUSet) -> str:
    return write_command(str(cpus), f"{group.folder}/cpuset.cpus")


def _offline(snapshot: KernelSnapshot, owner: Owner) -> Iterator[Finding]:
    gone = owner.cpus - snapshot.online
    if gone:
        which = f"all of the recorded CPUs {gone}"
        if gone != owner.cpus:
            which = f"of the recorded CPUs {owner.cpus}, {gone}"
        yield Finding(
            CPU_OFFLINE,
            f"{owner}: {which} are offline",
            owner.cgroups[0] if owner.cgroups else str(owner),
            gone,
            _bring_online(gone),
            owners=(str(owner),),
        )


def _bring_online(cpus: CPUSet) -> tuple[str, ...]:
    return tuple(write_command("1", f"/sys/devices/system/cpu/cpu{cpu}/online") for cpu in cpus)


def _missing(record: AuditRecord, owner: Owner) -> Finding:
    fix = record.repair.replace("{pod}", shlex.quote(owner.pod))
    return Finding(
        CGROUP_MISSING,
        f"{owner}: CPUs {owner.cpus} are recorded, and there is no cgroup of it",
        str(owner),
        owner.cpus,
        (fix,) if fix else (),
        owners=(str(owner),),
    )


def _cpuset(
    snapshot: KernelSnapshot, record: AuditRecord, owner: Owner, path: str
) -> Iterator[Finding]:
    group = snapshot.cpuset_of(path)
    wanted = owner.usable & snapshot.online
    if group is None or group.effective == wanted:
        return
    others = [
        str(other)
        for other in record.owners
        if other.pod != owner.pod and other.cpus & (group.effective - owner.usable)
    ]
    if not wanted and not others:
        # All of its CPUs are offline, which is said already; the kernel lends it its parent's.
        return
    taken = f"; CPUs {group.effective & record.exclusive - owner.cpus} are others'"
    kept = f", with {', '.join(first_few(others))}" if others else ""
    yield Finding(
        CPUSET_DIFFERS,
        f"{owner}: recorded {owner.expected}, the kernel has {group.effective or 'nothing'}"
        f"{taken + kept if others else ''}",
        path,
        group.effective ^ wanted,
        cpuset_commands(snapshot, path, owner.usable) if wanted else _bring_online(owner.cpus),
        owners=(str(owner), *others),
    )


def _mems(snapshot: KernelSnapshot, owner: Owner, path: str) -> Iterator[Finding]:
    group = snapshot.cpuset_of(path)
    if group is None or not group.effective_mems:
        return
    if owner.mems:
        yield from _recorded_mems(snapshot, owner, path, group.effective_mems)
        return
    if len(snapshot.nodes) < 2:
        return
    local = CPUSet(node for node, cpus in snapshot.nodes.items() if cpus & owner.usable)
    mems = group.effective_mems
    if not local or local == mems:
        return
    kind = MEMS_WIDER if local <= mems else MEMS_REMOTE
    own = snapshot.cpusets.get(path)
    yield Finding(
        kind,
        f"{owner}: its CPUs are on NUMA node{_s(local)} {local}, its memory may be on {mems}",
        path,
        owner.cpus,
        (write_command(str(local), f"{own.folder}/cpuset.mems"),) if own else (),
        owners=(str(owner),),
    )


def _recorded_mems(
    snapshot: KernelSnapshot, owner: Owner, path: str, mems: CPUSet
) -> Iterator[Finding]:
    if mems == owner.mems:
        return
    own = snapshot.cpusets.get(path)
    yield Finding(
        MEMS_DIFFER,
        f"{owner}: its memory is recorded on NUMA node{_s(owner.mems)} {owner.mems}, the kernel "
        f"lets it use {mems}",
        path,
        owner.cpus,
        (write_command(str(owner.mems), f"{own.folder}/cpuset.mems"),) if own else (),
        owners=(str(owner),),
    )


def _partitions(snapshot: KernelSnapshot, record: AuditRecord) -> Iterator[Finding]:
    above = {step for owner in record.owners for path in owner.cgroups for step in lineage(path)}
    for path, group in sorted(snapshot.cpusets.items()):
        text = group.partition
        if text is None or "invalid" not in text:
            continue
        concerned = [
            str(owner)
            for owner in record.owners
            if any(is_within(p, path) for p in owner.cgroups) or owner.cpus & (group.cpus or _NONE)
        ]
        if concerned or path in above:
            yield Finding(
                PARTITION_INVALID,
                f"{path}: cpuset.cpus.partition is {text!r}",
                path,
                group.cpus or group.effective,
                (write_command("member", f"{group.folder}/cpuset.cpus.partition"),),
                owners=tuple(concerned),
            )


def _shared(snapshot: KernelSnapshot, record: AuditRecord) -> Iterator[Finding]:
    exclusive = record.exclusive
    owned = {step for owner in record.owners for path in owner.cgroups for step in lineage(path)}
    seen: set[str] = set()
    for path in record.shared_cgroups:
        group = _in_force(snapshot, path)
        if group is None or not group.effective & exclusive:
            continue
        # One write where the pool is one cpuset, unless an owner would be cut as well.
        at = path if group.path in owned else group.path
        if at in seen:
            continue
        seen.add(at)
        pool = (group.effective if record.shared is None else record.shared) - exclusive
        inside = [task for task in snapshot.tasks if is_within(task.cgroup, at)]
        ran = [task for task in inside if task.last_cpu in exclusive]
        overlap = group.effective & exclusive
        yield Finding(
            SHARED_OVERLAPS,
            f"{place_title(record, at)}: may run on the exclusive CPUs {overlap}; {len(ran)} of "
            f"its {len(inside)} thread{_s(inside)} ran there last",
            at,
            overlap,
            cpuset_commands(snapshot, at, pool & snapshot.online),
            ""
            if pool & snapshot.online
            else "the shared pool is empty, so that there is no CPU to move it to: stop it, or "
            "release a CPU",
            owners=record.owners_of(overlap),
            examples=first_few([f"{task.pid}/{task.tid} {task.comm}" for task in ran or inside]),
            count=len(inside),
        )


def _in_force(snapshot: KernelSnapshot, path: str) -> Cpuset | None:
    """The cpuset that decides in a cgroup: on v2 one without CPUs of its own takes those above."""
    found = None
    for step in lineage(path):
        found = snapshot.cpusets.get(step, found)
        if found is not None and (found.cpus or snapshot.cgroup_version == 1):
            return found
    return found


_NONE = CPUSet()


def _s(several: Sized) -> str:
    return "" if len(several) == 1 else "s"

"""What disturbs exclusive CPUs from below: core siblings, interrupts, the kernel's own work."""

from __future__ import annotations

from collections.abc import Iterator

from pinfold.audit.findings import (
    CACHE_DIFFERS,
    INCOMPLETE,
    IRQ_ALLOWED,
    IRQ_DEFAULT,
    IRQ_DELIVERED,
    IRQ_MANAGED,
    SMT_SIBLING,
    WORKQUEUE,
    Finding,
    Kind,
    first_few,
    write_command,
)
from pinfold.audit.record import AuditRecord, KeptInterrupts, Owner
from pinfold.audit.snapshot import Irq, KernelSnapshot, lineage
from pinfold.core.cache.offers import Schemata
from pinfold.core.cache.schemata import format_schemata
from pinfold.core.values.cpuset import CPUSet

_DEFAULT_AFFINITY = "/proc/irq/default_smp_affinity"
_RESCTRL = "/sys/fs/resctrl"
_WORKQUEUE_MASK = "/sys/devices/virtual/workqueue/cpumask"


def machine_findings(snapshot: KernelSnapshot, record: AuditRecord) -> Iterator[Finding]:
    """What is wrong with the machine as the owners need it."""
    for sentence in snapshot.unseen:
        yield Finding(INCOMPLETE, sentence, "the snapshot")
    exclusive = record.exclusive & snapshot.online
    if not exclusive:
        return
    yield from _siblings(snapshot, record)
    yield from _interrupts(snapshot, record, exclusive)
    rest = snapshot.online - exclusive
    for kind, mask, file in (
        (IRQ_DEFAULT, snapshot.default_irq_affinity, _DEFAULT_AFFINITY),
        (WORKQUEUE, snapshot.workqueue, _WORKQUEUE_MASK),
    ):
        if mask is not None and mask & exclusive:
            left = mask & rest or rest
            yield Finding(
                kind,
                f"{file} is {mask.hex()} (CPUs {mask}), with the exclusive CPUs {mask & exclusive}",
                file,
                mask & exclusive,
                (write_command(left.hex(), file),) if left else (),
                owners=record.owners_of(mask & exclusive),
            )


def cache_findings(snapshot: KernelSnapshot, record: AuditRecord) -> Iterator[Finding]:
    """Groups of resctrl that are not as the agent has made them."""
    for made in record.caches:
        group, place = made.group, f"{_RESCTRL}/{made.group.name}"
        found = (snapshot.caches or {}).get(group.name)
        if found is None:
            yield Finding(
                CACHE_DIFFERS, f"there is no group {place}", place, group.cpus, owners=made.owners
            )
            continue
        if found.cpus != group.cpus:
            yield Finding(
                CACHE_DIFFERS,
                f"{place}: recorded CPUs {group.cpus}, the kernel has {found.cpus}",
                place,
                group.cpus,
                (write_command(str(group.cpus), f"{place}/cpus_list"),),
                owners=made.owners,
            )
        wrong = {
            line: domains
            for line, domains in group.schemata.items()
            if {one: found.schemata.get(line, {}).get(one) for one in domains} != domains
        }
        if wrong:
            has = {line: found.schemata.get(line, {}) for line in wrong}
            yield Finding(
                CACHE_DIFFERS,
                f"{place}: recorded {_one_line(wrong)}, the kernel has {_one_line(has)}",
                place,
                group.cpus,
                tuple(
                    write_command(format_schemata({line: domains}).strip(), f"{place}/schemata")
                    for line, domains in wrong.items()
                ),
                owners=made.owners,
            )


def _one_line(schemata: Schemata) -> str:
    return " ".join(format_schemata(schemata).split()) or "nothing"


def _siblings(snapshot: KernelSnapshot, record: AuditRecord) -> Iterator[Finding]:
    pods = {path: owner.pod for owner in record.owners for path in owner.cgroups}
    in_group: dict[str, CPUSet] = {}
    for task in snapshot.tasks:
        if not task.is_bound:
            in_group[task.cgroup] = in_group.get(task.cgroup, CPUSet()) | task.allowed
    used: dict[str, CPUSet] = {}
    for cgroup, cpus in in_group.items():
        pod = next((pods[step] for step in lineage(cgroup) if step in pods), "")
        used[pod] = used.get(pod, CPUSet()) | cpus
    for owner in record.owners:
        own, others = _same_pod(record, owner)
        siblings = CPUSet(
            sibling
            for cpu in owner.cpus
            for sibling in snapshot.siblings.get(cpu, CPUSet())
            if sibling in snapshot.online and sibling not in own
        )
        busy = CPUSet.union_of(cpus for pod, cpus in used.items() if pod != owner.pod) | others
        shared = siblings & busy
        if shared:
            nobodys = shared - others
            whose = f"; {shared & others} are of other owners" if shared & others else ""
            yield Finding(
                SMT_SIBLING,
                f"{owner}: the CPUs {shared} are on the cores of its CPUs {owner.cpus} and not "
                f"its own{whose}",
                owner.cgroups[0] if owner.cgroups else str(owner),
                shared,
                tuple(write_command("0", _online_file(cpu)) for cpu in nobodys),
                owners=(str(owner),),
            )


def _same_pod(record: AuditRecord, owner: Owner) -> tuple[CPUSet, CPUSet]:
    """The CPUs of an owner's pod, and those of all other pods."""
    own = CPUSet.union_of(other.cpus for other in record.owners if other.pod == owner.pod)
    return own, CPUSet.union_of(other.cpus for other in record.owners if other.pod != owner.pod)


def _online_file(cpu: int) -> str:
    return f"/sys/devices/system/cpu/cpu{cpu}/online"


def _interrupts(
    snapshot: KernelSnapshot, record: AuditRecord, exclusive: CPUSet
) -> Iterator[Finding]:
    found: dict[Kind, list[Irq]] = {IRQ_DELIVERED: [], IRQ_ALLOWED: [], IRQ_MANAGED: []}
    for irq in snapshot.irqs:
        if not irq.affinity & exclusive:
            # The effective set may lag: an interrupt moves when it comes the next time.
            continue
        if irq.is_managed:
            found[IRQ_MANAGED].append(irq)
        elif irq.effective is None or irq.effective & exclusive:
            found[IRQ_DELIVERED].append(irq)
        else:
            found[IRQ_ALLOWED].append(irq)
    for kind, irqs in found.items():
        if not irqs:
            continue
        is_delivered = kind is IRQ_DELIVERED
        reached = ((irq.effective if is_delivered else None) or irq.affinity for irq in irqs)
        cpus = CPUSet.union_of(reached) & exclusive
        verb = "is delivered to" if is_delivered else "may be delivered to"
        if len(irqs) > 1:
            verb = verb.replace("is ", "are ")
        fixed = "" if kind is not IRQ_MANAGED else " and cannot be moved"
        yield Finding(
            kind,
            f"{len(irqs)} interrupt{'' if len(irqs) == 1 else 's'} {verb} the exclusive CPUs "
            f"{cpus}{fixed}",
            "/proc/irq",
            cpus,
            () if kind is IRQ_MANAGED else _irq_commands(irqs, snapshot.online - exclusive),
            why=_why(kind, cpus, record.interrupts),
            owners=record.owners_of(cpus),
            examples=first_few([_irq_name(irq) for irq in irqs]),
            count=len(irqs),
        )


def _why(kind: Kind, cpus: CPUSet, kept: KeptInterrupts | None) -> str:
    """Why it matters, and what the agent does about it; "" where it does nothing."""
    if kept is None:
        return ""
    if not cpus & kept.cpus:
        does = "the agent keeps none off these CPUs, whose pods allow them or do not ask"
    elif kind is IRQ_MANAGED:
        does = "the agent keeps the others off, and cannot move these either"
    elif kept.problem:
        does = f"the agent cannot keep them off: {kept.problem}"
    else:
        does = "the agent keeps interrupts off, and moves these with its next look"
    return f"{kind.why}; {does}"


def _irq_commands(irqs: list[Irq], rest: CPUSet) -> tuple[str, ...]:
    wanted: dict[CPUSet, list[int]] = {}
    for irq in irqs:
        if cpus := irq.affinity & rest or rest:
            wanted.setdefault(cpus, []).append(irq.number)
    commands = []
    for cpus, numbers in wanted.items():
        if len(numbers) == 1:
            commands.append(write_command(str(cpus), f"/proc/irq/{numbers[0]}/smp_affinity_list"))
        else:
            listed = " ".join(str(number) for number in numbers)
            commands.append(
                f"for i in {listed}; do echo {cpus} > /proc/irq/$i/smp_affinity_list; done"
            )
    return tuple(commands)


def _irq_name(irq: Irq) -> str:
    now = "" if irq.effective is None else f", now {irq.effective}"
    return f"irq {irq.number} {','.join(irq.actions) or '?'} (affinity {irq.affinity}{now})"

"""Does the kernel agree?  What is recorded of CPUs and their owners against what the kernel does.

>>> from pinfold.audit.record import AuditRecord, Owner
>>> from pinfold.audit.snapshot import Cpuset, KernelSnapshot
>>> cpuset = Cpuset("/db", "/sys/fs/cgroup/db", CPUSet([2, 3]), CPUSet([2, 3]))
>>> snapshot = KernelSnapshot(CPUSet(range(4)), cpusets={"/db": cpuset}, cgroup_version=2)
>>> audit(snapshot, AuditRecord("here", (Owner("db", "db", CPUSet([1, 2]), ("/db",)),))).findings[
...     0
... ].what
'db/db: recorded 1-2, the kernel has 2-3'
"""

from __future__ import annotations

from msgspec import UNSET, Struct

from pinfold.audit.findings import KINDS, AuditSeverity, Finding
from pinfold.audit.machine import cache_findings, machine_findings
from pinfold.audit.owners import owner_findings
from pinfold.audit.record import AuditRecord, Owner
from pinfold.audit.shared_memory import shared_memory_findings
from pinfold.audit.snapshot import KernelSnapshot
from pinfold.audit.tasks import task_findings
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents import audit as form


class AuditReport(Struct, frozen=True):
    """The answer: what was compared, and what does not agree, the worst first."""

    snapshot: KernelSnapshot
    record: AuditRecord
    findings: tuple[Finding, ...]

    def count(self, severity: AuditSeverity) -> int:
        """How many findings there are of one severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def is_clean(self, *, strict: bool = False) -> bool:
        """Whether the kernel agrees: there is no error and no warning (strict: no info either)."""
        return not any(
            strict or finding.severity is not AuditSeverity.INFO for finding in self.findings
        )

    def effective(self, owner: Owner) -> CPUSet | None:
        """The CPUs that the kernel lets an owner use; None where it has no cgroup."""
        groups = [self.snapshot.cpuset_of(path) for path in owner.cgroups]
        sets = [group.effective for group in groups if group is not None]
        return CPUSet(cpu for cpus in sets for cpu in cpus) if sets else None


def audit(snapshot: KernelSnapshot, record: AuditRecord) -> AuditReport:
    """Compare the record with the kernel; nothing is changed, nothing is raised."""
    findings = [
        *record.faults,
        *owner_findings(snapshot, record),
        *task_findings(snapshot, record),
        *machine_findings(snapshot, record),
        *cache_findings(snapshot, record),
        *shared_memory_findings(snapshot, record),
    ]
    order = {kind.slug: at for at, kind in enumerate(KINDS)}
    findings.sort(key=lambda finding: order[finding.kind.slug])
    return AuditReport(snapshot, record, tuple(findings))


def audit_document(report: AuditReport, *, strict: bool = False) -> form.Audit:
    """The document of a report."""
    snapshot = report.snapshot
    return form.Audit(
        verdict="clean" if report.is_clean(strict=strict) else "findings",
        record=form.AuditedRecord(
            source=report.record.source,
            shared=None if report.record.shared is None else str(report.record.shared),
            exclusive=str(report.record.exclusive),
        ),
        kernel=form.AuditedKernel(
            online=str(snapshot.online),
            isolated=str(snapshot.isolated),
            nohz_full=str(snapshot.nohz_full),
            rcu_nocbs=str(snapshot.rcu_nocbs) or UNSET,
            cgroup_version=snapshot.cgroup_version,
            processes=len({task.pid for task in snapshot.tasks}),
            threads=len(snapshot.tasks),
            interrupts=len(snapshot.irqs),
            cgroups=len(snapshot.cpusets),
            containers=len(report.record.containers),
        ),
        counts={severity.value: report.count(severity) for severity in AuditSeverity},
        owners=[_owner(report, owner) for owner in report.record.owners],
        findings=[_finding(finding) for finding in report.findings],
    )


def _owner(report: AuditReport, owner: Owner) -> form.AuditedOwner:
    effective = report.effective(owner)
    return form.AuditedOwner(
        pod=owner.pod_name or owner.pod,
        uid=owner.pod if owner.container or owner.is_pod else None,
        container=owner.container or None,
        id=owner.container_id or None,
        cpus=str(owner.cpus),
        effective=None if effective is None else str(effective),
        lent=str(owner.lent) if owner.lent else UNSET,
        cgroups=owner.cgroups,
    )


def _finding(finding: Finding) -> form.AuditFinding:
    return form.AuditFinding(
        slug=finding.kind.slug,
        severity=finding.severity.value,
        what=finding.what,
        where=finding.where,
        cpus=str(finding.cpus),
        why=finding.why or finding.kind.why,
        remedy=finding.kind.remedy,
        fix=finding.fix,
        owners=finding.owners,
        count=finding.count,
        examples=finding.examples,
    )

"""Small snapshots and records for the audit, and what it finds in them."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result
from msgspec.structs import replace

from pinfold.audit.audit import audit
from pinfold.audit.findings import Finding
from pinfold.audit.record import AuditRecord, Owner
from pinfold.audit.snapshot import Cpuset, Irq, KernelSnapshot, Task
from pinfold.cli import main
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Ledger
from tests.scenes.kernel_tree import UID

TOP = "/sys/fs/cgroup"


def cpus(text: str) -> CPUSet:
    return CPUSet.parse(text)


def group(
    path: str,
    configured: str | None,
    effective: str | None = None,
    *,
    mems: str = "",
    partition: str | None = "member",
) -> Cpuset:
    used = configured if effective is None else effective
    return Cpuset(
        path,
        TOP + path if path != "/" else TOP,
        None if configured is None else cpus(configured),
        cpus(used or ""),
        cpus(mems),
        cpus(mems or "0"),
        partition,
    )


def groups(*found: Cpuset) -> dict[str, Cpuset]:
    return {one.path: one for one in found}


def task(
    pid: int,
    cgroup: str,
    allowed: str,
    last: int,
    *,
    tid: int | None = None,
    ppid: int = 1,
    comm: str = "work",
    start: int = 0,
) -> Task:
    return Task(pid, pid if tid is None else tid, ppid, comm, cgroup, cpus(allowed), last, start)


DB = Owner("db", "main", CPUSet([2, 3]), ("/own/db",), ("/own/db",))
CLEAN = KernelSnapshot(
    online=cpus("0-7"),
    tasks=(
        task(1, "/", "0-1,4-7", 0, ppid=0, comm="init"),
        task(100, "/own/db", "2-3", 2),
        task(101, "/own/db", "2-3", 3, ppid=100),
        task(200, "/rest", "0-1,4-7", 4),
        replace(task(9, "/", "2", 2, ppid=2), is_kernel=True, is_bound=True, comm="ksoftirqd/2"),
    ),
    cpusets=groups(
        group("/", None, "0-7", partition=None),
        group("/own", "", "0-7"),
        group("/own/db", "2-3"),
        group("/rest", "0-1,4-7"),
    ),
    irqs=(Irq(24, cpus("0-1"), cpus("0"), ("eth0",)),),
    siblings={cpu: CPUSet([cpu & ~1, cpu | 1]) for cpu in range(8)},
    nodes={0: cpus("0-7")},
    default_irq_affinity=cpus("0-1"),
    workqueue=cpus("0-1"),
    cgroup_version=2,
)


RECORD = AuditRecord("test", (DB,), cpus("0-1,4-7"))


def findings(snapshot: KernelSnapshot = CLEAN, record: AuditRecord = RECORD) -> dict[str, Finding]:
    """The findings by slug, of which each must be there once."""
    found = audit(snapshot, record).findings
    slugs = [finding.kind.slug for finding in found]
    assert len(set(slugs)) == len(slugs), slugs
    return {finding.kind.slug: finding for finding in found}


def only(slug: str, snapshot: KernelSnapshot = CLEAN, record: AuditRecord = RECORD) -> Finding:
    found = findings(snapshot, record)
    assert list(found) == [slug]
    return found[slug]


def with_tasks(*more: Task) -> KernelSnapshot:
    return replace(CLEAN, tasks=(*CLEAN.tasks, *more))


def with_groups(*changed: Cpuset) -> KernelSnapshot:
    return replace(CLEAN, cpusets={**CLEAN.cpusets, **groups(*changed)})


LEDGER = Ledger("static", CPUSet.parse("0-1,4-7"), {UID: {"app": CPUSet([2, 3])}})


def run(*args: object, status: int = 0, **environment: str) -> Result:
    result = CliRunner().invoke(main, ["audit", *(str(arg) for arg in args)], env=environment)
    assert result.exit_code == status, result.output
    assert isinstance(result.exception, SystemExit | None), result.output
    return result


def found(result: Result) -> dict[str, Any]:
    return {finding["slug"]: finding for finding in json.loads(result.stdout)["findings"]}

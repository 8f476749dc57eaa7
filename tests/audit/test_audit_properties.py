"""Whatever the kernel may say: the audit answers, and no command gives an owner's CPU away."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from pinfold.audit.audit import audit
from pinfold.audit.containers import namespace_pids
from pinfold.audit.record import AuditRecord, KnownContainer, Owner
from pinfold.audit.snapshot import Cpuset, Irq, KernelSnapshot, Quota, Task
from pinfold.core.values.cpuset import CPUSet
from pinfold.render.audit_text import render_audit
from pinfold.render.terminal import Style
from tests.scenes.published_schemas import audit_document

PATHS = (
    "/",
    "/a",
    "/a/b",
    "/a/b/c",
    "/system.slice",
    "/system.slice/x.service",
    "/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope",
    "/odd name'\x1b[31m",
)
cpu_sets = st.integers(0, 255).map(CPUSet.from_mask)
paths = st.sampled_from(PATHS)
pids = st.integers(0, 12)

tasks = st.builds(
    Task,
    pids,
    pids,
    pids,
    st.text(max_size=20),
    paths,
    cpu_sets,
    st.integers(-1, 9),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
)
owners = st.builds(
    Owner,
    st.sampled_from(["p", "q", "it's\n"]),
    st.sampled_from(["", "c", "d"]),
    cpu_sets,
    st.lists(paths, max_size=2).map(tuple),
    st.lists(paths, max_size=2).map(tuple),
    st.booleans(),
    st.sampled_from(["", "ns/p"]),
    st.sampled_from(["", "a" * 64]),
    st.none() | pids,
    st.booleans(),
)
containers = st.builds(
    KnownContainer,
    st.sampled_from(["", "a" * 64, "b'\n"]),
    st.sampled_from(["", "p"]),
    st.sampled_from(["", "ns/p"]),
    st.sampled_from(["", "c"]),
    paths,
    st.none() | pids,
    st.none() | cpu_sets,
    st.booleans(),
    st.booleans(),
)


@st.composite
def snapshots(draw: st.DrawFn) -> KernelSnapshot:
    cpusets = {
        path: Cpuset(
            path,
            f"/sys/fs/cgroup{path}",
            draw(st.none() | cpu_sets),
            draw(cpu_sets),
            draw(st.none() | cpu_sets),
            draw(st.none() | cpu_sets),
            draw(st.sampled_from([None, "member", "root", "isolated invalid (why)", "invalid"])),
        )
        for path in draw(st.lists(paths, unique=True))
    }
    quotas = {
        path: Quota(
            path, f"/f{path}/cpu.max", draw(st.none() | st.integers(0)), draw(st.integers())
        )
        for path in draw(st.lists(paths, unique=True, max_size=3))
    }
    irqs = st.builds(
        Irq,
        st.integers(0, 99),
        cpu_sets,
        st.none() | cpu_sets,
        st.lists(st.text(max_size=5), max_size=2).map(tuple),
        st.booleans(),
    )
    return KernelSnapshot(
        online=draw(cpu_sets),
        tasks=tuple(draw(st.lists(tasks, max_size=12))),
        cpusets=cpusets,
        quotas=quotas,
        irqs=tuple(draw(st.lists(irqs, max_size=4))),
        siblings=draw(st.dictionaries(st.integers(0, 7), cpu_sets, max_size=8)),
        nodes=draw(st.dictionaries(st.integers(0, 3), cpu_sets, max_size=4)),
        default_irq_affinity=draw(st.none() | cpu_sets),
        workqueue=draw(st.none() | cpu_sets),
        cgroup_version=draw(st.sampled_from([None, 1, 2])),
        has_systemd=draw(st.booleans()),
        unseen=tuple(draw(st.lists(st.text(min_size=1, max_size=9), max_size=1))),
        namespaces=draw(st.dictionaries(pids, st.sampled_from(["mnt:[1]", "mnt:[2]"]))),
    )


records = st.builds(
    AuditRecord,
    st.just("test"),
    st.lists(owners, max_size=4).map(tuple),
    st.none() | cpu_sets,
    st.lists(paths, max_size=3).map(tuple),
    st.sampled_from(["", "drop {pod}"]),
    containers=st.lists(containers, max_size=3).map(
        lambda found: {one.cgroup: one for one in found}
    ),
    runtime=st.sampled_from(["", "unix:///r.sock"]),
)


@given(snapshots(), records, st.integers(20, 140), st.booleans())
def test_the_audit_never_raises(
    snapshot: KernelSnapshot, record: AuditRecord, width: int, strict: bool
) -> None:
    assert namespace_pids(snapshot, record) <= {task.pid for task in snapshot.tasks}
    report = audit(snapshot, record)
    document = audit_document(report, strict=strict)
    assert json.loads(json.dumps(document)) == document
    text = render_audit(report, Style(width), strict=strict)
    assert "\x1b" not in text
    assert (document["verdict"] == "clean") == report.is_clean(strict=strict)
    for finding in report.findings:
        assert finding.what
        assert all(command.strip() for command in finding.fix)
        assert len(finding.examples) <= max(finding.count, 0)


@given(snapshots(), records)
def test_strangers_are_never_sent_to_exclusive_cpus(
    snapshot: KernelSnapshot, record: AuditRecord
) -> None:
    for finding in audit(snapshot, record).findings:
        if finding.kind.slug in (
            *("stranger-ran", "stranger-allowed"),
            *("kernel-thread", "sandbox-allowed", "foreign-inside"),
        ):
            for command in finding.fix:
                for text in re.findall(r"taskset -a?pc (\S+)|AllowedCPUs=(\S+)", command):
                    sent = CPUSet.parse("".join(text))
                    assert sent
                    assert not sent & record.exclusive
        elif finding.kind.slug.startswith("irq-") and finding.where == "/proc/irq":
            for command in finding.fix:
                (text,) = re.findall(r"echo (\S+) >", command)
                assert CPUSet.parse(text)
                assert not CPUSet.parse(text) & record.exclusive & snapshot.online


@given(snapshots(), records)
def test_it_is_the_same_twice(snapshot: KernelSnapshot, record: AuditRecord) -> None:
    assert audit(snapshot, record) == audit(snapshot, record)

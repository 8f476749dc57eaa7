"""The audit's rules, each on a small snapshot that breaks just one of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pinfold.audit.audit import AuditReport, audit
from pinfold.audit.findings import KINDS, RECORD_BROKEN, AuditSeverity, Finding, write_command
from pinfold.audit.record import (
    AuditRecord,
    DividedCache,
    KeptInterrupts,
    LimitedGroup,
    Owner,
)
from pinfold.audit.snapshot import Irq, KernelSnapshot, Quota, lineage
from pinfold.core.cache.offers import Group
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.audited import (
    CLEAN,
    DB,
    RECORD,
    TOP,
    cpus,
    findings,
    group,
    groups,
    only,
    task,
    with_groups,
    with_tasks,
)
from tests.scenes.published_schemas import audit_document


def test_a_clean_node_has_no_findings() -> None:
    report = audit(CLEAN, RECORD)
    assert report.findings == ()
    assert report.is_clean(strict=True)
    assert report.effective(DB) == cpus("2-3")


def test_a_node_without_owners_is_clean() -> None:
    assert audit(CLEAN, AuditRecord("test")).findings == ()


# ------------------------------------------------------------------------------------ the owners


def test_another_cpuset_than_recorded() -> None:
    found = only("cpuset-differs", with_groups(group("/own/db", "2-4")))
    assert found.what == "db/main: recorded 2-3, the kernel has 2-4"
    assert (found.where, found.cpus) == ("/own/db", cpus("4"))
    assert found.fix == (f"echo 2-3 > {TOP}/own/db/cpuset.cpus",)


def test_a_cpuset_that_takes_the_cpus_of_others_names_them() -> None:
    other = Owner("web", "main", cpus("4"), ("/own/web",))
    record = replace(RECORD, owners=(DB, other), shared=cpus("0-1,5-7"))
    snapshot = with_groups(group("/own/db", "2-4"), group("/own/web", "4"))
    found = findings(snapshot, record)["cpuset-differs"]
    assert found.what.endswith("the kernel has 2-4; CPUs 4 are others', with web/main")
    assert found.owners == ("db/main", "web/main")


def test_a_mixed_owner_is_no_stranger_in_the_pool() -> None:
    mixed = replace(DB, shared=cpus("0-1"))
    record = replace(RECORD, owners=(mixed,), shared=cpus("0-1,4-7"))
    fits = with_groups(group("/own", "0-7"), group("/own/db", "0-3"))
    assert findings(fits, record) == {}
    wider = with_groups(group("/own", "0-7"), group("/own/db", "0-4"))
    found = findings(wider, record)["cpuset-differs"]
    assert found.what == "db/main: recorded 2-3 and the shared pool 0-1, the kernel has 0-4"
    assert found.fix == (f"echo 0-3 > {TOP}/own/db/cpuset.cpus",)
    narrow = with_groups(group("/own", "0-7"), group("/own/db", "2-3"))
    assert findings(narrow, record).keys() == {"cpuset-differs"}
    # Anybody else on the exclusive ones is one all the same.
    assert findings(replace(fits, tasks=with_tasks(task(99, "/", "2", 2)).tasks), record).keys() & {
        "stranger-ran",
        "stranger-allowed",
    }


def test_an_owner_that_is_alone_on_its_core_is_not_to_run_on_idle_siblings() -> None:
    alone = replace(DB, idle=cpus("3"))
    record = replace(RECORD, owners=(alone,))
    fits = with_groups(group("/own/db", "2"))
    assert "cpuset-differs" not in findings(fits, record)
    found = findings(with_groups(group("/own/db", "2-3")), record)["cpuset-differs"]
    assert found.what == "db/main: recorded 2, the kernel has 2-3"
    assert (found.cpus, found.fix) == (cpus("3"), (f"echo 2 > {TOP}/own/db/cpuset.cpus",))
    # A stranger on the sibling is one on an exclusive CPU.
    ran = replace(fits, tasks=with_tasks(task(99, "/", "3", 3)).tasks)
    assert findings(ran, record).keys() & {"stranger-ran", "stranger-allowed"}


def test_a_parent_that_is_too_narrow_is_widened_first() -> None:
    found = only("cpuset-differs", with_groups(group("/own", "0-2"), group("/own/db", "2-3", "2")))
    assert found.fix == (f"echo 0-3 > {TOP}/own/cpuset.cpus",)


def test_on_cgroup_v1_children_are_narrowed_first() -> None:
    snapshot = replace(
        with_groups(group("/own/db", "2-5"), group("/own/db/a", "2-5"), group("/own/db/a/b", "5")),
        cgroup_version=1,
    )
    assert only("cpuset-differs", snapshot).fix == (
        f"echo 2-3 > {TOP}/own/db/a/b/cpuset.cpus",
        f"echo 2-3 > {TOP}/own/db/a/cpuset.cpus",
        f"echo 2-3 > {TOP}/own/db/cpuset.cpus",
    )


def test_a_group_without_the_controller_gets_it() -> None:
    snapshot = replace(
        CLEAN, cpusets={p: g for p, g in CLEAN.cpusets.items() if p not in ("/own", "/own/db")}
    )
    assert findings(snapshot)["cpuset-differs"].fix == (
        f"echo +cpuset > {TOP}/cgroup.subtree_control",
        f"echo +cpuset > {TOP}/own/cgroup.subtree_control",
        f"echo 2-3 > {TOP}/own/db/cpuset.cpus",
    )


def test_an_owner_without_a_cgroup() -> None:
    record = replace(RECORD, owners=(replace(DB, cgroups=()),), repair="drop {pod} now")
    snapshot = replace(CLEAN, tasks=())
    found = only("cgroup-missing", snapshot, record)
    assert found.what == "db/main: CPUs 2-3 are recorded, and there is no cgroup of it"
    assert found.fix == ("drop db now",)


def test_offline_cpus_are_named_and_not_called_a_difference() -> None:
    snapshot = replace(with_groups(group("/own/db", "2-3", "2")), online=cpus("0-2,4-7"))
    found = only("cpu-offline", snapshot)
    assert found.what == "db/main: of the recorded CPUs 2-3, 3 are offline"
    assert found.fix == ("echo 1 > /sys/devices/system/cpu/cpu3/online",)


def test_an_owner_without_any_online_cpu_runs_on_its_parents() -> None:
    """A 6.1 kernel does so on cgroup v2; it matters more when others own those CPUs."""
    other = Owner("web", "main", cpus("4"), ("/own/web",))
    snapshot = replace(
        with_groups(group("/own/db", "2-3", "0-1,4-7"), group("/own/web", "4")),
        online=cpus("0-1,4-7"),
        tasks=(task(100, "/own/db", "0-1,4-7", 0),),
    )
    assert list(findings(snapshot)) == ["cpu-offline"]
    found = findings(snapshot, replace(RECORD, owners=(DB, other)))
    assert "CPUs 4 are others', with web/main" in found["cpuset-differs"].what
    assert found["cpuset-differs"].fix == found["cpu-offline"].fix


def test_an_owner_that_an_agent_has_put_into_the_shared_pool_is_not_called_gone() -> None:
    """Nobody is told to drop a pod that waits for its CPUs."""
    away = cpus("0-1,4-7")
    record = replace(RECORD, owners=(replace(DB, cgroups=()),), repair="drop {pod} now")
    found = findings(replace(CLEAN, online=away, tasks=()), record)
    assert list(found) == ["cpu-offline"]
    assert found["cpu-offline"].what == "db/main: all of the recorded CPUs 2-3 are offline"
    assert found["cpu-offline"].fix == (
        "echo 1 > /sys/devices/system/cpu/cpu2/online",
        "echo 1 > /sys/devices/system/cpu/cpu3/online",
    )


def test_an_owner_that_the_kernel_has_moved_out_is_found_on_others_cpus() -> None:
    """Cgroup v1 moves it to the cpuset above, which has everybody's CPUs."""
    other = Owner("web", "main", cpus("4"), ("/own/web",))
    snapshot = replace(
        with_groups(group("/own/web", "4")),
        online=cpus("0-1,4-7"),
        tasks=(task(100, "/own", "0-1,4-7", 4),),
    )
    found = findings(snapshot, replace(RECORD, owners=(replace(DB, cgroups=()), other)))
    assert "cpu-offline" in found
    assert "stranger-ran" in found


def test_an_interrupt_that_has_not_moved_yet_is_none() -> None:
    """Its affinity is right, and takes effect when it comes the next time."""
    assert findings(replace(CLEAN, irqs=(Irq(30, cpus("0-1"), cpus("2"), ("kbd",)),))) == {}


@pytest.mark.parametrize(
    ("mems", "slug", "severity"),
    [("0-1", "mems-wider", AuditSeverity.INFO), ("1", "mems-remote", AuditSeverity.WARNING)],
)
def test_memory_nodes(mems: str, slug: str, severity: AuditSeverity) -> None:
    snapshot = replace(
        with_groups(group("/own/db", "2-3", mems=mems)), nodes={0: cpus("0-3"), 1: cpus("4-7")}
    )
    found = only(slug, snapshot)
    assert found.severity is severity
    assert found.fix == (f"echo 0 > {TOP}/own/db/cpuset.mems",)
    right = replace(snapshot, cpusets={**CLEAN.cpusets, **groups(group("/own/db", "2-3"))})
    assert findings(right) == {}


def test_an_invalid_partition_is_told_in_the_kernels_words() -> None:
    text = "isolated invalid (Cpu list in cpuset.cpus not exclusive)"
    found = only("partition-invalid", with_groups(group("/own/db", "2-3", partition=text)))
    assert text in found.what
    assert found.fix == (f"echo member > {TOP}/own/db/cpuset.cpus.partition",)
    assert findings(with_groups(group("/own/db", "2-3", partition="isolated"))) == {}
    elsewhere = with_groups(group("/rest", "0-1,4-7", partition=text))
    assert findings(elsewhere) == {}, "a partition that has nothing to do with the owners"


@pytest.mark.parametrize(("path"), ["/own/db", "/own", "/"])
def test_a_quota_on_the_container_or_above(path: str) -> None:
    snapshot = replace(CLEAN, quotas={path: Quota(path, f"{TOP}{path}/cpu.max", 50000, 100000)})
    found = only("quota-caps", snapshot)
    assert "50000 us of each 100000 us (0.5 CPUs) for db/main" in found.what
    assert found.fix == (f"echo max > {TOP}{path}/cpu.max",)


def test_a_quota_elsewhere_or_without_a_cap_is_none() -> None:
    quotas = {
        "/rest": Quota("/rest", f"{TOP}/rest/cpu.max", 50000, 100000),
        "/own": Quota("/own", f"{TOP}/own/cpu.max", None, 100000),
    }
    assert findings(replace(CLEAN, quotas=quotas)) == {}


def test_a_quota_of_cgroup_v1_is_removed_with_minus_one() -> None:
    file = f"{TOP}/cpu/own/cpu.cfs_quota_us"
    found = only("quota-caps", replace(CLEAN, quotas={"/own": Quota("/own", file, 1000, 100000)}))
    assert found.fix == (f"echo -1 > {file}",)


# ------------------------------------------------------------------------------- the shared pool


def test_a_shared_container_on_exclusive_cpus() -> None:
    snapshot = replace(
        with_groups(group("/pool", ""), group("/pool/web", "0-7")),
        tasks=(*CLEAN.tasks, task(300, "/pool/web", "0-7", 3), task(301, "/pool/web", "0-7", 1)),
    )
    found = only("shared-overlaps", snapshot, replace(RECORD, shared_cgroups=("/pool/web",)))
    assert found.severity is AuditSeverity.ERROR
    assert "exclusive CPUs 2-3; 1 of its 2 threads ran there last" in found.what
    assert found.fix == (f"echo 0-1,4-7 > {TOP}/pool/web/cpuset.cpus",)
    assert found.examples == ("300/300 work",)


def test_one_parent_of_the_whole_pool_is_one_finding() -> None:
    snapshot = with_groups(
        group("/pool", "0-7"), group("/pool/a", "", "0-7"), group("/pool/b", "", "0-7")
    )
    record = replace(RECORD, shared_cgroups=("/pool", "/pool/a", "/pool/b"))
    assert only("shared-overlaps", snapshot, record).where == "/pool"


def test_an_empty_pool_has_no_command_and_says_so() -> None:
    owner = replace(DB, cpus=cpus("0-7"))
    snapshot = replace(
        with_groups(group("/own/db", "0-7"), group("/pool", "0-7")),
        tasks=(task(100, "/own/db", "0-7", 2), task(300, "/pool", "0-7", 3)),
        irqs=(),
        default_irq_affinity=None,
        workqueue=None,
    )
    record = AuditRecord("test", (owner,), CPUSet(), ("/pool",))
    found = only("shared-overlaps", snapshot, record)
    assert found.fix == ()
    assert found.why.startswith("the shared pool is empty")


# ----------------------------------------------------------------------------------- the machine


def test_the_sibling_of_an_exclusive_cpu() -> None:
    owner = replace(DB, cpus=cpus("2"))
    snapshot = replace(
        with_groups(group("/own/db", "2"), group("/rest", "0-1,3-7")),
        tasks=(task(100, "/own/db", "2", 2), task(200, "/rest", "0-1,3-7", 3)),
    )
    found = only("smt-sibling", snapshot, replace(RECORD, owners=(owner,)))
    assert found.cpus == cpus("3")
    assert found.fix == ("echo 0 > /sys/devices/system/cpu/cpu3/online",)
    quiet = replace(snapshot, tasks=(task(100, "/own/db", "2", 2), task(200, "/rest", "0-1", 1)))
    assert findings(quiet, replace(RECORD, owners=(owner,))) == {}, "nobody may run on CPU 3"
    gone = replace(snapshot, online=cpus("0-2,4-7"))
    assert findings(gone, replace(RECORD, owners=(owner,))) == {}


def test_a_sibling_that_another_pod_owns_has_no_command() -> None:
    mine, other = replace(DB, cpus=cpus("2")), Owner("web", "main", cpus("3"), ("/own/web",))
    snapshot = replace(
        with_groups(group("/own/db", "2"), group("/own/web", "3")),
        tasks=(task(100, "/own/db", "2", 2), task(130, "/own/web", "3", 3)),
    )
    found = audit(snapshot, replace(RECORD, owners=(mine, other))).findings
    assert [f.kind.slug for f in found] == ["smt-sibling", "smt-sibling"]
    assert [f.fix for f in found] == [(), ()]
    assert found[0].what.endswith("not its own; 3 are of other owners")


@pytest.mark.parametrize(
    ("irq", "slug"),
    [
        (Irq(30, cpus("0-7"), cpus("2"), ("nvme",)), "irq-delivered"),
        (Irq(30, cpus("0-7"), None, ("nvme",)), "irq-delivered"),
        (Irq(30, cpus("0-7"), cpus("1"), ("nvme",)), "irq-allowed"),
        (Irq(30, cpus("2"), cpus("2"), ("nvme",), is_managed=True), "irq-managed"),
    ],
)
def test_interrupts(irq: Irq, slug: str) -> None:
    found = only(slug, replace(CLEAN, irqs=(irq,)))
    assert found.examples[0].startswith("irq 30 nvme (affinity ")
    expected = () if irq.is_managed else ("echo 0-1,4-7 > /proc/irq/30/smp_affinity_list",)
    assert found.fix == expected


@pytest.mark.parametrize(
    ("kept", "irq", "says"),
    [
        (KeptInterrupts(cpus("2-3")), Irq(30, cpus("0-7"), cpus("2"), ("nvme",)), "next look"),
        (KeptInterrupts(cpus("2-3"), "nobody may"), Irq(30, cpus("2"), None, ("n",)), "nobody may"),
        (KeptInterrupts(cpus("4")), Irq(30, cpus("0-7"), cpus("2"), ("nvme",)), "do not ask"),
        (
            KeptInterrupts(cpus("2-3")),
            Irq(30, cpus("2"), cpus("2"), ("nvme",), is_managed=True),
            "cannot move these either",
        ),
    ],
)
def test_what_the_agent_does_about_interrupts(kept: KeptInterrupts, irq: Irq, says: str) -> None:
    record = replace(RECORD, interrupts=kept)
    (found,) = audit(replace(CLEAN, irqs=(irq,)), record).findings
    assert found.why.startswith(found.kind.why)
    assert says in found.why


def test_many_interrupts_are_one_finding() -> None:
    irqs = [Irq(n, cpus("0-7"), cpus("3"), (f"q{n}",)) for n in range(40, 60)]
    found = only(
        "irq-delivered", replace(CLEAN, irqs=(*irqs, Irq(70, cpus("3"), cpus("3"), ("x",))))
    )
    assert found.count == 21
    listed = " ".join(str(number) for number in [*range(40, 60), 70])
    assert found.fix == (
        f"for i in {listed}; do echo 0-1,4-7 > /proc/irq/$i/smp_affinity_list; done",
    )


def test_masks_of_the_kernel() -> None:
    found = findings(replace(CLEAN, default_irq_affinity=cpus("0-7"), workqueue=cpus("2-3")))
    assert found["irq-default"].fix == ("echo f3 > /proc/irq/default_smp_affinity",)
    assert found["workqueue"].fix == ("echo f3 > /sys/devices/virtual/workqueue/cpumask",)
    assert set(found) == {"irq-default", "workqueue"}


def test_what_was_not_seen_is_said() -> None:
    found = only("incomplete", replace(CLEAN, unseen=("no cpuset hierarchy is mounted",)))
    assert not audit(CLEAN, RECORD).count(AuditSeverity.WARNING)
    assert found.what == "no cpuset hierarchy is mounted"


def test_faults_of_the_record_come_along() -> None:
    fault = Finding(RECORD_BROKEN, "the checksum is wrong", "state")
    assert only("record-broken", CLEAN, replace(RECORD, faults=(fault,))) is fault


# ---------------------------------------------------------------------------------- the document


def everything() -> AuditReport:
    snapshot = replace(
        with_tasks(task(300, "/", "0-7", 1), task(160, "/own/db", "2-3", 2, start=9)),
        workqueue=cpus("0-7"),
        quotas={"/own": Quota("/own", f"{TOP}/own/cpu.max", 1, 2)},
    )
    return audit(snapshot, RECORD)


def test_the_worst_comes_first() -> None:
    order = [kind.slug for kind in KINDS]
    found = [finding.kind.slug for finding in everything().findings]
    assert found == sorted(found, key=order.index)
    severities = [kind.severity for kind in KINDS]
    assert severities == sorted(severities, key=list(AuditSeverity).index)
    assert len(set(order)) == len(order)


def test_the_document() -> None:
    document = audit_document(everything())
    assert (document["version"], document["kind"]) == (1, "Audit")
    assert document["verdict"] == "findings"
    assert document["counts"] == {"error": 0, "warning": 2, "info": 2}
    assert document["owners"] == [
        {
            "pod": "db",
            "uid": "db",
            "container": "main",
            "id": None,
            "cpus": "2-3",
            "effective": "2-3",
            "cgroups": ["/own/db"],
        }
    ]
    first = document["findings"][0]
    assert first["slug"] == "stranger-allowed"
    assert first["fix"] == ["taskset -pc 0-1,4-7 300"]
    assert all(finding["why"] and finding["remedy"] for finding in document["findings"])
    assert audit_document(audit(CLEAN, RECORD))["verdict"] == "clean"


def test_words_of_commands_are_quoted() -> None:
    assert write_command("0-1", "/sys/fs/cgroup/a b") == "echo 0-1 > '/sys/fs/cgroup/a b'"
    assert write_command("0-1", "it's") == "echo 0-1 > 'it'\"'\"'s'"
    assert write_command("0-1", "/a/b") == "echo 0-1 > /a/b"
    assert write_command("", "/a/b") == "echo '' > /a/b"


def test_lineage() -> None:
    assert list(lineage("/a/b")) == ["/a/b", "/a", "/"]
    assert list(lineage("/")) == ["/"]


# ------------------------------------------------------------------------------------ the caches

_MADE = DividedCache(Group("pinfold.fast.1", cpus("2-3"), {"L3": {0: 0xF, 1: 0xFF0}}), ("db main",))
_CACHED = replace(RECORD, caches=(_MADE,))


def test_a_group_of_resctrl_as_it_was_made_is_no_finding() -> None:
    made = replace(_MADE.group, schemata={**_MADE.group.schemata, "MB": {0: 100}})
    snapshot = replace(CLEAN, caches={"": made, made.name: made})
    assert audit(snapshot, _CACHED).findings == ()


def test_a_group_of_resctrl_that_is_gone_or_was_changed() -> None:
    found = only("cache-differs", CLEAN, _CACHED)
    assert found.what == "there is no group /sys/fs/resctrl/pinfold.fast.1"
    assert found.owners == ("db main",)
    name = _MADE.group.name
    moved = replace(CLEAN, caches={name: replace(_MADE.group, cpus=cpus("2-4"))})
    found = only("cache-differs", moved, _CACHED)
    assert found.what.endswith("recorded CPUs 2-3, the kernel has 2-4")
    assert found.fix == (f"echo 2-3 > /sys/fs/resctrl/{name}/cpus_list",)
    wide = replace(CLEAN, caches={name: replace(_MADE.group, schemata={"L3": {0: 0xFFF}})})
    found = only("cache-differs", wide, _CACHED)
    assert found.what.endswith("recorded L3:0=f;1=ff0, the kernel has L3:0=fff")
    assert found.fix == (f"echo 'L3:0=f;1=ff0' > /sys/fs/resctrl/{name}/schemata",)


# ------------------------------------------------------------------------------------ the limits

_MAIN = LimitedGroup("ns/db main", f"{TOP}/own/db", {"memory.min": "4096", "cpu.weight": "20"})
_LIMITED = replace(RECORD, limits=(_MAIN,))
_AS_WRITTEN = {"memory.min": "4096", "memory.high": "max", "cpu.weight": "20", "io.weight": "100"}


def _limited(**files: str) -> KernelSnapshot:
    changed = {name.replace("_", "."): value for name, value in files.items()}
    return replace(CLEAN, limits={_MAIN.folder: {**_AS_WRITTEN, **changed}, "/else": changed})


def test_limits_as_they_were_written_are_no_finding() -> None:
    assert audit(_limited(), _LIMITED).findings == ()
    # Its cgroup has just gone, or nobody tells of it.
    assert audit(CLEAN, _LIMITED).findings == ()
    assert audit(_limited(memory_min="0"), RECORD).findings == ()


def test_a_limit_that_somebody_else_has_written() -> None:
    found = only("limit-differs", _limited(cpu_weight="1", memory_high="8192"), _LIMITED)
    assert found.what == (
        "ns/db main: written cpu.weight 20, memory.high max, the kernel has cpu.weight 1, "
        "memory.high 8192"
    )
    assert set(found.fix) == {
        f"echo 20 > {_MAIN.folder}/cpu.weight",
        f"echo max > {_MAIN.folder}/memory.high",
    }
    assert found.owners == ("ns/db main",)

"""The audit's rules about tasks: foreign tasks, kernel threads, and the owners' own processes."""

from __future__ import annotations

from msgspec.structs import replace

from pinfold.audit.audit import audit
from pinfold.audit.findings import AuditSeverity
from pinfold.audit.record import Owner
from pinfold.audit.tasks import affinity_commands
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


def test_a_stranger_that_is_only_allowed() -> None:
    found = only("stranger-allowed", with_tasks(task(300, "/", "0-7", 1, comm="noise")))
    assert found.severity is AuditSeverity.WARNING
    assert "1 thread of 1 process may run on the exclusive CPUs 2-3; none" in found.what
    assert found.examples == ("300 noise (allowed 0-7, last on 1)",)
    assert found.fix == ("taskset -pc 0-1,4-7 300",)


def test_a_stranger_that_was_seen_there_is_an_error() -> None:
    snapshot = with_tasks(task(300, "/", "0-7", 1), task(301, "/", "1-3", 2))
    found = only("stranger-ran", snapshot)
    assert found.severity is AuditSeverity.ERROR
    assert "1 ran there last" in found.what
    assert found.examples[0].startswith("301 ")
    assert found.fix == ("taskset -pc 0-1,4-7 300", "taskset -pc 1 301")


def test_a_stranger_that_may_run_nowhere_else_is_moved_to_the_rest() -> None:
    found = only("stranger-ran", with_tasks(task(300, "/", "2-3", 2)))
    assert found.fix == ("taskset -pc 0-1,4-7 300",)


def test_ten_thousand_strangers_are_one_finding() -> None:
    found = only(
        "stranger-allowed", with_tasks(*(task(n, "/", "0-7", 0) for n in range(1000, 11000)))
    )
    assert found.count == 10000
    assert len(found.examples) == 5
    assert len(found.fix) == 1


def test_whole_processes_are_moved_at_once() -> None:
    threads = [task(300, "/", "0-7", 0, tid=300), task(300, "/", "0-7", 0, tid=301)]
    assert affinity_commands(((t, cpus("0")) for t in threads), threads) == ["taskset -apc 0 300"]
    more = [*threads, task(300, "/", "0", 0, tid=302), task(400, "/", "0-7", 0)]
    assert affinity_commands(((t, cpus("0")) for t in [*threads, more[3]]), more) == [
        "for t in 300 301 400; do taskset -pc 0 $t; done"
    ]


def test_a_cgroup_of_strangers_is_narrowed() -> None:
    snapshot = replace(
        with_groups(group("/rest", "0-7")), tasks=(*CLEAN.tasks[:3], task(200, "/rest", "0-7", 4))
    )
    assert only("stranger-allowed", snapshot).fix == (f"echo 0-1,4-7 > {TOP}/rest/cpuset.cpus",)


def test_a_systemd_slice_is_one_finding_with_systemds_command() -> None:
    snapshot = replace(
        with_tasks(
            task(300, "/system.slice/a.service", "0-7", 0),
            task(301, "/system.slice/b.service/x", "0-7", 0),
        ),
        has_systemd=True,
    )
    found = only("stranger-allowed", snapshot)
    assert (found.where, found.count) == ("/system.slice", 2)
    assert found.fix == ("systemctl set-property --runtime system.slice AllowedCPUs=0-1,4-7",)


def test_a_slice_that_holds_an_owner_is_not_narrowed() -> None:
    owner = replace(DB, cgroups=("/system.slice/agent.service/db",))
    snapshot = replace(
        with_groups(group("/system.slice/agent.service/db", "2-3")),
        tasks=(task(300, "/system.slice/agent.service/other", "0-7", 0),),
        has_systemd=True,
    )
    found = only("stranger-allowed", snapshot, replace(RECORD, owners=(owner,)))
    assert found.where == "/system.slice/agent.service/other"
    assert "AllowedCPUs" not in found.fix[0]


def test_kernel_threads_that_can_be_moved() -> None:
    moved = replace(task(30, "/", "0-7", 0, comm="kswapd0"), is_kernel=True)
    pinned = replace(task(31, "/", "2", 2, comm="migration/2"), is_kernel=True, is_bound=True)
    found = only("kernel-thread", with_tasks(moved, pinned))
    assert (found.count, found.fix) == (1, ("taskset -pc 0-1,4-7 30",))


def test_containers_of_one_pod_may_share_cpus() -> None:
    init = Owner("db", "init", cpus("2-5"), ("/own/init",))
    snapshot = replace(
        with_groups(group("/own/init", "2-5"), group("/rest", "0-1,6-7")),
        tasks=(*CLEAN.tasks[:0], task(100, "/own/db", "2-3", 2), task(110, "/own/init", "2-5", 3)),
    )
    assert findings(snapshot, replace(RECORD, owners=(DB, init))) == {}


def test_a_child_of_the_owner_that_left_its_cgroup() -> None:
    found = only("owner-outside", with_tasks(task(150, "/rest", "0-1,4-7", 4, ppid=101)))
    assert found.fix == (f"echo 150 > {TOP}/own/db/cgroup.procs",)
    assert found.cpus == cpus("0-1,4-7")


def test_a_child_that_left_and_may_use_only_its_own_cpus_is_no_stranger() -> None:
    assert findings(with_tasks(task(150, "/rest", "2-3", 2, ppid=101))) == {}


def test_an_affinity_wider_than_the_right_cpuset() -> None:
    found = only("owner-outside", with_tasks(task(100, "/own/db", "1-3", 2, tid=102)))
    assert found.fix == ("taskset -pc 2-3 102",)


def test_a_process_that_was_put_beside_the_main_process() -> None:
    snapshot = with_tasks(
        task(160, "/own/db", "2-3", 2, start=50, comm="sh"),
        task(161, "/own/db", "2-3", 2, ppid=160, start=60, comm="top"),
    )
    found = only("exec-stray", snapshot)
    assert found.severity is AuditSeverity.INFO
    assert found.fix == ("kill 160 161",)
    assert audit(snapshot, RECORD).is_clean()
    assert not audit(snapshot, RECORD).is_clean(strict=True)


def test_parents_in_a_circle_end_somewhere() -> None:
    snapshot = with_tasks(
        task(300, "/rest", "0-7", 0, ppid=301), task(301, "/rest", "0-7", 0, ppid=300)
    )
    assert list(findings(snapshot)) == ["stranger-allowed"]
    inside = with_tasks(
        task(300, "/own/db", "2-3", 2, ppid=301), task(301, "/own/db", "2-3", 2, ppid=300)
    )
    assert "exec-stray" not in findings(inside)


def test_a_pod_with_cpus_of_its_own() -> None:
    pod = Owner("web", "", cpus("4-5"), ("/kin",), is_pod=True)
    snapshot = replace(
        CLEAN,
        tasks=(task(100, "/kin/main", "4-5", 4), task(120, "/kin/pause", "0-7", 3)),
        cpusets={**CLEAN.cpusets, **groups(group("/rest", "0-1,6-7"))},
    )
    record = replace(RECORD, owners=(DB, pod), shared=cpus("0-1,6-7"))
    found = only("stranger-ran", snapshot, record)
    assert (found.where, found.cpus) == ("/kin/pause", cpus("2-3"))


def test_a_member_of_a_pod_may_run_on_the_pods_cpus() -> None:
    pod = Owner("db", "", cpus("2-3"), ("/own",), is_pod=True)
    record = replace(RECORD, owners=(pod,))
    assert audit(CLEAN, record).findings == ()

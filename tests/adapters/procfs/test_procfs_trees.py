"""Snapshots of trees in a directory, in the form that kernels have: cgroup v2 under systemd, v1.

The trees are made by hand after what a 6.12 kernel shows in its cgroup2 mount and a 6.1 kernel in
its v1 mounts; tests/adapters/procfs/test_audit_kernel.py reads the kernel that runs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pinfold.adapters.procfs.containers import find_containers
from pinfold.adapters.procfs.files import MAX_FILE_BYTES, KernelFiles, SnapshotError
from pinfold.adapters.procfs.snapshot import read_snapshot
from pinfold.adapters.procfs.tasks import read_tasks
from pinfold.audit.located import (
    Assignments,
    Located,
    locate_containers,
    locate_given,
    locate_own,
)
from pinfold.audit.snapshot import KernelSnapshot, Task
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.kernel_tree import (
    AFTER_NAME,
    ID_A,
    ID_B,
    ID_P,
    SLICE,
    UID,
    V2,
    KernelTree,
    kubelet_node,
)


def locate_kubelet(snapshot: KernelSnapshot, assignments: Assignments, root: Path) -> Located:
    """As the audit of a kubelet does where nobody tells the names."""
    return locate_containers(snapshot, assignments, find_containers(snapshot, KernelFiles(root)))


PINNED: Assignments = {UID: {"app": CPUSet([2, 3])}}


@pytest.fixture
def node(tmp_path: Path) -> KernelTree:
    return kubelet_node(tmp_path)


def test_a_snapshot_of_a_v2_node(node: KernelTree) -> None:
    snapshot = read_snapshot(node.root)
    assert snapshot.online == CPUSet(range(8))
    assert (snapshot.isolated, snapshot.nohz_full) == (CPUSet(), CPUSet())
    assert snapshot.siblings[3] == CPUSet([2, 3])
    assert snapshot.nodes == {0: CPUSet(range(4)), 1: CPUSet(range(4, 8))}
    assert snapshot.default_irq_affinity == snapshot.workqueue == CPUSet([0, 1])
    assert (snapshot.cgroup_version, snapshot.has_systemd) == (2, True)
    assert snapshot.unseen == ()
    assert snapshot.quotas == {}
    group = snapshot.cpusets[f"/{SLICE}/cri-containerd-{ID_A}.scope"]
    assert (group.cpus, group.effective) == (CPUSet([2, 3]), CPUSet([2, 3]))
    assert (group.mems, group.effective_mems) == (CPUSet(), CPUSet([0]))
    assert group.partition == "member"
    assert snapshot.cpusets["/"].cpus is None
    app = next(task for task in snapshot.tasks if task.pid == 500)
    assert (app.comm, app.ppid, app.last_cpu, app.start_time) == ("app", 1, 2, 500)
    assert [task.pid for task in snapshot.tasks if task.is_kernel] == [2]
    assert [(irq.number, irq.actions) for irq in snapshot.irqs] == [(24, ("eth0",))]


def test_a_process_that_ends_while_it_is_looked_at_is_nowhere(node: KernelTree) -> None:
    """On cgroup v1 it is shown in the root from then on."""

    class Ending(KernelFiles):
        def text(self, path: str) -> str | None:
            text = super().text(path)
            if path == f"{victim}/cgroup":
                stat = super().text(f"{victim}/stat") or ""
                node.write(f"{victim}/stat", stat.replace(") S ", ") Z ", 1))
                return "0::/\n"
            return text

    def look(files: KernelFiles) -> tuple[Task, ...]:
        return read_tasks(files, None, None)[0]

    before = look(KernelFiles(node.root))
    task = next(task for task in before if task.cgroup != "/" and not task.is_kernel)
    victim = f"/proc/{task.pid}/task/{task.tid}"
    after = look(Ending(node.root))
    assert {one.tid for one in before} - {one.tid for one in after} == {task.tid}


def test_interrupts_without_a_handler_are_none(node: KernelTree) -> None:
    node.interrupt(9, "0-7", "", "")
    node.write("proc/irq/11/smp_affinity_list", "0-7\n")
    (node.root / "proc/irq/11/nvme0q1").mkdir()
    snapshot = read_snapshot(node.root)
    assert [irq.number for irq in snapshot.irqs] == [11, 24]
    assert snapshot.irqs[0].actions == ("nvme0q1",)
    assert snapshot.irqs[0].effective is None


def test_the_timer_of_a_pc_cannot_be_moved(node: KernelTree) -> None:
    node.interrupt(0, "0-7", "0", "timer")
    assert [irq.is_managed for irq in read_snapshot(node.root).irqs] == [True, False]


def test_an_interrupt_that_not_even_root_may_write_is_managed(node: KernelTree) -> None:
    (node.root / "proc/irq/24/smp_affinity_list").chmod(0o444)
    assert [irq.is_managed for irq in read_snapshot(node.root).irqs] == [True]


def test_a_container_that_nothing_names_is_told_by_its_cpus(node: KernelTree) -> None:
    located = locate_kubelet(read_snapshot(node.root), PINNED, node.root)
    (owner,) = located.owners
    assert owner.cgroups == (f"/{SLICE}/cri-containerd-{ID_A}.scope",)
    assert owner.cpu_cgroups == owner.cgroups
    assert located.shared == (f"/{SLICE}/cri-containerd-{ID_B}.scope",), "not the sandbox"


def test_a_container_whose_cpus_drifted_is_told_by_its_name(node: KernelTree) -> None:
    """Both ways that tell the name: the runtime's config.json, and the links of the kubelet."""
    node.group(f"{SLICE}/cri-containerd-{ID_A}.scope", "4-5", "4-5")
    node.group(f"{SLICE}/cri-containerd-{ID_B}.scope", "2-3", "2-3")
    task = "run/containerd/io.containerd.runtime.v2.task/k8s.io"
    annotations = {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": "app",
    }
    node.write(f"{task}/{ID_A}/config.json", json.dumps({"annotations": annotations}))
    node.write(f"{task}/{ID_B}/config.json", "{ broken")
    links = node.root / "var/log/containers"
    links.mkdir(parents=True)
    (links / f"pod_default_log-{ID_B}.log").symlink_to(f"/var/log/pods/default_pod_{UID}/log/0.log")
    snapshot = read_snapshot(node.root)
    located = locate_kubelet(snapshot, PINNED, node.root)
    assert located.owners[0].cgroups == (f"/{SLICE}/cri-containerd-{ID_A}.scope",)
    (node.root / task / ID_A / "config.json").unlink()
    (links / f"pod_default_app-{ID_A}.log").symlink_to(f"/var/log/pods/default_pod_{UID}/app/0.log")
    assert locate_kubelet(snapshot, PINNED, node.root) == located


def test_the_sandbox_by_its_annotation(node: KernelTree) -> None:
    node.task(502, f"/{SLICE}/cri-containerd-{ID_P}.scope", "0-7", 1, comm="tini")
    config = f"run/containers/storage/overlay-containers/{ID_P}/userdata/config.json"
    annotations = {"io.kubernetes.cri-o.ContainerType": "sandbox"}
    node.write(config, json.dumps({"annotations": annotations}))
    located = locate_kubelet(read_snapshot(node.root), PINNED, node.root)
    assert f"/{SLICE}/cri-containerd-{ID_P}.scope" not in located.shared


@pytest.mark.parametrize(
    ("pod", "container"),
    [
        (f"kubepods/pod{UID}", ID_A),
        (f"kubepods/burstable/pod{UID}", ID_A),
        (f"kubelet/kubepods/besteffort/pod{UID}", ID_A),
        (f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice", f"crio-{ID_A}.scope"),
        (
            f"kubelet.slice/kubelet-kubepods-burstable-pod{UID.replace('-', '_')}.slice",
            f"docker-{ID_A}.scope",
        ),
    ],
)
def test_names_of_both_cgroup_drivers(tmp_path: Path, pod: str, container: str) -> None:
    tree = KernelTree(tmp_path)
    tree.machine()
    tree.unified()
    tree.group(f"{pod}/{container}", "2-3", "2-3")
    tree.group(f"{pod}/crio-conmon-{ID_A}.scope", "0", "0")
    located = locate_kubelet(read_snapshot(tmp_path), PINNED, tmp_path)
    assert [owner.cgroups for owner in located.owners] == [(f"/{pod}/{container}",)]
    assert located.shared == ()


def test_containers_that_cannot_be_told_apart(node: KernelTree) -> None:
    """Owners of equal sets whose cgroups have no names: as many as are on record, or none."""
    twins = {UID: {"init": CPUSet([2]), "app": CPUSet([2])}}
    paths = [f"{SLICE}/cri-containerd-{id_}.scope" for id_ in (ID_A, ID_B, "c" * 64)]
    told = []
    for path in paths:
        node.group(path, "2", "2")
        located = locate_kubelet(read_snapshot(node.root), twins, node.root)
        told.append({cgroup for owner in located.owners for cgroup in owner.cgroups})
    both = {f"/{path}" for path in paths[:2]}
    assert told == [set(), both, set()]


def test_the_oldest_state_file_names_container_ids(node: KernelTree) -> None:
    located = locate_kubelet(read_snapshot(node.root), {ID_A: {ID_A: CPUSet([2])}}, node.root)
    assert located.owners[0].cgroups == (f"/{SLICE}/cri-containerd-{ID_A}.scope",)


def test_a_pod_with_cpus_of_its_own(node: KernelTree) -> None:
    located = locate_kubelet(read_snapshot(node.root), {UID: {"": CPUSet([2, 3])}}, node.root)
    (owner,) = located.owners
    assert owner.is_pod
    assert owner.cgroups == (f"/{SLICE}",)
    assert located.shared == (), "all of its containers are the pod's"


def test_a_pod_that_is_gone(node: KernelTree) -> None:
    located = locate_kubelet(read_snapshot(node.root), {"gone": {"app": CPUSet([2])}}, node.root)
    assert located.owners[0].cgroups == ()


def test_pinfolds_own_cgroups(tmp_path: Path) -> None:
    tree = KernelTree(tmp_path)
    tree.machine()
    tree.unified()
    top = "system.slice/pinfold.service/pinfold"
    tree.group(f"{top}/exclusive/pod-u1/db", "2-3", "2-3")
    tree.group(f"{top}/shared/pod-u2/web", "", "0-1,4-7")
    tree.group(f"{top}/exclusive/pod-u3/old", "4", "4")
    located = locate_own(read_snapshot(tmp_path), {"u1": {"db": CPUSet([2, 3])}})
    assert located.owners[0].cgroups == (f"/{top}/exclusive/pod-u1/db",)
    assert sorted(located.shared) == [f"/{top}/shared", f"/{top}/shared/pod-u2/web"]


@pytest.mark.parametrize("folder", ["pod-default=2fdb/db", "pod-default=2fdb/ctr-db"])
def test_names_that_no_folder_can_have(tmp_path: Path, folder: str) -> None:
    tree = KernelTree(tmp_path)
    tree.machine()
    tree.unified()
    tree.group(f"pinfold/exclusive/{folder}", "2-3", "2-3", quota="1000")
    snapshot = read_snapshot(tmp_path)
    (owner,) = locate_own(snapshot, {"default/db": {"db": CPUSet([2, 3])}}).owners
    assert owner.cgroups == (f"/pinfold/exclusive/{folder}",)
    assert set(owner.cpu_cgroups) == {*owner.cgroups}


def test_a_cgroup_v1_node(tmp_path: Path) -> None:
    """Found without mountinfo, too, as in most captures."""
    tree = KernelTree(tmp_path)
    tree.machine()
    top = "sys/fs/cgroup/cpuset"
    for path, cpus in (("", "0-7"), ("/pinfold", "0-7"), ("/pinfold/exclusive", "0-7")):
        tree.write(f"{top}{path}/cpuset.cpus", f"{cpus}\n")
        tree.write(f"{top}{path}/cpuset.effective_cpus", f"{cpus}\n")
    own = "/pinfold/exclusive/pod-u/db"
    for path in ("/pinfold/exclusive/pod-u", own):
        tree.write(f"{top}{path}/cpuset.cpus", "2-3\n")
        tree.write(f"{top}{path}/cpuset.effective_cpus", "2\n")
        tree.write(f"{top}{path}/cpuset.effective_mems", "0\n")
    tree.write("sys/fs/cgroup/cpu/cpu.shares", "1024\n")
    tree.write("sys/fs/cgroup/cpu/pinfold/pod-u/cpu.cfs_quota_us", "20000\n")
    tree.write("sys/fs/cgroup/cpu/pinfold/pod-u/cpu.cfs_period_us", "100000\n")
    tree.write("sys/fs/cgroup/cpu/pinfold/pod-v/cpu.cfs_quota_us", "-1\n")
    tree.write("sys/fs/cgroup/cpu/pinfold/pod-v/cpu.cfs_period_us", "100000\n")
    tree.task(7, own, "2", 2, controller="cpuset")
    snapshot = read_snapshot(tmp_path)
    assert (snapshot.cgroup_version, snapshot.has_systemd) == (1, False)
    assert snapshot.cpusets[own].effective == CPUSet([2])
    assert snapshot.cpusets[own].effective_mems == CPUSet([0])
    assert snapshot.cpusets[own].partition is None
    assert {path: quota.quota for path, quota in snapshot.quotas.items()} == {
        "/pinfold/pod-u": 20000
    }
    (owner,) = locate_own(snapshot, {"u": {"db": CPUSet([2, 3])}}).owners
    assert owner.cpu_cgroups == (own, "/pinfold/pod-u")
    assert [task.cgroup for task in snapshot.tasks if task.pid == 7] == [own]


@pytest.mark.parametrize("place", ["/{s}", "{s}", "/sys/fs/cgroup/{s}", "/sys/fs/cgroup/{s}/"])
def test_an_owner_that_is_given(node: KernelTree, place: str) -> None:
    snapshot = read_snapshot(node.root)
    owner = locate_given(snapshot, place.format(s=SLICE), CPUSet([2]))
    assert owner.cgroups == (f"/{SLICE}",)
    assert str(owner) == f"/{SLICE}"


def test_a_machine_without_cgroups_says_so(tmp_path: Path) -> None:
    KernelTree(tmp_path).machine()
    snapshot = read_snapshot(tmp_path)
    assert snapshot.cgroup_version is None
    assert len(snapshot.unseen) == 2
    assert "no cgroup hierarchy with the controller cpuset" in snapshot.unseen[0]


def test_a_container_that_sees_only_itself_says_so(node: KernelTree) -> None:
    (node.root / "proc/2/task/2/stat").unlink()
    assert "shows no kernel threads" in read_snapshot(node.root).unseen[0]


def test_no_process_at_all_is_said(tmp_path: Path) -> None:
    tree = KernelTree(tmp_path)
    tree.write("sys/devices/system/cpu/online", "0\n")
    assert "no process can be seen in /proc" in read_snapshot(tmp_path).unseen


def test_a_thread_that_makes_no_sense_is_counted(node: KernelTree) -> None:
    node.write("proc/500/task/500/stat", "500 (app) S\n")
    node.write("proc/501/task/501/status", "Cpus_allowed_list:\tmany\n")
    snapshot = read_snapshot(node.root)
    assert snapshot.unseen[0].startswith("2 thread(s) could not be understood")
    assert {task.pid for task in snapshot.tasks} == {1, 2, 502}


def test_threads_that_vanish_or_have_ended_are_no_error(node: KernelTree) -> None:
    node.write("proc/500/task/500/stat", "")
    (node.root / "proc/501/task/501/cgroup").unlink()
    node.write("proc/502/task/502/stat", "502 (pause) Z" + AFTER_NAME.format(start=1, cpu=1)[2:])
    (node.root / "proc/777/task").mkdir(parents=True)
    snapshot = read_snapshot(node.root)
    assert {task.pid for task in snapshot.tasks} == {1, 2}
    assert snapshot.unseen == ()


def test_what_is_refused_is_said(node: KernelTree) -> None:
    if os.geteuid() == 0:
        files = KernelFiles(node.root)
        files._note("/proc/1/stat", PermissionError(13, "denied"))  # noqa: SLF001 - root is refused nothing
        files._note("/proc/1/stat", ProcessLookupError(3, "gone"))  # noqa: SLF001 - the same
        assert files.refused == ["/proc/1/stat"]
        return
    (node.root / "proc/500/task/500/status").chmod(0)
    assert "could not be read" in read_snapshot(node.root).unseen[0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sys/devices/system/cpu/online", "all"),
        ("proc/irq/24/smp_affinity_list", "3-1"),
        ("proc/irq/default_smp_affinity", "xyz"),
        (f"{V2}/{SLICE}/cpuset.cpus", "0-"),
        (f"{V2}/{SLICE}/cpu.max", "some"),
        ("sys/devices/system/node/node0/cpulist", "?"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(
    node: KernelTree, path: str, text: str
) -> None:
    node.write(path, text)
    with pytest.raises(SnapshotError, match=path.rpartition("/")[2]):
        read_snapshot(node.root)


def test_a_directory_that_is_no_machine(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"online: missing or empty.*needs proc and sys"):
        read_snapshot(tmp_path)


def test_a_file_without_end_is_refused(node: KernelTree) -> None:
    node.write("sys/devices/system/cpu/online", "0" * (MAX_FILE_BYTES + 1))
    with pytest.raises(SnapshotError, match="more than"):
        read_snapshot(node.root)


def test_a_pipe_does_not_hang(node: KernelTree) -> None:
    (node.root / "sys/devices/system/cpu/isolated").unlink()
    os.mkfifo(node.root / "sys/devices/system/cpu/isolated")
    assert read_snapshot(node.root).isolated == CPUSet()

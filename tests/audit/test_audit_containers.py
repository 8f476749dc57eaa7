"""Containers in the audit: what they are called, where they are, and who has got into them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.procfs.containers import find_containers
from pinfold.adapters.procfs.files import KernelFiles
from pinfold.adapters.procfs.snapshot import read_snapshot
from pinfold.adapters.procfs.tasks import read_namespaces
from pinfold.audit.audit import audit
from pinfold.audit.containers import namespace_pids
from pinfold.audit.findings import Finding
from pinfold.audit.located import is_below, is_of_a_pod, locate_containers, locate_own
from pinfold.audit.record import AuditRecord, KnownContainer, Owner
from pinfold.audit.snapshot import KernelSnapshot, Quota
from pinfold.core.values.cpuset import CPUSet
from pinfold.render.audit_text import render_audit
from pinfold.render.terminal import Style
from tests.scenes.audited import CLEAN, cpus, group, groups, task
from tests.scenes.kernel_tree import ID_A, ID_B, ID_P, SLICE, UID, V2, KernelTree, kubelet_node
from tests.scenes.published_schemas import audit_document

POD = "/kubepods/pod1"
DB_PATH, WEB_PATH, PAUSE_PATH = f"{POD}/{ID_A}", f"/kubepods/pod2/{ID_B}", f"{POD}/{ID_P}"
DB = KnownContainer(ID_A, "1", "shop/db", "main", DB_PATH, 100, cpus("2-3"))
WEB = KnownContainer(ID_B, "2", "shop/web", "main", WEB_PATH, 200, cpus("0-1,4-7"))
PAUSE = KnownContainer(ID_P, "1", "shop/db", "", PAUSE_PATH, 300, is_sandbox=True)
OWNER = Owner(
    "1",
    "main",
    cpus("2-3"),
    (DB_PATH,),
    (DB_PATH,),
    pod_name="shop/db",
    container_id=ID_A,
    pid=100,
)
RECORD = AuditRecord(
    "test",
    (OWNER,),
    cpus("0-1,4-7"),
    (WEB_PATH,),
    containers={DB_PATH: DB, WEB_PATH: WEB, PAUSE_PATH: PAUSE},
    runtime="unix:///run/r.sock",
)
HOST, IN_DB, IN_WEB = "mnt:[1]", "mnt:[2]", "mnt:[3]"
NODE = replace(
    CLEAN,
    tasks=(
        task(1, "/", "0-1,4-7", 0, ppid=0, comm="init"),
        task(100, DB_PATH, "2-3", 2, start=5),
        task(200, WEB_PATH, "0-1,4-7", 4),
        task(300, PAUSE_PATH, "0-1,4-7", 0, comm="pause"),
    ),
    cpusets=groups(
        group("/", None, "0-7", partition=None),
        group("/kubepods", "", "0-7"),
        group(POD, "", "0-7"),
        group(DB_PATH, "2-3"),
        group(PAUSE_PATH, "0-1,4-7"),
        group("/kubepods/pod2", "", "0-7"),
        group(WEB_PATH, "0-1,4-7"),
    ),
    namespaces={1: HOST, 100: IN_DB, 200: IN_WEB},
)
TITLE = "shop/db/main (aaaaaaaaaaaa)"


def findings(snapshot: KernelSnapshot = NODE, record: AuditRecord = RECORD) -> dict[str, Finding]:
    """The findings by slug, of which each must be there once."""
    found = audit(snapshot, record).findings
    assert len({finding.kind.slug for finding in found}) == len(found), found
    return {finding.kind.slug: finding for finding in found}


def only(slug: str, snapshot: KernelSnapshot = NODE, record: AuditRecord = RECORD) -> Finding:
    found = findings(snapshot, record)
    assert list(found) == [slug]
    return found[slug]


def joined(pid: int, namespace: str, cgroup: str = "/", allowed: str = "0-7") -> KernelSnapshot:
    """The node and one more process."""
    more = task(pid, cgroup, allowed, 3, ppid=7, start=9)
    return replace(NODE, tasks=(*NODE.tasks, more), namespaces={**NODE.namespaces, pid: namespace})


# ---------------------------------------------------------------------------------------- the rules


def test_a_clean_node_of_containers() -> None:
    report = audit(NODE, RECORD)
    assert report.findings == ()
    assert audit_document(report)["owners"][0] | {"cgroups": []} == {
        "pod": "shop/db",
        "uid": "1",
        "container": "main",
        "id": ID_A,
        "cpus": "2-3",
        "effective": "2-3",
        "cgroups": [],
    }
    text = render_audit(report, Style(80))
    assert f"✓ {TITLE}\n" in text
    assert "3 containers" in " ".join(text.split())
    assert "runtime      unix:///run/r.sock\n" in text


@pytest.mark.parametrize(
    ("container", "title"),
    [
        (DB, TITLE),
        (PAUSE, "shop/db/sandbox (ffffffffffff)"),
        (KnownContainer(ID_A), "container aaaaaaaaaaaa"),
        (KnownContainer(ID_A, "uid"), "uid (aaaaaaaaaaaa)"),
        (KnownContainer("", "uid", "", "c"), "uid/c"),
    ],
)
def test_titles(container: KnownContainer, title: str) -> None:
    assert str(container) == title


@pytest.mark.parametrize(("namespace", "title"), [(IN_DB, TITLE), (IN_WEB, str(WEB))])
def test_who_has_joined_from_outside_is_named_by_the_container(namespace: str, title: str) -> None:
    found = only("stranger-ran", joined(400, namespace))
    assert found.what.startswith(
        f"{title}: 1 thread of 1 process in its namespace and not in its cgroup may run on the "
        "exclusive CPUs 2-3; 1 ran there last"
    )
    path = DB_PATH if namespace == IN_DB else WEB_PATH
    assert found.fix == (f"echo 400 > /sys/fs/cgroup{path}/cgroup.procs",)


def test_who_has_joined_and_stays_off_exclusive_cpus_is_none() -> None:
    assert findings(joined(400, IN_DB, allowed="0-1")) == {}


def test_the_machines_own_namespace_is_no_containers() -> None:
    """A container that has none of its own does not make everybody its guest."""
    snapshot = joined(400, HOST)
    snapshot = replace(snapshot, namespaces={**snapshot.namespaces, 100: HOST})
    assert only("stranger-ran", snapshot).what.startswith("/: 1 thread of 1 process may run")


@pytest.mark.parametrize("baseline", [1, 2])
def test_process_1_may_not_be_looked_at(baseline: int) -> None:
    names = {baseline: HOST, 100: HOST, 400: HOST}
    found = only("stranger-ran", replace(joined(400, HOST), namespaces=names))
    assert found.where == "/"


def test_an_exec_is_a_note_and_a_guest_from_outside_a_warning() -> None:
    """The main process is the one that the runtime tells, not the oldest."""
    exec_ = only("exec-stray", joined(90, IN_DB, DB_PATH, "2"))
    assert exec_.what == f"{TITLE}: 1 process in its cgroup is not of its main process"
    assert exec_.examples == ("90 work (allowed 2, last on 3)",)
    foreign = only("foreign-inside", joined(400, HOST, DB_PATH, "2-3"))
    assert foreign.what == f"{TITLE}: 1 process in its cgroup is not of the container"
    assert foreign.fix == (
        "echo 400 > /sys/fs/cgroup/cgroup.procs",
        "taskset -apc 0-1,4-7 400",
    )


def test_the_oldest_is_the_main_process_only_where_nobody_tells() -> None:
    old = replace(NODE, tasks=(*NODE.tasks, task(90, DB_PATH, "2", 2, start=1)))
    assert "90 work" in only("exec-stray", old).examples[0]
    untold = replace(RECORD, owners=(replace(OWNER, pid=None),), containers={})
    assert "100 work" in only("exec-stray", old, untold).examples[0]


def test_sandboxes_are_one_info_and_what_is_put_into_one_is_a_stranger() -> None:
    tasks = (*NODE.tasks[:3], task(300, PAUSE_PATH, "0-7", 2, comm="pause"))
    snapshot = replace(
        NODE, tasks=tasks, cpusets={**NODE.cpusets, **groups(group(PAUSE_PATH, "0-7"))}
    )
    found = only("sandbox-allowed", snapshot)
    assert found.what.endswith("may run on the exclusive CPUs 2-3: shop/db/sandbox (ffffffffffff)")
    assert found.fix == (f"echo 0-1,4-7 > /sys/fs/cgroup{PAUSE_PATH}/cpuset.cpus",)
    assert audit(snapshot, RECORD).is_clean()
    two = replace(snapshot, tasks=(*tasks, task(301, PAUSE_PATH, "0-7", 3)))
    assert only("stranger-ran", two).what.startswith("shop/db/sandbox (ffffffffffff): 2 threads")


@pytest.mark.parametrize(
    ("quota", "slug"), [(200_000, "quota-tight"), (250_000, "quota-tight"), (199_000, "quota-caps")]
)
def test_the_quota_of_a_pod(quota: int, slug: str) -> None:
    file = f"/sys/fs/cgroup{POD}/cpu.max"
    found = only(slug, replace(NODE, quotas={POD: Quota(POD, file, quota, 100_000)}))
    assert found.what.startswith(f"the pod of {TITLE}: the quota is {quota} us")
    assert found.fix == (f"echo max > {file}",)


@pytest.mark.parametrize(
    ("container", "recorded", "wanted"), [(DB, "0-7", "2-3"), (WEB, "0-7", "0-1,4-7")]
)
def test_a_runtime_that_is_behind(container: KnownContainer, recorded: str, wanted: str) -> None:
    behind = replace(container, recorded=cpus(recorded))
    record = replace(RECORD, containers={**RECORD.containers, container.cgroup: behind})
    found = only("runtime-record", NODE, record)
    assert found.what == f"{container}: the runtime has 0-7 on record, the kernel has {wanted}"
    ask = "crictl --runtime-endpoint unix:///run/r.sock update"
    assert found.fix == (f"{ask} --cpuset-cpus {wanted} {container.id}",)


@pytest.mark.parametrize("recorded", [None, CPUSet(), CPUSet([2, 3, 9])])
def test_a_runtime_that_is_not(recorded: CPUSet | None) -> None:
    """It has nothing on record, or a CPU that is offline."""
    known = replace(DB, recorded=recorded)
    assert findings(record=replace(RECORD, containers={DB_PATH: known})) == {}


def test_an_owner_that_has_ended_needs_no_cgroup() -> None:
    gone = replace(OWNER, cgroups=(), cpu_cgroups=(), has_ended=True)
    snapshot = replace(NODE, tasks=NODE.tasks[:1])
    record = replace(RECORD, owners=(gone,))
    assert findings(snapshot, record) == {}
    assert "CPUs 2-3; it has ended" in render_audit(audit(snapshot, record), Style(80))
    assert "cgroup-missing" in findings(
        snapshot, replace(record, owners=(replace(gone, has_ended=False),))
    )


def test_what_a_container_is_to_run_on_is_its_own_cpus_and_the_pool_where_it_is_mixed() -> None:
    """And not the siblings that stay idle for it."""
    mixed = replace(OWNER, cpus=cpus("3"), shared=cpus("2"))
    record = replace(RECORD, owners=(mixed,))
    text = render_audit(audit(NODE, record), Style(80))
    assert f"✓ {TITLE}\n    CPUs 3 and the shared pool 2\n" in text
    narrow = replace(record, owners=(replace(mixed, shared=cpus("1-2")),))
    text = render_audit(audit(NODE, narrow), Style(80))
    assert f"✗ {TITLE}\n    CPUs 3 and the shared pool 1-2; the kernel has 2-3\n" in text
    alone = replace(OWNER, cpus=cpus("2-5"), idle=cpus("4-5"))
    text = render_audit(audit(NODE, replace(record, owners=(alone,))), Style(80))
    assert f"✓ {TITLE}\n    CPUs 2-3\n" in text


def test_namespaces_are_asked_of_those_only_whom_they_tell_apart() -> None:
    snapshot = joined(400, HOST)
    assert namespace_pids(snapshot, RECORD) == {100, 200, 300, 400}
    assert namespace_pids(snapshot, replace(RECORD, containers={})) == set()
    assert namespace_pids(snapshot, replace(RECORD, owners=())) == set()


# --------------------------------------------------------------------------------------- the places


SYSTEMD = f"pinfold.slice/pinfold-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID_A}.scope"


@pytest.mark.parametrize(
    ("path", "tree"),
    [
        (f"pinfold/pod{UID}/{ID_A}", "pinfold"),
        (f"pinfold/pod{UID}/crio-{ID_A}", "pinfold"),
        (SYSTEMD, "pinfold"),
        (f"pin_fold.slice/pin_fold-pod{UID.replace('-', '_')}.slice/crio-{ID_A}.scope", "pin-fold"),
    ],
)
def test_containers_of_a_runtime_that_pinfold_tells(tmp_path: Path, path: str, tree: str) -> None:
    node = _machine(tmp_path)
    node.group(path, "2-3", "2-3")
    node.group(f"{path}/init.scope", "", "2-3")
    node.group(f"{path}/{ID_B}", "", "2-3")
    snapshot = read_snapshot(tmp_path)
    containers = find_containers(snapshot, KernelFiles(tmp_path))
    assert list(containers) == [f"/{path}"], "what a container makes inside is its own"
    located = locate_containers(
        snapshot, {UID: {"main": cpus("2-3")}}, containers, is_ours=is_below(tree)
    )
    (owner,) = located.owners
    assert (owner.cgroups, owner.container_id) == ((f"/{path}",), ID_A)
    assert str(owner) == f"{UID}/main (aaaaaaaaaaaa)"


def test_a_uid_that_no_folder_can_have(tmp_path: Path) -> None:
    """That of a manifest without one has a slash, which pinfold writes as an underscore."""
    node = _machine(tmp_path)
    node.group(f"pinfold/poddefault_web-pod1/{ID_A}", "2-3", "2-3")
    snapshot = read_snapshot(tmp_path)
    containers = find_containers(snapshot, KernelFiles(tmp_path))
    sets = {"default/web-pod1": {"main": cpus("2-3")}}
    located = locate_containers(snapshot, sets, containers, is_ours=is_of_a_pod)
    assert located.owners[0].container_id == ID_A


def test_names_that_a_runtime_tells_win_over_equal_cpus(tmp_path: Path) -> None:
    node = kubelet_node(tmp_path)
    told = (
        KnownContainer(ID_A, UID, "shop/db", "log", recorded=cpus("2-3")),
        KnownContainer(ID_B, UID, "shop/db", "app", pid=501),
        KnownContainer(ID_P, UID, "shop/db", is_sandbox=True),
    )
    snapshot = read_snapshot(node.root)
    containers = find_containers(snapshot, KernelFiles(node.root), told)
    located = locate_containers(snapshot, {UID: {"app": cpus("2-3")}}, containers, told=told)
    (owner,) = located.owners
    assert str(owner) == "shop/db/app (bbbbbbbbbbbb)"
    assert owner.pid == 501
    assert [path[-70:-6] for path in located.shared] == [ID_A], "and not the sandbox"


def test_an_agent_tells_by_processes(tmp_path: Path) -> None:
    """It has no ids; whom it does not name in a pod of its own is the sandbox."""
    node = _machine(tmp_path)
    pod = f"/x/kubepods/pod{UID}"
    for one, pid in ((ID_A, 500), (ID_B, 501), (ID_P, 502)):
        node.group(f"{pod[1:]}/{one}", "2-3" if one == ID_A else "0-7", "0-7")
        node.task(pid, f"{pod}/{one}", "0-7", 0)
    told = (
        KnownContainer("", UID, "shop/db", "main", pid=500),
        KnownContainer("", UID, "shop/db", "log", pid=501),
        KnownContainer("", UID, "shop/db", "setup", has_ended=True),
    )
    snapshot = read_snapshot(node.root)
    containers = find_containers(snapshot, KernelFiles(node.root), told)
    assert [str(one) for one in containers.values()] == [
        "shop/db/main (aaaaaaaaaaaa)",
        "shop/db/log (bbbbbbbbbbbb)",
        "shop/db/sandbox (ffffffffffff)",
    ]
    sets = {UID: {"main": cpus("2-3"), "setup": cpus("4")}}
    located = locate_containers(snapshot, sets, containers, told=told)
    assert [owner.has_ended for owner in located.owners] == [False, True]
    assert located.shared == (f"{pod}/{ID_B}",)


def test_a_container_whose_cgroup_is_anywhere_is_found_by_its_process(tmp_path: Path) -> None:
    node = _machine(tmp_path)
    node.group("special/place", "2-3", "2-3")
    node.task(500, "/special/place", "2-3", 2)
    told = (KnownContainer(ID_A, UID, "shop/db", "main", pid=500),)
    snapshot = read_snapshot(node.root)
    containers = find_containers(snapshot, KernelFiles(node.root), told)
    located = locate_containers(
        snapshot, {UID: {"main": cpus("2-3")}}, containers, is_ours=is_of_a_pod, told=told
    )
    assert located.owners[0].cgroups == ("/special/place",)


def test_pods_of_processes_have_the_names_that_the_agent_tells(tmp_path: Path) -> None:
    node = _machine(tmp_path)
    node.group("pinfold/exclusive/pod-u1/db", "2-3", "2-3")
    told = (KnownContainer("", "u1", "shop/db", "db", pid=7),)
    (owner,) = locate_own(read_snapshot(tmp_path), {"u1": {"db": cpus("2-3")}}, told=told).owners
    assert str(owner) == "shop/db/db"


def test_all_that_the_disk_tells_of_a_pod(tmp_path: Path) -> None:
    node = kubelet_node(tmp_path)
    annotations = {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": "app",
        "io.kubernetes.cri.sandbox-name": "db",
        "io.kubernetes.cri.sandbox-namespace": "shop",
    }
    config = f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID_A}/config.json"
    node.write(config, json.dumps({"annotations": annotations}))
    node.write(f"var/log/containers/web_shop_log-{ID_B}.log", "")
    found = find_containers(read_snapshot(tmp_path), KernelFiles(tmp_path))
    scope = f"/{SLICE}/cri-containerd"
    assert str(found[f"{scope}-{ID_A}.scope"]) == "shop/db/app (aaaaaaaaaaaa)"
    assert str(found[f"{scope}-{ID_B}.scope"]) == "shop/web/log (bbbbbbbbbbbb)"


def test_containers_of_no_pod_are_known_by_their_ids(tmp_path: Path) -> None:
    node = _machine(tmp_path)
    node.group(f"system.slice/docker-{ID_A}.scope", "", "0-7")
    node.group("system.slice/podman.service", "", "0-7")
    found = find_containers(read_snapshot(tmp_path), KernelFiles(tmp_path))
    assert [str(one) for one in found.values()] == ["container aaaaaaaaaaaa"]
    assert not any(is_of_a_pod(one) for one in found.values())


def test_namespaces_are_read_of_processes_that_are_there(tmp_path: Path) -> None:
    for pid, name in ((2, "mnt:[1]"), (5, "mnt:[2]")):
        folder = tmp_path / f"proc/{pid}/ns"
        folder.mkdir(parents=True)
        (folder / "mnt").symlink_to(name)
    assert read_namespaces(KernelFiles(tmp_path), [5, 6]) == {2: "mnt:[1]", 5: "mnt:[2]"}


def _machine(root: Path) -> KernelTree:
    tree = KernelTree(root)
    tree.machine()
    tree.unified()
    assert (root / V2).is_dir()
    return tree

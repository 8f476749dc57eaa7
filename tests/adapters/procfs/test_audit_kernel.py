"""The audit against the running kernel: real cgroups, real processes, and the commands it gives.

The scene is a cgroup of this test and the processes started here; other users of the machine are
left out of the snapshot, because a test cannot move them.  Each finding must be there, and must be
gone once its own commands have been run.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.procfs.cgroups import Hierarchy, find_hierarchies
from pinfold.adapters.procfs.files import KernelFiles
from pinfold.adapters.procfs.snapshot import read_snapshot
from pinfold.audit.audit import audit
from pinfold.audit.findings import Finding
from pinfold.audit.located import locate_given
from pinfold.audit.record import AuditRecord, Owner
from pinfold.audit.snapshot import KernelSnapshot, is_within
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.waiting import wait_until

FORKER = """
import os, sys, time
children = []
while len(children) < 3:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)
print(*children, flush=True)
time.sleep(60)
"""
THREADS = """
import threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ready", flush=True)
time.sleep(60)
"""


@dataclass
class Scene:
    """A cgroup on the machine's cpuset hierarchy, and the processes that were started in it."""

    hierarchy: Hierarchy
    quotas: Hierarchy | None
    name: str
    cpus: CPUSet
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    more: set[int] = field(default_factory=set)

    @property
    def folder(self) -> Path:
        return Path(self.hierarchy.folder) / self.name

    @property
    def last(self) -> CPUSet:
        """The CPU that is given to owners."""
        return CPUSet([max(self.cpus)])

    @property
    def rest(self) -> CPUSet:
        return self.cpus - self.last

    def group(self, path: str, cpus: CPUSet) -> Path:
        """Make a cgroup, with those above it, and give it CPUs."""
        folder = self.folder
        for name in ("", *path.split("/")):
            folder = folder / name
            if not folder.exists():
                folder.mkdir()
                if self.hierarchy.version == 1:
                    (folder / "cpuset.cpus").write_text(str(self.cpus))
                    mems = Path(self.hierarchy.folder) / "cpuset.effective_mems"
                    (folder / "cpuset.mems").write_text(mems.read_text())
            if self.hierarchy.version == 2 and folder != self.folder / path:
                (folder / "cgroup.subtree_control").write_text("+cpuset")
        (folder / "cpuset.cpus").write_text(str(cpus))
        return folder

    def start(self, group: Path | None, *command: str) -> subprocess.Popen[str]:
        """Start a process (``sleep`` without a command) in a cgroup, or where this one is."""
        process = subprocess.Popen(
            command or ("sleep", "60"), stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.processes.append(process)
        if group is not None:
            (group / "cgroup.procs").write_text(str(process.pid))
        return process

    def snapshot(self) -> KernelSnapshot:
        """The machine without what others run on it."""
        found = read_snapshot()
        pids = {process.pid for process in self.processes if process.poll() is None} | self.more
        return replace(
            found,
            tasks=tuple(
                task
                for task in found.tasks
                if task.pid in pids or is_within(task.cgroup, f"/{self.name}")
            ),
            irqs=(),
            default_irq_affinity=None,
            workqueue=None,
            siblings={},
            quotas={p: q for p, q in found.quotas.items() if is_within(p, f"/{self.name}")},
            # A test in a container may not see all; what it has made it sees.
            unseen=(),
        )

    def owner(self, group: Path, cpus: CPUSet | None = None) -> Owner:
        return locate_given(self.snapshot(), str(group), self.last if cpus is None else cpus)

    def findings(self, *owners: Owner, shared_cgroups: tuple[str, ...] = ()) -> list[Finding]:
        record = AuditRecord("test", owners, None, shared_cgroups)
        return list(audit(self.snapshot(), record).findings)

    def only(self, *owners: Owner, shared_cgroups: tuple[str, ...] = ()) -> Finding:
        (found,) = self.findings(*owners, shared_cgroups=shared_cgroups)
        return found


def run(finding: Finding) -> None:
    """Do what the finding says."""
    assert finding.fix
    for command in finding.fix:
        subprocess.run(["/bin/sh", "-ec", command], check=True, capture_output=True, timeout=20)


@pytest.fixture
def scene() -> Iterator[Scene]:
    if os.geteuid() != 0:
        pytest.skip("making cgroups needs root")
    hierarchies = find_hierarchies(KernelFiles())
    hierarchy = hierarchies.get("cpuset")
    if hierarchy is None:
        pytest.skip("no cgroup hierarchy with the controller cpuset is mounted here")
    top = read_snapshot().cpusets.get("/")
    assert top is not None
    if len(top.effective) < 2:
        pytest.skip("an owner and somebody else need 2 CPUs")
    if hierarchy.version == 2:
        control = Path(hierarchy.folder) / "cgroup.subtree_control"
        if "cpuset" not in control.read_text().split():
            pytest.skip("the root cgroup does not hand on the controller cpuset")
    made = Scene(
        hierarchy,
        hierarchies.get("cpu"),
        f"pinfold-audit-{os.getpid()}-{secrets.token_hex(3)}",
        top.effective,
    )
    try:
        made.group("", top.effective)
        yield made
    finally:
        tidy(made)


def tidy(scene: Scene) -> None:
    for process in scene.processes:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    tops = [scene.folder]
    if scene.quotas is not None and scene.quotas.version == 1:
        tops.append(Path(scene.quotas.folder) / scene.name)
    for top in tops:
        folders = [path for path in [top, *top.rglob("*")] if path.is_dir()]
        for folder in sorted(folders, key=lambda path: -len(path.parts)):
            for pid in (folder / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            for _ in range(200):
                try:
                    folder.rmdir()
                    break
                except OSError:
                    time.sleep(0.02)


def test_a_clean_scene_has_no_findings(scene: Scene) -> None:
    own = scene.group("own", scene.last)
    scene.start(own)
    scene.start(scene.group("rest", scene.rest))
    assert scene.findings(scene.owner(own)) == []


def test_a_cpuset_that_somebody_changed(scene: Scene) -> None:
    own = scene.group("own", scene.last)
    scene.start(own)
    owner = scene.owner(own)
    (own / "cpuset.cpus").write_text(str(scene.rest))
    found = scene.only(owner)
    assert found.kind.slug == "cpuset-differs"
    assert found.what.endswith(f"recorded {scene.last}, the kernel has {scene.rest}")
    run(found)
    assert scene.findings(owner) == []


def test_a_cpuset_below_a_parent_that_is_too_narrow(scene: Scene) -> None:
    own = scene.group("pod/own", scene.rest)
    (own.parent / "cpuset.cpus").write_text(str(scene.rest))
    scene.start(own)
    owner = scene.owner(own)
    found = scene.only(owner)
    assert found.kind.slug == "cpuset-differs"
    assert len(found.fix) == 2
    run(found)
    assert scene.findings(owner) == []


def test_a_cpuset_with_wider_ones_below(scene: Scene) -> None:
    own = scene.group("own", scene.cpus)
    inner = scene.group("own/inner", scene.cpus)
    scene.start(inner)
    owner = scene.owner(own)
    slugs = [finding.kind.slug for finding in scene.findings(owner)]
    assert slugs == ["cpuset-differs"], "what the cpuset allows is not told twice"
    run(scene.only(owner))
    assert scene.findings(owner) == []


def test_a_cgroup_that_is_gone(scene: Scene) -> None:
    assert scene.only(scene.owner(scene.folder / "nowhere")).kind.slug == "cgroup-missing"


def test_a_stranger_in_a_cgroup_of_its_own(scene: Scene) -> None:
    own = scene.group("own", scene.last)
    scene.start(own)
    noise = scene.group("noise", scene.cpus)
    scene.start(noise, "taskset", "-c", str(scene.rest), "sleep", "60")
    owner = scene.owner(own)
    assert scene.findings(owner) == [], "its affinity keeps it away"
    scene.start(noise)
    found = scene.only(owner)
    assert found.kind.slug in ("stranger-allowed", "stranger-ran")
    assert (found.where, found.count) == (f"/{scene.name}/noise", 1)
    run(found)
    assert scene.findings(owner) == []


def test_a_stranger_at_work_on_the_exclusive_cpu(scene: Scene) -> None:
    own = scene.group("own", scene.last)
    scene.start(own)
    busy = scene.start(None, "taskset", "-c", str(scene.last), "sh", "-c", "while :; do :; done")
    owner = scene.owner(own)
    wait_until(lambda: bool(scene.findings(owner)))
    found = scene.only(owner)
    assert found.kind.slug == "stranger-ran"
    assert found.examples[0].startswith(f"{busy.pid} ")
    run(found)
    assert scene.findings(owner) == []


def test_strangers_with_threads_and_children(scene: Scene) -> None:
    own = scene.group("own", scene.last)
    scene.start(own)
    threads = scene.start(None, sys.executable, "-c", THREADS)
    parent = scene.start(None, sys.executable, "-c", FORKER)
    assert threads.stdout is not None
    assert parent.stdout is not None
    assert threads.stdout.readline() == "ready\n"
    children = {int(pid) for pid in parent.stdout.readline().split()}
    scene.more |= children
    owner = scene.owner(own)
    found = scene.only(owner)
    assert found.count == 8, "4 threads and 4 processes"
    assert f"taskset -apc {scene.rest} {threads.pid}" in found.fix
    run(found)
    assert scene.findings(owner) == []
    for child in children:
        os.kill(child, signal.SIGKILL)


def test_a_process_of_the_owner_that_has_left(scene: Scene) -> None:
    own = scene.group("own", scene.last)
    main = scene.start(own, sys.executable, "-c", FORKER)
    assert main.stdout is not None
    child = int(main.stdout.readline().split()[0])
    owner = scene.owner(own)
    assert scene.findings(owner) == []
    scene.more.add(child)
    (scene.group("rest", scene.rest) / "cgroup.procs").write_text(str(child))
    found = scene.only(owner)
    assert found.kind.slug == "owner-outside"
    assert found.examples[0].startswith(f"{child} ")
    run(found)
    assert scene.findings(owner) == []


def test_a_process_beside_the_main_process(scene: Scene) -> None:
    own = scene.group("own", scene.last)
    scene.start(own)
    time.sleep(0.03)  # the start time has a resolution of 10 ms
    stray = scene.start(own)
    owner = scene.owner(own)
    found = scene.only(owner)
    assert found.kind.slug == "exec-stray"
    assert found.fix == (f"kill {stray.pid}",)
    run(found)
    stray.wait()
    assert scene.findings(owner) == []


def test_a_shared_container_on_an_exclusive_cpu(scene: Scene) -> None:
    own = scene.group("own", scene.last)
    scene.start(own)
    pool = scene.group("pool", scene.cpus)
    scene.start(scene.group("pool/web", scene.cpus))
    owner = scene.owner(own)
    shared = (f"/{scene.name}/pool/web",)
    found = scene.only(owner, shared_cgroups=shared)
    assert found.kind.slug == "shared-overlaps"
    assert found.count == 1
    run(found)
    assert scene.findings(owner, shared_cgroups=shared) == []
    whole = (f"/{scene.name}/pool", *shared)
    assert pool.exists()
    again = scene.only(owner, shared_cgroups=whole)
    run(again)
    assert scene.findings(owner, shared_cgroups=whole) == []


@pytest.mark.parametrize("at", ["own", ""])
def test_a_quota_on_the_owner_or_above(scene: Scene, at: str) -> None:
    if scene.quotas is None:
        pytest.skip("no cgroup hierarchy with the controller cpu is mounted here")
    own = scene.group("own", scene.last)
    scene.start(own)
    folder = Path(scene.quotas.folder) / scene.name / "own"
    if scene.quotas.version == 1:
        folder.mkdir(parents=True, exist_ok=True)
        file, value = "cpu.cfs_quota_us", "50000"
    else:
        try:
            (folder.parent / "cgroup.subtree_control").write_text("+cpu")
        except OSError:
            pytest.skip("the root cgroup does not hand on the controller cpu")
        file, value = "cpu.max", "50000 100000"
    owner = scene.owner(own)
    assert scene.findings(owner) == []
    (folder if at else folder.parent).joinpath(file).write_text(value)
    found = scene.only(owner)
    assert found.kind.slug == "quota-caps"
    assert "50000 us of each 100000 us (0.5 CPUs)" in found.what
    run(found)
    assert scene.findings(owner) == []


def test_reading_while_processes_come_and_go(scene: Scene) -> None:
    own = scene.group("own", scene.last)
    storm = "while :; do sleep 0.01 & sleep 0.02 & wait; done"
    scene.start(own, "sh", "-c", storm)
    scene.start(own, "sh", "-c", storm)
    owner = scene.owner(own)
    seen: set[int] = set()
    end = time.monotonic() + 30.0
    while len(seen) <= 4 and time.monotonic() < end:
        snapshot = read_snapshot()
        audit(snapshot, AuditRecord("test", (owner,)))
        seen |= {task.pid for task in snapshot.tasks if is_within(task.cgroup, f"/{scene.name}")}
    assert len(seen) > 4, "processes did come and go"


def test_any_name_of_a_process(scene: Scene) -> None:
    name = b") R 1 (b\n\xff"
    code = (
        "import ctypes, time; ctypes.CDLL(None).prctl(15, "
        f"{name!r}, 0, 0, 0); print('ready', flush=True); time.sleep(60)"
    )
    process = scene.start(scene.group("own", scene.last), sys.executable, "-c", code)
    assert process.stdout is not None
    process.stdout.readline()
    (task,) = scene.snapshot().tasks
    assert task.comm == name.decode("utf-8", "replace")
    assert (task.pid, task.ppid, task.allowed) == (process.pid, os.getpid(), scene.last)
    assert task.last_cpu in scene.cpus, "asleep, it is where it was before it was moved"
    assert not task.is_kernel


def test_this_kernel_as_a_whole() -> None:
    """Whatever machine this is: it can be read, and agrees with itself."""
    snapshot = read_snapshot()
    assert snapshot.online
    assert snapshot.tasks
    assert all(task.last_cpu >= 0 for task in snapshot.tasks)
    assert set(snapshot.siblings) >= set(snapshot.online)
    found = audit(snapshot, AuditRecord("nobody")).findings
    assert {finding.kind.slug for finding in found} <= {"incomplete"}
    mine = [task for task in snapshot.tasks if task.pid == os.getppid()]
    assert mine or snapshot.unseen

"""Containers of a real containerd that an audit looks at, in three ways of running them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from pinfold.adapters.cri import cri_pb2 as cri
from pinfold.adapters.procfs.cgroups import find_hierarchies
from pinfold.adapters.procfs.files import KernelFiles
from pinfold.cli import main
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Ledger
from pinfold.state.restore import to_checkpoint
from tests.scenes.agent_process import (
    AgentProcess,
    skip_unless_an_agent_can_run,
)
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.kubelet_stand_in import KubeletStandIn
from tests.scenes.waiting import eventually

QUIET = {"workqueue", "sandbox-allowed", "mems-wider"}
"""Infos that are always there: of the machine, and of pods' sandboxes."""
NAMES = ("web", "db")


def skip_unless_audited() -> None:
    """Skip the test where an agent cannot run, or an audit cannot see the whole machine."""
    skip_unless_an_agent_can_run()
    if Path("/proc/2/comm").read_text().strip() != "kthreadd":
        pytest.skip("kernel threads are not seen from inside of a pid namespace")


@dataclass
class Scene:
    """Containers in ``tree``, two of which are called ``web`` (shared) and ``db`` (owns CPU 1)."""

    node: ContainerdNode
    folder: Path
    agent: AgentProcess
    kubelet: KubeletStandIn
    state: Path
    tree: str
    flags: tuple[str, ...] = ()
    web: str = ""
    db: str = ""
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    execs: list[int] = field(default_factory=list)

    # ------------------------------------------------------------------------------- what happens

    def title(self, name: str) -> str:
        """How the audit calls a container."""
        container = self.web if name == "web" else self.db
        return f"default/{name}/main ({container[:12]})"

    def pid(self, container: str) -> int:
        return self.kubelet.pid(container)

    def cpuset(self, container: str) -> Path:
        """The folder of a container's cgroup in the hierarchy of the cpusets."""
        return self.group("cpuset", self.pid(container))

    def group(self, controller: str, pid: int) -> Path:
        hierarchy = find_hierarchies(KernelFiles())[controller]
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if hierarchy.controller in controllers.split(","):
                return Path(hierarchy.folder + hierarchy.place(path))
        raise AssertionError(controller)

    def exec(self, container: str) -> int:
        """A process in a container as ``crictl exec`` makes it; its pid."""
        before = {process.pid for process in _processes("sleep")}
        mark = f"e{len(self.execs)}"
        arguments = ("tasks", "exec", "--detach", "--exec-id", mark, container, "sleep", "500")
        self.node.ctr(*arguments)
        found: list[int] = []

        def new() -> int:
            ours = [p.pid for p in _processes("sleep") if p.pid not in before and "500" in p.args]
            found[:] = ours
            return len(ours)

        eventually(new, 1)
        self.execs += found
        return found[0]

    def host(self, *command: str, cpus: str = "0-1") -> int:
        """A process of the machine; its pid."""
        process = subprocess.Popen(["taskset", "-c", cpus, *command], text=True)
        self.processes.append(process)
        eventually(lambda: _comm(process.pid), "sleep")
        return process.pid

    def update(self, container: str, cpus: str) -> None:
        """Tell the runtime, as a kubelet's CPU manager does."""
        request = cri.UpdateContainerResourcesRequest(
            container_id=container, linux=cri.LinuxContainerResources(cpuset_cpus=cpus)
        )
        self.kubelet.call("UpdateContainerResources", request, cri.UpdateContainerResourcesResponse)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for pid in self.execs:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)

    # ------------------------------------------------------------------------- what the audit says

    def root(self) -> Path:
        """A machine's root with the scene's processes and cgroups."""
        root = self.folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        proc = root / "proc"
        for name in ("self", "irq", "2/ns", "2/task/2"):
            (proc / name).mkdir(parents=True)
        (root / "sys").symlink_to("/sys")
        (proc / "self/mountinfo").write_text(self._mounts())
        (proc / "irq/default_smp_affinity").write_text("1\n")
        (proc / "2/ns/mnt").symlink_to(Path("/proc/2/ns/mnt").readlink())
        # A kernel thread that cannot be moved, so that there are some.
        for name in ("status", "cgroup"):
            (proc / f"2/task/2/{name}").symlink_to(f"/proc/2/{name}")
        words = Path("/proc/2/stat").read_text().split()
        words[8] = str(int(words[8]) | 0x04000000)
        (proc / "2/task/2/stat").write_text(" ".join(words))
        extra = {*(process.pid for process in self.processes), *self.execs}
        for process in _processes():
            if process.pid in extra or f"/{self.tree}" in process.cgroup:
                (proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        return root

    def _mounts(self) -> str:
        """As if no more of the hierarchies were mounted than the scene's part of them."""
        lines = []
        for hierarchy in find_hierarchies(KernelFiles()).values():
            where = f"/{self.tree} {hierarchy.folder}/{self.tree}"
            kind = "cgroup" if hierarchy.version == 1 else "cgroup2"
            lines.append(f"1 1 0:1 {where} rw - {kind} {kind} rw,{hierarchy.controller}\n")
        return "".join(lines)

    def audit(self, *flags: str, status: int) -> dict[str, Any]:
        """The findings by slug, without those that are always there."""
        arguments = (
            *("audit", "--root", str(self.root()), "--state", str(self.state)),
            *("--runtime-endpoint", f"unix://{self.node.address}", *self.flags, *flags),
        )
        # In this process: a hundred programs to start would take minutes.
        text = CliRunner().invoke(main, arguments)
        found = CliRunner().invoke(main, (*arguments, "-o", "json"))
        assert (text.exit_code, found.exit_code) == (status, status), text.output
        document = json.loads(found.stdout)
        assert document["verdict"] == ("findings" if status else "clean")
        findings = {one["slug"]: one for one in document["findings"] if one["slug"] not in QUIET}
        assert len(findings) == sum(one["slug"] not in QUIET for one in document["findings"])
        for finding in findings.values():
            assert finding["slug"] in text.stdout
        (owner,) = document["owners"]
        assert (owner["pod"], owner["container"]) == ("default/db", "main")
        assert owner["id"] == self.db
        assert f"{self.title('db')}\n" in text.stdout
        return findings

    def clean(self) -> None:
        """The kernel agrees, and there is nothing to say."""
        assert self.audit(status=0) == {}

    def fix(self, finding: dict[str, Any]) -> None:
        """Run the commands of a finding."""
        assert finding["fix"]
        for command in finding["fix"]:
            # The folders are those of the root that was looked at.
            subprocess.run(["sh", "-c", command], check=True, capture_output=True)


@dataclass(frozen=True)
class Process:
    """One process of the machine."""

    pid: int
    comm: str
    args: str
    cgroup: str


def _processes(comm: str = "") -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (not comm or _comm(int(entry.name)) == comm):
                yield Process(
                    int(entry.name),
                    (entry / "comm").read_text().strip(),
                    (entry / "cmdline").read_text().replace("\0", " "),
                    (entry / "cgroup").read_text(),
                )


def _comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


# ------------------------------------------------------------------------------------- the scenes


def nri_scene(node: ContainerdNode, folder: Path) -> Iterator[Scene]:
    """An agent that is a plugin of a kubelet's runtime."""
    agent, kubelet = AgentProcess(folder), KubeletStandIn(node)
    del agent.config["staticPodPath"]
    agent.config["pinfold"] |= {"runtime": "nri", "nriSocket": str(node.nri)}
    scene = Scene(
        node, folder, agent, kubelet, agent.state / "cpu_manager_state", kubelet.root.strip("/")
    )
    try:
        agent.start()
        eventually(
            lambda: agent.client.get("/v1/status")["agent"]["nri"]["connected"], expected=True
        )
        scene.web = kubelet.run(kubelet.pod("web", "besteffort"), "main")
        scene.db = kubelet.run(kubelet.pod("db"), "main", 1)
        eventually(lambda: agent.client.get("/v1/status")["agent"]["nri"]["behind"], 0)
        yield scene
    finally:
        scene.close()
        kubelet.close()
        agent.stop()


def cri_scene(node: ContainerdNode, folder: Path) -> Iterator[Scene]:
    """An agent that tells a runtime what to run."""
    agent, kubelet = AgentProcess(folder), KubeletStandIn(node)
    agent.config["pinfold"] |= {"runtime": "cri", "runtimeEndpoint": f"unix://{node.address}"}
    scene = Scene(node, folder, agent, kubelet, agent.state / "cpu_manager_state", agent.name)
    try:
        agent.start()
        for name, cpus in zip(NAMES, ("", "1"), strict=True):
            agent.apply(_manifest(node, name, cpus))
        pids = [agent.pids(name)["main"] for name in NAMES]
        containers = node.ctr("containers", "ls", "-q").split()
        ids = {_pid(kubelet, container): container for container in containers}
        scene.web, scene.db = (ids[pid] for pid in pids)
        eventually(lambda: agent.client.get("/v1/status")["agent"]["containerRuntime"]["behind"], 0)
        yield scene
    finally:
        scene.close()
        if agent.process is None:
            agent.start()
        for name in NAMES:
            agent.client.delete(f"/v1/pods/default/{name}?grace=0")
        eventually(lambda: node.ctr("containers", "ls", "-q").split(), [])
        kubelet.close()
        agent.stop()


def _pid(kubelet: KubeletStandIn, container: str) -> int:
    """A container's main process; 0 of a sandbox, which is no container to the CRI."""
    try:
        return kubelet.pid(container)
    except grpc.RpcError:
        return 0


def kubelet_scene(node: ContainerdNode, folder: Path) -> Iterator[Scene]:
    """A kubelet with its own static policy, and no agent."""
    agent, kubelet = AgentProcess(folder), KubeletStandIn(node)
    state = folder / "kubelet_state"
    ledger = Ledger("static", CPUSet([0]), {"uid-db": {"main": CPUSet([1])}})
    state.write_bytes(to_checkpoint(ledger).encode())
    scene = Scene(
        node, folder, agent, kubelet, state, kubelet.root.strip("/"), flags=("--kubelet",)
    )
    try:
        scene.web = kubelet.run(kubelet.pod("web", "besteffort"), "main")
        scene.db = kubelet.run(kubelet.pod("db"), "main", 1)
        scene.update(scene.web, "0")
        scene.update(scene.db, "1")
        # Without quotas, as its policy option has it; the CRI has no other word for "none".
        for name in ("cpu.cfs_quota_us", "cpu.max"):
            file = scene.group("cpu", scene.pid(scene.db)) / name
            if file.exists():
                file.write_text("max" if name == "cpu.max" else "-1")
        yield scene
    finally:
        scene.close()
        kubelet.close()


def _manifest(node: ContainerdNode, name: str, cpus: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": node.image,
        "imagePullPolicy": "Never",
        "command": ["sleep", "1000000"],
        "resources": {"limits": {"cpu": cpus, "memory": "64Mi"} if cpus else {}},
    }
    spec = {"hostNetwork": True, "terminationGracePeriodSeconds": 1, "containers": [container]}
    metadata = {"name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


SCENES = {"nri": nri_scene, "cri": cri_scene, "kubelet": kubelet_scene}

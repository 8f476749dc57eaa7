"""Huge pages and memory really come from the node that the agent promises.

They need two NUMA nodes; ``make guest`` runs them in a guest that has them.  What is true is asked
of the kernel: the pools in sysfs, and ``numa_maps`` of the processes.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.scenes.agent_process import (
    AgentProcess,
    allowed,
    skip_unless_an_agent_can_run,
)
from tests.scenes.containerd_node import ContainerdNode, containerd_node
from tests.scenes.hugepages_scene import SHMGET, everybodys_folder, shm_group
from tests.scenes.two_nodes import (
    PAGES,
    SMALL,
    anonymous_by_node,
    cgroup_of,
    cpus_of,
    equal_pools,
    huge_by_node,
    memory_nodes,
    memory_of,
    node_ids,
    pages,
)
from tests.scenes.waiting import eventually

from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.mounting import mounts_below, unmount

ASKED: Final = 20
"""Pages of a pod: two such pods fit no node together."""
MEBIBYTES: Final = 64
WHOLE: Final = dict.fromkeys(node_ids(), PAGES)

OWNER: Final = """
import json, mmap, os, sys, time
out, count, mebibytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
HUGE = 0x40022
kept = mmap.mmap(-1, count << 21, flags=HUGE)
for page in range(count):
    kept[page << 21] = 1
memory = mmap.mmap(-1, mebibytes << 20, flags=0x22)
for at in range(0, len(memory), 4096):
    memory[at] = 1
try:
    one_more = mmap.mmap(-1, 1 << 21, flags=HUGE)
    one_more[0] = 1
    refused = 0
except OSError as error:
    refused = error.errno
with open(out + ".new", "w") as file:
    json.dump({"pid": os.getpid(), "refused": refused}, file)
os.rename(out + ".new", out)
time.sleep(100000)
"""
"""Maps huge pages and touches them, then memory, and tries one huge page more."""

WRITER: Final = """
import mmap, os, sys, time
out, count = sys.argv[1], int(sys.argv[2])
for name in ("PINFOLD_VOLUME_PAGES", "PINFOLD_VOLUME_SIZED"):
    with open(os.path.join(os.environ[name], "file"), "w+b") as file:
        os.ftruncate(file.fileno(), count << 21)
        with mmap.mmap(file.fileno(), count << 21) as memory:
            for page in range(count):
                memory[page << 21] = 1
open(out, "w").close()
time.sleep(100000)
"""
"""Fills a file of huge pages in each of two volumes."""


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with equal_pools(tmp_path_factory):
        yield


@contextmanager
def running_agent(folder: Path, **pinfold: Any) -> Iterator[AgentProcess]:
    """An agent with all managers and one node per container; nothing of it is left."""
    skip_unless_an_agent_can_run()
    agent = AgentProcess(
        folder,
        memoryManagerPolicy="Static",
        topologyManagerPolicy="single-numa-node",
        # With the default eviction threshold of 100Mi that is what the nodes reserve.
        kubeReserved={"memory": f"{256 * len(node_ids()) - 100}Mi"},
        reservedMemory=[{"numaNode": node, "limits": {"memory": "256Mi"}} for node in node_ids()],
    )
    agent.config["pinfold"] |= pinfold
    try:
        agent.start()
        yield agent
        assert agent.process is not None
        for pod in agent.client.get("/v1/pods")["pods"]:
            agent.client.delete(f"/v1/pods/default/{pod['name']}?grace=0")
        eventually(pages, WHOLE)
    finally:
        agent.clean_up()
        for found in reversed(mounts_below(folder)):
            unmount(found.path)


@pytest.fixture(scope="module")
def node(pools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """An agent of plain processes, for all tests here."""
    del pools
    with running_agent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


def pod(name: str, command: list[str], huge: int = ASKED, memory: str = "256Mi") -> dict[str, Any]:
    """A Guaranteed pod of one container with two CPUs."""
    amounts = {"cpu": "2", "memory": memory, "hugepages-2Mi": str(huge * SMALL)}
    container = {
        "name": "main",
        "command": command,
        "resources": {"limits": amounts, "requests": amounts},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"{name}-uid"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


def python(program: str, out: Path, *words: object) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program, str(out), *map(str, words)]


def owner(node: AgentProcess, name: str) -> dict[str, Any]:
    """Run a pod that takes all it may have; its pid, and what it was told of one page more."""
    out = node.folder / f"{name}.out"
    told = node.apply(pod(name, python(OWNER, out, ASKED, MEBIBYTES)))
    assert told["phase"] != "Rejected", told
    eventually(out.exists, expected=True, seconds=30)
    found: dict[str, Any] = json.loads(out.read_text())
    out.unlink()
    return found


def delete(node: AgentProcess, name: str) -> None:
    done = node.run("delete", f"pod/{name}")
    assert done.returncode == 0, done


def promised(node: AgentProcess, name: str) -> dict[str, list[int]]:
    """The nodes that the agent's own file promises a pod, by resource."""
    entries = json.loads((node.state / "memory_manager_state").read_text())["entries"] or {}
    blocks = entries.get(f"{name}-uid", {}).get("main", [])
    return {block["type"]: block["numaAffinity"] for block in blocks}


def check_it_is_all_on(home: int, node: AgentProcess, name: str, pid: int) -> None:
    assert promised(node, name) == {"memory": [home], "hugepages-2Mi": [home]}
    assert huge_by_node(pid) == {home: ASKED}
    memory = anonymous_by_node(pid)
    assert memory.keys() == {home}, memory
    assert memory[home] >= MEBIBYTES << 8
    cpus = allowed(pid)
    assert len(cpus) == 2
    assert cpus <= cpus_of(home)
    assert memory_nodes(pid) == CPUSet([home])
    assert (cgroup_of(pid) / "cpuset.mems").read_text().strip() == str(home)


def test_two_pods_each_on_its_node(node: AgentProcess) -> None:
    """Pages, memory and CPUs of each are of one node; no page more than asked; a third is refused.

    At every moment the free pages of the other node are untouched.
    """
    first = owner(node, "first")
    (home,) = promised(node, "first")["hugepages-2Mi"]
    check_it_is_all_on(home, node, "first", first["pid"])
    assert pages() == {**WHOLE, home: PAGES - ASKED}
    assert first["refused"] == errno.ENOMEM, "pages were free, but not for it"

    second = owner(node, "second")
    (other,) = promised(node, "second")["hugepages-2Mi"]
    assert other != home
    check_it_is_all_on(other, node, "second", second["pid"])
    check_it_is_all_on(home, node, "first", first["pid"])
    assert pages() == {**WHOLE, home: PAGES - ASKED, other: PAGES - ASKED}
    assert second["refused"] == errno.ENOMEM

    if len(WHOLE) == 2:
        # As in a kubelet: nodes with pods of their own make no pair, so there is no hint at all.
        refused(node, pod("third", ["true"]), "UnexpectedAdmissionError")

    file = str(node.state / "memory_manager_state")
    checked = node.run("state", "check", file, "--pods", "first-uid,second-uid")
    assert checked.returncode == 0, checked
    stale = node.run("state", "check", file, "--pods", "first-uid")
    assert stale.returncode == 1, "the check can fail"

    delete(node, "first")
    eventually(pages, {**WHOLE, other: PAGES - ASKED})
    assert promised(node, "first") == {}
    # What it left is had again, on its node.
    third = owner(node, "third")
    check_it_is_all_on(home, node, "third", third["pid"])
    for name in ("second", "third"):
        delete(node, name)
    eventually(pages, WHOLE)


def refused(node: AgentProcess, manifest: dict[str, Any], reason: str) -> None:
    """The pod is refused, and nothing of it is left."""
    files = ("cpu_manager_state", "memory_manager_state")
    before = [(node.state / name).read_bytes() for name in files], pages()
    shared = node.client.get("/v1/status")["shared"]
    name = manifest["metadata"]["name"]
    told = node.apply(manifest)
    assert (told["phase"], told["reason"]) == ("Rejected", reason), told
    assert ([(node.state / name).read_bytes() for name in files], pages()) == before
    assert node.client.get("/v1/status")["shared"] == shared
    assert list(Path("/sys/fs/cgroup").glob(f"**/{node.name}/**/*{name}-uid*")) == []
    assert not (node.state / "pods" / f"{name}-uid").exists()
    delete(node, name)


def test_what_only_two_nodes_together_have_is_refused(node: AgentProcess) -> None:
    reason = "TopologyAffinityError"
    refused(node, pod("too-many-pages", ["true"], huge=PAGES + 1), reason)
    biggest = max(map(memory_of, node_ids()))
    refused(node, pod("too-much-memory", ["true"], huge=1, memory=str(biggest)), reason)


FILLER: Final = """
import os, sys, time
name, ready = sys.argv[1:3]
with open(os.path.join(os.environ["PINFOLD_VOLUME_FAST"], name), "wb") as file:
    file.write(bytes(8 << 20))
open(ready, "w").close()
time.sleep(100000)
"""
"""Fills a file in a volume in memory."""

MAPPER: Final = """
import mmap, sys
with open(sys.argv[1], "w+b") as file:
    file.truncate(8 << 20)
    memory = mmap.mmap(file.fileno(), 8 << 20)
    memory[::4096] = b"x" * 2048
    print("".join(open("/proc/self/numa_maps")), flush=True)
"""
"""Fills a file that it maps, and tells on which node its pages are."""


def test_segments_of_huge_pages(node: AgentProcess) -> None:
    """By shmget: root has the pages that its pod may have, others need the group."""

    def told(folder: Path, name: str, count: int, **security: Any) -> str:
        out = folder / name
        manifest = pod(name, [*SHMGET, str(out), str(count), "1000"], huge=2)
        manifest["spec"]["securityContext"] = security
        (container,) = manifest["spec"]["containers"]
        container["resources"]["limits"]["cpu"] = "1"
        node.apply(manifest)
        eventually(out.exists, expected=True, seconds=30)
        return out.read_text()

    nobody = {"runAsUser": 64233, "runAsGroup": 64232}
    try:
        with shm_group(64231), everybodys_folder() as folder:
            assert told(folder, "root", 2) == ""
            assert told(folder, "more", 3) == "Cannot allocate memory"
            assert told(folder, "nobody", 2, **nobody) == "Operation not permitted"
            assert told(folder, "member", 2, **nobody, supplementalGroups=[64231]) == ""
            findings = json.loads(node.run("audit", "-o", "json").stdout)["findings"]
            (found,) = [one for one in findings if one["slug"] == "shm-hugetlb"]
            (owner,) = found["owners"]
            assert "nobody" in owner
    finally:
        for name in ("root", "more", "nobody", "member"):
            delete(node, name)
    eventually(pages, WHOLE)


def test_memory_of_a_volume_is_on_the_pod_s_node(node: AgentProcess) -> None:
    """Also of what somebody writes there who runs on the other node."""
    ready = node.folder / "filler.ready"
    manifest = pod("filler", python(FILLER, Path("own"), ready), huge=1)
    (container,) = manifest["spec"]["containers"]
    manifest["spec"]["volumes"] = [{"name": "fast", "emptyDir": {"medium": "Memory"}}]
    container["volumeMounts"] = [{"name": "fast", "mountPath": "/fast"}]
    node.apply(manifest)
    eventually(ready.exists, expected=True, seconds=30)
    (home,) = promised(node, "filler")["memory"]
    (found,) = mounts_below(node.state / "pods" / "filler-uid")
    assert f"mpol=bind:{home}" in found.options
    other = next(one for one in node_ids() if one != home)
    away = str(cpus_of(other))
    done = subprocess.run(
        ["taskset", "-c", away, *python(MAPPER, found.path / "strange")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (line,) = [one for one in done.stdout.splitlines() if "strange" in one]
    assert f" N{home}=2048" in line, line
    assert f" N{other}=" not in line, line
    delete(node, "filler")
    eventually(pages, WHOLE)


def test_volumes_of_huge_pages(node: AgentProcess) -> None:
    """Both media, one with a size; also when the agent is killed in between."""
    out = node.folder / "writer.out"
    manifest = pod("writer", python(WRITER, out, 4))
    (container,) = manifest["spec"]["containers"]
    manifest["spec"]["volumes"] = [
        {"name": "pages", "emptyDir": {"medium": "HugePages"}},
        {"name": "sized", "emptyDir": {"medium": "HugePages-2Mi", "sizeLimit": "8Mi"}},
    ]
    container["volumeMounts"] = [
        {"name": name, "mountPath": f"/{name}"} for name in ("pages", "sized")
    ]
    volumes = node.state / "pods" / "writer-uid"
    for killed in (False, True):
        node.apply(manifest)
        eventually(out.exists, expected=True, seconds=30)
        out.unlink()
        (home,) = promised(node, "writer")["hugepages-2Mi"]
        used = {**WHOLE, home: PAGES - 8}
        assert pages() == used
        before = {found.path.name: found for found in mounts_below(volumes)}
        assert {(name, found.kind) for name, found in before.items()} == {
            ("pages", "hugetlbfs"),
            ("sized", "hugetlbfs"),
        }
        assert f"size={8 << 20}" in before["sized"].options
        assert not [one for one in before["pages"].options if one.startswith("size=")]
        pid = node.pids("writer")["main"]
        if killed:
            node.kill()
            node.start()
            assert node.pids("writer")["main"] == pid
            assert {found.path.name: found for found in mounts_below(volumes)} == before
            assert pages() == used
        delete(node, "writer")
        eventually(volumes.exists, expected=False)
        assert mounts_below(node.state) == []
        assert pages() == WHOLE


def test_the_pools_of_one_node_are_set(node: AgentProcess) -> None:
    """While the agent runs, and a pod uses pages of both nodes' pools."""

    def shown() -> dict[int, int]:
        done = node.run("hugepages", "show", "-o", "json")
        assert done.returncode == 0, done
        rows = json.loads(done.stdout)["pools"]
        return {row["node"]: row["total"] for row in rows if row["size"] == SMALL}

    last = max(WHOLE)
    assert shown() == WHOLE
    grown = node.run("hugepages", "allocate", "2Mi", "6", "--node", str(last))
    assert grown.stdout == f"node {last}: {PAGES} -> {PAGES + 6} pages of 2Mi, {PAGES + 6} free\n"
    assert shown() == pages("nr") == {**WHOLE, last: PAGES + 6}
    again = node.run("hugepages", "release", "2Mi", "6", "--node", str(last))
    assert again.returncode == 0, again
    assert shown() == pages("nr") == WHOLE

    owner(node, "user")
    (home,) = promised(node, "user")["hugepages-2Mi"]
    idle = PAGES - ASKED
    too_many = node.run("hugepages", "release", "2Mi", str(idle + 1), "--node", str(home))
    assert too_many.returncode == 1
    assert f"{ASKED} are in use and {idle} can be given back" in too_many.stderr
    assert pages("nr") == WHOLE
    delete(node, "user")
    eventually(pages, WHOLE)


@pytest.fixture
def containerd(pools: None) -> Iterator[ContainerdNode]:
    """One that limits huge pages itself, too."""
    del pools
    with containerd_node(hugetlb=True) as one:
        yield one


def test_huge_pages_of_a_container(containerd: ContainerdNode, tmp_path: Path) -> None:
    """Busybox can allocate pages in a file, and not one more than the container asked for."""
    out = tmp_path / "out"
    out.mkdir()
    script = (
        f"fallocate -l {ASKED * SMALL} /pages/all && echo all > /out/new; "
        f"fallocate -l {SMALL} /pages/more 2>> /out/new && echo more >> /out/new; "
        "mv /out/new /out/done; sleep 100000 & wait"
    )
    manifest = pod("container", ["sh", "-c", script])
    (container,) = manifest["spec"]["containers"]
    container |= {
        "image": containerd.image,
        "imagePullPolicy": "Never",
        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in ("pages", "out")],
    }
    manifest["spec"] |= {
        "hostNetwork": True,
        "volumes": [
            {"name": "pages", "emptyDir": {"medium": "HugePages"}},
            {"name": "out", "hostPath": {"path": str(out)}},
        ],
    }
    with running_agent(
        tmp_path, runtime="cri", runtimeEndpoint=f"unix://{containerd.address}"
    ) as agent:
        agent.apply(manifest)
        eventually((out / "done").exists, expected=True, seconds=60)
        said, *trouble = (out / "done").read_text().splitlines()
        (home,) = promised(agent, "container")["hugepages-2Mi"]
        assert said == "all"
        assert len(trouble) == 1
        assert "more" in trouble[0]
        assert pages() == {**WHOLE, home: PAGES - ASKED}
        pid = agent.pids("container")["main"]
        cpus = allowed(pid)
        assert len(cpus) == 2
        assert cpus <= cpus_of(home)
        assert memory_nodes(pid) == CPUSet([home])
        assert anonymous_by_node(pid).keys() == {home}
        delete(agent, "container")
        eventually(pages, WHOLE)
        eventually(lambda: mounts_below(agent.state), [])

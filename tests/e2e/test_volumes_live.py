"""Volumes that this machine's kernel mounts: huge pages and memory."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.hugetlb import HugePagePools
from pinfold.adapters.volumes import VolumeFolders
from pinfold.core.pod.workload import EmptyDir
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.mounting import mount, mounts_below, unmount
from pinfold.linux.mounts import Mount
from pinfold.ports.volumes import VolumeError
from tests.scenes.agent_process import (
    AgentProcess,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.hugepages_scene import SMALL, more_pages
from tests.scenes.waiting import wait_until

PAGES = EmptyDir("HugePages", None, SMALL)
MEMORY = EmptyDir("Memory", 1 << 20)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A folder; what is mounted below it in the end is unmounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    try:
        mount("tmpfs", tmp_path, "size=1m")
    except OSError as error:
        pytest.skip(f"nothing can be mounted here: {error.strerror}")
    unmount(tmp_path)
    yield tmp_path
    for found in reversed(mounts_below(tmp_path)):
        unmount(found.path)


@pytest.fixture
def pages(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HugePagePools]:
    """Four more pages of 2Mi."""
    del root
    with more_pages(tmp_path_factory, 4) as pools:
        yield pools


def only(folder: Path) -> Mount:
    (found,) = mounts_below(folder)
    return found


def test_huge_pages_are_used_and_come_back(root: Path, pages: HugePagePools) -> None:
    async def scenario() -> None:
        volumes = VolumeFolders(root / "pods")
        path = Path(await volumes.prepare("uid", "huge", PAGES))
        assert only(root).kind == "hugetlbfs"
        assert "pagesize=2M" in only(root).options
        assert path.stat().st_mode & 0o777 == 0o777
        idle = pages.spare(SMALL)
        with (path / "file").open("w+b") as file:
            os.ftruncate(file.fileno(), 2 * SMALL)
            with mmap.mmap(file.fileno(), 2 * SMALL) as memory:
                memory[0] = memory[SMALL] = 7
        # The file keeps its pages; who asks again gets the same volume.
        assert pages.spare(SMALL) == idle - 2
        assert await volumes.prepare("uid", "huge", PAGES) == str(path)
        assert (path / "file").stat().st_size == 2 * SMALL
        assert only(root).path == path
        await volumes.remove("uid")
        assert pages.spare(SMALL) == idle
        assert mounts_below(root) == []
        assert list((root / "pods").iterdir()) == []

    asyncio.run(scenario())


def test_a_size_limit_of_huge_pages_holds(root: Path, pages: HugePagePools) -> None:
    async def scenario() -> None:
        volumes = VolumeFolders(root)
        path = Path(await volumes.prepare("uid", "huge", EmptyDir("HugePages", SMALL, SMALL)))
        with (path / "file").open("w+b") as file:
            os.ftruncate(file.fileno(), 2 * SMALL)
            with pytest.raises(OSError, match="Cannot allocate memory") as caught:
                mmap.mmap(file.fileno(), 2 * SMALL)
            assert caught.value.errno == errno.ENOMEM
            mmap.mmap(file.fileno(), SMALL).close()
        await volumes.remove("uid")

    del pages
    asyncio.run(scenario())


def test_memory_is_bounded(root: Path) -> None:
    async def scenario() -> None:
        volumes = VolumeFolders(root)
        path = Path(await volumes.prepare("uid", "memory", MEMORY))
        assert only(root).kind == "tmpfs"
        (path / "file").write_bytes(bytes(1 << 19))
        with pytest.raises(OSError, match="No space left"):
            (path / "more").write_bytes(bytes(1 << 20))
        await volumes.remove("uid")
        assert mounts_below(root) == []

    asyncio.run(scenario())


def policy(folder: Path) -> list[str]:
    """The memory policy of the only mount, and whether it may be swapped out."""
    return sorted(one for one in only(folder).options if one.startswith(("mpol", "noswap")))


@pytest.fixture
def numa(root: Path) -> None:
    """A kernel that knows NUMA nodes."""
    try:
        mount("tmpfs", root, "mpol=bind:0")
    except OSError as error:
        assert error.errno == errno.EINVAL  # noqa: PT017 - what decides is the number
        pytest.skip("this kernel knows no NUMA nodes")
    unmount(root)


def test_memory_is_bound_to_nodes_and_let_go(root: Path, numa: None) -> None:
    del numa

    async def scenario() -> None:
        volumes = VolumeFolders(root)
        one = CPUSet([0])
        path = Path(await volumes.prepare("uid", "memory", MEMORY, one))
        first = policy(root)
        assert "mpol=bind:0" in first
        (path / "file").write_bytes(b"kept")
        volumes.bind("uid", "memory", CPUSet())
        kept = ["mpol=local", *(option for option in first if option == "noswap")]
        assert policy(root) == kept
        # A node that is not there is no reason to have no volume: first touch decides.
        volumes.bind("uid", "memory", CPUSet([1000]))
        assert policy(root) == kept
        volumes.bind("uid", "memory", one)
        assert policy(root) == first
        # An agent of before has bound nothing.
        assert await VolumeFolders(root).prepare("uid", "memory", MEMORY) == str(path)
        assert policy(root) == kept
        assert (path / "file").read_bytes() == b"kept"
        with pytest.raises(OSError, match="No space left"):
            (path / "more").write_bytes(bytes(2 << 20))
        # What is not there, or not in memory, is left alone.
        volumes.bind("uid", "other", one)
        await volumes.prepare("uid", "plain", EmptyDir(), one)
        volumes.bind("uid", "plain", one)
        assert policy(root) == kept
        await volumes.remove("uid")

    asyncio.run(scenario())


def test_a_volume_on_a_node_that_is_not_there_is_made_all_the_same(root: Path) -> None:
    async def scenario() -> None:
        volumes = VolumeFolders(root)
        await volumes.prepare("uid", "memory", MEMORY, CPUSet([1000]))
        assert not any("mpol" in option for option in only(root).options)
        await volumes.remove("uid")

    asyncio.run(scenario())


def test_what_a_killed_agent_left_is_found(root: Path) -> None:
    """Volumes of several pods, one mounted twice, one never mounted, one with spaces in its uid."""

    async def scenario() -> None:
        before = VolumeFolders(root)
        await before.prepare("a b", "memory", MEMORY)
        path = Path(await before.prepare("c", "memory", MEMORY))
        mount("tmpfs", path, "size=1m")
        (path / "inside").mkdir()
        mount("tmpfs", path / "inside", "size=1m")
        (root / "d/volumes/kubernetes.io~empty-dir/v").mkdir(parents=True)
        after = VolumeFolders(root)
        assert set(await after.pods()) == {"a b", "c", "d"}
        for uid in await after.pods():
            await after.remove(uid)
        assert mounts_below(root) == []
        assert list(root.iterdir()) == []

    asyncio.run(scenario())


def test_a_folder_that_was_never_mounted_is_mounted(root: Path, pages: HugePagePools) -> None:
    del pages

    async def scenario() -> None:
        volumes = VolumeFolders(root)
        (root / "uid/volumes/kubernetes.io~empty-dir/v").mkdir(parents=True)
        path = Path(await volumes.prepare("uid", "v", MEMORY))
        assert only(root).path == path
        # Another medium of the same name is a volume of before.
        await volumes.prepare("uid", "v", PAGES)
        assert only(root).kind == "hugetlbfs"
        with pytest.raises(VolumeError, match="a hugetlbfs is mounted there"):
            await volumes.prepare("uid", "v", EmptyDir())
        await volumes.remove("uid")

    asyncio.run(scenario())


def test_a_volume_in_use_is_removed_all_the_same(root: Path) -> None:
    async def scenario() -> None:
        volumes = VolumeFolders(root)
        path = Path(await volumes.prepare("uid", "v", MEMORY))
        with (path / "file").open("w") as file:
            await volumes.remove("uid")
            assert mounts_below(root) == []
            assert not path.exists()
            file.write("still there for who has it open")

    asyncio.run(scenario())


def test_containers_that_start_at_once_share_one_mount(root: Path) -> None:
    async def scenario() -> None:
        volumes = VolumeFolders(root)
        paths = await asyncio.gather(*(volumes.prepare("uid", "v", MEMORY) for _ in range(8)))
        assert len(set(paths)) == 1
        assert only(root).kind == "tmpfs"
        await volumes.remove("uid")

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------- the agent


@pytest.fixture
def node(root: Path, pages: HugePagePools) -> Iterator[AgentProcess]:
    """An agent of plain processes; the pools are filled before it looks at the machine."""
    del pages
    skip_unless_an_agent_can_run()
    agent = AgentProcess(root)
    try:
        yield agent
    finally:
        agent.clean_up()


def a_pod(out: Path) -> dict[str, Any]:
    """It writes down the file systems of its volumes."""
    script = (
        f'stat -f -c %T "$PINFOLD_VOLUME_HUGE" "$PINFOLD_VOLUME_FAST_DISK" '
        f'"$PINFOLD_VOLUME_PLAIN" > {out}.new; mv {out}.new {out}; exec sleep 1000'
    )
    pod = manifest("owner", ("main", ("sh", "-c", script), "1"))
    pod["metadata"]["uid"] = "owner-uid"
    (container,) = pod["spec"]["containers"]
    container["resources"]["limits"] = container["resources"]["requests"] = {
        "cpu": "1",
        "memory": "64Mi",
        "hugepages-2Mi": "4Mi",
    }
    names = ("huge", "fast-disk", "plain")
    media: tuple[dict[str, str], ...] = ({"medium": "HugePages"}, {"medium": "Memory"}, {})
    container["volumeMounts"] = [{"name": name, "mountPath": f"/{name}"} for name in names]
    pod["spec"]["volumes"] = [
        {"name": name, "emptyDir": source} for name, source in zip(names, media, strict=True)
    ]
    return pod


def test_a_pod_has_its_volumes_until_it_ends(node: AgentProcess) -> None:
    out = node.folder / "out"
    pods = node.state / "pods"
    node.start()
    assert node.apply(a_pod(out))["phase"] != "Rejected"
    wait_until(out.exists)
    huge, fast, plain = out.read_text().split()
    assert (huge, fast) == ("hugetlbfs", "tmpfs")
    assert plain != "hugetlbfs"
    before = mounts_below(pods)
    assert {found.kind for found in before} == {"hugetlbfs", "tmpfs"}

    # A pod that is gone left something while no agent looked.
    node.kill()
    left = asyncio.run(VolumeFolders(pods).prepare("gone-uid", "v", MEMORY))
    node.start()
    assert not Path(left).exists()
    assert mounts_below(pods) == before
    assert node.run("delete", "pod/owner").returncode == 0
    wait_until(lambda: not (pods / "owner-uid").exists())
    assert mounts_below(pods) == []


def test_a_volume_that_cannot_be_had_keeps_the_container_from_starting(node: AgentProcess) -> None:
    node.start()
    pod = a_pod(node.folder / "out")
    pod["spec"]["volumes"][0]["emptyDir"] = {"medium": "HugePages-1Gi"}
    node.apply(pod)
    wait_until(lambda: "volume huge: medium HugePages-1Gi: hugePages storage" in node.log())
    assert node.run("delete", "pod/owner").returncode == 0
    wait_until(lambda: not (node.state / "pods/owner-uid").exists())


def test_memory_of_a_pod_is_bound_where_all_who_have_it_are(node: AgentProcess, numa: None) -> None:
    del numa
    node.config |= {
        "memoryManagerPolicy": "Static",
        "kubeReserved": {"memory": "156Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "256Mi"}}],
    }
    node.start()

    def a_pod_of(name: str, cpus: str) -> dict[str, Any]:
        pod = manifest(name, ("main", ("sleep", "1000"), cpus))
        pod["metadata"]["uid"] = name
        pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
        pod["spec"]["volumes"] = [{"name": "v", "emptyDir": {"medium": "Memory"}}]
        return pod

    for name, cpus, bound in (("owner", "1", True), ("sharer", "", False)):
        assert node.apply(a_pod_of(name, cpus))["phase"] != "Rejected"
        node.pids(name)
        policies = [one for one in policy(node.state / "pods" / name) if one != "noswap"]
        assert policies == (["mpol=bind:0"] if bound else [])
    for name in ("owner", "sharer"):
        assert node.run("delete", f"pod/{name}").returncode == 0
    wait_until(lambda: mounts_below(node.state / "pods") == [])

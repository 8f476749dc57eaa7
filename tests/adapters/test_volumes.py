"""Volumes that live and die with a pod: what a manifest says, the port, and plain folders."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.volumes import VolumeFolders
from pinfold.core.pod.manifest.assigned_fields import Values, filled
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.workload import (
    DownwardAPI,
    DownwardFile,
    EmptyDir,
    HostPath,
    Process,
    VolumeMount,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import ContainerKey
from pinfold.ports.runtime import ContainerSpec
from pinfold.ports.volumes import ANY_NODE, VolumeError, remove_leftovers, with_volumes

MIB = 1 << 20


def mounted(source: dict[str, Any], **resources: str) -> EmptyDir:
    """The volume of a pod whose container has these limits (``_`` for ``-``)."""
    limits = {name.replace("_", "-"): amount for name, amount in resources.items()}
    container = {
        "name": "app",
        "resources": {"limits": limits},
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    spec = {"containers": [container], "volumes": [{"name": "v", "emptyDir": source}]}
    workload = workload_from_api({"metadata": {"name": "p"}, "spec": spec})
    (mount,) = workload.processes["app"].volume_mounts
    assert mount.host_path is None
    return mount.empty_dir


def test_media() -> None:
    pages = {"memory": "64Mi", "hugepages_2Mi": "4Mi"}
    assert mounted({}) == EmptyDir()
    assert mounted({"medium": "HugePages"}, **pages) == EmptyDir("HugePages", None, 2 * MIB)
    named = mounted({"medium": "HugePages-2Mi", "sizeLimit": "2Mi"}, **pages)
    assert named == EmptyDir("HugePages-2Mi", 2 * MIB, 2 * MIB)
    assert mounted({"medium": "HugePages-1Gi"}, **pages).problem == (
        "medium HugePages-1Gi: hugePages storage requested, but there is no resource request "
        "for huge pages"
    )
    assert mounted({"medium": "Bogus"}).problem == 'unknown storage medium "Bogus"'


def test_what_memory_may_hold() -> None:
    assert mounted({"medium": "Memory"}) == EmptyDir("Memory")
    assert mounted({"medium": "Memory", "sizeLimit": "1Mi"}).size == MIB
    assert mounted({"medium": "Memory", "sizeLimit": "0"}).size is None
    assert mounted({"medium": "Memory"}, memory="8Mi").size == 8 * MIB
    assert mounted({"medium": "Memory", "sizeLimit": "9Mi"}, memory="8Mi").size == 8 * MIB
    assert mounted({"medium": "Memory", "sizeLimit": "7Mi"}, memory="8Mi").size == 7 * MIB


# ------------------------------------------------------------------------------------------- port


class Shelf:
    """Volumes in memory."""

    def __init__(self, *, broken: Collection[str] = ()) -> None:
        self.made: dict[tuple[str, str], EmptyDir] = {}
        self.projected: dict[tuple[str, str], dict[str, str]] = {}
        self.bound: dict[tuple[str, str], CPUSet] = {}
        self.broken = broken

    async def prepare(
        self, pod_uid: str, name: str, source: EmptyDir, nodes: CPUSet = ANY_NODE
    ) -> str:
        if name in self.broken:
            raise VolumeError("no room", "make some")
        self.made[pod_uid, name] = source
        self.bound[pod_uid, name] = nodes
        return f"/shelf/{pod_uid}/{name}"

    def bind(self, pod_uid: str, name: str, nodes: CPUSet) -> None:
        self.bound[pod_uid, name] = nodes

    def project(self, pod_uid: str, name: str, source: DownwardAPI, values: Values) -> str:
        self.projected[pod_uid, name] = {one.path: filled(one.text, values) for one in source.files}
        return f"/shelf/{pod_uid}/{name}"

    async def remove(self, pod_uid: str) -> None:
        if pod_uid in self.broken:
            raise VolumeError(f"{pod_uid} is stuck")
        self.made = {key: one for key, one in self.made.items() if key[0] != pod_uid}

    async def pods(self) -> Collection[str]:
        if "all" in self.broken:
            raise VolumeError("the shelf is gone")
        return {uid for uid, _ in self.made}


PAGES = EmptyDir("HugePages", None, 2 * MIB)
SPEC = ContainerSpec(
    ContainerKey("uid", "app"),
    "default",
    "p",
    Process(
        env={"PINFOLD_VOLUME_OWN": "mine"},
        volume_mounts=(
            VolumeMount("huge-a", "/a", read_only=True, empty_dir=PAGES),
            VolumeMount("srv", "/srv", HostPath("/srv", "Directory")),
            VolumeMount("own", "/own"),
        ),
    ),
    env={"A": "1"},
)


def test_a_container_is_told_where_its_volumes_are() -> None:
    shelf = Shelf()
    spec = asyncio.run(with_volumes(SPEC, shelf, mounted=False))
    assert spec.process.volume_mounts == (
        VolumeMount("huge-a", "/a", HostPath("/shelf/uid/huge-a"), read_only=True, empty_dir=PAGES),
        VolumeMount("srv", "/srv", HostPath("/srv", "Directory")),
        VolumeMount("own", "/own", HostPath("/shelf/uid/own")),
    )
    assert spec.env == {"A": "1", "PINFOLD_VOLUME_HUGE_A": "/shelf/uid/huge-a"}
    assert shelf.made == {("uid", "huge-a"): PAGES, ("uid", "own"): EmptyDir()}


def test_a_container_of_a_runtime_sees_them_where_they_are_mounted() -> None:
    twice = (*SPEC.process.volume_mounts, VolumeMount("huge-a", "/again", empty_dir=PAGES))
    spec = replace(SPEC, process=replace(SPEC.process, volume_mounts=twice))
    told = asyncio.run(with_volumes(spec, Shelf(), mounted=True))
    assert told.env == {"A": "1", "PINFOLD_VOLUME_HUGE_A": "/a"}
    assert [mount.host_path for mount in told.process.volume_mounts] == [
        HostPath("/shelf/uid/huge-a"),
        HostPath("/srv", "Directory"),
        HostPath("/shelf/uid/own"),
        HostPath("/shelf/uid/huge-a"),
    ]


def test_a_volume_that_cannot_be_made_is_named() -> None:
    with pytest.raises(VolumeError) as caught:
        asyncio.run(with_volumes(SPEC, Shelf(broken={"own"})))
    assert str(caught.value) == "volume own: no room (make some)"


def test_leftovers_go_and_what_lives_stays() -> None:
    shelf = Shelf(broken={"stuck"})
    shelf.made = {(uid, "v"): EmptyDir() for uid in ("stuck", "gone", "alive")}
    assert asyncio.run(remove_leftovers(shelf, {"alive"})) == ["stuck is stuck"]
    assert {uid for uid, _ in shelf.made} == {"stuck", "alive"}
    assert asyncio.run(remove_leftovers(Shelf(broken={"all"}), ())) == ["the shelf is gone"]


# ---------------------------------------------------------------------------------------- folders


def test_a_folder_comes_once_and_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        volumes = VolumeFolders(tmp_path / "pods")
        assert list(await volumes.pods()) == []
        path = Path(await volumes.prepare("uid", "v", EmptyDir()))
        assert path == tmp_path / "pods/uid/volumes/kubernetes.io~empty-dir/v"
        assert stat.S_IMODE(path.stat().st_mode) == 0o777
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
        (path / "file").write_text("kept")
        (path / "outside").symlink_to(tmp_path)
        assert await volumes.prepare("uid", "v", EmptyDir()) == str(path)
        assert (path / "file").read_text() == "kept"
        # A file of the agent for the pod, and another folder, are none of ours.
        (tmp_path / "pods/uid.json").write_text("{}")
        (tmp_path / "pods/other").mkdir()
        assert list(await VolumeFolders(tmp_path / "pods").pods()) == ["uid"]
        await volumes.remove("uid")
        await volumes.remove("uid")
        assert sorted(p.name for p in (tmp_path / "pods").iterdir()) == ["other", "uid.json"]
        assert tmp_path.is_dir()

    asyncio.run(scenario())


@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=20))
def test_any_uid_has_a_folder_of_its_own(uid: str) -> None:
    async def scenario(root: Path) -> None:
        volumes = VolumeFolders(root / "pods")
        path = Path(await volumes.prepare(uid, "v", EmptyDir()))
        assert path.relative_to(root / "pods").parts[1:] == ("volumes", path.parts[-2], "v")
        assert list(await volumes.pods()) == [uid]
        await volumes.remove(uid)
        assert list((root / "pods").iterdir()) == []

    with TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))


@pytest.mark.parametrize(
    ("name", "source", "problem"),
    [
        ("v", EmptyDir("Bogus", problem='unknown storage medium "Bogus"'), "unknown storage"),
        ("..", EmptyDir(), "'..' is no name of a volume"),
        ("a/b", EmptyDir(), "'a/b' is no name of a volume"),
        ("v", EmptyDir("HugePages-4Ki", None, 4096), "this machine has no huge pages of 4Ki"),
    ],
)
def test_what_cannot_be_made_leaves_nothing(
    tmp_path: Path, name: str, source: EmptyDir, problem: str
) -> None:
    with pytest.raises(VolumeError, match=problem):
        asyncio.run(VolumeFolders(tmp_path / "pods").prepare("uid", name, source))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("uid", ["", "x" * 256])
def test_uids_that_no_folder_can_have(tmp_path: Path, uid: str) -> None:
    volumes = VolumeFolders(tmp_path)
    with pytest.raises(VolumeError, match=r"give the pod another metadata\.uid"):
        asyncio.run(volumes.prepare(uid, "v", EmptyDir()))
    asyncio.run(volumes.remove(uid))


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "uid").write_text("")
    with pytest.raises(VolumeError, match="uid"):
        asyncio.run(VolumeFolders(tmp_path).prepare("uid", "v", EmptyDir()))


def test_an_ordinary_user_cannot_mount(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may")
    with pytest.raises(VolumeError, match=r"mounting tmpfs: .*needs root"):
        asyncio.run(VolumeFolders(tmp_path).prepare("uid", "v", EmptyDir("Memory")))
    assert [p.name for p in tmp_path.rglob("v")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_users_of_a_pod_get_to_its_volumes_and_its_group_has_them() -> None:
    shared = EmptyDir(group=54321, for_users=True)
    with TemporaryDirectory() as name:
        state = Path(name)
        volumes = VolumeFolders(state / "pods")
        with pytest.raises(VolumeError, match=f"chmod o\\+x {state}"):
            asyncio.run(volumes.prepare("uid", "v", shared))
        state.chmod(0o711)
        path = Path(asyncio.run(volumes.prepare("uid", "v", shared)))
        assert (path.stat().st_gid, path.stat().st_mode & 0o7777) == (54321, 0o2777)
        passed = [parent for parent in path.parents if state in parent.parents]
        assert [parent.stat().st_mode & 0o777 for parent in passed] == [0o751] * 4
        child = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
        subprocess.run([*child, "touch", str(path / "f")], check=True, timeout=20)
        assert (path / "f").stat().st_gid == 54321
        alone = Path(asyncio.run(volumes.prepare("other", "v", EmptyDir())))
        assert alone.parent.stat().st_mode & 0o777 == 0o750
        assert asyncio.run(volumes.prepare("uid", "v", shared)) == str(path), "again"


def test_what_a_pod_says_of_its_group_reaches_its_volumes() -> None:
    pod = {
        "metadata": {"name": "a"},
        "spec": {
            "securityContext": {"fsGroup": 9, "runAsUser": 7},
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        },
    }
    (mount,) = workload_from_api(pod).processes["a"].volume_mounts
    assert mount.empty_dir == EmptyDir(group=9, for_users=True)


DOWNWARD = DownwardAPI(
    (
        DownwardFile("cpus", "\0assigned.cpuset/app\0", 0o440),
        DownwardFile("deep/all", "a=\0assigned.memset/app\0", 0o644),
    )
)


def values(**texts: str) -> Values:
    return lambda resource, _container: texts[resource.partition(".")[2]]


def test_the_downward_api_is_a_folder_that_is_swapped(tmp_path: Path) -> None:
    folders = VolumeFolders(tmp_path / "pods")
    place = Path(folders.project("uid", "told", DOWNWARD, values(cpuset="2-3", memset="0")))
    assert place == tmp_path / "pods/uid/volumes/kubernetes.io~downward-api/told"
    assert (place / "cpus").read_text() == "2-3"
    assert (place / "deep/all").read_text() == "a=0"
    assert stat.S_IMODE((place / "cpus").stat().st_mode) == 0o440
    first = (place / "..data").readlink()
    folders.project("uid", "told", DOWNWARD, values(cpuset="2-3", memset="0"))
    assert (place / "..data").readlink() == first
    folders.project("uid", "told", DOWNWARD, values(cpuset="2", memset=""))
    assert (place / "cpus").read_text() == "2"
    asyncio.run(folders.remove("uid"))
    assert not (tmp_path / "pods" / "uid").exists()


def test_a_volume_of_the_downward_api_that_cannot_be_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "pods").write_text("in the way")
    with pytest.raises(VolumeError, match=r"told: .*make room on its disk"):
        VolumeFolders(tmp_path / "pods").project(
            "uid", "told", DOWNWARD, values(cpuset="1", memset="")
        )


def test_containers_get_volumes_of_the_downward_api() -> None:
    shelf = Shelf()
    mount = VolumeMount("told", "/etc/told", read_only=True, downward=DOWNWARD)
    spec = replace(SPEC, process=Process(volume_mounts=(mount,)))
    made = asyncio.run(with_volumes(spec, shelf, values(cpuset="5", memset="1")))
    assert shelf.projected == {("uid", "told"): {"cpus": "5", "deep/all": "a=1"}}
    assert made.process.volume_mounts[0].host_path == HostPath("/shelf/uid/told")
    assert made.env["PINFOLD_VOLUME_TOLD"] == "/etc/told"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_downward_api_is_for_the_users_and_the_group_of_the_pod() -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        source = replace(DOWNWARD, group=65533, for_users=True)
        folders = VolumeFolders(Path(folder) / "pods")
        place = folders.project("uid", "told", source, values(cpuset="1", memset=""))
        words = (
            "import os, sys; os.setgroups([]); os.setgid({}); os.setuid(65534); open(sys.argv[1])"
        )
        for group, is_let_in in ((65533, True), (65534, False)):
            program = [sys.executable, "-c", words.format(group), f"{place}/cpus"]
            done = subprocess.run(program, check=False, capture_output=True)
            assert (done.returncode == 0) == is_let_in, done.stderr

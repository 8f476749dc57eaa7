"""What an agent makes of devices: mirrored files, pods of the folder, processes that get some."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from pinfold.adapters.process.command import resolve
from pinfold.admission.admission import NodeState
from pinfold.admission.model import build_node
from pinfold.agent.loops.static_pods import StaticPods
from pinfold.agent.state_files import StateFiles
from pinfold.core.devices.devices import (
    Device,
    DeviceMount,
    DeviceNode,
    DeviceResource,
    DeviceRunOptions,
)
from pinfold.core.devices.state import DeviceAllocations, DeviceState
from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import V1_34, V1_36, V1_37, KubeletVersion
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.memory.memory import Block, MemoryState
from pinfold.core.pod.workload import Process
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.announcements import Announcements
from pinfold.node.pod_table import PodTable
from pinfold.node.pods.device_grants import unseen_by_a_process
from pinfold.node.settings import NodeSettings
from pinfold.node.view import View
from pinfold.planning.fake_plugins import FakeDevicePlugins
from pinfold.planning.fakes import MemoryPodFiles
from pinfold.ports.errors import ContainerKey, PortError, RuntimeFailedError
from pinfold.ports.records import DeviceGrant, PodPhase, PodRecord
from pinfold.ports.runtime import ContainerSpec
from pinfold.state.device_checkpoint import DeviceManagerCheckpoint, restore_devices
from pinfold.state.ledger import Ledger
from pinfold.state.state_file import StateFile
from tests.scenes.manager_harness import ALL_MANAGERS, Harness, parse, run_virtually
from tests.scenes.manager_harness import manifest as a_pod

GPU, NIC = "example.com/gpu", "example.com/nic"
FILES = ("cpu_manager_state", "kubelet_internal_checkpoint", "memory_manager_state")


def owned(response: bytes | None) -> tuple[NodeState, tuple[PodRecord, ...]]:
    """A node with one device that a pod has; None: of which no answer is known."""
    resource = DeviceResource(GPU, {"g0": Device("g0", numa_nodes=(1,))})
    allocations = DeviceAllocations({"uid": {"main": {GPU: ("g0",)}}})
    state = NodeState(
        ledger=Ledger("none", CPUSet(range(4))),
        devices=DeviceState({GPU: resource}, allocations),
    )
    grants = {} if response is None else {"main": {GPU: DeviceGrant(("g0",), response)}}
    return state, (PodRecord("uid", "default", "p", "{}", PodPhase.RUNNING, devices=grants),)


def a_view(state: NodeState, pods: tuple[PodRecord, ...]) -> View:
    node = build_node(parse_short_form("1s2c2t"), NodeConfig())
    workload = parse(json.dumps(a_pod("p", "")))
    table = PodTable({pod.uid: AdmittedPod(workload, pod) for pod in pods})
    return View(node, state, table, NodeSettings())


# -------------------------------------------------------------------------------- state files


def test_an_empty_answer_is_an_answer(tmp_path: Path) -> None:
    StateFiles(tmp_path, NodeConfig()).write(*owned(b""))
    data = (tmp_path / "kubelet_internal_checkpoint").read_bytes()
    checkpoint = DeviceManagerCheckpoint.parse(data)
    checkpoint.verify()
    assert list(restore_devices(checkpoint).responses.values()) == [b""]


def test_an_answer_that_is_not_known_is_reported_and_the_other_files_are_written(
    tmp_path: Path,
) -> None:
    reports: list[str] = []
    files = StateFiles(tmp_path, NodeConfig())
    announcements = Announcements(
        MemoryPodFiles(), files.write, lambda _, text: reports.append(text)
    )
    announcements.mirror(a_view(*owned(None)))
    assert [path.name for path in tmp_path.iterdir()] == ["cpu_manager_state"]
    (report,) = reports
    assert "the answer of the plugin of example.com/gpu to Allocate is not known" in report
    announcements.mirror(a_view(*owned(b"x")))
    assert len(reports) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [*FILES[:2]]


@pytest.mark.parametrize(
    ("version", "gates", "has_bubble", "layouts"),
    [
        (V1_34, {}, False, ("v2", "v1")),
        (V1_36, {}, False, ("v2", "v1")),
        (V1_36, {POD_LEVEL_RESOURCE_MANAGERS: True}, False, ("v3", "v2")),
        (V1_37, {}, False, ("v4", "v3")),
        # What pods have as a whole is told, whatever the gate says by now.
        (V1_34, {}, True, ("v3", "v2")),
        (V1_36, {}, True, ("v3", "v2")),
        (V1_37, {POD_LEVEL_RESOURCE_MANAGERS: False}, True, ("v4", "v3")),
    ],
)
def test_copies_have_the_layouts_of_the_configured_kubelet(
    tmp_path: Path,
    version: KubeletVersion,
    gates: dict[str, bool],
    layouts: tuple[str, str],
    *,
    has_bubble: bool,
) -> None:
    state, pods = owned(b"")
    bubbles = {"uid": CPUSet([1])} if has_bubble else {}
    blocks = {"uid": (Block((0,), "memory", 5),)} if has_bubble else {}
    state = replace(
        state,
        ledger=Ledger("static", CPUSet([0]), bubbles=bubbles),
        memory=MemoryState({}, {}, blocks),
    )
    config = NodeConfig(kubelet_version=version, feature_gates=gates)
    StateFiles(tmp_path, config).write(state, pods)
    files = [
        StateFile.read((tmp_path / name).read_bytes())
        for name in ("cpu_manager_state", "memory_manager_state")
    ]
    assert tuple(file.layout for file in files) == layouts
    assert all(file.checksum_fits for file in files)
    for document in (file.document for file in files):
        assert not isinstance(document, DeviceManagerCheckpoint)
        assert bool(document.pod_entries) == has_bubble


def test_a_file_that_cannot_be_written_holds_up_no_other(tmp_path: Path) -> None:
    files = StateFiles(tmp_path, NodeConfig())
    (tmp_path / "cpu_manager_state").mkdir()
    with pytest.raises(PortError, match=r"cannot replace .*cpu_manager_state: Is a directory"):
        files.write(*owned(b""))
    written = (tmp_path / "kubelet_internal_checkpoint").stat()
    (tmp_path / "cpu_manager_state").rmdir()
    files.write(*owned(b""))
    assert (tmp_path / "cpu_manager_state").is_file()
    assert (tmp_path / "kubelet_internal_checkpoint").stat() == written


def test_no_copy_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts meanwhile waits for that disk, too."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    StateFiles(tmp_path, NodeConfig()).write(*owned(b""))
    assert sorted(path.name for path in tmp_path.iterdir()) == [*FILES[:2]]
    assert synced == []


def test_copies_that_say_nothing_any_more_are_removed(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_text("of an agent before")
    state, pods = owned(b"")
    files = StateFiles(tmp_path, NodeConfig())
    files.write(state, pods)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*FILES[:2]]
    files.write(replace(state, devices=DeviceState()), ())
    assert [path.name for path in tmp_path.iterdir()] == ["cpu_manager_state"]


def test_a_storm_of_lists_is_mirrored_once_in_a_second() -> None:
    async def work() -> None:
        node = Harness(config=ALL_MANAGERS)
        await node.start()
        before = len(node.mirrored)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number in range(100):
            node.plugins.put_devices(NIC, Device(f"n{number}"))
            await node.health.take(node.plugins.inventory())
            await asyncio.sleep(0.05)
        assert 4.9 < loop.time() - began < 6
        await asyncio.sleep(2)
        assert 4 <= len(node.mirrored) - before <= 7
        assert node.books.view.state.devices.allocatable() == {NIC: 1}
        await node.kill()

    run_virtually(work())


# -------------------------------------------------------------------------- pods of the folder


class SlowPlugins(FakeDevicePlugins):
    """Plugins that think as long as ``thinking`` is clear."""

    def __init__(self) -> None:
        super().__init__()
        self.thinking = asyncio.Event()

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> bytes:
        await self.thinking.wait()
        return await super().allocate(resource, device_ids)


class FolderScene:
    """A manager, and the folder that it follows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = Harness()
        self.node.plugins = SlowPlugins()
        self.node.plugins.thinking.set()
        self.asked: list[str] = []

    async def start(self) -> None:
        manager = await self.node.start()
        async with manager.books.change() as draft:
            draft.node = replace(draft.node, devices_managed=True)
        self.pods = StaticPods(self.folder, manager, self.apply)

    async def apply(self, manifest: Mapping[str, Any], *, source: str) -> PodRecord:
        text = json.dumps(manifest)
        self.asked.append(manifest["metadata"]["name"])
        workload = parse(text)
        return await self.node.manager.admit(workload, manifest=text, source=source)

    def write(self, name: str, **more: str) -> None:
        pod = a_pod(name, "", more=more)
        del pod["metadata"]["uid"]
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(pod))

    async def look(self) -> None:
        await self.node.health.take(self.node.plugins.inventory())
        await self.pods.look()
        await self.node.settle()

    def phases(self) -> dict[str, str]:
        return {r.name: r.phase.value for r in self.node.books.view.pods.records()}


def follow(folder: Path, work: Callable[[FolderScene], Awaitable[None]]) -> None:
    async def whole() -> None:
        scene = FolderScene(folder)
        await scene.start()
        await work(scene)
        await scene.node.settle()
        scene.node.check()
        await scene.node.kill()

    run_virtually(whole())


def test_a_refused_pod_is_tried_again_when_its_device_comes(tmp_path: Path) -> None:
    async def work(scene: FolderScene) -> None:
        scene.write("app", **{GPU: "1"})
        await scene.look()
        assert scene.phases() == {"app": "Rejected"}
        scene.node.plugins.put_devices(NIC, Device("n0"))
        await scene.look()
        assert scene.asked == ["app"], "another device is no reason"
        await scene.node.kill()
        await scene.start()
        await scene.look()
        scene.node.plugins.put_devices(GPU, Device("g0"))
        await scene.look()
        assert scene.phases() == {"app": "Running"}
        scene.node.plugins.set_health(GPU, "g0", healthy=False)
        await scene.look()
        scene.node.plugins.set_health(GPU, "g0", healthy=True)
        await scene.look()
        assert scene.phases() == {"app": "Failed"}, "it has run, and its device failed"

    follow(tmp_path, work)


def test_a_plugin_that_thinks_holds_up_only_its_pod(tmp_path: Path) -> None:
    async def work(scene: FolderScene) -> None:
        plugins = scene.node.plugins
        assert isinstance(plugins, SlowPlugins)
        plugins.thinking.clear()
        plugins.put_devices(GPU, Device("g0"), Device("g1"))
        for name in ("a-slow", "b-gone"):
            scene.write(name, **{GPU: "1"})
        scene.write("c-quick")
        await scene.look()
        assert scene.phases() == {"c-quick": "Running"}
        (scene.folder / "b-gone.yaml").unlink()
        await scene.look()
        assert sorted(scene.asked) == ["a-slow", "b-gone", "c-quick"], "once each"
        plugins.thinking.set()
        await scene.node.settle()
        await scene.look()
        assert scene.phases() == {"a-slow": "Running", "c-quick": "Running"}
        assert scene.node.books.view.state.devices.in_use(GPU) == {"g0"}

    follow(tmp_path, work)


# ----------------------------------------------------------------------------------- restarts


@pytest.mark.parametrize(("away", "tried"), [(5, False), (60, True)])
def test_a_container_is_not_started_again_before_its_plugin_is_back(
    away: float, *, tried: bool
) -> None:
    async def work() -> None:
        node = Harness()
        node.plugins.put_devices(GPU, Device("g0"))
        await node.start()
        await node.admit(a_pod("app", "", more={GPU: "1"}))
        (status,) = node.runtime.known()
        await node.kill()
        node.runtime.exit(status.id, 1)
        listed, node.plugins = node.plugins.inventory(), FakeDevicePlugins()
        await node.start()
        await asyncio.sleep(away)
        assert node.cpus("app") == {}
        words = f"{GPU}: its device plugin is not there (start the plugin)"
        assert any(words in problem for problem in node.problems) == tried
        node.plugins.put(listed[GPU])
        await asyncio.sleep(400)
        assert node.cpus("app")
        assert node.runtime.specs[next(iter(node.runtime.known())).id].env["GPU"] == "g0"
        node.check()
        await node.kill()

    run_virtually(work())


# ---------------------------------------------------------------------------------- processes


@pytest.mark.parametrize(
    ("devices", "what"),
    [
        (DeviceRunOptions(mounts=(DeviceMount("/etc/x", "/no/such"),)), "mount '/no/such'"),
        (DeviceRunOptions(devices=(DeviceNode("/dev/x", "/dev/nox", "rw"),)), "node '/dev/nox'"),
        (DeviceRunOptions(devices=(DeviceNode("/dev/x", "dev/null", "rw"),)), "node 'dev/null'"),
        (DeviceRunOptions(mounts=(DeviceMount("/etc/x", "/a\0b"),)), r"mount '/a\\x00b'"),
    ],
)
def test_files_of_a_plugin_must_be_there(devices: DeviceRunOptions, what: str) -> None:
    key = ContainerKey("uid", "main")
    spec = ContainerSpec(key, "default", "p", Process(("true",)), devices=devices)
    with pytest.raises(RuntimeFailedError, match=f"uid/main: its device plugin .* {what}, which"):
        resolve(spec)
    there = DeviceRunOptions(devices=(DeviceNode("/dev/x", "/dev/null", "rw"),))
    assert resolve(replace(spec, devices=there)).argv == ("true",)


def test_what_a_process_does_not_see_is_named() -> None:
    seen = DeviceRunOptions(
        {"A": "1"},
        (DeviceMount("/etc", "/etc"),),
        (DeviceNode("/dev/null", "/dev/null", "rw"),),
    )
    assert unseen_by_a_process(seen) == ""
    unseen = DeviceRunOptions(
        {},
        (DeviceMount("/etc/x", "/etc"),),
        (DeviceNode("/dev/x", "/dev/null", "rw"),),
        {"a": "b"},
        ("example.com/gpu=1",),
    )
    assert unseen_by_a_process(unseen) == (
        "a plain process sees the files of the host: /etc/x is at /etc, /dev/x is at /dev/null; "
        "only a container runtime applies annotations, CDI device example.com/gpu=1"
    )

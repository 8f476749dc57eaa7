"""Devices by class on an agent: pods ask by a short name, plugins are asked for ids as ever."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from pinfold.agent.loops.static_pods import StaticPods
from pinfold.config.agent import load_agent_config
from pinfold.config.classes_file import load_classes
from pinfold.config.values import ConfigError
from pinfold.core.classes.names import class_resource, with_class_resources
from pinfold.core.devices.classes import DeviceClasses
from pinfold.core.devices.devices import Device
from pinfold.ports.records import PodRecord
from tests.roots import ROOT
from tests.scenes.manager_harness import Harness, parse, run_virtually
from tests.scenes.manager_harness import manifest as a_pod

GPU = "nvidia.com/gpu"
EXAMPLE = ROOT / "examples" / "classes" / "classes.yaml"
GPUS = tuple(Device(f"gpu-{number}") for number in range(4))


class Scene:
    """A manager that knows the classes of the example, and a folder of manifests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = Harness()
        loaded = load_classes(str(EXAMPLE))
        self.classes = DeviceClasses.on_node(loaded.classes, loaded.described, "node-1")

    async def start(self) -> None:
        manager = await self.node.start()
        async with manager.books.change() as draft:
            draft.node = replace(draft.node, devices_managed=True)
            devices = replace(draft.state.devices, classes=self.classes)
            draft.state = replace(draft.state, devices=devices)
        self.pods = StaticPods(self.folder, manager, self.apply)

    async def apply(self, manifest: Mapping[str, Any], *, source: str) -> PodRecord:
        named = with_class_resources(manifest, self.classes.names)
        text = json.dumps(named)
        return await self.node.manager.admit(parse(text), manifest=text, source=source)

    async def look(self) -> None:
        await self.node.health.take(self.node.plugins.inventory())
        await self.pods.look()
        await self.node.settle()

    def write(self, name: str, **more: str) -> None:
        pod = a_pod(name, "", more=more)
        del pod["metadata"]["uid"]
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(pod))

    def state(self) -> dict[str, tuple[str, list[str]]]:
        devices = self.node.books.view.state.devices.allocations
        return {
            one.name: (
                one.phase.value,
                sorted(id_ for some in devices.of_pod(one.uid).values() for id_ in some[GPU]),
            )
            for one in self.node.books.view.pods.records()
        }


def follow(folder: Path, work: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        scene = Scene(folder)
        await scene.start()
        await work(scene)
        await scene.node.settle()
        scene.node.check()
        await scene.node.kill()

    run_virtually(whole())


def test_a_pod_has_devices_of_its_class_also_after_a_restart(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.node.plugins.put_devices(GPU, *GPUS)
        scene.write("a", **{"gpu-gold": "1"})
        scene.write("b", **{class_resource("gpu-silver"): "2"})
        scene.write("c", **{GPU: "1"})
        scene.write("d", **{"gpu-silver": "1"})
        await scene.look()
        expected = {
            "a": ("Running", ["gpu-2"]),
            "b": ("Running", ["gpu-0", "gpu-1"]),
            "c": ("Running", ["gpu-3"]),
            "d": ("Rejected", []),
        }
        assert scene.state() == expected
        await scene.node.kill()
        await scene.start()
        await scene.look()
        assert scene.state() == expected

    follow(tmp_path, work)


def test_a_refused_pod_is_tried_again_when_its_class_has_devices(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.write("a", **{"gpu-gold": "1"})
        await scene.look()
        (refused,) = scene.node.books.view.pods.records()
        # A static pod is critical, and has other words for OutOfclass.pinfold.dev/gpu-gold.
        assert "(res: class.pinfold.dev/gpu-gold, q: 1)" in str(refused.message)
        scene.node.plugins.put_devices(GPU, *GPUS)
        await scene.look()
        assert scene.state() == {"a": ("Running", ["gpu-2"])}

    follow(tmp_path, work)


def test_the_setting_names_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "pinfold": {"resourceClasses": str(EXAMPLE)},
    }
    file.write_text(yaml.safe_dump(config))
    loaded = load_agent_config(file).classes
    assert [one.name for one in loaded.classes] == ["gpu-gold", "gpu-silver"]
    assert [one.node_name for one in loaded.described] == ["node-1", "node-1"]
    assert load_classes(None).classes == ()


FIRST = EXAMPLE.read_text().partition("---")[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"a: [", "not YAML"),
        (b"- 1", "line 1: must be a ResourceClass or a ComputeResource of pinfold.dev/v1alpha1"),
        (b"kind: ResourceClass", "must be a ResourceClass or a ComputeResource of pinfold.dev/v1"),
        (
            FIRST.replace("10", "ten").encode(),
            "ResourceClass 'gpu-gold': spec.priority: must be an integer",
        ),
        (f"{FIRST}---\n{FIRST}".encode(), "ResourceClass gpu-gold is there already"),
        (b" " * (4 * 1024 * 1024 + 1), "larger than 4 MiB"),
    ],
)
def test_what_is_wrong_with_the_file_is_one_line(
    tmp_path: Path, text: bytes | None, said: str
) -> None:
    file = tmp_path / "classes.yaml"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(ConfigError, match=said):
        load_classes(str(file))

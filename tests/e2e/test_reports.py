"""One agent with memory, a device plugin and its podresources: every report tells the same."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.podresources import podresources_pb2 as v1
from tests.scenes.agent_process import IDLE, AgentProcess, manifest, skip_unless_an_agent_can_run
from tests.scenes.podresources_world import ask
from tests.scenes.sample_plugin import (
    WIDGET,
    SamplePlugin,
    skip_unless_the_sample_plugin_can_run,
    until_offered,
)
from tests.scenes.waiting import eventually

MIB = 1 << 20
GRACE = {"grace": 1.0}
"""Instead of five minutes."""


class Scene:
    def __init__(self, folder: Path) -> None:
        self.agent = AgentProcess(
            folder,
            memoryManagerPolicy="Static",
            kubeReserved={"memory": "28Mi"},
            evictionHard={"memory.available": "100Mi"},
            reservedMemory=[{"numaNode": 0, "limits": {"memory": "128Mi"}}],
        )
        plugins = folder / "plugins"
        plugins.mkdir()
        self.socket = folder / "pr" / "p.sock"
        self.agent.config["pinfold"] |= {
            "devicePluginDir": str(plugins),
            "podResourcesSocket": str(self.socket),
        }
        self.agent.program = ("-m", "tests.scenes.hasty_agent", json.dumps(GRACE))
        self.plugin = SamplePlugin(plugins)

    def listed(self) -> v1.ContainerResources:
        answer = ask(self.socket, "List")
        assert (answer.status, answer.message) == (0, "")
        (pod,) = v1.ListPodResourcesResponse.FromString(answer.body).pod_resources
        (container,) = pod.containers
        return container

    def allocatable(self) -> v1.AllocatableResourcesResponse:
        answer = ask(self.socket, "GetAllocatableResources")
        return v1.AllocatableResourcesResponse.FromString(answer.body)

    def counts(self) -> tuple[str, str]:
        node = self.agent.client.get("/v1/node")
        return node["capacity"].get(WIDGET, "-"), node["allocatable"].get(WIDGET, "-")

    def metric(self, name: str) -> float:
        command = ["curl", "-s", "--unix-socket", str(self.agent.socket), "http://agent/metrics"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
        return float(samples[name])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    skip_unless_an_agent_can_run()
    skip_unless_the_sample_plugin_can_run()
    if shutil.which("curl") is None or b"HTTP2" not in subprocess.check_output(["curl", "-V"]):
        pytest.skip("needs a curl that speaks HTTP/2")
    made = Scene(tmp_path)
    try:
        made.agent.start()
        yield made
    finally:
        made.plugin.stop()
        made.agent.clean_up()


def test_every_report_tells_the_same(scene: Scene) -> None:
    agent = scene.agent
    eventually(scene.socket.exists, expected=True)
    assert scene.counts() == ("-", "-"), "never heard of"
    scene.plugin.start()
    until_offered(agent, 4, 4)
    assert scene.counts() == ("4", "4")
    assert len(scene.allocatable().devices) == 4
    (block,) = scene.allocatable().memory
    zone = agent.client.get("/v1/node")["zones"][0]["resources"]["memory"]
    assert (block.memory_type, [node.ID for node in block.topology.nodes]) == ("memory", [0])

    pod: dict[str, Any] = manifest("app", ("main", IDLE, "1"))
    limits = {"cpu": "1", "memory": "64Mi", WIDGET: "2"}
    pod["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    assert agent.apply(pod)["reason"] is None
    agent.pids("app")
    container = agent.pod("app")["containers"][0]
    assert container["memory"] == [{"type": "memory", "size": 64 * MIB, "numa_nodes": [0]}]
    told = scene.listed()
    ids = [device_id for device in told.devices for device_id in device.device_ids]
    assert {WIDGET: ids} == container["devices"]
    assert [(m.memory_type, m.size) for m in told.memory] == [("memory", 64 * MIB)]
    after = agent.client.get("/v1/node")
    assert after["requested"][WIDGET] == "2"
    assert after["zones"][0]["resources"]["memory"]["allocatable"] == zone["allocatable"]
    assert after["zones"][0]["resources"]["memory"]["available"] != zone["available"]
    label = f'{{resource_name="{WIDGET}"}}'
    assert scene.metric(f"pinfold_devices_in_use{label}") == 2
    assert scene.metric(f"pinfold_device_plugin_alloc_duration_seconds_count{label}") == 1
    assert scene.metric(f"pinfold_device_plugin_registration_total{label}") == 1
    assert scene.metric("pinfold_memory_manager_pinning_requests_total") == 1
    text = agent.run("status").stdout
    assert f"{WIDGET}: {', '.join(ids)}" in text
    assert "64 MiB on NUMA node 0" in text

    # The plugin goes: first what may be given, after the grace what there is; the pod stays.
    scene.plugin.stop()
    eventually(scene.counts, ("4", "0"))
    assert not scene.allocatable().devices
    eventually(scene.counts, ("0", "0"))
    assert scene.listed() == told
    scene.plugin.start()
    eventually(scene.counts, ("4", "4"))
    assert scene.metric(f"pinfold_device_plugin_registration_total{label}") == 2

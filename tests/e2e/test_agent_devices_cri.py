"""A whole agent, the sample device plugin and a real containerd: devices reach containers."""

from __future__ import annotations

import json
import os
import secrets
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.cri import cri_pb2 as cri
from tests.scenes.agent_process import skip_unless_an_agent_can_run
from tests.scenes.agent_with_containerd import Scene
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.sample_plugin import (
    WIDGET,
    SamplePlugin,
    giving,
    offered,
    skip_unless_the_sample_plugin_can_run,
    until_offered,
)
from tests.scenes.waiting import eventually

CDI = {
    "cdiVersion": "0.5.0",
    "kind": "example.com/widget",
    "devices": [{"name": "one", "containerEdits": {"env": ["FROM_CDI=one"]}}],
}


class DeviceScene(Scene):
    """Everything a plugin can give: an environment, a mount, a device node, an annotation, CDI."""

    def __init__(self, node: ContainerdNode, folder: Path) -> None:
        super().__init__(node, folder)
        plugins = folder / "plugins"
        plugins.mkdir()
        self.agent.config["pinfold"]["devicePluginDir"] = str(plugins)
        self.agent.config |= {
            "memoryManagerPolicy": "Static",
            "kubeReserved": {"memory": "924Mi"},
            "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
        }
        (folder / "driver").mkdir()
        (folder / "driver" / "serial").write_text("4711\n")
        (node.folder / "cdi").mkdir(exist_ok=True)
        (node.folder / "cdi" / "widget.json").write_text(json.dumps(CDI))
        self.plugin = SamplePlugin(
            plugins,
            "--pre-start",
            *giving(
                devices=[
                    {
                        "host_path": "/dev/null",
                        "container_path": "/dev/widget",
                        "permissions": "rw",
                    }
                ],
                mounts=[
                    {
                        "host_path": str(folder / "driver"),
                        "container_path": "/etc/widget",
                        "read_only": True,
                    }
                ],
                annotations={"example.com/fan": "on"},
                cdi_devices=[{"name": "example.com/widget=one"}],
            ),
        )

    def asking(self, name: str, number: int = 1, **spec: Any) -> dict[str, Any]:
        """A pod with CPUs, memory and devices of its own."""
        pod = json.loads(json.dumps(self.pod(name, "1", **spec)))
        pod["spec"]["containers"][0]["resources"]["limits"][WIDGET] = str(number)
        return dict(pod)

    def inside(self, container: str, script: str) -> str:
        """What a script prints in a container."""
        exec_id = secrets.token_hex(4)
        return self.node.ctr("tasks", "exec", "--exec-id", exec_id, container, "sh", "-c", script)


@pytest.fixture
def scene(containerd: ContainerdNode) -> Iterator[DeviceScene]:
    skip_unless_an_agent_can_run()
    skip_unless_the_sample_plugin_can_run()
    with tempfile.TemporaryDirectory() as folder:
        scene = DeviceScene(containerd, Path(folder))
        try:
            scene.plugin.start()
            scene.agent.start()
            until_offered(scene.agent, 4, 4)
            yield scene
            for pod in scene.agent.client.get("/v1/pods")["pods"]:
                scene.agent.client.delete(f"/v1/pods/{pod['namespace']}/{pod['name']}?grace=0")
            eventually(lambda: containerd.ctr("containers", "ls", "-q").split(), [])
        finally:
            scene.plugin.stop()
            scene.look.close()
            scene.agent.stop()


def test_all_that_a_plugin_gives_is_in_the_container(scene: DeviceScene) -> None:
    scene.agent.apply(scene.asking("app", 2))
    container = scene.running("app")
    script = (
        'echo "$WIDGETS"; echo "$FROM_CDI"; cat /etc/widget/serial;'
        " test -c /dev/widget && echo fan > /dev/widget && echo written;"
        " echo no > /etc/widget/serial || echo read-only;"
        " grep -h Mems_allowed_list /proc/1/status /proc/self/status"
    )
    found = scene.inside(container, f"({script}) 2>/dev/null").split("\n")
    assert found[:5] == ["widget-0,widget-1", "one", "4711", "written", "read-only"]
    (pid,) = scene.agent.pids("app").values()
    status = Path(f"/proc/{pid}/status").read_text()
    assert status.split("Mems_allowed_list:")[1].split()[0] == "0"
    answer = scene.look.call(
        "ContainerStatus",
        cri.ContainerStatusRequest(container_id=container),
        cri.ContainerStatusResponse,
    )
    assert answer.status.annotations["example.com/fan"] == "on"
    spec = json.loads(scene.node.ctr("containers", "info", container))["Spec"]
    assert spec["linux"]["resources"]["cpu"]["mems"] == "0"


def test_restarts_keep_the_devices(scene: DeviceScene) -> None:
    agent, plugin = scene.agent, scene.plugin
    agent.apply(scene.asking("app", 3))
    first = scene.running("app")
    pids = agent.pids("app")
    agent.kill()
    agent.start()
    assert agent.pids("app") == pids
    until_offered(agent, 4, 4)
    assert (offered(agent) or {})["in_use"] == 3
    prepared = "prepared widget-0, widget-1, widget-2"
    assert plugin.said(prepared) == 1
    os.kill(pids["main"], signal.SIGKILL)
    eventually(lambda: plugin.said(prepared), 2)
    eventually(lambda: agent.pod("app")["containers"][0]["restarts"], 1)
    agent.pids("app")
    again = scene.running("app")
    assert again != first
    assert scene.inside(again, 'echo "$WIDGETS"; test -c /dev/widget && echo there').split() == [
        "widget-0,widget-1,widget-2",
        "there",
    ]
    assert plugin.said("allocated") == 1


def test_containers_outlive_their_plugin_and_not_their_device(scene: DeviceScene) -> None:
    agent, plugin = scene.agent, scene.plugin
    sick = plugin.folder.parent / "sick"
    pods = [scene.asking(name) for name in ("one", "two")]
    for pod in pods:
        del pod["spec"]["containers"][0]["resources"]["limits"]["cpu"]
        agent.apply(pod)
    before = {name: scene.running(name) for name in ("one", "two")}
    plugin.stop()
    until_offered(agent, 4, 0)
    assert {name: scene.running(name) for name in before} == before
    plugin.start("--health-file", str(sick))
    until_offered(agent, 4, 4)
    sick.write_text("widget-0\n")
    eventually(lambda: agent.pod("one")["reason"], "UnhealthyDevice")
    eventually(lambda: (offered(agent) or {})["in_use"], 1)
    assert scene.running("two") == before["two"]
    assert before["one"] not in scene.node.ctr("containers", "ls", "-q").split()


def test_a_runtime_that_refuses_the_devices_tells_why(scene: DeviceScene) -> None:
    scene.plugin.stop()
    until_offered(scene.agent, 4, 0)
    scene.plugin.start(*giving(cdi_devices=[{"name": "example.com/widget=missing"}]))
    until_offered(scene.agent, 4, 4)
    scene.agent.apply(scene.asking("app", restartPolicy="Never"))
    eventually(lambda: scene.agent.pod("app")["phase"], "Failed")
    failed = scene.agent.pod("app")
    assert "example.com/widget=missing" in failed["message"]
    eventually(lambda: (offered(scene.agent) or {})["in_use"], 0)

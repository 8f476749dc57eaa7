"""A whole agent and the sample device plugin: devices reach plain processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.sample_plugin import (
    WIDGET,
    SamplePlugin,
    giving,
    offered,
    skip_unless_the_sample_plugin_can_run,
    until_offered,
)
from tests.scenes.waiting import eventually

LIMITS = {"grace": 3.0, "allocate": 2.0}
"""Instead of 5 minutes and 30 s."""


class Scene:
    """An agent with a folder for plugins, and one plugin that is not started yet."""

    def __init__(self, folder: Path) -> None:
        self.agent = AgentProcess(folder)
        self.folder = folder / "plugins"
        self.folder.mkdir()
        self.agent.config["pinfold"]["devicePluginDir"] = str(self.folder)
        self.agent.program = ("-m", "tests.scenes.hasty_agent", json.dumps(LIMITS))
        self.plugin = SamplePlugin(self.folder, "--pre-start")

    def ready(self, *options: str) -> None:
        """Have the plugin offer four devices."""
        self.plugin.start(*options)
        until_offered(self.agent, 4, 4)

    def phase(self, pod: str) -> str:
        return str(self.agent.pod(pod)["phase"])

    def env(self, pod: str) -> dict[str, str]:
        """The environment of a pod's only process."""
        (pid,) = self.agent.pids(pod).values()
        entries = Path(f"/proc/{pid}/environ").read_text().split("\0")[:-1]
        return dict(entry.split("=", 1) for entry in entries)


def asking(name: str, number: int = 1, resource: str = WIDGET, **spec: Any) -> dict[str, Any]:
    """A pod that asks for devices."""
    pod = manifest(name, ("main", IDLE, ""), **spec)
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: str(number)}}
    return pod


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    skip_unless_an_agent_can_run()
    skip_unless_the_sample_plugin_can_run()
    scene = Scene(tmp_path)
    try:
        scene.agent.start()
        yield scene
        scene.agent.stop()
        assert not (scene.folder / "kubelet.sock").exists()
        assert "Traceback" not in scene.agent.log()
    finally:
        scene.plugin.stop()
        scene.agent.clean_up()


def test_a_pod_gets_devices(scene: Scene) -> None:
    agent, plugin = scene.agent, scene.plugin
    assert offered(agent) is None
    plugin.start()
    until_offered(agent, 4, 4)
    agent.apply(asking("app", 2))
    assert scene.env("app")["WIDGETS"] == "widget-0,widget-1"
    assert plugin.said("prepared widget-0, widget-1") == 1
    now = offered(agent)
    assert now == {"capacity": 4, "allocatable": 4, "in_use": 2, "connected": True}
    agent.client.delete("/v1/pods/default/app", grace=0)
    eventually(lambda: (offered(agent) or {})["in_use"], 0)


def test_a_kill_of_the_agent_loses_no_device(scene: Scene) -> None:
    agent, plugin = scene.agent, scene.plugin
    scene.ready()
    agent.apply(asking("app", 3))
    before, pids = scene.env("app"), agent.pids("app")
    agent.kill()
    agent.start()
    assert agent.pids("app") == pids
    until_offered(agent, 4, 4)
    assert (offered(agent) or {})["in_use"] == 3
    late = agent.apply(asking("late", 2))
    assert (late["phase"], late["reason"]) == ("Rejected", "UnexpectedAdmissionError")
    assert f"devices unavailable for {WIDGET}. Requested: 2, Available: 1" in late["message"]
    agent.client.post("/v1/reconcile")
    (pid,) = pids.values()
    prepared = "prepared widget-0, widget-1, widget-2"
    assert plugin.said(prepared) == 1
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: plugin.said(prepared), 2)
    eventually(lambda: agent.pod("app")["containers"][0]["restarts"], 1)
    assert agent.pids("app") != pids
    assert scene.env("app")["WIDGETS"] == before["WIDGETS"]
    assert plugin.said("allocated") == 1, "only the container is another one"


def test_a_container_that_ended_in_the_agents_absence_is_prepared_again(scene: Scene) -> None:
    agent, plugin = scene.agent, scene.plugin
    scene.ready()
    agent.apply(asking("app"))
    (pid,) = agent.pids("app").values()
    agent.kill()
    os.kill(pid, signal.SIGKILL)
    agent.start()
    eventually(lambda: agent.pod("app")["containers"][0]["restarts"], 1)
    assert agent.pids("app")["main"] != pid
    assert plugin.said("prepared widget-0") == 2
    assert plugin.said("allocated") == 1


def test_a_plugin_that_is_killed_keeps_its_pods(scene: Scene) -> None:
    agent, plugin = scene.agent, scene.plugin
    scene.ready()
    agent.apply(asking("app"))
    pids = agent.pids("app")
    plugin.stop()
    until_offered(agent, 4, 0)
    assert agent.apply(asking("late"))["phase"] == "Rejected"
    eventually(lambda: offered(agent), None)
    assert agent.apply(asking("later"))["phase"] == "Rejected"
    assert agent.pids("app") == pids
    scene.ready()
    assert agent.pids("app") == pids
    assert (offered(agent) or {})["in_use"] == 1
    agent.apply(asking("next"))
    assert scene.env("next")["WIDGETS"] == "widget-1"


def test_a_device_that_fails_fails_its_pod(scene: Scene) -> None:
    agent = scene.agent
    sick = scene.folder.parent / "sick"
    scene.ready("--health-file", str(sick))
    for name in ("one", "two"):
        agent.apply(asking(name))
        agent.pids(name)
    sick.write_text("widget-0\n")
    eventually(lambda: scene.phase("one"), "Failed")
    failed = agent.pod("one")
    assert failed["reason"] == "UnhealthyDevice"
    assert failed["message"] == f"device widget-0 of {WIDGET} is unhealthy"
    assert scene.phase("two") == "Running"
    until_offered(agent, 4, 3)
    eventually(lambda: (offered(agent) or {})["in_use"], 1)
    sick.write_text("")
    until_offered(agent, 4, 4)
    agent.apply(asking("three"))
    assert scene.env("three")["WIDGETS"] == "widget-0"


def test_a_pod_of_the_folder_waits_for_its_plugin(scene: Scene) -> None:
    agent = scene.agent
    file = agent.manifests / "app.yaml"
    file.write_text(yaml.safe_dump(asking("app")))

    def phases() -> list[str]:
        return [pod["phase"] for pod in agent.client.get("/v1/pods")["pods"]]

    eventually(phases, ["Rejected"])
    assert (
        f"no set of running pods found to reclaim resources: [(res: {WIDGET}, q: 1), ]"
        in (agent.pod("app")["message"])
    )
    # Another agent tries it again, too.
    agent.kill()
    agent.start()
    assert phases() == ["Rejected"]
    scene.ready()
    eventually(lambda: scene.phase("app"), "Running")
    assert scene.env("app")["WIDGETS"] == "widget-0"


def test_others_are_admitted_while_a_plugin_thinks(scene: Scene) -> None:
    agent = scene.agent
    scene.ready("--misbehave", "never-answer")
    answers: list[Any] = []
    asker = threading.Thread(target=lambda: answers.append(agent.apply(asking("stuck"))))
    asker.start()
    began = time.monotonic()
    time.sleep(0.2)
    agent.apply(manifest("owner", ("main", IDLE, "1")))
    assert asker.is_alive(), "the plugin has not answered"
    agent.pids("owner")
    asker.join()
    assert time.monotonic() - began > 1.5, "it was given its time"
    (refused,) = answers
    assert (refused["phase"], refused["reason"]) == ("Rejected", "UnexpectedAdmissionError")
    assert f"{WIDGET}: Allocate" in refused["message"]
    assert (offered(agent) or {})["in_use"] == 0


def test_a_hanging_plugin_does_not_hold_up_the_folder(scene: Scene) -> None:
    agent = scene.agent
    scene.ready("--misbehave", "never-answer")

    def names() -> dict[str, str]:
        return {pod["name"]: pod["phase"] for pod in agent.client.get("/v1/pods")["pods"]}

    for name in ("0-stuck", "1-other", "2-gone"):
        pod = asking(name) if name != "1-other" else manifest(name, ("main", IDLE, ""))
        (agent.manifests / f"{name}.yaml").write_text(yaml.safe_dump(pod))
    eventually(lambda: "1-other" in names(), expected=True)
    (agent.manifests / "2-gone.yaml").unlink()
    eventually(lambda: agent.log().count("Allocate failed"), 2)
    eventually(names, {"0-stuck": "Rejected", "1-other": "Running"})


def test_a_plugin_that_dies_in_allocate_leaves_nothing(scene: Scene) -> None:
    scene.ready("--misbehave", "die")
    refused = scene.agent.apply(asking("app"))
    assert (refused["phase"], refused["reason"]) == ("Rejected", "UnexpectedAdmissionError")
    until_offered(scene.agent, 4, 0)
    scene.ready()
    scene.agent.apply(asking("next", 4))
    assert scene.env("next")["WIDGETS"] == "widget-0,widget-1,widget-2,widget-3"


def test_files_of_the_host_and_what_a_process_does_not_see(scene: Scene) -> None:
    agent = scene.agent
    node = {"host_path": "/dev/null", "container_path": "/dev/widget", "permissions": "rw"}
    scene.ready(*giving(devices=[node], cdi_devices=[{"name": "example.com/w=1"}]))
    agent.apply(asking("app"))
    agent.pids("app")
    assert agent.log().count("/dev/widget is at /dev/null") == 1
    assert "only a container runtime applies CDI device example.com/w=1" in agent.log()
    scene.plugin.stop()
    until_offered(agent, 4, 0)
    mount = {"host_path": "/no/such/folder", "container_path": "/etc/widget"}
    scene.ready(*giving(mounts=[mount]))
    agent.apply(asking("lost", restartPolicy="Never"))
    eventually(lambda: scene.phase("lost"), "Failed")
    assert (
        "gives it the mount '/no/such/folder', which does not exist"
        in (agent.pod("lost")["message"])
    )


def test_a_folder_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path)
    (tmp_path / "file").touch()
    agent.config["pinfold"]["devicePluginDir"] = str(tmp_path / "file")
    status, printed = agent.refused()
    assert status == 1
    assert str(tmp_path / "file") in printed
    assert "Traceback" not in printed


def test_the_mirrored_files_can_be_read(scene: Scene) -> None:
    agent = scene.agent
    agent.stop()
    shutil.rmtree(agent.state)
    agent.config |= {
        "memoryManagerPolicy": "Static",
        "kubeReserved": {"memory": "924Mi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
    }
    agent.start()
    scene.ready()
    pod = asking("app", 2)
    limits = {"cpu": "1", "memory": "64Mi", WIDGET: "2"}
    pod["spec"]["containers"][0]["resources"]["limits"] = limits
    agent.apply(pod)
    (pid,) = agent.pids("app").values()
    uid = agent.pod("app")["uid"]
    for name, words in {
        "memory_manager_state": ["Static", "64 MiB"],
        "kubelet_internal_checkpoint": [WIDGET, "widget-0", "widget-1"],
    }.items():
        shown = agent.run("state", "show", str(agent.state / name))
        assert shown.returncode == 0, shown
        assert [word for word in (uid, *words) if word not in shown.stdout] == [], shown.stdout
        checked = agent.run("state", "check", str(agent.state / name), "--pods", uid)
        assert checked.returncode == 0, checked
    allowed = Path(f"/proc/{pid}/status").read_text().split("Mems_allowed_list:")[1].split()[0]
    assert allowed == "0"

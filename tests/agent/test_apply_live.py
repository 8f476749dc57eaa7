"""``pinfold apply`` of what cannot run, and of what runs already: needs root and a cgroup tree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scenes.agent_process import IDLE, AgentProcess, an_agent, manifest

node = pytest.fixture(an_agent)


def without_command(name: str, **container: Any) -> dict[str, Any]:
    pod = manifest(name, ("main", IDLE, ""))
    one = pod["spec"]["containers"][0]
    del one["command"]
    one |= container
    return pod


def test_a_container_without_a_command_is_refused_before_it_is_admitted(
    node: AgentProcess,
) -> None:
    node.start()
    init = without_command("init")
    init["spec"]["initContainers"] = [{"name": "first", "image": "busybox"}]
    init["spec"]["containers"][0]["command"] = ["sleep", "1"]
    pods = {
        "none": without_command("none", image="busybox"),
        "args": without_command("args", image="busybox", args=["sleep", "1"]),
        "init": init,
    }
    fine = manifest("fine", ("main", IDLE, ""))
    given = json.dumps({"kind": "List", "items": [*pods.values(), fine]})
    done = node.run("apply", "-", input=given)
    assert (done.returncode, done.stdout) == (1, "pod/fine admitted to the shared pool\n")
    for name in pods:
        place = "initContainers" if name == "init" else "containers"
        said = f"pod/{name}: spec.{place}[0].command: Required value: without a container runtime"
        assert said in done.stderr
    assert [one["name"] for one in node.client.get("/v1/pods")["pods"]] == ["fine"]
    entries = node.client.get("/v1/history")["entries"]
    assert {one["pod"] for one in entries if one["kind"] == "admitted"} == {"default/fine"}
    again = node.run("apply", "-", input=json.dumps(fine))
    assert (again.returncode, again.stdout) == (0, "pod/fine unchanged\n")


def test_a_pod_is_the_same_for_the_next_agent(node: AgentProcess) -> None:
    node.start()
    pod = manifest("owner", ("main", IDLE, "1"))
    assert node.run("apply", "-", input=json.dumps(pod)).returncode == 0
    pid = node.pids("owner")
    node.kill()
    node.start()
    again = node.run("apply", "-", input=json.dumps(pod))
    assert (again.returncode, again.stdout) == (0, "pod/owner unchanged\n")
    assert node.pids("owner") == pid


def test_an_agent_that_has_ended_leaves_nothing_beside_its_record(node: AgentProcess) -> None:
    node.start()
    assert node.run("apply", "-", input=json.dumps(manifest("web", ("main", IDLE, "")))).stdout
    assert node.run("delete", "--all", "--grace", "0").returncode == 0
    node.stop()
    left = {path.name for path in node.folder.iterdir()}
    assert left == {"config.yaml", "log", "manifests", "state"}

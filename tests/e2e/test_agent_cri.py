"""An agent that runs the pods of manifests as containers of a real containerd."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pinfold.cli.client import RefusedError
from tests.scenes.agent_process import allowed, skip_unless_an_agent_can_run
from tests.scenes.agent_with_containerd import Scene
from tests.scenes.assigned_container import check_assignment
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.waiting import eventually, wait_until


@pytest.fixture
def scene(fresh_containerd: ContainerdNode, tmp_path: Path) -> Iterator[Scene]:
    skip_unless_an_agent_can_run()
    scene = Scene(fresh_containerd, tmp_path)
    try:
        scene.agent.start()
        yield scene
        for pod in scene.agent.client.get("/v1/pods")["pods"]:
            scene.agent.client.delete(f"/v1/pods/{pod['namespace']}/{pod['name']}?grace=0")
        eventually(lambda: fresh_containerd.ctr("containers", "ls", "-q").split(), [])
        tree = Path("/sys/fs/cgroup")
        eventually(lambda: list(tree.glob(f"*/{scene.agent.name}/*/")), [])
        scene.agent.stop()
        assert list(tree.glob(f"*/{scene.agent.name}")) == []
    finally:
        scene.look.close()
        scene.agent.stop()


def test_an_owner_beside_the_others(scene: Scene) -> None:
    web = scene.run("web")
    assert scene.allowed(web) == ["1"]
    db = scene.run("db", "1")
    assert scene.allowed(db, web) == ["1", "0"]
    eventually(lambda: scene.look.recorded(web), "0")
    assert scene.look.recorded(db) == "1"
    deleted = scene.agent.run("delete", "pod/db")
    assert deleted.returncode == 0, deleted
    eventually(lambda: scene.allowed(web), ["1"])


def test_the_watched_folder_runs_containers(scene: Scene) -> None:
    file = scene.agent.manifests / "web.yaml"
    file.write_text(yaml.safe_dump(scene.pod("web")))
    eventually(lambda: [p["name"] for p in scene.agent.client.get("/v1/pods")["pods"]], ["web"])
    web = scene.running("web")
    assert scene.allowed(web) == ["1"]
    file.unlink()
    eventually(lambda: scene.agent.client.get("/v1/pods")["pods"], [])


def test_a_container_that_fails_is_started_again(scene: Scene) -> None:
    scene.agent.apply(scene.pod("web", command="(exit 3)"))
    eventually(lambda: scene.agent.pod("web")["containers"][0]["restarts"], 1)
    eventually(lambda: scene.agent.pod("web")["containers"][0]["exit_code"], 3)


def test_a_pod_that_ends_is_remembered(scene: Scene) -> None:
    scene.agent.apply(scene.pod("job", "1", command="true", restartPolicy="Never"))
    eventually(lambda: scene.agent.pod("job")["phase"], "Succeeded")
    assert scene.allowed(scene.run("db", "1")) == ["1"]


def test_containers_that_end_at_once_have_succeeded(scene: Scene) -> None:
    """Each runs once, and none of them is drift, however often it is looked."""

    def phase(name: str) -> str:
        return str(scene.agent.pod(name)["phase"])

    names = [f"job-{number}" for number in range(24)]
    for name in names:
        pod = scene.pod(name, restartPolicy="OnFailure")
        pod["spec"]["containers"][0]["command"] = ["sh", "-c", "echo ran"]
        scene.agent.apply(pod)
        assert scene.agent.client.post("/v1/reconcile")["drifts"] == []
    for name in names:
        eventually(functools.partial(phase, name), "Succeeded")
    assert {scene.agent.pod(name)["containers"][0]["restarts"] for name in names} == {0}
    history = scene.agent.client.get("/v1/history", limit=1000)["entries"]
    assert {entry["kind"] for entry in history} == {"admitted", "ended"}


@pytest.mark.parametrize("victims", ["agent", "containerd", "both"])
def test_a_kill_loses_nothing(scene: Scene, victims: str) -> None:
    web, db = scene.run("web"), scene.run("db", "1")
    if victims != "containerd":
        scene.agent.kill()
    if victims != "agent":
        scene.node.kill()
        scene.node.start()
    if victims != "containerd":
        scene.agent.start()
    assert scene.allowed(db, web) == ["1", "0"]
    deleted = scene.agent.run("delete", "pod/db")
    assert deleted.returncode == 0, deleted
    eventually(lambda: scene.allowed(web), ["1"])


def test_a_runtime_that_is_away_is_told(scene: Scene) -> None:
    agent = scene.agent
    pids = [scene.look.pid(scene.run(*one)) for one in (("web",), ("db", "1"))]
    assert agent.client.get("/readyz") == "ok"
    before = len(agent.log())
    scene.node.kill()
    problem = f"the container runtime at unix://{scene.node.address} does not answer"
    eventually(
        lambda: agent.client.get("/v1/status")["agent"]["containerRuntime"]["problem"], problem
    )
    with pytest.raises(RefusedError, match=f"^{problem} ") as refused:
        agent.client.get("/readyz")
    assert refused.value.status == 503
    assert f"\u2022 {problem}" in " ".join(agent.run("status").stdout.split())
    wait_until(lambda: problem in agent.log()[before:])
    deleting = agent.begin("delete", "pod/db")
    assert deleting.stderr is not None
    assert deleting.stderr.readline().startswith(f"note: still waiting: {problem} (")
    assert deleting.poll() is None
    assert [str(allowed(pid)) for pid in pids] == ["0", "1"]
    scene.node.start()
    said, _ = deleting.communicate(timeout=60)
    assert (deleting.returncode, said) == (0, "pod/db deleted\n")
    wait_until(lambda: agent.client.get("/v1/status")["agent"]["containerRuntime"]["problem"] == "")
    assert agent.client.get("/readyz") == "ok"
    wait_until(lambda: "again" in agent.log()[before:])


def test_a_runtime_that_starts_later_is_waited_for(scene: Scene, tmp_path: Path) -> None:
    agent, socket = scene.agent, tmp_path / "late.sock"
    agent.stop()
    agent.config["pinfold"]["runtimeEndpoint"] = f"unix://{socket}"
    before = len(agent.log())
    process = agent.launch()
    wait_until(lambda: f"{socket} (the configuration): there is no" in agent.log()[before:])
    assert process.poll() is None
    socket.symlink_to(scene.node.address)
    agent.started()
    assert scene.allowed(scene.run("db", "1")) == ["1"]


def test_a_job_that_failed_leaves_its_log_until_it_is_deleted(scene: Scene) -> None:
    agent, script = scene.agent, "(echo out; sleep 0.2; echo err >&2; exit 3)"
    agent.apply(scene.pod("job", "", script, restartPolicy="Never"))
    eventually(lambda: agent.pod("job")["phase"], "Failed")
    assert agent.run("logs", "job").stdout == "out\nerr\n"
    agent.kill()
    agent.start()
    assert agent.run("logs", "--timestamps", "job").stdout.endswith(" err\n")
    assert agent.run("delete", "job").returncode == 0
    assert list((agent.state / "logs").iterdir()) == []


def test_a_log_is_followed_to_the_end_of_its_container(scene: Scene) -> None:
    script = "(for i in 1 2 3; do echo $i; sleep 0.5; done)"
    scene.agent.apply(scene.pod("web", "", script, restartPolicy="Never"))
    eventually(lambda: scene.agent.run("logs", "web").returncode, 0)
    with scene.agent.begin("logs", "-f", "web") as following:
        text, errors = following.communicate(timeout=60)
    assert (text, errors) == ("1\n2\n3\n", "")


def test_an_owner_is_told_its_cpus(scene: Scene) -> None:
    scene.run("db", "1")
    check_assignment(scene.agent.pids("db")["main"], "1")

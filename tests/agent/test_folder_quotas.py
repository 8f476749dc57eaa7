"""Quotas in the watched folder: from the file to the pod that is let in."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pinfold.agent.loops.static_pods import StaticPods
from pinfold.agent.objects import Objects, checked
from pinfold.core.pod.api import PodError
from pinfold.node.pod_table import NameTakenError
from pinfold.ports.records import PodRecord
from tests.scenes.agent_process import IDLE, AgentProcess, an_agent
from tests.scenes.agent_process import manifest as a_live_pod
from tests.scenes.manager_harness import Harness, parse, run_virtually
from tests.scenes.manager_harness import manifest as a_pod
from tests.scenes.waiting import wait_until

OURS = "pinfold.dev/exclusive-cpus"

node = pytest.fixture(an_agent)


def a_quota(cpus: int) -> dict[str, Any]:
    spec = {"hard": {OURS: str(cpus)}}
    return {"kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": spec}


class Scene:
    """A manager, and the folder that it follows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.node = Harness()
        self.asked: list[str] = []

    async def start(self) -> None:
        self.pods = StaticPods(self.folder, await self.node.start(), self.apply)

    async def apply(self, manifest: Mapping[str, Any], *, source: str) -> PodRecord:
        text = json.dumps(manifest)
        self.asked.append(manifest["metadata"]["name"])
        return await self.node.manager.admit(parse(text), manifest=text, source=source)

    def write(self, file: str, *documents: Mapping[str, Any]) -> None:
        (self.folder / file).write_text(yaml.safe_dump_all(documents))

    def pod(self, name: str, cpus: str) -> None:
        pod = a_pod(name, cpus)
        del pod["metadata"]["uid"]
        self.write(f"{name}.yaml", pod)

    def quota(self, cpus: int, **spec: Any) -> None:
        # Its length differs each time: the time of a file may not.
        metadata = {"name": "team", "labels": {"n": "x" * cpus}}
        hard = {OURS: str(cpus)}
        whole = {"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard, **spec}}
        self.write("quota.yaml", {"kind": "Namespace", "metadata": {"name": "default"}}, whole)

    async def look(self) -> None:
        await self.pods.look()
        await self.node.settle()

    def phases(self) -> dict[str, str]:
        return {r.name: r.phase.value for r in self.node.books.view.pods.records()}


def follow(folder: Path, work: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        scene = Scene(folder)
        await scene.start()
        await work(scene)
        scene.node.check()
        await scene.node.kill()

    run_virtually(whole())


def test_a_quota_of_the_folder_holds_for_its_pods_and_goes_with_its_file(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        # By its name it comes after the pods, and holds for them all the same.
        scene.pod("app", "2")
        scene.quota(1)
        await scene.look()
        assert scene.phases() == {"app": "Rejected"}
        (tmp_path / "quota.yaml").unlink()
        await scene.look()
        assert scene.phases() == {"app": "Running"}

    follow(tmp_path, work)


def test_a_refused_pod_is_tried_again_when_its_quota_grows(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.pod("app", "2")
        scene.quota(1)
        for _ in range(3):
            await scene.look()
        assert scene.asked == ["app"], "nothing has changed"
        await scene.node.kill()
        await scene.start()
        scene.quota(2)
        await scene.look()
        assert scene.phases() == {"app": "Running"}

    follow(tmp_path, work)


def test_refused_pods_are_tried_again_when_others_end_but_not_more_than_fit(
    tmp_path: Path,
) -> None:
    async def work(scene: Scene) -> None:
        scene.quota(2)
        for name in ("a", "b", "c"):
            scene.pod(name, "2")
        await scene.look()
        assert scene.phases() == {"a": "Running", "b": "Rejected", "c": "Rejected"}
        (tmp_path / "a.yaml").unlink()
        await scene.look()
        assert scene.phases() == {"b": "Running", "c": "Rejected"}
        assert scene.asked == ["a", "b", "c", "b"]
        scene.pod("small", "1")
        (tmp_path / "b.yaml").unlink()
        await scene.look()
        await scene.look()
        assert list(scene.phases().values()).count("Running") == 1

    follow(tmp_path, work)


def test_a_pod_that_its_node_rejects_is_not_tried_again_for_a_quota(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.pod("large", "64")
        scene.quota(1)
        await scene.look()
        scene.quota(100)
        await scene.look()
        scene.quota(101)
        await scene.look()
        assert scene.phases() == {"large": "Rejected"}
        assert scene.asked == ["large"] * 2

    follow(tmp_path, work)


def test_a_quota_that_cannot_be_used_any_more_stays_in_force(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.quota(1)
        await scene.look()
        wrong = {"kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": {"x": 1}}}
        scene.write("quota.yaml", wrong)
        scene.pod("app", "2")
        await scene.look()
        assert scene.phases() == {"app": "Rejected"}
        # Neither does it go where the file cannot be read at a start.
        await scene.node.kill()
        (tmp_path / "quota.yaml").write_text("{")
        await scene.start()
        await scene.look()
        assert scene.phases() == {"app": "Rejected"}
        (tmp_path / "quota.yaml").unlink()
        await scene.look()
        await scene.look()
        assert scene.phases() == {"app": "Running"}

    follow(tmp_path, work)


@pytest.mark.parametrize("beside", [True, False])
def test_a_quota_whose_file_went_while_no_agent_ran_is_forgotten(
    tmp_path: Path, *, beside: bool
) -> None:
    async def work(scene: Scene) -> None:
        scene.quota(1)
        await scene.look()
        await scene.node.kill()
        (tmp_path / "quota.yaml").unlink()
        if beside:
            scene.pod("app", "2")
        await scene.start()
        await scene.look()
        assert not scene.node.books.view.objects
        assert scene.phases() == ({"app": "Running"} if beside else {})

    follow(tmp_path, work)


def test_a_quota_of_a_folder_that_is_watched_no_more_is_forgotten(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.quota(1)
        await scene.look()
        await scene.node.kill()
        scene.folder = tmp_path / "another"
        scene.folder.mkdir()
        (scene.folder / "odd.yaml").write_text("{")
        await scene.start()
        await scene.look()
        assert scene.node.books.view.objects, "nobody knows what is in that file"
        (scene.folder / "odd.yaml").unlink()
        await scene.look()
        assert not scene.node.books.view.objects

    follow(tmp_path, work)


def test_quotas_of_a_folder_go_when_none_is_configured_any_more(node: AgentProcess) -> None:
    node.start()
    metadata = {"name": "team"}
    quota = {"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"pods": "0"}}}
    (node.manifests / "quota.json").write_text(json.dumps(quota))
    wait_until(lambda: "team" in node.run("status").stdout)
    node.stop()
    del node.config["staticPodPath"]
    node.start()
    assert "team" not in node.run("status").stdout
    (told,) = [line for line in node.log().splitlines() if "forgotten" in line]
    assert "default/team" in told
    assert str(node.manifests / "quota.json") in told
    node.apply(a_live_pod("web", ("main", IDLE, "")))


def test_the_annotation_of_a_kubelets_agent_takes_nothing_off(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.quota(1)
        pod = a_pod("app", "2")
        pod["metadata"] = {
            "name": "app",
            "annotations": {"exclusive-cpus.pinfold.dev/pod": "false"},
        }
        scene.write("app.yaml", pod)
        await scene.look()
        assert scene.phases() == {"app": "Rejected"}

    follow(tmp_path, work)


def test_a_quota_may_name_a_class_by_its_short_name() -> None:
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"gold": "1"}}}
    _, record, _ = checked(quota, "/folder", {"gold"})
    assert record is not None
    assert json.loads(record.manifest)["spec"]["hard"] == {"requests.class.pinfold.dev/gold": "1"}
    with pytest.raises(PodError, match="must be a standard resource"):
        checked(quota, "/folder")


def test_pods_wait_for_a_quota_that_cannot_be_used(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        elsewhere, beside = (
            {**a_pod(name, "1"), "metadata": {"name": name, "namespace": "team-b"}}
            for name in ("elsewhere", "beside")
        )
        scene.write("quota.yaml", a_quota(-1), beside)
        scene.write("elsewhere.yaml", elsewhere)
        scene.pod("app", "1")
        for _ in range(2):
            await scene.look()
        assert scene.phases() == {"elsewhere": "Running"}
        problem = scene.pods.objects.problem()
        assert "quota.yaml: ResourceQuota 'team': spec.hard" in problem
        scene.quota(1)
        await scene.look()
        assert scene.phases() == {"app": "Running", "elsewhere": "Running"}
        assert not scene.pods.objects.problem()

    follow(tmp_path, work)


def test_a_misspelt_field_of_a_quota_is_no_quota_for_all(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.quota(1, scope=["BestEffort"])
        await scene.look()
        assert 'unknown field "scope"; did you mean "scopes"?' in scene.pods.objects.problem()

    follow(tmp_path, work)


def test_a_namespace_of_the_folder_is_checked(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        scene.write("n.yaml", {"kind": "Namespace", "metadata": {"name": "A_B"}})
        await scene.look()
        assert "Namespace 'A_B': metadata.name" in scene.pods.objects.problem()

    follow(tmp_path, work)


def test_what_the_folder_has_is_not_changed_by_the_api_nor_the_other_way_round(
    tmp_path: Path,
) -> None:
    async def work(scene: Scene) -> None:
        objects = Objects(scene.node.books)
        mine = a_quota(9)
        scene.quota(1)
        await scene.look()
        [key] = scene.node.books.view.objects
        for attempt in (objects.apply(mine), objects.delete(key)):
            with pytest.raises(NameTakenError, match=str(tmp_path / "quota.yaml")):
                await attempt
        (tmp_path / "quota.yaml").unlink()
        await scene.look()
        await objects.apply(mine)
        scene.quota(1)
        scene.pod("app", "2")
        await scene.look()
        assert "has come by the API already" in scene.pods.objects.problem()
        assert scene.phases() == {"app": "Running"}, "that one limits it"
        await objects.delete(key)
        scene.pod("late", "1")
        await scene.look()
        assert not scene.pods.objects.problem()
        assert scene.phases() == {"app": "Running", "late": "Rejected"}

    follow(tmp_path, work)

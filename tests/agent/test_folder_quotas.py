"""Quotas in the watched folder: from the file to the pod that is let in."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pinfold.agent.loops.static_pods import StaticPods
from pinfold.agent.objects import object_record
from pinfold.core.pod.api import PodError
from pinfold.ports.records import PodRecord
from tests.scenes.manager_harness import Harness, parse, run_virtually
from tests.scenes.manager_harness import manifest as a_pod

OURS = "pinfold.dev/exclusive-cpus"


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
    record = object_record(quota, "/folder", {"gold"})
    assert json.loads(record.manifest)["spec"]["hard"] == {"requests.class.pinfold.dev/gold": "1"}
    with pytest.raises(PodError, match="must be a standard resource"):
        object_record(quota, "/folder")

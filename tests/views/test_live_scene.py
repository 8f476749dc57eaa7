"""Scenes of a live node, from what its agent tells of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.live.event import Whole
from pinfold.documents.machine import Machine
from pinfold.documents.node import Node
from pinfold.documents.status import Status
from pinfold.node.settings import NodeSettings
from pinfold.views.scene import SceneMaker, scene_of_status
from tests.scenes.manager_harness import manifest
from tests.scenes.painted import painted
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, phase, served


def whole_of(api: Served) -> Whole:
    """What a reader of the agent's events begins with."""
    return Whole(
        status=msgspec.convert(api.ask("GET", "/v1/status").json, Status),
        machine=msgspec.convert(api.ask("GET", "/v1/machine").json, Machine),
        node=msgspec.convert(api.ask("GET", "/v1/node").json, Node),
    )


def test_a_live_node_is_drawn_with_its_pods(tmp_path: Path) -> None:
    with served(tmp_path / "s", settings=NodeSettings(backoff=0.01, idle_side=True)) as api:
        for pod in (manifest("db", "2"), manifest("web", ""), manifest("big", "200")):
            api.ask("POST", "/v1/pods", pod)
        wait_until(lambda: phase(api, "web") == "Running")
        api.call(api.backend.books.lend(CPUSet([3])))
        whole = whole_of(api)
    scene = scene_of_status(whole, 7.0)
    (owner,) = scene.owners
    assert (owner.key, owner.pod, owner.container) == ("default/db/c0", "default/db", "c0")
    assert (owner.cpus, owner.lent, owner.paint.mark) == ("2-3", "3", "a")
    assert sorted(cpu for cpu, _ in painted(scene)) == [row.cpu for row in whole.machine.cpus]
    assert [(pod.name, pod.word, pod.admitted, pod.ended) for pod in scene.pods] == [
        ("db", "Guaranteed", True, False),
        ("web", "BestEffort", True, False),
        ("big", "Rejected", False, True),
    ]
    assert {pod.uid for pod in scene.pods} == {pod.uid for pod in whole.status.pods}
    assert (scene.at, scene.live) == (7.0, True)


def test_a_machine_is_read_once_and_again_when_it_is_another(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api:
        whole = whole_of(api)
    with served(tmp_path / "t", machine="2s8c2t") as api:
        other = whole_of(api)
    maker = SceneMaker()
    scenes = [maker.scene(one, 1.0) for one in (whole, whole, other, whole)]
    assert scenes[0] == scenes[1] == scenes[3]
    assert scenes[2].summary.startswith("32 CPUs")
    assert maker.scene(replace(whole), 1.0) == scenes[0]

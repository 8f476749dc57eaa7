"""What an agent looks after all the time: no pod holds it up, and it keeps off another's tree."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from pinfold.adapters.systemd.notify import Notifier
from pinfold.agent.claims import ClaimKeeper
from pinfold.agent.loops.background import Background
from pinfold.agent.loops.cpu_follower import CPUFollower
from pinfold.agent.loops.hugepages import HugepageFollower
from pinfold.agent.loops.static_pods import static_pods
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.hugepage_changes import pages_of
from pinfold.planning.fake_cgroups import FakeCgroups
from pinfold.planning.fakes import FakeRuntime
from pinfold.planning.planner import Planner
from pinfold.ports.cgroups import ObservedCgroups, Placement
from pinfold.ports.errors import CgroupError, ContainerKey
from pinfold.ports.records import PodRecord
from pinfold.retry.loops import LONGEST_PAUSE, Loops
from tests.scenes.manager_harness import STATIC, Harness, manifest, parse, run_virtually
from tests.scenes.waiting import PATIENCE


@dataclass
class Tree:
    """A claim that another agent may have."""

    is_lost: bool = False
    patience: float | None = None

    def take(self, *, patience: float = 1.0) -> None:
        self.patience = patience
        raise CgroupError("another agent has this cgroup tree")

    def missing(self) -> str:
        return "the tree" if self.is_lost else ""

    def release(self) -> None:
        raise NotImplementedError


class Cgroups(FakeCgroups):
    """A tree that cannot be read for a while."""

    is_gone = False

    async def observe(self) -> ObservedCgroups:
        if self.is_gone:
            raise CgroupError("shared: No such file or directory")
        return await super().observe()


class Scene:
    """A node whose background goes on; ``looks`` counts those at the CPUs."""

    def __init__(self, folder: Path, period: float = 10.0) -> None:
        self.folder = folder
        self.node = Harness(config=replace(STATIC, cpu_manager_reconcile_period=period))
        self.cgroups = self.node.cgroups = Cgroups(self.node.cgroups.machine)
        self.node.runtime = FakeRuntime(self.cgroups)
        self.tree = Tree()
        self.loops = Loops()
        self.looks = 0

    async def start(self) -> None:
        manager = await self.node.start()
        planner = Planner(parse_short_form(self.node.machine), self.node.config, rules=SOUND)
        claim = ClaimKeeper(manager.books, self.tree)
        self.background = background = Background(
            self.loops,
            planner,
            manager.books,
            [*static_pods(self.folder, manager, self.apply, claim, self.loops)],
            claim=claim,
            cpus=CPUFollower(manager.books, CPUSet(), self.online, no_events, lambda *_: None),
            pages=HugepageFollower(planner, manager.books, lambda: pages_of(planner.machine)),
        )
        self.tasks = [*background.begin(Notifier())]

    def online(self) -> CPUSet:
        self.looks += 1
        return self.node.cgroups.online

    async def apply(self, manifest: Mapping[str, Any], *, source: str) -> PodRecord:
        text = json.dumps(manifest)
        return await self.node.manager.admit(parse(text), manifest=text, source=source)

    def write(self, name: str, *cpus: str, **spec: Any) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(manifest(name, *cpus, **spec)))
        return path

    async def until(self, condition: Callable[[], bool]) -> None:
        # Manifests are read in a thread, for which the time of this loop does not wait.
        deadline = time.monotonic() + 60 * PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)

    def runs(self, name: str) -> bool:
        pods = self.node.manager.lives.values()
        return any(pod.name == f"default/{name}" and pod.started.is_set() for pod in pods)


async def no_events() -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


def going_on(
    folder: Path, work: Callable[[Scene], Awaitable[None]], *, period: float = 10.0
) -> None:
    async def whole() -> None:
        scene = Scene(folder, period)
        await scene.start()
        await work(scene)
        for task in scene.tasks:
            task.cancel()
        await asyncio.gather(*scene.tasks, return_exceptions=True)
        await scene.node.kill()

    run_virtually(whole())


def test_a_pod_that_takes_long_to_end_holds_up_no_look(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        file = scene.write("stubborn", "2", terminationGracePeriodSeconds=10_000)
        await scene.until(lambda: scene.runs("stubborn"))
        (status,) = scene.node.runtime.known()
        scene.node.runtime.ignores_sigterm.add(status.id)
        file.unlink()
        (pod,) = scene.node.manager.lives.values()
        await scene.until(lambda: pod.ending)
        before = scene.looks
        scene.node.cgroups.online = scene.node.cgroups.machine - CPUSet([7])
        await scene.until(lambda: str(scene.node.books.view.state.offline) == "7")
        await scene.until(lambda: scene.looks > before + 10)
        assert not pod.gone.is_set()
        assert scene.loops.problems() == []

    going_on(tmp_path, work)


def test_a_file_that_cannot_be_read_at_the_start_ends_nobody(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        file = scene.write("own", "2", terminationGracePeriodSeconds=0)
        scene.write("other", "", terminationGracePeriodSeconds=0)
        await scene.until(lambda: scene.runs("own") and scene.runs("other"))
        text = file.read_text()
        for task in scene.tasks:
            task.cancel()
        await asyncio.gather(*scene.tasks, return_exceptions=True)
        await scene.node.kill()
        file.write_text("{")
        # One that is new tells that the folder has been read: looks are counted by a clock that
        # does not wait for who reads.
        scene.write("new", "", terminationGracePeriodSeconds=0)
        await scene.start()
        await scene.until(lambda: scene.runs("new"))
        looks = scene.looks
        await scene.until(lambda: scene.looks > looks + 10)
        assert scene.runs("own")
        # What the others are is known all the same.
        (tmp_path / "other.yaml").unlink()
        looks = scene.looks
        await scene.until(lambda: not scene.runs("other"))
        assert scene.runs("own")
        file.write_text(text)
        await scene.until(lambda: scene.looks > looks + 10)
        assert scene.runs("own")
        file.unlink()
        await scene.until(lambda: not scene.runs("own"))

    going_on(tmp_path, work)


def test_status_and_readiness_tell_of_a_quota_that_cannot_be_used(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        quota = {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": -1}}}
        file = tmp_path / "quota.yaml"
        file.write_text(yaml.safe_dump(quota))

        def told(problems: list[str]) -> bool:
            return any("quota.yaml: ResourceQuota 'q': spec.hard[pods]" in one for one in problems)

        await scene.until(lambda: told(scene.background.problems()))
        assert told(scene.background.failing())
        file.unlink()
        await scene.until(lambda: not told(scene.background.problems()))

    going_on(tmp_path, work)


def test_who_has_lost_the_tree_leaves_what_is_in_there_alone(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        file = scene.write("own", "2")
        await scene.until(lambda: scene.runs("own"))
        scene.tree.is_lost = True
        await scene.until(lambda: bool(scene.loops.problems()))
        cgroups = scene.node.cgroups
        theirs = ContainerKey("uid-of-another-agent", "main")
        cgroups.processes[77] = None
        await cgroups.place(theirs, Placement(CPUSet([6, 7])))
        await cgroups.enter(theirs, 77)
        shared = (await cgroups.observe()).shared
        cgroups.online = cgroups.machine - CPUSet([5])
        file.unlink()
        scene.write("more", "2")
        looks = scene.looks
        await asyncio.sleep(60)  # some periods of the reconciliation
        assert cgroups.processes[77] == theirs
        assert (await cgroups.observe()).shared == shared - CPUSet([5])
        assert scene.runs("own")
        assert not scene.runs("more")
        assert scene.looks == looks
        assert scene.tree.patience == 0.0, "the loop does not sleep"
        (problem,) = scene.loops.problems()
        assert problem == (
            "claim: the tree was taken away, and cannot be had again: "
            "another agent has this cgroup tree"
        )
        scene.tree.is_lost = False
        await scene.until(lambda: scene.runs("more") and not scene.runs("own"))

    going_on(tmp_path, work)


def test_a_repair_that_failed_is_tried_again_long_before_the_next_period(tmp_path: Path) -> None:
    async def work(scene: Scene) -> None:
        clock = asyncio.get_running_loop()
        scene.cgroups.is_gone = True
        await asyncio.sleep(3600)
        await scene.until(lambda: scene.loops.fails("reconcile"))
        scene.cgroups.is_gone = False
        began = clock.time()
        await scene.until(lambda: not scene.loops.problems())
        assert clock.time() - began <= LONGEST_PAUSE

    going_on(tmp_path, work, period=3600)


def test_who_is_being_admitted_at_the_end_is_let_go_of(tmp_path: Path) -> None:
    async def whole() -> None:
        scene, begun, ended = Scene(tmp_path), asyncio.Event(), asyncio.Event()

        async def apply(manifest: Mapping[str, Any], *, source: str) -> PodRecord:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return await Scene.apply(scene, manifest, source=source)

        scene.apply = apply  # type: ignore[method-assign] # one that takes its time
        await scene.start()
        scene.write("one", "1")
        await scene.until(begun.is_set)
        await scene.background.close()
        assert ended.is_set()
        await scene.node.kill()

    run_virtually(whole())

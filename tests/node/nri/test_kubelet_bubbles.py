"""Pods of a kubelet that ask for resources as a whole: the API server says so, the runtime not."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.nri.kubelet_specs import without_server
from pinfold.ports.nri import RefusedError, Resources
from tests.scenes.bubble_life import APP, MACHINE, SHARES, begin, run
from tests.scenes.kubelet_node import Node
from tests.scenes.lifecycle_harness import BEST_EFFORT, LifecycleHarness, guaranteed
from tests.scenes.manager_harness import run_virtually
from tests.scenes.mortal_harness import Death, Mortal, every_death
from tests.scenes.whole_pods import BY_CONTAINER, WHOLE, WHOLE_MEMORY, whole_pod


def test_the_first_container_takes_the_whole_bubble() -> None:
    async def tale(node: LifecycleHarness) -> None:
        await node.run(await node.pod("web", "burstable"), "main", BEST_EFFORT)
        pod, ran = await begin(node, "i0")
        assert node.kernel() == {"web/main": "1,8-15", "app/i0": "2-3"}
        await node.node.stop(ran["i0"])
        await node.node.remove(ran["i0"])
        # What an init container took is in the bubble still.
        assert node.kernel() == {"web/main": "1,8-15"}
        for name, asks in (("s0", 1), ("c0", 2), ("c1", 1)):
            await node.run(pod, name, guaranteed(asks))
        shared = await node.run(pod, "p0", SHARES)
        assert node.kernel() == {
            "web/main": "1,8-15",
            "app/s0": "2",
            "app/c0": "4-5",
            "app/c1": "3",
            "app/p0": "6-7",
        }
        assert shared.seen.resources.cpu_quota == 600_000
        assert node.api.asked == ["app"]
        await node.node.stop_pod(pod)
        assert node.kernel() == {"web/main": "1-15"}
        assert node.books.view.state.ledger.bubbles == {}

    run(tale)


def test_owners_in_a_bubble_lose_their_quota_and_who_shares_keeps_his() -> None:
    async def tale(node: LifecycleHarness) -> None:
        _, ran = await begin(node, "c0", "p0")
        assert [one.seen.resources.cpu_quota for one in ran.values()] == [-1, 600_000]
        await node.settle()
        assert [one.seen.resources.cpu_quota for one in ran.values()] == [-1, 600_000]
        assert node.recorded() == {"app/c0": "4-5", "app/p0": "6-7"}

    run(tale)


def test_a_bubble_is_there_until_the_sandbox_is_gone() -> None:
    async def tale(node: LifecycleHarness) -> None:
        pod, ran = await begin(node, "c0", "p0")
        for one in ran.values():
            await node.node.stop(one)
            await node.node.remove(one)
        assert str(node.books.view.state.ledger.bubbles["uid-app"]) == "2-7"
        # Another agent finds no container of it, and its sandbox.
        await node.kill()
        await node.start()
        assert str(node.books.view.state.ledger.bubbles["uid-app"]) == "2-7"
        await node.run(pod, "c0", guaranteed(2))
        assert node.kernel() == {"app/c0": "4-5"}
        assert node.api.asked == ["app"]
        await node.node.end_pod(pod)
        assert node.books.view.state.ledger.bubbles == {}
        await node.node.stop_pod(pod)

    run(tale)


@pytest.mark.parametrize(
    ("before", "later"),
    [
        (WHOLE, replace(WHOLE, feature_gates={})),
        (WHOLE, BY_CONTAINER),
        (WHOLE_MEMORY, replace(WHOLE_MEMORY, feature_gates={})),
        (WHOLE_MEMORY, replace(WHOLE_MEMORY, topology_manager_scope="container")),
    ],
    ids=["gate", "scope", "gate-memory", "scope-memory"],
)
def test_a_bubble_outlives_the_gate_and_the_scope(before: Any, later: Any) -> None:
    """What was decided stays, for those who are created anew, too; who comes then has none."""

    async def tale(node: LifecycleHarness) -> None:
        pod, ran = await begin(node, "c0", "c1", "p0")
        where, had = (node.kernel(), node.mems()), node.books.view.state
        await node.kill()
        node.config = later
        await node.start()
        await node.settle()
        assert (node.kernel(), node.mems()) == where
        await node.node.stop(ran["c0"])
        await node.node.remove(ran["c0"])
        await node.run(pod, "c0", guaranteed(2))
        assert (node.kernel(), node.mems()) == where
        now = node.books.view.state
        assert (now.ledger, now.memory) == (had.ledger, had.memory)
        node.api.put(whole_pod("late", "2", "1"))
        await node.run(await node.pod("late"), "p0", SHARES)
        assert node.books.view.state.ledger.bubbles.keys() == {"uid-app"}
        await node.node.stop_pod(pod)
        assert node.books.view.state.ledger.bubbles == {}

    run(tale, machine="1s8c2t@16Gi" if before is WHOLE_MEMORY else MACHINE, config=before)


@pytest.mark.parametrize("removed", [False, True])
def test_a_sandbox_that_goes_while_nobody_is_told_takes_its_bubble_along(removed: bool) -> None:
    async def tale(node: LifecycleHarness) -> None:
        pod, _ = await begin(node, "c0")
        with node.unheard():
            await (node.node.stop_pod if removed else node.node.end_pod)(pod)
        await node.look_twice()
        assert node.books.view.state.ledger.bubbles == {}

    run(tale)


def test_a_stopped_sandbox_that_the_next_agent_is_shown_keeps_nothing() -> None:
    async def tale(node: LifecycleHarness) -> None:
        pod, _ = await begin(node, "c0")
        await node.kill()
        await node.node.end_pod(pod)
        await node.start()
        await node.look_twice()
        assert node.books.view.state.ledger.bubbles == {}

    run(tale)


def test_a_container_that_nobody_specified_shares_with_other_pods() -> None:
    async def tale(node: LifecycleHarness) -> None:
        pod, _ = await begin(node, "c0")
        await node.run(pod, "debugger", BEST_EFFORT)
        assert node.kernel() == {"app/c0": "4-5", "app/debugger": "1,8-15"}

    run(tale)


# ------------------------------------------------------------------------------ who cannot be read


def test_a_pod_that_cannot_be_read_shares_and_says_so() -> None:
    async def tale(node: LifecycleHarness) -> None:
        node.api.faults.fail_at.add(1)
        pod, _ = await begin(node, "c0")
        await node.run(pod, "c1", guaranteed(1))
        assert node.kernel() == {"app/c0": "1-15", "app/c1": "1-15"}
        (problem,) = node.problems
        assert "default/app: it shares its CPUs, as its specification could not be read" in problem
        assert (node.specs.asked, node.specs.unread) == (1, 1)
        assert "the API server does not answer" in node.specs.problem
        figures = {one.name: one.value for one in node.specs.figures()}
        assert figures == {
            "pinfold_pod_specifications_requests": 1,
            "pinfold_pod_specifications_unread": 1,
        }
        # One that can be is served as ever.
        other = await node.pod("plain")
        node.api.put({"metadata": {"name": "plain", "uid": other.uid}, "spec": {"containers": []}})
        await node.run(other, "main", guaranteed(2))
        assert node.kernel()["plain/main"] == "2-3"
        assert node.specs.problem == ""

    run(tale)


def test_nobody_waits_long_for_a_server() -> None:
    async def tale(node: LifecycleHarness) -> None:
        node.api.delay = 60.0
        began = asyncio.get_running_loop().time()
        await begin(node, "c0")
        assert asyncio.get_running_loop().time() - began < 1.0
        assert "no answer within 0.6 s" in node.specs.problem

    run(tale)


def test_another_pod_of_that_name_is_not_it() -> None:
    async def tale(node: LifecycleHarness) -> None:
        node.api.put(APP)
        pod = replace(await node.pod("app"), uid="uid-old")
        await node.run(pod, "c0", guaranteed(2))
        assert node.kernel() == {"app/c0": "1-15"}
        assert "another pod of that name" in node.specs.problem

    async def whole() -> None:
        node = LifecycleHarness(machine=MACHINE, config=WHOLE)
        await node.start()
        await tale(node)
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 600))


def test_without_a_server_everybody_shares_and_it_is_said() -> None:
    """What is shown of a pod that asks for resources as a whole looks like any other's."""

    async def tale(node: LifecycleHarness) -> None:
        await begin(node, "c0", "p0")
        await node.run(await node.pod("plain"), "main", guaranteed(2))
        assert set(node.kernel().values()) == {"1-15"}
        assert node.api.asked == []
        assert (node.specs.asked, node.specs.unread) == (0, 2)
        said = [one for one in node.problems if "it shares its CPUs" in one]
        assert [one.partition(":")[0] for one in said] == ["default/app", "default/plain"]
        assert node.specs.problem in said[0]
        assert "no API server says" in node.specs.problem
        assert "give the agent access to one (kubeconfig)" in node.specs.problem
        assert without_server(node.books.view.node) == node.specs.problem
        assert without_server(replace(node.books.view.node, pod_level=False)) == ""
        # Another agent says so again, and goes on as this one did.
        await node.kill()
        await node.start()
        assert set(node.kernel().values()) == {"1-15"}

    run(tale, has_server=False)


def test_without_a_server_and_with_the_gate_off_the_runtime_is_believed() -> None:
    async def tale(node: LifecycleHarness) -> None:
        await begin(node, "c0")
        assert node.kernel() == {"app/c0": "2-3"}
        assert node.problems == []

    run(tale, has_server=False, config=replace(WHOLE, feature_gates={}))


def test_who_owned_before_the_gate_was_on_owns_on_without_a_server() -> None:
    async def tale(node: LifecycleHarness) -> None:
        pod = await node.pod("db")
        await node.run(pod, "main", guaranteed(2))
        await node.kill()
        node.config = WHOLE
        await node.start()
        assert node.kernel() == {"db/main": "2-3"}
        assert node.problems == []

    run(tale, has_server=False, config=replace(WHOLE, feature_gates={}))


def test_only_pods_that_may_own_something_are_asked_for() -> None:
    async def tale(node: LifecycleHarness) -> None:
        await node.run(await node.pod("web", "burstable"), "main", BEST_EFFORT)
        declines = {"exclusive-cpus.pinfold.dev/pod": "false"}
        pod = await node.node.run_pod("uid-no", "no", "/kubepods/poduid-no", declines)
        await node.run(pod, "main", guaranteed(2))
        assert node.api.asked == []
        assert node.specs.unread == 0

    run(tale)


@pytest.mark.parametrize(
    ("source", "mirrors", "bubble"),
    [("file", "uid-app", "2-7"), ("file", "uid-old", None), ("api", "uid-app", None)],
)
def test_a_static_pod_is_what_its_copy_on_the_server_says(
    source: str, mirrors: str, bubble: str | None
) -> None:
    async def tale(node: LifecycleHarness) -> None:
        annotations = {"kubernetes.io/config.mirror": mirrors}
        about = {"name": "app", "uid": "uid-of-the-copy", "annotations": annotations}
        node.api.put({**APP, "metadata": about})
        annotations = {"kubernetes.io/config.source": source}
        pod = await node.node.run_pod("uid-app", "app", "/kubepods/poduid-app", annotations)
        await node.run(pod, "c0", guaranteed(2))
        found = node.books.view.state.ledger.bubbles.get("uid-app")
        assert found == (None if bubble is None else CPUSet.parse(bubble))
        assert node.kernel() == {"app/c0": "1-15" if bubble is None else "4-5"}
        assert ("another pod of that name" in node.specs.problem) is (bubble is None)

    run(tale)


def test_by_container_only_who_owns_gets_cpus() -> None:
    async def tale(node: LifecycleHarness) -> None:
        await begin(node, "c0", "p0")
        assert node.kernel() == {"app/c0": "2-3", "app/p0": "1,4-15"}
        assert node.books.view.state.ledger.bubbles == {}

    run(tale, config=BY_CONTAINER)


def test_memory_as_a_whole() -> None:
    async def tale(node: LifecycleHarness) -> None:
        node.api.put(whole_pod("app", "2", "1", shared=1))
        pod = await node.pod("app")
        await node.run(pod, "c0", guaranteed(1))
        await node.run(pod, "p0", SHARES)
        (mems,) = set(node.mems().values())
        memory = node.books.view.state.memory
        assert memory is not None
        assert [str(block.numa_affinity) for block in memory.bubbles["uid-app"]] == [f"({mems},)"]
        await node.kill()
        await node.start()
        assert node.books.view.state.memory == memory
        await node.node.stop_pod(pod)
        after = node.books.view.state.memory
        assert after is not None
        assert (after.bubbles, after.assignments) == ({}, {})

    run(tale, machine="2s4c2t@4Gi", config=WHOLE_MEMORY)


# ------------------------------------------------------------------------------- what is refused


def test_a_pod_that_does_not_fit_is_refused_with_its_first_container() -> None:
    async def tale(node: LifecycleHarness) -> None:
        node.api.put(whole_pod("app", "16", "2", shared=1))
        pod = await node.pod("app")
        with pytest.raises(RefusedError, match=r"TopologyAffinityError|UnexpectedAdmissionError"):
            await node.node.create(pod, "c0", guaranteed(2))
        node.api.put(whole_pod("full", "2", "2", shared=1))
        with pytest.raises(RefusedError, match="EmptyPodSharedPoolError"):
            await node.node.create(await node.pod("full"), "c0", guaranteed(2))
        assert node.books.view.state.ledger.exclusive == CPUSet()

    run(tale)


def test_no_container_in_a_bubble_is_resized() -> None:
    async def tale(node: LifecycleHarness) -> None:
        _, ran = await begin(node, "c0", "p0")
        before = node.books.view.state.ledger
        for name, wanted in (("c0", guaranteed(3)), ("p0", guaranteed(1))):
            with pytest.raises(RefusedError, match="inconsistentCPUAllocationError: container"):
                await node.node.resize(ran[name], wanted)
        assert node.books.view.state.ledger is before
        assert any("asks for resources as a whole" in one for one in node.problems)
        # That asks for nothing else: a kubelet's CPU manager, say.
        await node.node.resize(ran["c0"], Resources(cpus="0-15"))
        assert node.kernel() == {"app/c0": "4-5", "app/p0": "6-7"}

    run(tale)


# -------------------------------------------------------------------------------------- every death


class DyingNode(Node):
    """A node whose agent dies at one of its calls."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.death = Death()
        self.front = lambda port: Mortal(port, self.death)
        get_pod = self.api.get_pod

        async def asked(namespace: str, name: str) -> Any:
            return await self.death.call(get_pod, namespace, name)

        self.api.get_pod = asked  # type: ignore[method-assign] # it is one of its calls


async def life_and_death(config: Any, version: int, at: int, *, after: bool) -> bool:
    node = DyingNode("2s4c2t@4Gi", config, version=version)
    node.api.put(whole_pod("app", "4", "1", shared=1, init=("2",)))
    await node.start()
    await node.run(await node.pod("web", "burstable"), "main", BEST_EFFORT)
    pod = await node.pod("app")
    node.death.calls, node.death.at, node.death.after = 0, at, after

    async def life() -> None:
        first = await node.run(pod, "i0", guaranteed(2))
        await node.node.stop(first)
        await node.run(pod, "c0", guaranteed(1))
        await node.run(pod, "p0", SHARES)

    living = asyncio.create_task(life())
    dying = asyncio.create_task(node.death.dead.wait())
    await asyncio.wait({living, dying}, return_when=asyncio.FIRST_COMPLETED)
    died = node.death.dead.is_set()
    node.death.buried = died
    for task in (living, dying):
        task.cancel()
    await asyncio.gather(living, dying, return_exceptions=True)
    await node.kill()
    node.death = Death()
    await node.start()
    await node.settle()
    node.check()
    # The kubelet tries again what failed.
    runs = {one.seen.name for one in node.node.containers.values() if one.runs}
    for name, asks in (("c0", guaranteed(1)), ("p0", SHARES)):
        if name not in runs:
            await node.run(pod, name, asks)
    await node.settle()
    node.check()
    (bubble,) = node.books.view.state.ledger.bubbles.values()
    assert len(bubble) == 4
    there = [node.kernel()[f"app/{name}"] for name in ("c0", "p0")]
    assert CPUSet.union_of(map(CPUSet.parse, there)) == bubble
    await node.node.stop_pod(pod)
    ledger = node.books.view.state.ledger
    assert (ledger.bubbles, ledger.assignments) == ({}, {})
    memory = node.books.view.state.memory
    assert memory is None or (memory.bubbles, memory.assignments) == ({}, {})
    await node.kill()
    return died


@pytest.mark.parametrize("config", [WHOLE, WHOLE_MEMORY], ids=["cpus", "memory"])
@pytest.mark.parametrize("version", [1, 2])
def test_wherever_the_agent_dies_there_is_one_bubble(config: Any, version: int) -> None:
    dies = partial(life_and_death, config, version)
    assert run_virtually(every_death(dies, 1000)) > 20

"""The reconciliation beside containers that end: an end is no drift, and drift is none the less."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.reconciler import PATIENCE, Drift, reconcile
from pinfold.ports.errors import ContainerKey
from pinfold.ports.runtime import ContainerState
from tests.scenes.manager_harness import Harness, manifest, run_virtually

PODS = ("a", "b", "c", "d")


class Between:
    """A port, and what happens in the world right after each of its answers."""

    def __init__(self, port: Any, happens: Callable[[str], Awaitable[None]]) -> None:
        self._port = port
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            answer = await method(*args, **kwargs)
            await self._happens(name)
            return answer

        return call


class LateHarness(Harness):
    """A node whose runtime has not noticed yet that a container's process has ended."""

    def end(self, pod: str, *, keeps_cgroup: bool) -> None:
        """Let a container's process end: the kernel knows at once, the runtime does not."""
        for status in self.runtime.known():
            if status.key.pod_uid == f"uid-{pod}" and status.state is ContainerState.RUNNING:
                self.cgroups.processes.pop(status.pid or 0, None)
                if not keeps_cgroup:
                    self.cgroups.groups.pop(status.key, None)


def run(scenario: Callable[[LateHarness], Awaitable[None]]) -> None:
    async def whole() -> None:
        node = LateHarness()
        await node.start()
        try:
            await scenario(node)
        finally:
            await node.kill()

    run_virtually(whole())


async def begin(node: LateHarness) -> None:
    """Owners and sharers, one container each, that are not started again."""
    for name in PODS:
        await node.admit(manifest(name, "1" if name < "c" else "", restartPolicy="Never"))
    assert await reconcile(node.books) == []
    node.runtime.is_late = True


async def nothing(_name: str) -> None:
    """Nothing happens."""


async def look(
    node: LateHarness, happens: Callable[[str], Awaitable[None]] = nothing
) -> list[Drift]:
    """Reconcile once, with a runtime that is late, and a world that does not wait."""
    containers = node.manager.containers
    ports = containers.cgroups, containers.runtime
    containers.cgroups = Between(ports[0], happens)
    containers.runtime = Between(ports[1], happens)
    try:
        return await reconcile(node.books)
    finally:
        containers.cgroups, containers.runtime = ports


ENDS = st.lists(
    st.tuples(st.sampled_from(PODS), st.integers(0, 6), st.booleans()), min_size=1, max_size=4
)


@given(ends=ENDS, drifts=st.booleans())
def test_ends_are_never_drift_and_drift_always_is(
    ends: list[tuple[str, int, bool]], drifts: bool
) -> None:
    async def scenario(node: LateHarness) -> None:
        await begin(node)
        if drifts:
            node.cgroups.processes.update(
                {
                    status.pid: None
                    for status in node.runtime.known()
                    if status.key.pod_uid == "uid-d" and status.pid is not None
                }
            )
        due = list(ends)
        calls = 0

        async def happens(_name: str) -> None:
            nonlocal calls
            for pod, at, keeps in [one for one in due if one[1] <= calls]:
                due.remove((pod, at, keeps))
                if not (drifts and pod == "d"):
                    node.end(pod, keeps_cgroup=keeps)
            calls += 1

        await happens("before")
        found = await look(node, happens)
        for pod, at, keeps in list(due):
            due.remove((pod, at, keeps))
            if not (drifts and pod == "d"):
                node.end(pod, keeps_cgroup=keeps)
        found += await look(node)
        expected = {(ContainerKey("uid-d", "c0"), True)} if drifts else set()
        assert {(drift.key, drift.repaired) for drift in found} == expected
        assert len(found) == len(expected)
        assert node.books.counters.cgroup_failures == 0

    run(scenario)


def test_an_end_of_which_no_word_comes_is_told() -> None:
    async def scenario(node: LateHarness) -> None:
        await begin(node)
        node.end("a", keeps_cgroup=False)
        node.end("d", keeps_cgroup=True)
        assert await look(node) == []
        await asyncio.sleep(PATIENCE + 1)
        found = await look(node)
        assert {drift.key for drift in found} == {
            ContainerKey("uid-a", "c0"),
            ContainerKey("uid-d", "c0"),
        }
        assert all("its runtime says that it runs" in drift.problem for drift in found)
        assert node.books.counters.cgroup_failures == 2

    run(scenario)


def test_what_is_started_while_it_is_looked_is_no_drift() -> None:
    async def scenario(node: LateHarness) -> None:
        await begin(node)
        await node.admit(manifest("e", ""), wait=False)

        ran = []

        async def happens(name: str) -> None:
            if name == "observe":
                ran.append(len(node.runtime.ran_on))
                await node.settle()
                ran.append(len(node.runtime.ran_on))

        assert await look(node, happens) == []
        assert ran == [len(PODS), len(PODS) + 1]

    run(scenario)


def test_a_process_that_was_moved_out_is_brought_back_at_once() -> None:
    async def scenario(node: LateHarness) -> None:
        await begin(node)
        key = ContainerKey("uid-a", "c0")
        pid = next(status.pid for status in node.runtime.known() if status.key == key)
        assert pid is not None
        node.cgroups.processes[pid] = None
        (drift,) = await look(node)
        assert (drift.key, drift.found, drift.repaired) == (key, "no process in its cgroup", True)
        assert node.cgroups.processes[pid] == key

    run(scenario)


def test_a_process_that_left_its_cgroup_is_brought_back_and_told() -> None:
    async def scenario(node: LateHarness) -> None:
        await begin(node)
        key = ContainerKey("uid-a", "c0")
        for pid in (5001, 5002):
            node.cgroups.processes[pid] = None
            node.cgroups.belongs[pid] = key
        (drift,) = await look(node)
        assert (drift.key, drift.repaired) == (key, True)
        assert drift.found == "process 5001 outside of it, in /elsewhere, and 1 more"
        assert {node.cgroups.processes[pid] for pid in (5001, 5002)} == {key}
        assert await look(node) == []
        assert node.books.counters.escapes == 2
        assert [entry.kind for entry in node.store.entries][-1] == "repaired"
        assert any("outside of it, in /elsewhere" in problem for problem in node.problems)

    run(scenario)


def test_a_process_that_cannot_be_brought_back_ends_with_its_pod() -> None:
    async def scenario(node: LateHarness) -> None:
        await begin(node)
        node.cgroups.processes[5001] = None
        node.cgroups.belongs[5001] = ContainerKey("uid-a", "c0")
        node.cgroups.faults.fail_at.add(node.cgroups.faults.calls + 1)
        (drift,) = await look(node)
        assert (drift.repaired, drift.problem) == (
            False,
            "uid-a/c0: the kernel refused (injected)",
        )
        assert node.books.counters.cgroup_failures == 1
        node.runtime.is_late = False
        await node.manager.release("a", grace=0)
        assert 5001 not in node.cgroups.processes

    run(scenario)


def test_a_process_that_ended_elsewhere_is_no_drift() -> None:
    async def scenario(node: LateHarness) -> None:
        await begin(node)
        node.cgroups.processes[5001] = None
        node.cgroups.belongs[5001] = ContainerKey("uid-a", "c0")

        async def happens(_name: str) -> None:
            node.cgroups.processes.pop(5001, None)

        assert await look(node, happens) == []

    run(scenario)


def test_a_pid_that_another_has_by_the_time_it_is_brought_back_is_left_alone() -> None:
    async def scenario(node: LateHarness) -> None:
        await begin(node)
        for pid, pod in ((5001, "a"), (5002, "b")):
            node.cgroups.processes[pid] = None
            node.cgroups.belongs[pid] = ContainerKey(f"uid-{pod}", "c0")

        async def happens(name: str) -> None:
            if name == "enter":  # the first is back; that took its time
                node.cgroups.starts[5002] = 99
                node.cgroups.belongs.pop(5002, None)

        (drift,) = await look(node, happens)
        assert drift.key == ContainerKey("uid-a", "c0")
        assert node.cgroups.processes[5001] == drift.key
        assert node.cgroups.processes[5002] is None

    run(scenario)


def test_who_drifts_again_and_again_is_no_readiness() -> None:
    async def scenario(node: LateHarness) -> None:
        await begin(node)
        own = node.cpus("a")

        async def looks(drifts: str) -> list[str]:
            for drift in drifts:
                if drift == "x":
                    node.cgroups.groups[ContainerKey("uid-a", "c0")].cpus = CPUSet([0, 7])
                assert len(await reconcile(node.books)) == (drift == "x")
                assert node.cpus("a") == own
            return list(node.books.problems())

        assert await looks("x.x..") == []
        (problem,) = await looks("x.")
        assert problem.startswith("container c0 of pod default/a was not where it should be in 3")
        assert await looks(".") == []
        assert len(await looks("xx")) == 1
        await node.manager.release("a")
        assert list(node.books.problems()) == []

    run(scenario)

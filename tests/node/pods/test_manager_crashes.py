"""The agent dies at every call that it makes, and random lives with faults: nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.reconciler import reconcile
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey
from pinfold.ports.records import PodPhase
from pinfold.ports.runtime import ContainerState
from tests.scenes.manager_harness import ALL_MANAGERS, Harness, manifest, mixed, run_virtually
from tests.scenes.mortal_harness import MortalHarness, every_death, until_dead

GPU = "example.com/gpu"


DEVICES = tuple(Device(f"gpu-{n}", numa_nodes=(n % 2,)) for n in range(4))


def everything() -> MortalHarness:
    """A node on which every manager has something to give."""
    node = MortalHarness(machine="2s2c2t", config=ALL_MANAGERS)
    gpus = {device.id: device for device in DEVICES}
    node.plugins.put(DeviceResource(GPU, gpus, pre_start_required=True, preferred_allocation=True))
    return node


async def life(node: MortalHarness) -> None:
    """What an agent goes through: pods come, run, end and go."""
    await node.start()
    more = {GPU: "1"} if node.config is ALL_MANAGERS else {}
    for pod in (
        manifest("web", ""),
        manifest("db", "2", "500m", more=more),
        manifest("job", "1", init=("2" if more else "3",), restartPolicy="Never", more=more),
        mixed(manifest("lane", "1500m")),
    ):
        if f"uid-{pod['metadata']['name']}" not in {
            *node.books.view.pods.active,
            *node.books.view.pods.ended,
        }:
            await node.admit(pod, wait=False)
        await node.settle()
    for status in node.runtime.known():
        if status.key.pod_uid == "uid-job" and status.state is ContainerState.RUNNING:
            node.runtime.exit(status.id, 0)
            await node.settle()
    await reconcile(node.books)
    if "uid-db" in node.books.view.pods.active:
        await node.manager.release("db")
    await node.settle()


async def dies_and_goes_on(at: int, node: MortalHarness, *, after: bool) -> bool:
    node.arm(at, after=after)
    died = await until_dead(node, life(node))
    await node.kill()
    acknowledged = {
        uid for uid, pod in node.store.pods.items() if pod.phase is not PodPhase.TERMINATING
    }
    node.arm(0, after=False)
    await node.start()
    await node.settle()
    node.check()
    assert await reconcile(node.books) == []
    for uid in acknowledged:
        assert uid in node.books.view.pods.active or uid in node.books.view.pods.ended, (
            f"{uid} was lost"
        )
    assert {s.key.pod_uid for s in node.runtime.known()} <= set(node.books.view.pods.active)
    for uid in node.books.view.pods.active:
        assert node.manager.lives[uid].ending or any(
            s.key.pod_uid == uid for s in node.runtime.known()
        )
    for name in ("web", "db", "job", "lane"):
        if f"uid-{name}" in node.books.view.pods.active:
            await node.manager.release(name)
    await node.settle()
    node.check()
    assert str(node.books.view.state.ledger.default) == "0-7"
    assert node.runtime.known() == ()
    assert node.cgroups.groups == {}
    await node.kill()
    return died


@pytest.mark.parametrize("made", [MortalHarness, everything])
def test_the_agent_may_die_at_every_call(made: Callable[[], MortalHarness]) -> None:
    def dies(at: int, *, after: bool) -> Awaitable[bool]:
        return dies_and_goes_on(at, made(), after=after)

    assert run_virtually(every_death(dies, 20)) > 100


def test_an_agent_that_dies_while_it_recovers_can_be_started_again() -> None:
    async def twice(at: int) -> bool:
        node = MortalHarness()
        node.arm(0, after=False)
        await node.start()
        await node.admit(manifest("web", ""))
        await node.admit(manifest("db", "2"))
        await node.kill()
        node.arm(at, after=True)

        async def second() -> None:
            await node.start()
            await node.settle()

        died = await until_dead(node, second())
        await node.kill()
        node.arm(0, after=False)
        await node.start()
        await node.settle()
        node.check()
        assert node.cpus("db") == {"c0": "2-3"}
        assert node.cpus("web") == {"c0": "1,4-7"}
        await node.kill()
        return died

    async def all_deaths() -> int:
        at = 1
        while await asyncio.wait_for(twice(at), 20):
            at += 1
        return at

    assert run_virtually(all_deaths()) > 5


@pytest.mark.parametrize("ends", [False, True])
def test_a_place_that_the_kernel_refuses_at_a_restart_is_said_and_tried_again(ends: bool) -> None:
    async def scenario() -> None:
        node = Harness()
        await node.start()
        await node.admit(manifest("db", "2"))
        db, place = ContainerKey("uid-db", "c0"), node.cgroups.place
        await node.kill()
        await place(db, Placement(CPUSet([3])))

        async def refuse(key: ContainerKey, placement: Placement) -> str:
            raise CgroupError(f"{key}: the kernel does not take {placement.cpus}")

        node.cgroups.place = refuse  # type: ignore[method-assign] # a kernel that refuses
        await node.start()
        (problem,) = node.books.problems()
        assert problem.startswith("pod default/db, container c0: it is not where it belongs: ")
        assert problem.endswith("the kernel does not take 2-3")
        if ends:
            await node.manager.release("db")
        else:
            node.cgroups.place = place  # type: ignore[method-assign] # it is well again
        await node.books.settle()
        assert [*node.books.problems()] == []
        node.check()
        assert node.cpus("db") == ({} if ends else {"c0": "2-3"})
        await node.kill()

    run_virtually(asyncio.wait_for(scenario(), 60))

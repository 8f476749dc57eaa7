"""Kubernetes' own scheduler asks ``pinfold classes serve`` which node has devices of a class."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator

import pytest

from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.core.classes.bound import bound_key
from pinfold.ports.kubernetes import PODS, Object, Resource
from tests.scenes.control_plane import ControlPlane
from tests.scenes.real_classes import RealClasses, given_twice, taken
from tests.scenes.waiting import PATIENCE, until, wait_until

TEAM = "with-devices"
_NODES_OF_CLUSTER = Resource("", "v1", "nodes", "Node", is_namespaced=False)
NODES = {"n0": 2, "n1": 2, "n2": 2}


@pytest.fixture(scope="module")
def classes(control: ControlPlane) -> Iterator[RealClasses]:
    """It is deployed for the tests of this file; while it is, no pod comes in without it."""
    found = RealClasses(control)
    control.make_namespace(TEAM)
    found.deploy("own-certificates")
    found.make_class("gold", "big")
    for name, count in NODES.items():
        found.make_node(name, big=count)
    found.make_node("n3", small=4)
    try:
        yield found
    finally:
        control.kubectl("delete", "nodes,computeresources,resourceclasses", "--all")
        found.remove()


def pods_of(classes: RealClasses) -> list[Object]:
    items: list[Object] = classes.control.get("pods", "-n", TEAM)["items"]
    return items


def clear(classes: RealClasses) -> None:
    classes.control.kubectl(
        *("delete", "pods", "--all", "-n", TEAM, "--grace-period=0", "--force", "--wait=true")
    )


def test_pods_come_to_nodes_that_have_devices_and_wait_for_others(classes: RealClasses) -> None:
    async def scenario() -> None:
        async with classes.replicas(1) as (replica,):
            control = classes.control
            control.start_scheduler(classes.configuration(replica, "gold"))
            control.apply(*(classes.pod(f"p{number}", TEAM, gold=1) for number in range(8)))
            wait_until(lambda: taken(pods_of(classes), "gold") == NODES, 60)

            def said() -> str:
                return control.kubectl("describe", "pods", "-n", TEAM)

            wait_until(lambda: "too few free devices of class gold" in said(), 60)
            waiting = [one for one in pods_of(classes) if not one["spec"].get("nodeName")]
            assert len(waiting) == 2
            # Who goes makes room for one who waits.
            gone = next(one for one in pods_of(classes) if one["spec"].get("nodeName"))
            control.kubectl(
                "delete", "pod", gone["metadata"]["name"], "-n", TEAM, "--grace-period=0", "--force"
            )
            wait_until(
                lambda: sum(1 for one in pods_of(classes) if one["spec"].get("nodeName")) == 6, 100
            )
            assert taken(pods_of(classes), "gold") == NODES
            for one in pods_of(classes):
                if node := one["spec"].get("nodeName"):
                    text = one["metadata"]["annotations"][bound_key("app")]
                    assert text == f"gold=nvidia.com/gpu:1@{node}-nvidia.com-gpu-big"
            # About others it is not asked.
            metrics = (await replica.get("/metrics"))[1]
            control.apply(classes.pod("plain", TEAM))
            wait_until(lambda: _node(classes, "plain"), 60)
            assert _asked(metrics) > 0
            control.kill("kube-scheduler")
            clear(classes)

    asyncio.run(scenario())


def test_two_schedulers_and_replicas_that_die_give_nothing_twice(classes: RealClasses) -> None:
    async def scenario() -> None:
        control, chance = classes.control, random.Random(7)  # noqa: S311 - no secret
        client = control.client()
        watching = asyncio.create_task(_watch(client))
        moving = asyncio.create_task(_move_on(client))
        try:
            for turn in range(4):
                async with classes.replicas(1) as (replica,):
                    configuration = classes.configuration(replica, "gold")
                    for name in ("-a", "-b"):
                        control.start_scheduler(configuration, name)
                    pods = [classes.pod(f"t{turn}-{number}", TEAM, gold=1) for number in range(9)]
                    await asyncio.gather(*(client.create(PODS, one) for one in pods))
                    await asyncio.sleep(chance.uniform(0.2, 1.5))
                    if turn % 2:
                        # In the midst of it; the next turn's replica goes on.
                        replica.process.kill()
                        await replica.process.wait()
                    else:
                        await until(lambda: taken(pods_of(classes), "gold") == NODES, 120)
                    for name in ("-a", "-b"):
                        control.kill(f"kube-scheduler{name}")
                gone = [one["metadata"]["name"] for one in await client.list(PODS, TEAM)][::2]
                await asyncio.gather(*(client.delete(PODS, name, TEAM) for name in gone))
                for name in gone:
                    control.kubectl(
                        *("delete", "pod", name, "-n", TEAM, "--ignore-not-found"),
                        *("--grace-period=0", "--force"),
                    )
            assert watching.done() is False
        finally:
            for task in (watching, moving):
                task.cancel()
            await asyncio.gather(watching, moving, return_exceptions=True)
            await client.close()
        clear(classes)

    asyncio.run(asyncio.wait_for(scenario(), 400 * PATIENCE))


async def _watch(client: KubeObjects) -> None:
    """Fail as soon as a node has given more than it has."""
    while True:
        found = list(await client.list(PODS, TEAM))
        assert given_twice(found, "gold", NODES) == []
        await asyncio.sleep(0.05)


async def _move_on(client: KubeObjects) -> None:
    """Change a node now and then: a scheduler whose extender failed looks again at such a time."""
    for number in itertools.count():
        labels = {"metadata": {"labels": {"example.com/turn": str(number)}}}
        await client.patch(_NODES_OF_CLUSTER, "n3", labels)
        await asyncio.sleep(1)


def _node(classes: RealClasses, name: str) -> str:
    return str(classes.control.get("pod", name, "-n", TEAM)["spec"].get("nodeName", ""))


def _asked(metrics: str) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("pinfold_classes_question") and "_total{" in line
    )

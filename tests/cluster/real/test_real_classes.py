"""``pinfold classes serve`` and what is deployed for it, in a cluster of Kubernetes itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import yaml

from pinfold.core.classes.bound import bound_key
from tests.scenes.class_cluster import GPU
from tests.scenes.control_plane import ControlPlane
from tests.scenes.real_classes import RealClasses
from tests.scenes.waiting import wait_until

TEAM = "with-classes"


@pytest.fixture(scope="module")
def classes(control: ControlPlane) -> Iterator[RealClasses]:
    """It is deployed for the tests of this file; while it is, no pod comes in without it."""
    found = RealClasses(control)
    control.make_namespace(TEAM)
    found.deploy("own-certificates")
    found.make_class("gold", "big")
    found.make_class("silver", "big", "small", priority=-1)
    for number in range(2):
        found.make_node(f"n{number}", big=2)
    found.make_node("n2", small=4)
    try:
        yield found
    finally:
        control.kubectl("delete", "nodes", "--all")
        found.remove()


def test_a_pod_comes_in_with_its_binding_or_is_refused_with_the_reason(
    classes: RealClasses,
) -> None:
    async def scenario() -> None:
        async with classes.replicas(1):
            control = classes.control
            control.apply(classes.pod("a", TEAM, gold=2))
            made = control.get("pod", "a", "-n", TEAM)
            assert made["metadata"]["annotations"][bound_key("app")] == f"gold={GPU}:2"
            (container,) = made["spec"]["containers"]
            for which in ("requests", "limits"):
                asked = container["resources"][which]
                assert asked == {"class.pinfold.dev/gold": "2", GPU: "2"}
            given = yaml.safe_dump(classes.pod("b", TEAM, glod=1))
            told = control.kubectl("create", "-f", "-", given=given, status=1)
            assert told.startswith(
                'Error from server (Forbidden): error when creating "STDIN": admission webhook '
                '"classes.pinfold.dev" denied the request: '
            )
            assert "spec.containers[0].resources: there is no class glod; there is gold" in told
            control.kubectl("delete", "pod", "a", "-n", TEAM)

    asyncio.run(scenario())


def test_a_quota_of_kubernetes_counts_a_class(classes: RealClasses) -> None:
    async def scenario() -> None:
        async with classes.replicas(1):
            control = classes.control
            control.make_namespace("counted")
            name = "requests.class.pinfold.dev/gold"
            control.apply(
                {
                    "apiVersion": "v1",
                    "kind": "ResourceQuota",
                    "metadata": {"name": "gold", "namespace": "counted"},
                    "spec": {"hard": {name: "3"}},
                }
            )

            def used() -> object:
                quota = control.get("resourcequota", "gold", "-n", "counted")
                return quota.get("status", {}).get("used", {}).get(name)

            wait_until(lambda: used() == "0", 60)
            control.apply(classes.pod("a", "counted", gold=2))
            assert used() == "2"
            given = yaml.safe_dump(classes.pod("b", "counted", gold=2))
            told = control.kubectl("create", "-f", "-", given=given, status=1)
            assert f"exceeded quota: gold, requested: {name}=2, used: {name}=2" in told
            control.kubectl("delete", "namespace", "counted", "--wait=false")

    asyncio.run(scenario())


def test_the_status_of_a_class_is_kept(classes: RealClasses) -> None:
    async def scenario() -> None:
        async with classes.replicas(1):
            control = classes.control

            def shown() -> list[list[str]]:
                told = control.kubectl("get", "resourceclasses")
                return [line.split()[:5] for line in told.splitlines()]

            wait_until(
                lambda: (
                    shown()
                    == [
                        ["NAME", "PRIORITY", "LEVEL", "ALLOCATABLE", "REQUESTED"],
                        ["gold", "0", "NODELEVEL", "4", "0"],
                        ["silver", "-1", "NODELEVEL", "4", "0"],
                    ]
                ),
                60,
            )

    asyncio.run(scenario())

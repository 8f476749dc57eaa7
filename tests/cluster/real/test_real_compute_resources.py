"""Compute resources and the status of classes in Kubernetes itself, with the rights of deploy/."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from pinfold.adapters.kubernetes.client import KubeClient
from pinfold.adapters.kubernetes.kubeconfig import from_kubeconfig
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.agent.compute_resources import ComputeResources, kubelet_devices
from pinfold.cluster.classes.holdings import Holdings
from pinfold.cluster.classes.known import Known
from pinfold.cluster.classes.status import ClassStatus
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.devices.devices import Device
from pinfold.planning.fake_plugins import FakeKubeletDevices
from pinfold.ports.kubernetes import COMPUTE_RESOURCES
from tests.roots import ROOT
from tests.scenes.class_cluster import GPU, resource_class
from tests.scenes.control_plane import ControlPlane
from tests.scenes.kubernetes_worlds import in_background
from tests.scenes.waiting import PATIENCE

KUBERNETES = ROOT / "deploy" / "kubernetes"
NODE = "published-node"
LABEL = "published-by.pinfold.dev/node"
P100 = ComputeResource("x", NODE, GPU, {"kind": "p100"})
K80 = ComputeResource("y", NODE, GPU, {"kind": "k80"}, devices=("gpu-1",))


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait for what a server says."""
    async with asyncio.timeout(60 * PATIENCE):
        while not await holds():  # noqa: ASYNC110 - the server tells of it by being asked
            await asyncio.sleep(0.1)


class Scene:
    """A node's agent, as far as it publishes; its kubelet is in memory."""

    def __init__(self, control: ControlPlane, config: str) -> None:
        access = from_kubeconfig(control.config_of(config))
        self.admin = control.client()
        self.kubelet = FakeKubeletDevices()
        self.kubelet.healthy[GPU] = tuple(Device(f"gpu-{one}") for one in range(3))
        self._client, self.objects = KubeClient(access), KubeObjects(access, connections=2)
        self.published = ComputeResources(
            self.objects,
            NODE,
            (P100, K80),
            kubelet_devices(self.kubelet),
            owner=lambda: self._client.node_reference(NODE),
            period=3600.0,
        )

    async def found(self) -> dict[tuple[str, ...], dict[str, Any]]:
        """The compute resources of GPUs, by their devices."""
        return {
            tuple(one["spec"]["devices"]): one
            for one in await self.admin.list(COMPUTE_RESOURCES)
            if one["spec"]["resourceName"] == GPU and one["spec"].get("nodeName") == NODE
        }

    async def becomes(self, *devices: tuple[str, ...]) -> dict[tuple[str, ...], dict[str, Any]]:
        async def is_so() -> bool:
            found = await self.found()
            return set(found) == set(devices) and all(
                one.get("status", {}).get("capacity") == str(len(ids)) for ids, one in found.items()
            )

        await until(is_so)
        return await self.found()

    async def close(self) -> None:
        await asyncio.gather(self.admin.close(), self._client.close(), self.objects.close())


@asynccontextmanager
async def scene(control: ControlPlane) -> AsyncIterator[Scene]:
    config = control.config_of_account("pinfold", "pinfold").name.removesuffix(".kubeconfig")
    one = Scene(control, config)
    try:
        async with in_background(one.published.run()):
            yield one
    finally:
        await one.close()


def deploy(control: ControlPlane) -> None:
    """The kinds, and the rights of an agent; policies are newer than some API servers."""
    for file in ("resource-class", "compute-resource"):
        path = str(KUBERNETES / "classes" / f"{file}.yaml")
        control.kubectl("apply", "--validate=false", "-f", path)
    names = ("resourceclasses.pinfold.dev", "computeresources.pinfold.dev")
    control.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in names))
    overlay = KUBERNETES / "overlays" / "compute-resources"
    control.kubectl("apply", "--validate=false", "-k", str(overlay))


def make_node(control: ControlPlane) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    control.kubectl("create", "-f", "-", given=json.dumps(node))


def test_what_a_node_publishes_is_kept(control: ControlPlane) -> None:
    deploy(control)
    make_node(control)

    async def scenario() -> None:
        async with scene(control) as here:
            found = await here.becomes(("gpu-0", "gpu-2"), ("gpu-1",))
            name = found["gpu-1",]["metadata"]["name"]
            # Deleted, relabelled, changed: each is put back.
            await here.admin.delete(COMPUTE_RESOURCES, name)
            await here.becomes(("gpu-0", "gpu-2"), ("gpu-1",))
            for changes in (
                {"metadata": {"labels": {LABEL: None}}},
                {"spec": {"devices": ["gpu-7"]}},
            ):
                await here.admin.patch(COMPUTE_RESOURCES, name, changes)

                async def is_back() -> bool:
                    now = await here.admin.get(COMPUTE_RESOURCES, name)
                    labels = now["metadata"].get("labels") or {}
                    return now["spec"]["devices"] == ["gpu-1"] and LABEL in labels

                await until(is_back)
            # A pod has one, of which something else is said now.
            here.kubelet.give("p", "c", GPU, **{"gpu-0": 0})
            here.kubelet.healthy[GPU] = (Device("gpu-2", numa_nodes=(1,)),)
            await here.published.look()
            await here.becomes(("gpu-0",), ("gpu-2",))
            assert here.published.problem == ""
            # The Node takes all with it, and nothing comes before there is another.
            control.kubectl("delete", "node", NODE)

            async def has_gone() -> bool:
                return not await here.found() and "not found" in here.published.problem

            await until(has_gone)
            make_node(control)
            found = await here.becomes(("gpu-0",), ("gpu-2",))
            uid = control.get("node", NODE)["metadata"]["uid"]
            for one in found.values():
                assert [each["uid"] for each in one["metadata"]["ownerReferences"]] == [uid]

    try:
        asyncio.run(scenario())
    finally:
        control.kubectl("delete", "node", NODE, "--ignore-not-found")


def test_the_columns_of_a_class(control: ControlPlane) -> None:
    deploy(control)
    api = {"apiVersion": "pinfold.dev/v1alpha1", "kind": "ResourceClass"}
    control.kubectl("apply", "-f", "-", given=json.dumps(api | resource_class("any-gpu")))
    make_node(control)

    async def scenario() -> None:
        async with scene(control) as here:
            await here.becomes(("gpu-0", "gpu-2"), ("gpu-1",))
            client = control.client()
            known, holdings = Known(client), Holdings(client)
            status = ClassStatus(client, known, holdings)
            async with in_background(known.follow(), holdings.follow(), status.run()):

                async def is_written() -> bool:
                    listed = await asyncio.to_thread(
                        control.kubectl, "get", "resourceclasses", "--no-headers"
                    )
                    # Name, priority, level, allocatable, requested, resource, Bindable, age.
                    return [one.split()[:7] for one in listed.splitlines()] == [
                        ["any-gpu", "0", "NODELEVEL", "3", "0", GPU, "True"]
                    ]

                await until(is_written)
                done = status.written
                assert done <= 4
            await client.close()

    try:
        asyncio.run(scenario())
    finally:
        control.kubectl("delete", "node", NODE, "--ignore-not-found")
        control.kubectl("delete", "resourceclass", "any-gpu")

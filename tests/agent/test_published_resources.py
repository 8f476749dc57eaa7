"""An agent publishes what its node has, over real sockets: of a kubelet, and of its own plugins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.client import KubeClient
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.adapters.podresources_client import PodResourcesClient
from pinfold.agent.compute_resources import ComputeResources, kubelet_devices
from pinfold.cluster.classes.publishing import RIGHTS
from pinfold.config.classes_file import load_classes
from pinfold.core.classes.api import compute_resource_from_api
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.ports.kubernetes import COMPUTE_RESOURCES, NotFoundError, Resource
from pinfold.ports.podresources import (
    AllocatableResources,
    ContainerDevices,
    ContainerResources,
    PodResources,
)
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running
from tests.roots import ROOT
from tests.scenes.agent_process import AgentProcess, skip_unless_an_agent_can_run
from tests.scenes.class_cluster import install
from tests.scenes.kubernetes_worlds import in_background
from tests.scenes.podresources_world import Rows, serving
from tests.scenes.sample_plugin import (
    WIDGET,
    SamplePlugin,
    skip_unless_the_sample_plugin_can_run,
    until_offered,
)
from tests.scenes.waiting import until

GPU = "nvidia.com/gpu"
NODES = Resource("", "v1", "nodes", "Node", is_namespaced=False)
NODE = "node-1"
KINDS = "/apis/pinfold.dev/v1alpha1/computeresources"
EXAMPLE = ROOT / "examples" / "classes" / "classes.yaml"


def published(cluster: FakeCluster, resource: str) -> dict[tuple[str, ...], ComputeResource]:
    """The compute resources of one raw name, by their devices."""
    every = [compute_resource_from_api(one) for one in cluster.chunk(COMPUTE_RESOURCES).objects]
    return {one.devices: one for one in every if one.resource_name == resource}


def gpus(*numbers: int) -> tuple[ContainerDevices, ...]:
    """GPUs as a kubelet tells of them: one near NUMA node 0."""
    return tuple(ContainerDevices(GPU, (f"gpu-{one}",), (0,)) for one in numbers)


@dataclass
class Kubelet(Rows):
    """What a kubelet has given and may give."""

    rows: list[PodResources] = field(default_factory=list)
    healthy: tuple[ContainerDevices, ...] = gpus(0, 1, 2, 3)

    def allocatable(self) -> AllocatableResources:
        return AllocatableResources(self.cpus, self.healthy)

    def run(self, *numbers: int) -> None:
        held = ContainerResources("c", devices=gpus(*numbers))
        self.rows = [PodResources("team", "p", (held,))] if numbers else []


@dataclass
class Scene:
    """An API server, a kubelet, and who publishes for it."""

    api: ApiServer
    kubelet: Kubelet
    published: ComputeResources

    @property
    def found(self) -> dict[tuple[str, ...], ComputeResource]:
        return published(self.api.cluster, GPU)

    async def until(self, *devices: tuple[str, ...]) -> None:
        """Look at the node, and wait until it is published like this."""
        await self.published.look()
        await until(
            lambda: (
                set(self.found) == set(devices)
                and all(str(one.capacity) == str(len(ids)) for ids, one in self.found.items())
            )
        )


@asynccontextmanager
async def scene(folder: Path, api: ApiServer) -> AsyncIterator[Scene]:
    """Who publishes looks at the node when it is told to, and at the start."""
    kubelet, access = Kubelet(), Access(api.url, None)
    objects, client = KubeObjects(access, connections=2), KubeClient(access)
    reader = PodResourcesClient(folder / "kubelet.sock")
    one = ComputeResources(
        objects,
        NODE,
        load_classes(str(EXAMPLE)).described,
        kubelet_devices(reader),
        owner=lambda: client.node_reference(NODE),
        period=3600.0,
    )
    try:
        async with serving(kubelet, reader.path), in_background(one.run()):
            yield Scene(api, kubelet, one)
    finally:
        await asyncio.gather(reader.close(), objects.close(), client.close())


def asked(api: ApiServer) -> set[tuple[str, str, str]]:
    """What was asked of compute resources, as rights."""
    verbs, found = {"POST": "create", "PUT": "update", "DELETE": "delete"}, set()
    for method, path in api.requests:
        parts = path.strip("/").split("/")
        if "pinfold.dev" in parts:
            rest = parts[3:]
            verb = verbs.get(method) or ("get" if rest[1:] else "list")
            found.add((parts[1], "/".join([rest[0], *rest[2:]]), verb))
    return found


def test_the_devices_of_a_kubelet(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(ApiServer()) as api:
            api.cluster.create(NODES, {"metadata": {"name": NODE}})
            async with scene(tmp_path, api) as here:
                # The kinds are not there yet.
                await until(lambda: ("GET", KINDS) in api.requests)
                install(api.cluster)
                first, second = ("gpu-0", "gpu-1"), ("gpu-2", "gpu-3")
                await here.until(first, second)
                assert here.found[first].properties == {
                    "gpuType": "K80",
                    "memory": "8G",
                    "numaNode": "0",
                }
                (cpus,) = published(api.cluster, "cpu").values()
                assert cpus.node_name == NODE
                assert cpus.capacity is not None
                # A pod has one that turns unhealthy: it stays, and the other goes.
                here.kubelet.run(1, 3)
                here.kubelet.healthy = gpus(3)
                await here.until(("gpu-1",), ("gpu-3",))
                # What somebody else writes is put back; the Node takes all with it.
                name = here.found["gpu-3",].name
                one = api.cluster.read(COMPUTE_RESOURCES, name)
                uid = api.cluster.read(NODES, NODE)["metadata"]["uid"]
                assert [each["uid"] for each in one["metadata"]["ownerReferences"]] == [uid]
                one["spec"]["devices"] = ["gpu-0"]
                api.cluster.update(COMPUTE_RESOURCES, one)
                await here.until(("gpu-1",), ("gpu-3",))
                here.kubelet.run()
                here.kubelet.healthy = ()
                await here.until()
                assert not here.published.problem
        wanted = {(one.group, one.resource, verb) for one in RIGHTS for verb in one.verbs}
        # A watch is a list to HTTP; what is in the way of a name is looked at, as in other tests.
        assert asked(api) == {one for one in wanted if one[2] not in ("watch", "get")}

    asyncio.run(scenario())


def test_a_kubelet_that_is_away_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(ApiServer()) as api:
            install(api.cluster)
            api.cluster.create(NODES, {"metadata": {"name": NODE}})
            async with scene(tmp_path, api) as here:
                await here.until(("gpu-0", "gpu-1"), ("gpu-2", "gpu-3"))
                before = api.cluster.chunk(COMPUTE_RESOURCES)
            access = Access(api.url, None)
            objects = KubeObjects(access, connections=2)
            away = PodResourcesClient(tmp_path / "nobody.sock")
            one = ComputeResources(objects, NODE, (), kubelet_devices(away))
            async with in_background(one.run()):
                await until(lambda: "nobody.sock" in one.problem)
            await objects.close()
            assert api.cluster.chunk(COMPUTE_RESOURCES) == before

    asyncio.run(scenario())


def test_an_agent_with_plugins_of_its_own_publishes_what_they_list(tmp_path: Path) -> None:
    skip_unless_an_agent_can_run()
    skip_unless_the_sample_plugin_can_run()

    async def scenario() -> None:
        async with running(ApiServer()) as api:
            install(api.cluster)
            kubeconfig = tmp_path / "kubeconfig"
            kubeconfig.write_text(
                yaml.safe_dump(
                    {
                        "kind": "Config",
                        "current-context": "c",
                        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
                        "users": [{"name": "u", "user": {"token": "t"}}],
                    }
                )
            )
            agent = AgentProcess(tmp_path)
            agent.config["pinfold"] |= {
                "kubeconfig": str(kubeconfig),
                "nodeName": NODE,
                "computeResources": True,
                "devicePluginDir": str(tmp_path / "plugins"),
            }
            plugin = SamplePlugin(tmp_path / "plugins", "--devices", "3")
            try:
                await asyncio.to_thread(agent.start)
                await until(lambda: published(api.cluster, "cpu"))
                assert published(api.cluster, WIDGET) == {}
                plugin.start()
                await asyncio.to_thread(until_offered, agent, 3, 3)
                await until(lambda: published(api.cluster, WIDGET), 30)
                found = published(api.cluster, WIDGET)
                assert sorted(id_ for ids in found for id_ in ids) == [
                    f"widget-{one}" for one in range(3)
                ]
            finally:
                await asyncio.to_thread(plugin.stop)
                await asyncio.to_thread(agent.clean_up)

    asyncio.run(scenario())


def test_a_node_that_is_not_there_owns_nothing() -> None:
    async def scenario() -> None:
        async with running(ApiServer()) as api:
            client = KubeClient(Access(api.url, None))
            with pytest.raises(NotFoundError):
                await client.node_reference(NODE)
            await client.close()

    asyncio.run(scenario())

"""A service that leads to the replica which leads, and to no other one."""

from __future__ import annotations

import asyncio

import pytest

from pinfold.cluster.leader_endpoint import Endpoint, lead_here
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.ports.kubernetes import ENDPOINT_SLICES, NAMESPACES, Object
from tests.scenes.kubernetes_worlds import WORLDS, in_background, world
from tests.scenes.waiting import PATIENCE


def endpoint(address: str) -> Endpoint:
    return Endpoint("classes", "extender", address, "extender", 9444)


async def until_it_leads_to(cluster: FakeCluster, address: str) -> Object:
    """The object, once it does."""
    async with asyncio.timeout(20 * PATIENCE):
        async for event in cluster.watch(ENDPOINT_SLICES, "0", "classes"):
            if event.type != "DELETED" and event.object["endpoints"][0]["addresses"] == [address]:
                return dict(event.object)
    raise AssertionError


@pytest.mark.parametrize("kind", WORLDS)
def test_who_leads_next_takes_it_over(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as (cluster, client):
            if kind == "http":
                await client.create(NAMESPACES, {"metadata": {"name": "classes"}})
            for address in ("10.0.0.1", "10.0.0.2", "fd00::1"):
                async with in_background(lead_here(client, endpoint(address))):
                    found = await until_it_leads_to(cluster, address)
                assert found["addressType"] == ("IPv6" if ":" in address else "IPv4")
                assert found["ports"] == [{"name": "extender", "port": 9444, "protocol": "TCP"}]
                # By the one a proxy finds it, by the other its controller leaves it alone.
                assert found["metadata"]["labels"] == {
                    "kubernetes.io/service-name": "extender",
                    "endpointslice.kubernetes.io/managed-by": "pinfold.dev",
                }
            assert len(cluster.chunk(ENDPOINT_SLICES).objects) == 1

    asyncio.run(scenario())

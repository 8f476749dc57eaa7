"""Where a service leads that only the leader answers: the leader says so, in an EndpointSlice.

A pod is ready or is not, whatever it is asked; so a Service that selects ready pods would lead to
all replicas.  This one selects none, and its only endpoint is the address of who leads.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from pinfold.ports.kubernetes import (
    ENDPOINT_SLICES,
    Kubernetes,
    KubernetesError,
    NotFoundError,
    Object,
)
from pinfold.retry.backoff import Backoff

LOOK: Final = 30.0
"""Seconds after which it is seen that somebody has removed or changed it."""

_FIRST_RETRY: Final = 0.2


class Endpoint(Struct, frozen=True):
    """A service of a namespace, and where it is to lead: an address, the name of a port, and it."""

    namespace: str
    service: str
    address: str
    port_name: str
    port: int


async def lead_here(
    client: Kubernetes,
    endpoint: Endpoint,
    report: Callable[[str], None] = lambda _problem: None,
) -> None:
    """Have the service lead here, until cancelled; what fails is told and tried again.

    It does not end the lead: who leads is known to others, too.
    """
    backoff = Backoff(
        _FIRST_RETRY,
        LOOK,
        KubernetesError,
        report=lambda problem: report(f"where schedulers ask is not written: {problem}"),
    )
    while True:
        async with backoff:
            await _settle(client, endpoint)
        if not backoff.problem:
            await asyncio.sleep(LOOK)


async def _settle(client: Kubernetes, endpoint: Endpoint) -> None:
    wanted = slice_of(endpoint)
    try:
        found = await client.get(ENDPOINT_SLICES, endpoint.service, endpoint.namespace)
    except NotFoundError:
        await client.create(ENDPOINT_SLICES, wanted)
        return
    if found.get("addressType") != wanted["addressType"]:
        # It cannot be changed.
        await client.delete(ENDPOINT_SLICES, endpoint.service, endpoint.namespace)
        await client.create(ENDPOINT_SLICES, wanted)
    elif any(found.get(field) != wanted[field] for field in ("ports", "endpoints")):
        await client.update(ENDPOINT_SLICES, {**wanted, "metadata": found["metadata"]})


def slice_of(endpoint: Endpoint) -> Object:
    """The object; the controller of EndpointSlices leaves alone what another one manages."""
    version = ipaddress.ip_address(endpoint.address).version
    return {
        "apiVersion": ENDPOINT_SLICES.api_version,
        "kind": ENDPOINT_SLICES.kind,
        "metadata": {
            "name": endpoint.service,
            "namespace": endpoint.namespace,
            "labels": {
                "kubernetes.io/service-name": endpoint.service,
                "endpointslice.kubernetes.io/managed-by": "pinfold.dev",
            },
        },
        "addressType": f"IPv{version}",
        "ports": [{"name": endpoint.port_name, "port": endpoint.port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [endpoint.address], "conditions": {"ready": True}}],
    }

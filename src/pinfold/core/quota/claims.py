"""How many CPUs a claim of DRA asks for, or was given.

A driver for CPUs gives whole CPUs of a device that stands for many (capacity), or each CPU is a
device.  Source: ``resource.k8s.io/v1`` (1.34), the form of ``v1beta1``, too; the names are those of
the official driver, ``dra.cpu`` (kubernetes-sigs/dra-driver-cpu).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from pinfold.core.pod.api import quantities_from_api, quantity_from_api
from pinfold.core.pod.manifest.fields import mapping, mappings, number, text_of

DEFAULT_DRIVER: Final = "dra.cpu"


class ClaimRules(Struct, frozen=True):
    """Which claims are for CPUs.

    ``driver`` gives them, ``device_classes`` are those of its devices, ``capacity`` is what a CPU
    is called there.  Where ``devices_are_cpus``, each device is one CPU, and a claim asks for a
    number of devices; else a claim that names no capacity takes all of a device, and nobody knows
    how much that will be.
    """

    driver: str = DEFAULT_DRIVER
    device_classes: tuple[str, ...] = (DEFAULT_DRIVER,)
    capacity: str = f"{DEFAULT_DRIVER}/cpu"
    devices_are_cpus: bool = False


class ClaimedCPUs(Struct, frozen=True):
    """What a claim asks for; ``unspecified`` are the requests of which nobody knows how much."""

    cpus: int = 0
    unspecified: tuple[str, ...] = ()


class Claims(Struct, frozen=True):
    """The CPUs of the claims and templates of a namespace, by their names."""

    claims: Mapping[str, int] = MappingProxyType({})
    templates: Mapping[str, int] = MappingProxyType({})


NO_CLAIMS: Final = Claims()


def claimed_cpus(manifest: Mapping[str, Any], rules: ClaimRules) -> ClaimedCPUs:
    """The CPUs of a ResourceClaim, or of the claims that a ResourceClaimTemplate makes.

    What was given counts where it is more than what was asked for: a driver may round up.

    Raises:
        PodError: a field of the wrong type, or a malformed quantity.
    """
    spec, path = mapping(manifest.get("spec"), "spec"), "spec"
    if manifest.get("kind") == "ResourceClaimTemplate":
        spec, path = mapping(spec.get("spec"), "spec.spec"), "spec.spec"
    devices = mapping(spec.get("devices"), f"{path}.devices")
    asked, unspecified = 0, []
    for request, here in mappings(devices.get("requests"), f"{path}.devices.requests"):
        counts = [_asked(one, where, rules) for one, where in _alternatives(request, here)]
        if None in counts:
            unspecified.append(text_of(request.get("name"), f"{here}.name") or "")
        asked += max((count for count in counts if count is not None), default=0)
    given = _given(manifest, rules)
    if given is None:
        return ClaimedCPUs(asked, tuple(unspecified))
    return ClaimedCPUs(max(asked, given))


def _alternatives(request: Mapping[str, Any], path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    if request.get("firstAvailable") is not None:
        yield from mappings(request["firstAvailable"], f"{path}.firstAvailable")
    elif request.get("exactly") is not None:
        yield mapping(request["exactly"], f"{path}.exactly"), f"{path}.exactly"
    else:
        yield request, path


def _asked(request: Mapping[str, Any], path: str, rules: ClaimRules) -> int | None:
    """The CPUs of one request; None where it does not say."""
    if text_of(request.get("deviceClassName"), f"{path}.deviceClassName") not in (
        rules.device_classes
    ):
        return 0
    if request.get("adminAccess") is True:
        return 0
    if text_of(request.get("allocationMode"), f"{path}.allocationMode") == "All":
        return None
    count = number(request.get("count"), f"{path}.count") or 1
    capacity = mapping(request.get("capacity"), f"{path}.capacity")
    wanted = quantities_from_api(capacity.get("requests"), f"{path}.capacity.requests")
    if rules.capacity in wanted:
        return count * wanted[rules.capacity].value()
    return count if rules.devices_are_cpus else None


def _given(manifest: Mapping[str, Any], rules: ClaimRules) -> int | None:
    """The CPUs that are allocated; None where none are, or it is not said how many."""
    status = mapping(manifest.get("status"), "status")
    allocation = mapping(status.get("allocation"), "status.allocation")
    devices = mapping(allocation.get("devices"), "status.allocation.devices")
    total = None
    for result, path in mappings(devices.get("results"), "status.allocation.devices.results"):
        if result.get("driver") != rules.driver or result.get("adminAccess") is True:
            continue
        consumed = mapping(result.get("consumedCapacity"), f"{path}.consumedCapacity")
        if rules.capacity in consumed:
            amount = quantity_from_api(consumed[rules.capacity], f"{path}.consumedCapacity").value()
        elif rules.devices_are_cpus:
            amount = 1
        else:
            return None
        total = (total or 0) + amount
    return total

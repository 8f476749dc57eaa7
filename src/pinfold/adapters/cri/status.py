"""What a runtime says of itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.cgroups import CgroupDriver
from pinfold.adapters.cri.client import CriClient, CriError
from pinfold.adapters.cri.endpoint import NoRuntimeError, is_socket, read_endpoint

_LATER: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN"})
"""What a runtime that is starting fails with; UNKNOWN is containerd's before its CRI is ready."""
_PAUSE: Final = 0.5


class RuntimeInfo(Struct, frozen=True):
    """A runtime's name and version, and its conditions.

    ``not_ready`` is why containers cannot be run, ``network_problem`` why pods cannot have a
    network of their own; both "" where they can.  ``cgroup_driver`` is None where the runtime does
    not tell it.
    """

    name: str
    version: str
    not_ready: str = ""
    network_problem: str = ""
    cgroup_driver: CgroupDriver | None = None


async def wait_for_runtime(
    setting: str, *, patience: float, report: Callable[[str], None]
) -> tuple[CriClient, RuntimeInfo]:
    """Find the runtime and ask it what it is; one that is not there yet is waited for.

    Args:
        setting: the address from the configuration, or "".
        patience: seconds.
        report: takes what is waited for, when the waiting begins and when it changes.

    Raises:
        NoRuntimeError: nothing listens, and the patience is over.
        RuntimeFailedError: it does not answer then, or answers with what waiting would not change.
    """
    ends = time.monotonic() + patience
    told = ""
    while True:
        try:
            return await _ask(setting)
        except (NoRuntimeError, CriError) as error:
            lasting = isinstance(error, CriError) and error.code not in _LATER
            if lasting or time.monotonic() >= ends:
                raise
            if str(error) != told:
                told = str(error)
                report(told)
        await asyncio.sleep(_PAUSE)


async def _ask(setting: str) -> tuple[CriClient, RuntimeInfo]:
    endpoint = read_endpoint(setting)
    if not is_socket(endpoint.path):
        raise NoRuntimeError(
            f"{endpoint.path} ({endpoint.source}): there is no socket",
            "start the container runtime, or name its own socket",
        )
    client = CriClient(endpoint.address)
    try:
        return client, await runtime_info(client)
    except BaseException:
        await client.close()
        raise


async def runtime_info(client: CriClient) -> RuntimeInfo:
    """Ask a runtime for its version, its conditions and its cgroup driver.

    Raises:
        CriError: it does not answer, or does not speak ``runtime.v1``.
    """
    version = await client.call("Version", pb.VersionRequest(version="v1"), pb.VersionResponse)
    if version.runtime_api_version and not version.runtime_api_version.startswith("v1"):
        raise CriError(
            f"{version.runtime_name[:100]} at {client.address} speaks"
            f" {version.runtime_api_version[:100]!r} and not CRI v1",
            "containerd 1.6 and CRI-O 1.23 or newer do",
            code="UNIMPLEMENTED",
        )
    status, driver = await asyncio.gather(
        client.call("Status", pb.StatusRequest(verbose=True), pb.StatusResponse),
        _driver(client),
    )
    if driver is None:
        driver = _driver_of_containerd(info_document(status.info, "config"))
    return RuntimeInfo(
        version.runtime_name,
        version.runtime_version,
        not_ready=condition(status, "RuntimeReady"),
        network_problem=condition(status, "NetworkReady"),
        cgroup_driver=driver,
    )


def condition(status: pb.StatusResponse, kind: str) -> str:
    """Why a condition does not hold, in the runtime's own words; "" when it does."""
    for found in status.status.conditions:
        if found.type == kind:
            if found.status:
                return ""
            words = [word for word in (found.reason, found.message) if word]
            return ": ".join(words) or f"{kind} is false"
    return f"the runtime does not tell {kind}"


def info_document(info: Mapping[str, str], name: str = "info") -> Mapping[str, Any]:
    """A runtime's extra words, which are JSON; empty where there are none."""
    try:
        document = json.loads(info.get(name, "{}"))
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


async def _driver(client: CriClient) -> CgroupDriver | None:
    try:
        answer = await client.call(
            "RuntimeConfig", pb.RuntimeConfigRequest(), pb.RuntimeConfigResponse
        )
    except CriError as error:
        if error.code != "UNIMPLEMENTED":
            raise
        return None
    if not answer.HasField("linux"):
        return None
    if answer.linux.cgroup_driver == pb.CgroupDriver.CGROUPFS:
        return CgroupDriver.CGROUPFS
    return CgroupDriver.SYSTEMD


def _driver_of_containerd(config: Mapping[str, Any]) -> CgroupDriver | None:
    """The driver, which containerd 1.7 tells in its configuration and nowhere else."""
    containerd = config.get("containerd")
    if not isinstance(containerd, dict):
        return None
    try:
        runtime = containerd["runtimes"][containerd["defaultRuntimeName"]]
        is_systemd = runtime["options"]["SystemdCgroup"]
    except (KeyError, TypeError):
        return None
    return CgroupDriver.SYSTEMD if is_systemd else CgroupDriver.CGROUPFS

"""What a runtime says of itself, which cgroups it makes, and what it may do.

Source of the cgroups' names: measured on containerd (``<parent>/<id>``, and
``cri-containerd-<id>.scope`` with systemd); CRI-O's are those of its documentation.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.client import CriClient, CriError
from pinfold.adapters.cri.endpoint import NoRuntimeError, is_socket, read_endpoint

_LATER: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN"})
"""What a runtime that is starting fails with; UNKNOWN is containerd's before its CRI is ready."""
_PAUSE: Final = 0.5
_CAP_SYS_RESOURCE: Final = 24
_LOWEST: Final = -1000
_PATIENCE: Final = 1.0


class CgroupDriver(Enum):
    """Who makes the cgroups of a runtime."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


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


def pod_cgroup_parent(root: str, pod_uid: str, driver: CgroupDriver) -> str:
    """The ``cgroup_parent`` of a pod below ``root`` (one name, such as ``pinfold``).

    Both forms are cgroupfs paths, as the CRI wants them; with systemd each name is a slice and
    repeats those above it.
    """
    if driver is CgroupDriver.CGROUPFS:
        return f"/{root}/pod{_plain(pod_uid)}"
    # A dash means "below" in a slice's name.
    stem = root.replace("-", "_")
    return f"/{stem}.slice/{stem}-pod{_plain(pod_uid).replace('-', '_')}.slice"


def container_cgroup_path(
    cgroup_parent: str, container_id: str, driver: CgroupDriver, runtime_name: str = "containerd"
) -> str:
    """The path of a container's cgroup below each hierarchy's root (v1) or the root (v2)."""
    parent = cgroup_parent.rstrip("/")
    if driver is CgroupDriver.SYSTEMD:
        prefix = "crio" if runtime_name == "cri-o" else "cri-containerd"
        return f"{parent}/{prefix}-{container_id}.scope"
    name = f"crio-{container_id}" if runtime_name == "cri-o" else container_id
    return f"{parent}/{name}"


def _plain(uid: str) -> str:
    """A uid as one file name; those of manifests without one have a slash in them."""
    return uid.replace("/", "_")


def oom_score_floor(socket_path: str) -> int:
    """The lowest ``oom_score_adj`` that the runtime at a socket can give a container.

    A process without CAP_SYS_RESOURCE can go no lower than itself is, and runc fails there with a
    message that tells nobody why.  The process is the one that listens; where it cannot be told,
    this one.
    """
    pid = _listener(socket_path) or os.getpid()
    try:
        if _may_lower(Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")):
            return _LOWEST
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _listener(path: str) -> int | None:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except OSError:
        return None
    pid: int = struct.unpack("3i", credentials)[0]
    # 0: it lives in a pid namespace that is not seen from here.
    return pid or None


def _may_lower(status: str) -> bool:
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False

"""Who tells ``pinfold audit`` what the containers are called: a running agent, and the runtime."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import Struct

from pinfold.cli.client import Client

if TYPE_CHECKING:
    from pinfold.adapters.cri import Endpoint
    from pinfold.audit.containers import KnownContainer
    from pinfold.audit.findings import Finding
    from pinfold.core.values.cpuset import CPUSet
    from pinfold.ports.nri import Container, PodSandbox

_AGENT_SECONDS: Final = 5.0
_RUNTIME_SECONDS: Final = 3.0
_RUNS: Final = ("CREATED", "RUNNING")


class AgentSays(Struct, frozen=True):
    """What a running agent says of itself, and of its containers."""

    state_dir: Path
    runtime: str
    tree: str
    endpoint: str
    containers: tuple[KnownContainer, ...]
    earlier: tuple[Finding, ...] = ()
    """What was out of order before its containers were as they are now."""


class Told(Struct, frozen=True):
    """What a runtime says; ``problem`` is a sentence where it should have, and did not."""

    containers: tuple[KnownContainer, ...] = ()
    runtime: str = ""
    problem: str = ""


def ask_agent(socket: str) -> AgentSays | None:
    """A running agent's word; None where none runs."""
    from pinfold.audit.containers import KnownContainer  # noqa: PLC0415 - after --help

    try:
        status = Client(socket, timeout=_AGENT_SECONDS).get("/v1/status")
    except click.ClickException:
        return None
    about: Mapping[str, Any] = status["agent"]
    runtime = str(about.get("runtime", "process"))
    cgroups = about.get("cgroups", {})
    tree = "" if cgroups.get("kind") == "runtime" else str(cgroups.get("path", ""))
    return AgentSays(
        state_dir=Path(about["state_dir"]),
        runtime=runtime,
        tree=tree.rpartition("/")[2],
        endpoint=str(about.get("containerRuntime", {}).get("endpoint", "")),
        containers=tuple(
            KnownContainer(
                pod_uid=pod["uid"],
                pod=f"{pod['namespace']}/{pod['name']}",
                name=container["name"],
                pid=container["pid"],
                has_ended=container["state"] not in _RUNS,
            )
            for pod in status["pods"]
            for container in pod["containers"]
        ),
        earlier=tuple(_ran_shared(status["pods"])),
    )


def _ran_shared(pods: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """The owners that ran before anybody gave them their CPUs."""
    from pinfold.audit.findings import RAN_SHARED, Finding  # noqa: PLC0415 - after --help
    from pinfold.core.values.cpuset import CPUSet  # noqa: PLC0415

    for pod in pods:
        for container in pod["containers"]:
            # An agent of an earlier version does not tell.
            seconds = container.get("ran_shared_seconds")
            if seconds is None or not container["exclusive"]:
                continue
            title = f"{pod['namespace']}/{pod['name']} {container['name']}"
            yield Finding(
                RAN_SHARED,
                f"{title}: ran shared for {seconds:.1f} s before it had CPUs {container['cpus']}",
                title,
                CPUSet.parse(container["cpus"]),
                owners=(title,),
            )


def ask_runtime(setting: str, root: Path) -> Told:
    """What the container runtime of a machine says; nothing where there is none.

    Args:
        setting: its address, where somebody has named it.
        root: the machine's root; another than ``/`` may have the runtime's socket in it.

    Raises:
        RuntimeFailedError: the address that was named is none.
    """
    import asyncio  # noqa: PLC0415 - after --help, and heavy

    from pinfold.adapters.cri import CriClient, CriError, list_cri_containers  # noqa: PLC0415

    endpoint = _endpoint(setting, root)
    if endpoint is None or isinstance(endpoint, str):
        return Told(problem=endpoint or "")

    async def ask() -> tuple[KnownContainer, ...]:
        client = CriClient(endpoint.address, quick=_RUNTIME_SECONDS)
        try:
            async with asyncio.timeout(2 * _RUNTIME_SECONDS):
                pods, containers = await list_cri_containers(client)
        finally:
            await client.close()
        by_id = {pod.id: pod for pod in pods}
        return (
            *(_sandbox(pod) for pod in pods),
            *(_container(one, by_id.get(one.sandbox_id)) for one in containers),
        )

    try:
        return Told(asyncio.run(ask()), endpoint.address)
    except TimeoutError:
        problem = f"{endpoint.address} did not answer in time"
    except CriError as error:
        problem = str(error)
    return Told(
        problem=f"the container runtime ({endpoint.source}) does not tell its containers: {problem}"
    )


def _endpoint(setting: str, root: Path) -> Endpoint | str | None:
    """The runtime's address; None where there is none, a sentence where what names it is wrong."""
    from pinfold.adapters.cri import Endpoint, find_endpoint, read_endpoint  # noqa: PLC0415
    from pinfold.adapters.cri.endpoint import CRICTL_YAML, VARIABLE, is_socket  # noqa: PLC0415
    from pinfold.ports.errors import RuntimeFailedError  # noqa: PLC0415

    if setting:
        return read_endpoint(setting)
    is_live = root == Path("/")
    try:
        if is_live:
            return read_endpoint()
        # Another machine's files name another machine's runtime: only a socket in it is meant.
        found = find_endpoint({}, None, lambda path: is_socket(f"{root}{path}"))
    except RuntimeFailedError as error:
        named = is_live and (os.environ.get(VARIABLE) or CRICTL_YAML.exists())
        return f"the container runtime was not asked: {error}" if named else None
    return Endpoint(f"unix://{root.resolve()}{found.path}", found.source)


def _sandbox(pod: PodSandbox) -> KnownContainer:
    from pinfold.audit.containers import KnownContainer  # noqa: PLC0415 - late

    return KnownContainer(
        id=pod.id,
        pod_uid=pod.uid,
        pod=f"{pod.namespace}/{pod.name}",
        pid=pod.pid,
        is_sandbox=True,
        has_ended=pod.pid is None,
    )


def _container(one: Container, pod: PodSandbox | None) -> KnownContainer:
    from pinfold.audit.containers import KnownContainer  # noqa: PLC0415 - late
    from pinfold.ports.nri import ContainerState  # noqa: PLC0415

    return KnownContainer(
        id=one.id,
        pod_uid="" if pod is None else pod.uid,
        pod="" if pod is None else f"{pod.namespace}/{pod.name}",
        name=one.name,
        pid=one.pid,
        recorded=_cpus(one.resources.cpus),
        has_ended=one.state is ContainerState.STOPPED,
    )


def _cpus(text: str) -> CPUSet | None:
    """The CPUs on record; None where there are none, or a runtime has written what is no list."""
    from pinfold.core.values.cpuset import CPUSet, CPUSetError  # noqa: PLC0415 - after --help

    try:
        return CPUSet.parse(text) if text else None
    except CPUSetError:
        return None

"""Who tells what the containers are called: a running agent, and a container runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.audit.findings import RAN_SHARED, Finding
from pinfold.audit.record import DividedCache, KeptInterrupts, KnownContainer, LimitedGroup
from pinfold.core.cache.offers import Group
from pinfold.core.cache.schemata import SchemataError, parse_schemata
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.documents.status import Agent, Pod, Status

_RUNS: Final = ("CREATED", "RUNNING")
_RUNTIMES: Final = ("cri", "nri")
"""What an agent calls it when a container runtime runs its containers."""


class Told(Struct, frozen=True):
    """What a runtime says; ``problem`` is a sentence where it should have, and did not."""

    containers: tuple[KnownContainer, ...] = ()
    runtime: str = ""
    problem: str = ""


class AgentSays(Struct, frozen=True):
    """What a running agent says of itself, and of its containers."""

    state_dir: Path
    runtime: str
    tree: str
    endpoint: str
    containers: tuple[KnownContainer, ...]
    earlier: tuple[Finding, ...] = ()
    """What was out of order before its containers were as they are now."""
    interrupts: KeptInterrupts | None = None
    """What it does about interrupts; None: nothing."""
    caches: tuple[DividedCache, ...] = ()
    """The groups of resctrl that it has made."""
    limits: tuple[LimitedGroup, ...] = ()
    """What it has limited cgroups to."""

    @property
    def has_runtime(self) -> bool:
        """Whether a container runtime runs its containers."""
        return self.runtime in _RUNTIMES

    @classmethod
    def of_status(cls, status: Status) -> AgentSays:
        """Of what ``GET /v1/status`` answers."""
        agent = status.agent
        cgroups, cri = agent.cgroups, agent.container_runtime
        tree = "" if cgroups.kind == "runtime" else cgroups.path or ""
        return cls(
            state_dir=Path(agent.state_dir),
            runtime=agent.runtime,
            tree=tree.rpartition("/")[2],
            endpoint=cri.endpoint if cri else "",
            containers=tuple(
                KnownContainer(
                    pod_uid=pod.uid,
                    pod=f"{pod.namespace}/{pod.name}",
                    name=container.name,
                    pid=container.pid,
                    has_ended=container.state not in _RUNS,
                    shared=CPUSet.parse(container.shared or ""),
                    idle=CPUSet.parse(container.idle or ""),
                    lent=CPUSet.parse(container.lent or ""),
                )
                for pod in status.pods
                for container in pod.containers
            ),
            earlier=tuple(_ran_shared(status.pods)),
            interrupts=_interrupts(agent),
            caches=tuple(_caches(status)),
            limits=tuple(_limits(status)),
        )


def _interrupts(agent: Agent) -> KeptInterrupts | None:
    if not (irqs := agent.interrupts):
        return None
    return KeptInterrupts(CPUSet.parse(irqs.cpus), irqs.problem)


def _names(status: Status) -> dict[str, str]:
    return {pod.uid: f"{pod.namespace}/{pod.name}" for pod in status.pods}


def _limits(status: Status) -> Iterator[LimitedGroup]:
    names = _names(status)
    for one in status.agent.cgroups.limits or ():
        pod = names.get(one.pod_uid, one.pod_uid)
        title = f"{pod} {one.container}" if one.container else f"pod {pod}"
        title = title if one.pod_uid else "the idle side"
        yield LimitedGroup(title, one.folder, one.files)


def _caches(status: Status) -> Iterator[DividedCache]:
    names = _names(status)
    for group in status.agent.cache.groups if status.agent.cache else ():
        parts = (owner.rpartition("/") for owner in group.containers)
        with suppress(SchemataError, CPUSetError):
            yield DividedCache(
                Group(
                    group.name,
                    CPUSet.parse(group.cpus),
                    parse_schemata("\n".join(group.schemata.split())),
                ),
                tuple(f"{names.get(uid, uid)} {name}" for uid, _, name in parts),
            )


def _ran_shared(pods: Iterable[Pod]) -> Iterator[Finding]:
    """The owners that ran before anybody gave them their CPUs."""
    for pod in pods:
        for container in pod.containers:
            seconds = container.ran_shared_seconds
            if seconds is None or not container.exclusive:
                continue
            title = f"{pod.namespace}/{pod.name} {container.name}"
            yield Finding(
                RAN_SHARED,
                f"{title}: ran shared for {seconds:.1f} s before it had CPUs {container.cpus}",
                title,
                CPUSet.parse(container.cpus),
                owners=(title,),
            )

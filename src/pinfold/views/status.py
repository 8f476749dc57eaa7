"""From the status of a live node to what the renderers draw."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, Self

from msgspec import Struct

from pinfold.adapters.machines.own_json import machine_from_own_json
from pinfold.core.kubelet.versions import told_version
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import Machine
from pinfold.core.pod.pod import CPU, MEMORY, is_hugepages
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.documents.node import Node, ZoneResource
from pinfold.documents.status import Agent, Container, Pod, Status
from pinfold.render.machine_map import machine_map
from pinfold.render.node_map import lend, number_owners, with_devices
from pinfold.render.numa_panel import Gauge, NUMAGauges, devices_at
from pinfold.render.plan_view import ContainerRow, PlanView, PodRow, extras
from pinfold.views.node import (
    ENDED,
    besides,
    bubble_lines,
    idle_siblings,
    kubelet_words,
    of_pod,
    owner_key,
    pod_owners,
    policies,
    quota_lines,
    quota_notes,
)

_IDLE: Final = 0.9
"""The share of the time from which on a CPU is called idle."""

_LAST: Final = 3
"""How many decisions are shown; the history has all."""

_WORTH_TELLING: Final = 0.005


class Hardware(Struct, frozen=True):
    """The machine of a live node, which stays while its pods come and go."""

    machine: Machine
    unseen: CPUSet
    """What the kubelet does not see of it."""

    @classmethod
    def told(cls, document: object) -> Self:
        """What ``GET /v1/machine`` says.

        Raises:
            MachineError: an agent of another version, or no machine.
        """
        machine = machine_from_own_json(document, file="the agent's machine")
        return cls(machine, kubelet_view(machine).unseen)


def status_view(status: Status, on: Hardware, node: Node, *, observed: bool = True) -> PlanView:
    """What ``GET /v1/status``, ``GET /v1/machine`` and ``GET /v1/node`` say, as a picture.

    With ``observed`` also what containers and CPUs did in the last interval, which is otherwise
    in each picture.
    """
    hardware, unseen = on.machine, on.unseen
    nri = status.agent.nri
    # Whoever looks at several nodes tells them apart by their names.
    name = status.agent.node or hardware.name
    if nri and nri.audits_only:
        # The kubelet gives out the CPUs; which, only it knows.
        return PlanView(
            title=name,
            subtitle=f"audits only · the kubelet's CPU manager {nri.kubelet_policy}",
            node_map=machine_map(hardware, unseen=unseen),
            notes=tuple(_notes(status, hardware.isolated, observed=observed)),
            pins=False,
        )
    owners = number_owners(pod_owners(pod for pod in status.pods if pod.phase not in ENDED))
    idle = idle_siblings(pod for pod in status.pods if pod.phase not in ENDED)
    keys = {owner.key for owner in owners}
    shared, reserved = CPUSet.parse(status.shared), CPUSet.parse(status.reserved)
    # Isolated CPUs that nobody shares are drawn as such.
    shared -= hardware.isolated - CPUSet.parse(status.pool)
    drawn = machine_map(
        hardware, owners, unseen=unseen, shared=shared, reserved=reserved, idle=idle
    )
    gauges = tuple(_live_gauges(status, node))
    return PlanView(
        title=name,
        subtitle=_as_kubelet(status.agent) + policies(status.config, node.memory_manager_policy),
        node_map=with_devices(lend(drawn, _lent(status)), devices_at(gauges)),
        pods=tuple(_live(pod, keys, observed=observed) for pod in status.pods),
        shared=shared,
        reserved=reserved,
        allocatable=CPUSet.parse(status.allocatable),
        notes=tuple(_notes(status, hardware.isolated, observed=observed)),
        isolated=hardware.isolated,
        idle=idle,
        numa=gauges,
        quotas=tuple(quota_lines(status.quotas or ())),
    )


def _as_kubelet(agent: Agent) -> str:
    return f"{kubelet_words(agent.kubelet)} · " if agent.kubelet else ""


def _version(agent: Agent) -> Iterator[str]:
    """Whose the decisions are, where that is not the newest, and what that one does otherwise."""
    if not (kubelet := agent.kubelet):
        return
    if kubelet.remark:
        yield kubelet.remark
    if not (count := len(kubelet.differences)):
        return
    why = {
        "record": ", with which the record was begun",
        "configuration": ", as configured (kubeletVersion)",
        "node": ", which is there",
    }.get(kubelet.source, "")
    newest = told_version(kubelet.newest).version.shown
    yield (
        f"decided as {kubelet_words(kubelet)}{why}; {newest} (kubeletVersion) differs in {count} "
        f"thing{'s' * (count != 1)}: agent.kubelet of -o json"
    )


def _lent(status: Status) -> CPUSet:
    """The CPUs of owners on which others run, too."""
    containers = (container for pod in status.pods for container in pod.containers)
    return CPUSet.union_of(CPUSet.parse(one.lent) for one in containers if one.lent)


def _live(pod: Pod, keys: set[str], *, observed: bool) -> PodRow:
    ended = pod.phase in ENDED
    return PodRow(
        pod.namespace,
        pod.name,
        pod.qos if pod.phase == "Running" else pod.phase,
        admitted=not pod.is_rejected,
        containers=tuple(
            ContainerRow(
                container.name,
                CPUSet() if ended else CPUSet.parse(container.cpus),
                exclusive=container.exclusive and not ended,
                owner=None if ended else owner_key(pod, container, keys),
                kind=_how_it_is(container),
                extras=()
                if ended
                else (
                    *besides(container),
                    *_lends(container),
                    *_given(container),
                    *_earlier(container),
                    *(_does(container) if observed else ()),
                ),
                remark="" if ended else of_pod(container),
            )
            for container in pod.containers
        ),
        reason=pod.reason,
        message=pod.message,
        failed=pod.phase == "Failed",
        whole=() if ended else tuple(bubble_lines(pod)),
        uid=pod.uid,
        ended=ended,
    )


def _lends(container: Container) -> Iterator[str]:
    if container.lent:
        yield f"{_named(container.lent)} {'is' if container.lent.isdigit() else 'are'} lent"


def _named(cpus: str) -> str:
    """``CPU 1``, or ``CPUs 1-2``."""
    return f"CPU {cpus}" if cpus.isdigit() else f"CPUs {cpus}"


def _given(container: Container) -> Iterator[str]:
    return extras(container.memory, container.devices)


def _how_it_is(container: Container) -> str:
    words = [] if container.kind == "container" else [container.kind]
    if container.state != "RUNNING" and container.exit_code is not None:
        words.append(f"exit {container.exit_code}")
    words += _offline(container)
    if container.restarts:
        words.append(f"{container.restarts} restart{'s' * (container.restarts != 1)}")
    return ", ".join(words)


def _earlier(container: Container) -> Iterator[str]:
    """What was otherwise before."""
    if container.ran_shared_seconds is not None:
        yield f"ran shared for {container.ran_shared_seconds:.1f} s at first"


def _does(container: Container) -> Iterator[str]:
    """What it did in the last interval, where that is watched."""
    load = container.load
    if not load:
        return
    if load.usage is not None:
        yield f"uses {load.usage:.2f} CPUs"
    if load.wait is not None and load.wait >= _WORTH_TELLING:
        yield f"waits {load.wait:.2f} s a second"
    if load.throttled_periods:
        yield f"throttled in {load.throttled_periods:.0%} of its periods"


def _offline(container: Container) -> Iterator[str]:
    """What has become of a container whose CPUs are offline."""
    if container.offline:
        yield f"CPUs {container.offline} offline"
    if container.place == "frozen":
        yield "frozen"
    elif container.offline and container.place == "shared":
        yield "in the shared pool"


def _notes(status: Status, isolated: CPUSet, *, observed: bool) -> Iterator[str]:
    agent = status.agent
    if status.offline:
        yield f"CPUs {status.offline} are offline"
    if status.pool != status.shared and not (agent.nri and agent.nri.audits_only):
        left = CPUSet.parse(status.shared) - CPUSet.parse(status.pool)
        what = "reserved" if left - isolated or not left else "isolated"
        what += " and isolated" if what == "reserved" and left & isolated else ""
        yield f"shared containers run on {status.pool}, which leaves out the {what} CPUs"
    yield from _version(agent)
    if observed:
        yield from _observed(status)
    yield from _interrupts(agent)
    yield from _controlled(agent)
    yield from _cache(status)
    yield from quota_notes(status.quotas or ())
    yield from _problems(agent)
    yield from agent.problems
    yield from agent.cgroups.limitations or ()


def _observed(status: Status) -> Iterator[str]:
    """How idle the CPUs were in the last interval, and what cannot be told."""
    watched = status.observation
    if not watched:
        return
    if watched.idle:
        idle = CPUSet(int(cpu) for cpu, share in watched.idle.items() if share >= _IDLE)
        busy = len(watched.idle) - sum(watched.idle.values())
        which = f"; idle: {idle}" if idle else ""
        yield f"{busy:.1f} of {len(watched.idle)} CPUs are busy{which}"
    yield from (f"not known: {text}" for text in watched.lacks)


def _interrupts(agent: Agent) -> Iterator[str]:
    if not (irqs := agent.interrupts):
        return
    yield f"{irqs.kept} interrupts are kept off CPUs {irqs.cpus}, on {irqs.others}"
    if irqs.fixed:
        yield f"nobody can move off these CPUs: {', '.join(irqs.fixed)}"


def _controlled(agent: Agent) -> Iterator[str]:
    """What is decided by load or by time: what is lent, what was done last, and what waits."""
    if not (control := agent.control):
        return
    if lending := control.lending:
        for one in lending.lent:
            whom = f" to {', '.join(lending.borrowers)}" if lending.borrowers else ""
            yield f"lent: {_named(one.cpus)} of {one.container}{whom}"
        for container, reason in lending.not_lent.items():
            yield f"not lent: {container}: {reason}"
        if lending.problem:
            yield lending.problem
    if (parked := control.parked) and parked.cpus:
        yield (
            f"parked: CPUs {parked.cpus}, {parked.packages} packages and {parked.cores} cores idle"
        )
    for by_load in control.load_driven or ():
        where = f"has CPUs {by_load.cpus}"
        if not by_load.cpus:
            where = f"shares, {by_load.charged} CPUs are charged"
        yield f"by load: {by_load.container} {where}" + (f"; {by_load.why}" if by_load.why else "")
    for done in control.decided[-_LAST:]:
        at = time.strftime("%H:%M:%S", time.localtime(done.at))
        whom = f" {', '.join(done.containers)}:" if done.containers else ""
        failed = f"; failed: {done.problem}" if done.problem else ""
        yield f"decided at {at}: {done.rank}:{whom} {done.why}{failed}"
    for waiting in control.waiting:
        whom = f" {', '.join(waiting.containers)}:" if waiting.containers else ""
        yield f"{waiting.rank} waits:{whom} {waiting.reason}"
    yield from (f"{group} is not in force: {reason}" for group, reason in control.refused.items())


def _cache(status: Status) -> Iterator[str]:
    if not (cache := status.agent.cache):
        return
    names = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in status.pods}

    def shown(owner: str) -> str:
        uid, _, container = owner.rpartition("/")
        return f"{names.get(uid, uid)} {container}"

    for group in cache.groups:
        yield f"{', '.join(map(shown, group.containers))} has {group.schemata}"
    if cache.groups:
        yield f"all others have {cache.others}"
    if not cache.problem:
        for owner, one in cache.refused.items():
            yield f"{shown(owner)} has no cache class ({one.reason}): {one.message}"


def _problems(agent: Agent) -> Iterator[str]:
    for part in (
        agent.container_runtime,
        agent.nri,
        agent.cpus,
        agent.hugepages,
        agent.interrupts,
        agent.cache,
        agent.scheduling_domains,
    ):
        if part and part.problem:
            yield part.problem


def _live_gauges(status: Status, node: Node) -> Iterator[NUMAGauges]:
    """What of memory and devices is used; nothing where nobody gives out any."""
    located: set[str] = set()
    shown: list[NUMAGauges] = []
    failed = status.unhealthy_in_use
    for zone in node.zones:
        resources = {name: found for name, found in zone.resources.items() if name != CPU}
        located |= resources.keys()
        gauges = tuple(
            _zone_gauge(name, found, failed.get(name, {}).get(str(zone.id), 0))
            for name, found in resources.items()
        )
        shown.append(NUMAGauges(zone.id, gauges, tuple(zone.group)))
    if located:
        yield from shown
    plugins = status.agent.device_plugins
    loose = tuple(
        Gauge(
            name,
            found.in_use - (unhealthy := failed.get(name, {}).get("none", 0)),
            found.allocatable,
            in_bytes=False,
            unhealthy=found.capacity - found.allocatable,
            unhealthy_used=unhealthy,
        )
        for name, found in (plugins.resources.items() if plugins else ())
        if name not in located
    )
    if loose:
        yield NUMAGauges(None, loose)


def _zone_gauge(name: str, zone: ZoneResource, unhealthy_used: int) -> Gauge:
    capacity, allocatable, available = (
        Quantity.parse(text).value() for text in (zone.capacity, zone.allocatable, zone.available)
    )
    if name == MEMORY or is_hugepages(name):
        return Gauge(name, allocatable - available, allocatable)
    return Gauge(
        name,
        allocatable - available,
        allocatable,
        in_bytes=False,
        unhealthy=capacity - allocatable,
        unhealthy_used=unhealthy_used,
    )

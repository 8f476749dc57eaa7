"""From the agent's documents to what the renderers draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinfold.adapters.machines.own_json import machine_from_own_json
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.memory.memory import Block
from pinfold.core.memory.reservation import NONE
from pinfold.core.pod.pod import CPU, MEMORY, is_hugepages
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.ports.records import CANNOT_RUN, UNHEALTHY_DEVICE
from pinfold.render.explain_text import (
    ContainerExplanation,
    ExplainView,
    HintRow,
    ProviderHints,
)
from pinfold.render.machine_map import machine_map
from pinfold.render.node_map import Owner, number_owners
from pinfold.render.numa_panel import Gauge, NUMAGauges
from pinfold.render.plan_view import ContainerRow, PlanView, PodRow, extras

_ENDED = ("Succeeded", "Failed")
_ENDED_LATER = frozenset({CANNOT_RUN, UNHEALTHY_DEVICE, "NodeMismatch"})
"""Reasons of pods that were admitted, even where no container of them has run."""


def status_view(status: Mapping[str, Any], machine: object, node: Mapping[str, Any]) -> PlanView:
    """What ``GET /v1/status``, ``GET /v1/machine`` and ``GET /v1/node`` say, as a picture."""
    hardware = machine_from_own_json(machine, file="the agent's machine")
    unseen = kubelet_view(hardware).unseen
    if _audits_only(status):
        # The kubelet gives out the CPUs; which, only it knows.
        policy = status["agent"]["nri"]["kubeletPolicy"]
        return PlanView(
            title=hardware.name,
            subtitle=f"audits only · the kubelet's CPU manager {policy}",
            node_map=machine_map(hardware, unseen=unseen),
            notes=tuple(_notes(status)),
            pins=False,
        )
    pods = status["pods"]
    owners = number_owners(_owners(pods))
    shared = CPUSet.parse(status["shared"])
    reserved = CPUSet.parse(status["reserved"])
    return PlanView(
        title=hardware.name,
        subtitle=_policies(status["config"], node),
        node_map=machine_map(hardware, owners, unseen=unseen, shared=shared, reserved=reserved),
        pods=tuple(_pod(pod) for pod in pods),
        shared=shared,
        reserved=reserved,
        allocatable=CPUSet.parse(status["allocatable"]),
        notes=tuple(_notes(status)),
        numa=tuple(_numa(status, node)),
    )


def _audits_only(status: Mapping[str, Any]) -> bool:
    """Whether the agent leaves the CPUs to a kubelet that pins containers itself."""
    return bool(status["agent"].get("nri", {}).get("auditsOnly"))


def _numa(status: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[NUMAGauges]:
    """What of memory and devices is used; nothing where nobody gives out any."""
    located: set[str] = set()
    shown: list[NUMAGauges] = []
    # An agent of an earlier version does not tell.
    failed = status.get("unhealthy_in_use", {})
    for zone in node["zones"]:
        resources = {name: found for name, found in zone["resources"].items() if name != CPU}
        located |= resources.keys()
        gauges = tuple(
            _gauge(name, found, failed.get(name, {}).get(str(zone["id"]), 0))
            for name, found in resources.items()
        )
        shown.append(NUMAGauges(zone["id"], gauges, tuple(zone["group"])))
    if located:
        yield from shown
    plugins = status["agent"].get("devicePlugins", {}).get("resources", {})
    loose = tuple(
        Gauge(
            name,
            found["in_use"] - (sick := failed.get(name, {}).get("none", 0)),
            found["allocatable"],
            in_bytes=False,
            unhealthy=found["capacity"] - found["allocatable"],
            unhealthy_used=sick,
        )
        for name, found in plugins.items()
        if name not in located
    )
    if loose:
        yield NUMAGauges(None, loose)


def _gauge(name: str, zone: Mapping[str, str], unhealthy_used: int) -> Gauge:
    capacity, allocatable, available = (
        Quantity.parse(zone[kind]).value() for kind in ("capacity", "allocatable", "available")
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


def _owners(pods: Sequence[Mapping[str, Any]]) -> Iterator[Owner]:
    for pod in pods:
        taken = CPUSet()
        # CPUs that an init container hands on are drawn for the container that has them now.
        for container in sorted(pod["containers"], key=lambda c: c["kind"] == "init"):
            cpus = CPUSet.parse(container["cpus"] or "")
            if not container["exclusive"] or pod["phase"] in _ENDED or not cpus - taken:
                continue
            kind = "" if container["kind"] == "container" else f" ({container['kind']})"
            label = f"{pod['namespace']}/{pod['name']} {container['name']}{kind}"
            yield Owner(_key(pod, container), label, cpus - taken, kind=container["kind"])
            taken |= cpus


def _key(pod: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    return f"{pod['uid']}/{container['name']}"


def _pod(pod: Mapping[str, Any]) -> PodRow:
    failed = pod["phase"] == "Failed"
    rejected = failed and pod["reason"] is not None and not _was_admitted(pod)
    ended = pod["phase"] in _ENDED
    state = "" if pod["phase"] == "Running" else pod["phase"]
    return PodRow(
        pod["namespace"],
        pod["name"],
        state or pod["qos"],
        admitted=not rejected,
        containers=tuple(
            ContainerRow(
                container["name"],
                CPUSet.parse("" if ended else container["cpus"] or ""),
                exclusive=container["exclusive"] and not ended,
                owner=_key(pod, container) if container["exclusive"] and not ended else None,
                kind=_kind(container),
                extras=() if ended else (*_extras(container), *_earlier(container)),
            )
            for container in pod["containers"]
        ),
        reason=pod["reason"],
        message=pod["message"],
        failed=failed and not rejected,
    )


def _was_admitted(pod: Mapping[str, Any]) -> bool:
    return pod["reason"] in _ENDED_LATER or any(
        container["restarts"] or container["exit_code"] is not None
        for container in pod["containers"]
    )


def _kind(container: Mapping[str, Any]) -> str:
    words = [] if container["kind"] == "container" else [container["kind"]]
    if container["state"] != "RUNNING" and container["exit_code"] is not None:
        words.append(f"exit {container['exit_code']}")
    words += _offline(container)
    if container["restarts"]:
        words.append(f"{container['restarts']} restart{'s' * (container['restarts'] != 1)}")
    return ", ".join(words)


def _earlier(container: Mapping[str, Any]) -> Iterator[str]:
    """What was otherwise before; an agent of an earlier version does not tell."""
    if (seconds := container.get("ran_shared_seconds")) is not None:
        yield f"ran shared for {seconds:.1f} s at first"


def _offline(container: Mapping[str, Any]) -> Iterator[str]:
    """What has become of a container whose CPUs are offline."""
    # An agent of an earlier version does not tell.
    place, offline = container.get("place", "own"), container.get("offline", "")
    if offline:
        yield f"CPUs {offline} offline"
    if place == "frozen":
        yield "frozen"
    elif offline and place == "shared":
        yield "in the shared pool"


def _extras(container: Mapping[str, Any]) -> Iterator[str]:
    blocks = [
        Block(tuple(block["numa_nodes"]), block["type"], block["size"])
        for block in container["memory"]
    ]
    return extras(blocks, container["devices"])


def _policies(config: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    options = ", ".join(config["cpuManagerPolicyOptions"])
    cpu = f"CPU manager {config['cpuManagerPolicy']}" + (f" ({options})" if options else "")
    memory = node["memoryManagerPolicy"]
    more = "" if memory == NONE else f" · memory manager {memory}"
    return f"{cpu} · topology manager {config['topologyManagerPolicy']}{more}"


def _notes(status: Mapping[str, Any]) -> Iterator[str]:
    if status["offline"]:
        yield f"CPUs {status['offline']} are offline"
    if status["pool"] != status["shared"] and not _audits_only(status):
        yield f"shared containers run on {status['pool']}, which leaves out the reserved CPUs"
    for part in ("containerRuntime", "nri", "cpus", "hugepages"):
        if problem := status["agent"].get(part, {}).get("problem"):
            yield problem
    yield from status["agent"].get("problems", ())
    yield from status["agent"].get("cgroups", {}).get("limitations", ())


def ended_since(decision: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any] | None:
    """How a pod that was admitted has ended: phase, reason and message; None where it has not.

    Args:
        decision: what ``GET /v1/explain`` says of the pod.
        pod: what ``GET /v1/pods`` says of it.
    """
    if not decision.get("admitted") or pod["phase"] not in _ENDED:
        return None
    reason, message = pod["reason"], pod["message"]
    if reason is None:
        codes = {c["name"]: c["exit_code"] for c in pod["containers"] if c["exit_code"]}
        message = ", ".join(f"container {name} exited with {code}" for name, code in codes.items())
    return {"phase": pod["phase"], "reason": reason, "message": message or None}


def recorded_explanation(document: Mapping[str, Any]) -> ExplainView:
    """A decision from the agent's history, as text wants it."""
    ended = document.get("ended") or {}
    what = (ended.get("reason") or ended.get("phase"), ended.get("message"))
    return ExplainView(
        pod=f"{document['namespace']}/{document['name']}",
        qos=document["qos"],
        admitted=document["admitted"],
        policy=f"topology manager {document['topologyManagerPolicy']}",
        reason=document["reason"],
        message=document["message"],
        containers=tuple(_container(container) for container in document["containers"]),
        remedies=tuple(document["remedies"]),
        notes=tuple(document.get("notes", ())),
        ended=": ".join(filter(None, what)),
        failed=ended.get("phase") == "Failed",
    )


def _container(container: Mapping[str, Any]) -> ContainerExplanation:
    return ContainerExplanation(
        name=container["name"],
        request=container["request"],
        providers=tuple(
            ProviderHints(
                answer["provider"],
                resource,
                tuple(_hint(hint) for hint in hints or ()),
                "no preference" if hints is None else "",
            )
            for answer in container["hints"]
            for resource, hints in (answer["resources"] or {"": None}).items()
        ),
        merged=None if container["merged"] is None else _hint(container["merged"]),
        constraint=container["constraint"],
        cpus=None if container["cpus"] is None else CPUSet.parse(container["cpus"]),
        steps=tuple(_step(step) for step in container["steps"]),
        # What an agent of an earlier version has recorded tells of CPUs only.
        extras=tuple(_extras({"memory": (), "devices": {}, **container})),
    )


def _step(step: Mapping[str, Any]) -> str:
    which = "" if step["id"] is None else f" {step['id']}"
    return f"took {step['kind']}{which}: {step['cpus']}"


def _hint(hint: Mapping[str, Any]) -> HintRow:
    nodes = hint["numa_nodes"]
    return HintRow(None if nodes is None else tuple(nodes), hint["preferred"])

"""The containers that live while an agent starts, and what the record knows of them.

What gives CPUs away is in the record before a container is, and what forgets a pod is written after
its last container is gone: a container that lives and is in no record was forgotten by a record
that has lost something, to a damaged disk or an old copy.  It is never ended for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.pod.annotations import MEMORY_LIMIT
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.recovery.keepsake import Keepsake
from pinfold.ports.cgroups import Cgroups, ObservedContainer
from pinfold.ports.errors import CgroupError, ContainerKey
from pinfold.ports.records import PodPhase, PodRecord, Record
from pinfold.ports.runtime import ContainerState, KeepsakeRuntime, Runtime

_NAMED: Final = 5


class Survivor(Struct, frozen=True):
    """A container that lives; ``keepsake`` None: it has none, ``seen`` None: it has no cgroup.

    ``is_held``: the runtime does not know it.
    """

    key: ContainerKey
    keepsake: Keepsake | None = None
    seen: ObservedContainer | None = None
    is_held: bool = False


async def survivors(runtime: Runtime, cgroups: Cgroups) -> tuple[Survivor, ...]:
    """Look what lives; nothing is changed.

    Raises:
        PortError: the runtime does not answer.
    """
    statuses = await runtime.containers()
    try:
        there = await cgroups.observe()
    except CgroupError:
        observed = {}  # the tree is not there (yet)
    else:
        observed = {key: _its_own(seen, there.shared) for key, seen in there.containers.items()}
    found = {}
    for status in statuses:
        if status.state is ContainerState.EXITED:
            continue
        text = await runtime.keepsake(status.id) if isinstance(runtime, KeepsakeRuntime) else ""
        seen = observed.get(status.key)
        found[status.key] = Survivor(status.key, Keepsake.decode(text), seen)
    ended = {status.key for status in statuses} - found.keys()
    for key, seen in observed.items():
        # What one that has ended left behind goes with it.
        if seen.populated and key not in found and key not in ended:
            found[key] = Survivor(key, None, seen, is_held=True)
    return tuple(found.values())


def _its_own(seen: ObservedContainer, pool: CPUSet) -> ObservedContainer:
    """A container with its own CPUs alone: a mixed one has the pool's in its cpuset, too."""
    if not seen.exclusive:
        return seen
    configured = seen.configured and (seen.configured - pool or seen.configured)
    return replace(seen, configured=configured, effective=seen.effective - pool or seen.effective)


class Loss(Struct, frozen=True):
    """What a record has lost: batches, and pods (by uid) that live, with what is known of them."""

    generation: int
    promised: int
    pods: Mapping[str, tuple[Survivor, ...]]

    def __bool__(self) -> bool:
        return bool(self.pods) or self.promised > self.generation

    def describe(self) -> str:
        """In a sentence."""
        parts = []
        if (lost := self.promised - self.generation) > 0:
            parts.append(
                f"the last {lost} changes are missing from the record (it has {self.generation} of "
                f"{self.promised}): it was damaged, or is an old copy"
            )
        if self.pods:
            names = [_name(uid, living) for uid, living in self.pods.items()]
            if len(names) > _NAMED:
                names[_NAMED:] = [f"{len(names) - _NAMED} more"]
            parts.append(f"it does not know pods that run ({', '.join(names)})")
        return ", and ".join(parts)


def loss(record: Record, living: Iterable[Survivor]) -> Loss:
    """Compare a record with what lives; pure."""
    promised, unknown = record.promised, dict[str, tuple[Survivor, ...]]()
    for one in living:
        uid, pod = one.key.pod_uid, record.pods.get(one.key.pod_uid)
        born = 0 if one.keepsake is None else one.keepsake.generation
        promised = max(promised, born)
        # One that was decided to end may still live where an agent was killed just then.
        if pod is None or (not pod.phase.is_active and born > record.generation):
            unknown[uid] = (*unknown.get(uid, ()), one)
    return Loss(record.generation, promised, unknown)


class Recalled(Struct, frozen=True):
    """The pods of a record that has lost something, with those that live first.

    ``active`` are those that own their CPUs, ``over`` the uids of those that cannot be, ``report``
    says what was done.
    """

    active: Mapping[str, tuple[PodRecord, Workload]]
    over: frozenset[str]
    report: Sequence[str]


def recall(
    active: Mapping[str, tuple[PodRecord, Workload]],
    lost: Loss,
    living: Sequence[Survivor],
    parse: Callable[[str], Workload],
    offline: CPUSet,
) -> Recalled:
    """Put what lives in the place of what a record says otherwise; pure.

    ``active`` are the pods of the record that own their CPUs.
    """
    report = [lost.describe()]
    by_uid: dict[str, list[Survivor]] = {}
    for one in living:
        if one.key.pod_uid in active or one.key.pod_uid in lost.pods:
            by_uid.setdefault(one.key.pod_uid, []).append(one)
    first: dict[str, tuple[PodRecord, Workload]] = {}
    written: dict[str, int] = {}
    for uid, ones in by_uid.items():
        carried = _carried(uid, ones)
        written[uid] = lost.generation if carried is None else carried.generation
        if uid in lost.pods:
            first[uid] = _adopted(uid, ones, carried, parse, offline)
            report.append(_adoption(first[uid][0], ones))
        elif carried is not None and written[uid] > lost.generation:
            first[uid] = _gone_on(*active[uid], carried.pod, parse)
        else:
            first[uid], written[uid] = active[uid], lost.generation
    first = {uid: (as_seen(pod, by_uid[uid], offline), load) for uid, (pod, load) in first.items()}
    taken = {
        uid: CPUSet(cpu for name in _sure(pod, by_uid[uid]) for cpu in pod.assignments[name])
        for uid, (pod, _) in first.items()
    }
    # Of those that are on none of them now, who was written last has them.
    for uid in sorted(first, key=written.__getitem__, reverse=True):
        pod, workload = first[uid]
        others = CPUSet(cpu for other, cpus in taken.items() if other != uid for cpu in cpus)
        pod = _as_it_lives(pod, by_uid[uid], others)
        first[uid] = (pod, workload)
        taken[uid] = CPUSet.union_of([*pod.assignments.values(), pod.bubble])
    names = {(pod.namespace, pod.name) for pod, _ in first.values()}
    rest = {uid: one for uid, one in active.items() if uid not in first}
    over = {uid for uid, (pod, _) in rest.items() if (pod.namespace, pod.name) in names}
    rest = {uid: one for uid, one in rest.items() if uid not in over}
    if rest:
        again = ", ".join(pod.full_name for pod, _ in rest.values())
        report.append(f"pods that do not run are started, were they deleted or not: {again}")
    first |= rest
    return Recalled(first, frozenset(over), report)


def _adoption(pod: PodRecord, living: Iterable[Survivor]) -> str:
    where = ", ".join(
        f"{one.key.name} {pod.assignments.get(one.key.name) or 'in the shared pool'}"
        + (" (held: nobody is told when it ends)" if one.is_held else "")
        for one in living
    )
    return f"pod {pod.full_name} is adopted as it runs: {where}"


def _carried(uid: str, living: Iterable[Survivor]) -> Keepsake | None:
    """The newest that a pod's containers carry."""
    kept = [one.keepsake for one in living if one.keepsake and one.keepsake.pod.uid == uid]
    return max(kept, key=lambda one: one.generation, default=None)


def _gone_on(
    pod: PodRecord, workload: Workload, newer: PodRecord, parse: Callable[[str], Workload]
) -> tuple[PodRecord, Workload]:
    """A pod of the record as a container carries it that was made afterwards.

    What of it has ended since has given its CPUs back, and is not run again.
    """
    try:
        workload = parse(newer.manifest)
    except ValueError:
        newer = replace(newer, manifest=pod.manifest)
    return replace(newer, phase=pod.phase), workload


def _adopted(
    uid: str,
    living: Sequence[Survivor],
    carried: Keepsake | None,
    parse: Callable[[str], Workload],
    offline: CPUSet,
) -> tuple[PodRecord, Workload]:
    """A pod from what its containers carry, or else from what the kernel shows."""
    known = None if carried is None else carried.pod
    if known is not None:
        try:
            return as_seen(known, living, offline), parse(known.manifest)
        except ValueError:
            pass
    pod = as_seen(_made_up(uid, living, known), living, offline)
    return pod, parse(pod.manifest)


def as_seen(pod: PodRecord, living: Iterable[Survivor], offline: CPUSet) -> PodRecord:
    """A pod with the CPUs that its containers have, which the kernel knows better.

    Of those that are offline it may know nothing: cgroup v1 takes them out of a cpuset for good.
    Nor does it know of the siblings that stay idle.
    """
    cpus, idle, baselines = dict(pod.assignments), dict(pod.idle), dict(pod.baselines)
    for one in living:
        if one.seen is None or not one.seen.exclusive:
            continue
        own = one.seen.configured or one.seen.effective
        known = cpus.get(one.key.name, CPUSet())
        away = offline | idle.get(one.key.name, CPUSet())
        is_known = bool(known) and (known <= offline or (own <= known and known - own <= away))
        if own and not is_known:
            cpus[one.key.name] = own
            idle.pop(one.key.name, None)
            # It was resized or moved since: of those that it was admitted with it has these.
            if baseline := (pod.baseline(one.key.name) or CPUSet()) & own:
                baselines[one.key.name] = baseline
            else:
                baselines.pop(one.key.name, None)
    # Of a bubble nothing is ever moved: who is elsewhere was given other CPUs, and which of these
    # are no container's nobody knows.
    bubble = pod.bubble if CPUSet.union_of(cpus.values()) <= pod.bubble else CPUSet()
    return replace(pod, assignments=cpus, idle=idle, baselines=baselines, bubble=bubble)


def _sure(pod: PodRecord, living: Iterable[Survivor]) -> set[str]:
    """The containers that are on CPUs of their own now; an owner may be away from offline ones."""
    there = {one.key.name for one in living if one.seen is None or one.seen.exclusive}
    return there & pod.assignments.keys()


def _as_it_lives(pod: PodRecord, living: Sequence[Survivor], others: CPUSet) -> PodRecord:
    """A pod without the CPUs that it had once and that others have now."""
    sure = _sure(pod, living)
    cpus = {n: c for n, c in pod.assignments.items() if n in sure or c.isdisjoint(others)}
    idle = {n: c for n, c in pod.idle.items() if n in cpus}
    bubble = pod.bubble if pod.bubble.isdisjoint(others) else CPUSet()
    return replace(pod, assignments=cpus, idle=idle, bubble=bubble)


def _made_up(uid: str, living: Sequence[Survivor], known: PodRecord | None) -> PodRecord:
    """A pod of which nothing is known but what the kernel shows; it is not started again."""
    name = f"adopted-{''.join(char for char in uid.lower() if char.isalnum())[:12] or 'pod'}"
    containers: list[dict[str, Any]] = []
    for one in living:
        seen = one.seen
        own = seen.effective if seen is not None and seen.exclusive else CPUSet()
        limits = {"cpu": str(len(own)), "memory": "1Mi"} if own else {}
        containers.append(
            {
                "name": one.key.name,
                "image": "unknown",
                "command": ["unknown"],
                "resources": {"limits": limits, "requests": limits},
            }
        )
    namespace = "default" if known is None else known.namespace
    pod = PodRecord(uid, namespace, name if known is None else known.name, "", PodPhase.RUNNING)
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "namespace": namespace,
            "uid": uid,
            "annotations": {MEMORY_LIMIT.key(): "none"},
        },
        "spec": {"restartPolicy": "Never", "containers": containers},
    }
    return replace(known or pod, manifest=json.dumps(manifest))


def _name(uid: str, living: Sequence[Survivor]) -> str:
    for one in living:
        if one.keepsake is not None:
            return one.keepsake.pod.full_name
    return uid

"""Documents of the API: the status of the node, and of a pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, replace

from pinfold.admission.moves import pending_move_document
from pinfold.admission.quota import quota_use
from pinfold.core.cpu.bubble import shared_pool
from pinfold.core.devices.state import DeviceState
from pinfold.core.pod.isolation_levels import IsolationLevel
from pinfold.core.pod.pod import Container
from pinfold.core.values.cpuset import CPUSet, iter_bits
from pinfold.documents import api
from pinfold.documents import status as form
from pinfold.documents.control import Control
from pinfold.documents.live.following import in_order
from pinfold.documents.move_plan import MovePlan
from pinfold.documents.records import Bubble, Isolation, MemoryBlock
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.control.telling import load_driven_containers
from pinfold.node.counters import Counters, Durations
from pinfold.node.nri.runtime_pod import ran_shared
from pinfold.node.observation.observer import Observation
from pinfold.node.pod_table import UnknownPodError
from pinfold.node.pods.quotas import quotas_of
from pinfold.node.reconciler import Drift
from pinfold.node.view import Reader, View, Whereabouts
from pinfold.ports.records import HistoryEntry, PodPhase, PodRecord
from pinfold.web.observed import load_of, observed_document
from pinfold.web.pod_shape import PodShape, kinds, shape_of

WAITING: Final = "Waiting"
"""The state of a container that has not been created, or waits to be restarted (the API's word)."""


class _Given(TypedDict):
    """What a container has beside CPUs."""

    numa_nodes: list[int]
    memory: list[MemoryBlock]
    devices: Mapping[str, list[str]]


NOTHING_GIVEN: Final = _Given(numa_nodes=[], memory=[], devices={})


class Documents:
    """Makes documents of a node's pods.

    What the manifests of ended pods say is remembered: they are many, and do not change.
    ``observation`` is what containers do, where that is watched.
    """

    def __init__(self, books: Reader, observation: Observation | None = None) -> None:
        self._books = books
        self._observation = observation
        self._shapes: dict[str, PodShape] = {}

    def status(self, agent: form.Agent, config: form.AgentConfig) -> form.Status:
        """The document of ``GET /v1/status``."""
        books, watched = self._books, self._observation
        policy = books.view.node.cpu_policy
        reserved = books.view.settings.reserved_system_cpus if policy is None else policy.reserved
        ledger = books.view.state.ledger
        return form.Status(
            agent=agent,
            config=config,
            pods=self.pods(),
            shared=str(ledger.default),
            pool=str(books.view.pool),
            reserved=str(reserved),
            allocatable=str(books.view.node.assignable(ledger)),
            offline=str(books.view.state.offline),
            unhealthy_in_use=_unhealthy_in_use(books.view.state.devices),
            move=_move(books.view),
            quotas=quota_use(quotas_of(books.view, books.observers.clock)) or msgspec.UNSET,
            observation=msgspec.UNSET if watched is None else observed_document(watched),
            counters=counters_document(books.counters),
        )

    def pods(self) -> list[form.Pod]:
        """All pods in the order in which they were admitted, the ended ones too."""
        table, pool = self._books.view.pods, str(self._books.view.pool)
        # An ended pod that was forgotten is not asked for again.
        self._shapes = {uid: s for uid, s in self._shapes.items() if uid in table.ended}
        found = [self._ended(record) for record in table.ended.values()]
        found += [self._active(pod, pool) for pod in table.active.values()]
        found.sort(key=in_order)
        return found

    def pod(self, name: str) -> api.PodDocument:
        """The document of one pod, called by uid or ``namespace/name``; raises UnknownPodError."""
        table = self._books.view.pods
        uid = table.find(name)
        active = table.active.get(uid)
        if active is not None:
            return _alone(self._active(active, str(self._books.view.pool)))
        return _alone(self._ended(table.ended[uid]))

    def explained(
        self, entry: HistoryEntry, document: msgspec.Raw, control: Control | msgspec.UnsetType
    ) -> object:
        """A recorded decision, with how containers have their CPUs now that have them by load."""
        books, uid = self._books, entry.pod_uid
        if uid not in books.view.state.load_driven:
            return document
        told = (control and control.load_driven) or load_driven_containers(books, None)
        now = {one.container: one for one in told}
        found = msgspec.json.decode(document)
        for container in found["containers"]:
            name = f"{entry.pod}/{container['name']}"
            if name in now:
                container["by_load"] = now[name]
        return found

    def containers(self, uid: str) -> tuple[tuple[str, str], ...]:
        """Name and kind of each container of a pod that there is."""
        table = self._books.view.pods
        active = table.active.get(uid)
        if active is not None:
            return tuple((c.name, kind) for c, kind in kinds(active.workload.pod))
        return shape_of(table.ended[uid].manifest).containers

    def decided(
        self, record: PodRecord, warnings: Sequence[str], *, unchanged: bool = False
    ) -> api.DecidedPod:
        """The document of a pod that was just decided about, even if it is gone already."""
        try:
            pod: form.Pod = self.pod(record.uid)
        except UnknownPodError:
            pod = self._ended(record)
        same = True if unchanged else UNSET
        return api.DecidedPod(**asdict(pod), warnings=warnings, unchanged=same)

    def _active(self, pod: AdmittedPod, pool: str) -> form.Pod:
        spec = pod.workload.pod
        containers = [
            self._active_container(pod, container, kind, pool) for container, kind in kinds(spec)
        ]
        return replace(_pod(pod.record, spec.qos.value, containers), bubble=_bubble(pod))

    def _active_container(
        self, pod: AdmittedPod, container: Container, kind: str, pool: str
    ) -> form.Container:
        name, record = container.name, pod.record
        seen = self._books.statuses.get(pod.key(container))
        exit_code = record.exit_codes.get(name)
        pid: int | None = None
        if seen is not None:
            state, pid = seen.state.value, seen.pid
            exit_code = seen.exit_code
        elif exit_code is None or (
            not pod.is_ending and pod.workload.restarts(container, exit_code)
        ):
            state = WAITING
        else:
            state = "EXITED"
        cpus = self._books.view.state.ledger.cpus_of(pod.uid, name)
        if cpus is None and state != "EXITED":
            cpus = pod.exclusive_cpus(self._books.view.state.ledger, container)
        idle = self._books.view.state.ledger.idle_of(pod.uid, name)
        lent = self._books.view.lent_by(pod.uid, name)
        where = self._books.view.where(pod, container)
        # What an init container that is done owned has another owner by now.
        done = state == "EXITED" and kind == "init"
        shared = "" if done else pool
        return form.Container(
            name=name,
            kind=kind,
            cpus=shared if cpus is None else str(cpus),
            exclusive=cpus is not None and not where.pooled,
            isolation=_isolation(pod, where, owns=cpus is not None),
            shared=pool if cpus is not None and where.mixed else msgspec.UNSET,
            idle=msgspec.UNSET if idle is None else str(idle),
            lent=str(lent) if lent else msgspec.UNSET,
            offline="" if done else str(where.offline),
            place=where.place,
            **(NOTHING_GIVEN if done else self._given(pod.uid, name)),
            state=state,
            pid=pid,
            restarts=record.restarts.get(name, 0),
            exit_code=exit_code,
            ran_shared_seconds=ran_shared(pod.workload.pod.annotations).get(name),
            load=load_of(self._observation, pod.key(container)),
        )

    def _given(self, uid: str, container: str) -> _Given:
        """Memory and devices of a container."""
        memory, devices = self._books.view.state.memory, self._books.view.state.devices
        if memory is None and not devices.allocations.pods:
            return NOTHING_GIVEN
        blocks = () if memory is None else memory.blocks_of(uid, container) or ()
        given = devices.allocations.of_container(uid, container)
        return _Given(
            numa_nodes=sorted({node for block in blocks for node in block.numa_affinity or ()}),
            memory=[
                MemoryBlock(
                    type=block.type,
                    size=block.size,
                    numa_nodes=tuple(block.numa_affinity or ()),
                )
                for block in blocks
            ],
            devices={resource: list(ids) for resource, ids in sorted(given.items())},
        )

    def _ended(self, record: PodRecord) -> form.Pod:
        shape = self._shapes.get(record.uid)
        if shape is None:
            shape = self._shapes[record.uid] = shape_of(record.manifest)
        rejected = record.phase is PodPhase.REJECTED
        containers = [
            form.Container(
                name=name,
                kind=kind,
                cpus="",
                exclusive=False,
                place="shared",
                **NOTHING_GIVEN,
                state=WAITING if rejected else "EXITED",
                pid=None,
                restarts=record.restarts.get(name, 0),
                exit_code=record.exit_codes.get(name),
            )
            for name, kind in shape.containers
        ]
        return _pod(record, shape.qos, containers)


def _unhealthy_in_use(devices: DeviceState) -> dict[str, dict[str, int]]:
    """Resource -> NUMA node, or ``none`` -> unhealthy devices that containers have."""
    found: dict[str, dict[str, int]] = {}
    for name in sorted(devices.inventory):
        table = devices.table(name)
        if table is None:
            continue
        failed = table.mask(devices.in_use(name)) & ~table.healthy
        counts = Counter({"none": (table.unlocated & failed).bit_count()})
        for locality in table.localities if failed else ():
            for node in iter_bits(locality.nodes):
                counts[str(node)] += (locality.devices & failed).bit_count()
        if counts := +counts:
            found[name] = dict(counts)
    return found


def _pod(record: PodRecord, qos: str, containers: list[form.Container]) -> form.Pod:
    return form.Pod(
        namespace=record.namespace,
        name=record.name,
        uid=record.uid,
        qos=qos,
        phase=record.phase.value,
        reason=record.reason,
        message=record.message,
        source=record.source,
        admitted_at=record.admitted_at,
        containers=containers,
    )


def _bubble(pod: AdmittedPod) -> Bubble | msgspec.UnsetType:
    """What a pod has as a whole, if it has anything so."""
    record = pod.record
    if not (record.bubble or record.bubble_memory):
        return msgspec.UNSET
    parts = {name: cpus.mask for name, cpus in record.assignments.items()}
    pool = shared_pool(pod.workload.pod, record.bubble.mask, parts)
    return Bubble(
        cpus=str(record.bubble),
        pool=str(CPUSet.from_mask(pool)),
        memory=[
            MemoryBlock(
                type=block.type, size=block.size, numa_nodes=tuple(block.numa_affinity or ())
            )
            for block in record.bubble_memory
        ],
    )


def _isolation(
    pod: AdmittedPod, where: Whereabouts, *, owns: bool
) -> Isolation | msgspec.UnsetType:
    """From whom a container in a bubble is apart."""
    if not (pod.record.bubble or pod.record.bubble_memory):
        return msgspec.UNSET
    if not owns:
        level = IsolationLevel.HOST
    else:
        level = IsolationLevel.POD if where.pooled else IsolationLevel.CONTAINER
    return str(level.value)


def _move(view: View) -> MovePlan | None:
    return None if view.move is None else pending_move_document(view.move, view.pods.names)


def _alone(pod: form.Pod) -> api.PodDocument:
    return api.PodDocument(**asdict(pod))


def counters_document(counters: Counters) -> form.Counters:
    """Every counter by its name; those by reason or bound as objects."""
    return form.Counters(**{name: _count(value) for name, value in asdict(counters).items()})


def _count(value: Any) -> Any:  # noqa: ANN401 - a number, or numbers by something
    if isinstance(value, Durations):
        return form.Times(count=value.count, seconds=value.seconds)
    if isinstance(value, Mapping):
        return {str(key): _count(count) for key, count in value.items()}
    return value


def history_document(entries: Iterable[HistoryEntry]) -> api.History:
    """The document of ``GET /v1/history``."""
    return api.History(
        entries=[
            api.HistoryEntry(
                number=entry.number,
                at=entry.at,
                kind=entry.kind,
                pod_uid=entry.pod_uid,
                pod=entry.pod,
                # As it is on record: what is encoded here is not taken apart before.
                document=cast("Mapping[str, Any] | None", embedded(entry.document)),
            )
            for entry in entries
        ]
    )


def embedded(text: str) -> msgspec.Raw | None:
    """JSON as it is, without taking it apart; None when it is none."""
    try:
        return msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def drifts_document(drifts: Iterable[Drift]) -> api.Drifts:
    """The document of ``POST /v1/reconcile``; pod and container are null for the shared pool."""
    return api.Drifts(
        drifts=[
            api.Drift(
                pod_uid=None if drift.key is None else drift.key.pod_uid,
                container=None if drift.key is None else drift.key.name,
                expected=drift.expected,
                found=drift.found,
                repaired=drift.repaired,
                problem=drift.problem,
            )
            for drift in drifts
        ]
    )

"""What is told to others about CPUs: the mirrored state file, and the applications' files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, nullcontext
from typing import Final

import msgspec

from pinfold.admission.admission import NodeState
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.manifest.assigned_fields import ASSIGNED_CPUSET, Values
from pinfold.core.pod.pod import Container
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.api import ContainerFacts, PodFacts
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.tellings import Tellings, assigned_now
from pinfold.node.view import Reader, View, Whereabouts
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.podfiles import PodFiles
from pinfold.ports.records import PendingMove, PodRecord
from pinfold.ports.tellers import TellingError
from pinfold.ports.volumes import Volumes

_PAUSE: Final = 0.01


class Announcements:
    """Tells others; a failure is reported, tried again the next time, and stops nothing.

    Args:
        files: what applications read about their CPUs.
        mirror: writes who has what in the kubelet's layouts; raises PortError.
        report: takes a problem for the operator (pod as ``namespace/name`` or None).
        tellings: tells containers with exclusive CPUs; None: nobody does.
        volumes: has the pods' volumes that follow what holds; None: there are none.
    """

    def __init__(
        self,
        files: PodFiles,
        mirror: Callable[[NodeState, Sequence[PodRecord]], None],
        report: Callable[[str | None, str], None],
        tellings: Tellings | None = None,
        volumes: Volumes | None = None,
    ) -> None:
        self.tellings = tellings
        self._volumes = volumes
        self._files = files
        self._write_mirror = mirror
        self._report = report
        self._mirrored: NodeState | None = None
        self._telling: asyncio.Task[None] | None = None
        self._tell_again = False
        self._told: dict[str, tuple[tuple[Whereabouts, CPUSet, object], ...]] = {}

    async def announce(self, books: Reader) -> None:
        """Tell the mirror and the applications what holds now, also what was removed meanwhile."""
        self.mirror(books.view)
        await self.publish(books.view.pods.active, books, anew=True)

    def soon(self, books: Reader, spawn: Callable[..., asyncio.Task[None]]) -> None:
        """Mirror what holds now; applications are told beside, at the latest state there is then.

        There is a file for each pod, and whoever waits for CPUs does not wait for these.
        """
        self.mirror(books.view)
        if self._telling is None or self._telling.done():
            self._telling = spawn(self._tell_applications(books), name="announce")
        else:
            self._tell_again = True

    async def _tell_applications(self, books: Reader) -> None:
        while True:
            self._tell_again = False
            await self.publish(books.view.pods.active, books, yields=True)
            if not self._tell_again:
                return

    def mirror(self, view: View) -> None:
        """Write the kubelet's state files, if somebody has something else now."""
        known, state = self._mirrored, view.state
        if known is not None and (state.ledger, state.memory, state.devices) == (
            known.ledger,
            known.memory,
            known.devices,
        ):
            return
        try:
            self._write_mirror(state, [pod.record for pod in view.pods.active.values()])
        except PortError as error:
            self._report(None, f"a mirrored state file was not written: {error}")
        else:
            self._mirrored = state

    async def publish(
        self, uids: Iterable[str], books: Reader, *, yields: bool = False, anew: bool = False
    ) -> None:
        """Tell applications of active pods their CPUs; files whose content stays are not touched.

        Where it ``yields``, files are written slowly while somebody waits for CPUs; ``anew`` it
        looks at those as well who were told all that holds.
        """
        for uid in list(uids):
            # Hundreds of files must not hold up those who wait for an answer.
            await asyncio.sleep(_PAUSE if yields and books.is_changing else 0)
            view = books.view.confirmed
            if (pod := view.pods.active.get(uid)) is None:
                continue
            containers = pod.workload.pod.all_containers
            pool, places = view.pool, [view.where(pod, container) for container in containers]
            told = tuple(
                (place, place.within(pool), _stage(view, pod, container))
                for place, container in zip(places, containers, strict=True)
            )
            if not anew and self._told.get(pod.uid) == told:
                continue
            try:
                await self._files.publish(pod.uid, _document(pod, places, pool))
                if self.tellings is not None:
                    for container in containers:
                        await self.tellings.tell(view, pod, container)
                self._project(view, pod)
            except PortError as error:
                self._report(pod.name, str(error))
            else:
                self._told[pod.uid] = told

    async def tell(self, view: View, pod: AdmittedPod, container: Container) -> str | None:
        """Tell a container what holds for it; the folder on the machine in which it is told.

        None where it is not told anything: it owns no CPUs, or could not be, which is reported.
        """
        if self.tellings is None:
            return None
        try:
            return await self.tellings.tell(view.confirmed, pod, container)
        except TellingError as error:
            self._report(pod.name, f"container {container.name} was not told its CPUs: {error}")
            return None

    @asynccontextmanager
    async def ahead(self, view: View, keys: Collection[ContainerKey]) -> AsyncIterator[None]:
        """Tell containers what is about to be so; meanwhile nobody tells them anything else."""
        containers = view.pods.containers()
        for key in keys:
            if key in containers:
                pod, container = containers[key]
                await self.tell(view, pod, container)
                try:
                    self._project(view, pod)
                except PortError as error:
                    self._report(pod.name, str(error))
        with nullcontext() if self.tellings is None else self.tellings.ahead(keys):
            yield

    def values(self, view: View, pod: AdmittedPod) -> Values:
        """What is assigned to the containers of a pod, as they were told it."""

        def value(resource: str, name: str) -> str:
            key = ContainerKey(pod.uid, name)
            told = None if self.tellings is None else self.tellings.last(key)
            one = pod.container(name)
            coming = assigned_now(view.confirmed, pod, one) if told is None else told.coming
            return str(coming.cpus if resource == ASSIGNED_CPUSET else coming.mems)

        return value

    def _project(self, view: View, pod: AdmittedPod) -> None:
        """Bring a pod's volumes to what holds, files and NUMA nodes; raises VolumeError."""
        if self._volumes is None:
            return
        processes = pod.workload.processes.values()
        found = {
            mount.volume: mount.downward
            for process in processes
            for mount in process.volume_mounts
            if mount.downward is not None
        }
        values = self.values(view, pod)
        for name, source in found.items():
            self._volumes.project(pod.uid, name, source, values)
        for name, nodes in view.volume_nodes(pod).items():
            self._volumes.bind(pod.uid, name, nodes)

    def moved(self, move: PendingMove) -> None:
        """A plan is about to be over; see :meth:`pinfold.node.tellings.Tellings.moved`."""
        if self.tellings is not None:
            self.tellings.moved(move)

    async def acknowledged(self, key: ContainerKey, coming: CPUSet) -> None:
        """Return once a container has acknowledged what is coming; never, where it is not told.

        Raises:
            TellingError: it cannot be heard.
        """
        if self.tellings is None:
            await asyncio.Event().wait()
        else:
            await self.tellings.acknowledged(key, coming)

    async def retain(self, pods: Mapping[str, AdmittedPod]) -> None:
        """Remove what the containers of other pods were told, which ended in our absence."""
        for problem in () if self.tellings is None else await self.tellings.retain(pods):
            self._report(None, problem)

    async def retract(self, uid: str, name: str) -> None:
        """Remove the file of a pod that is active no more, and what its containers were told."""
        if self.tellings is not None:
            try:
                await self.tellings.forget(uid)
            except TellingError as error:
                self._report(name, str(error))
        try:
            await self._files.retract(uid)
        except PortError as error:
            self._report(name, str(error))
        # Now: another pod of that uid may have been told meanwhile.
        self._told.pop(uid, None)


def _stage(view: View, pod: AdmittedPod, container: Container) -> object:
    """How far a container is in the plan of moves that is in flight."""
    move, owner = view.move, Owner(pod.uid, container.name)
    if move is None or owner not in move.plan.start.placed:
        return None
    return move.made, move.deadlines.get(owner), move.plan.back


def _document(pod: AdmittedPod, places: Sequence[Whereabouts], pool: CPUSet) -> str:
    facts = PodFacts(
        pod=pod.name,
        uid=pod.uid,
        containers={
            container.name: ContainerFacts(
                cpus=str(pool if place.cpus is None else place.cpus - place.offline),
                exclusive=place.is_exclusive,
                offline=str(place.offline),
                shared=str(pool) if place.mixed else "",
            )
            for container, place in zip(pod.workload.pod.all_containers, places, strict=True)
        },
    )
    return json.dumps(msgspec.to_builtins(facts))

"""Partitions of the kernel's, as the configuration and the pods wish for them: are they in force?

Whoever places a container wishes for its partition; the kernel may grant it or not, and may take it
back later, such as when its CPUs go offline.  Here it is read back, told, and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.history import SchedulingDomain
from pinfold.node.books import Books
from pinfold.node.view import View
from pinfold.ports.cgroups import Partition
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.runtime import ContainerState
from pinfold.retry.backoff import Backoff

FIRST_PAUSE: Final = 10.0
LONGEST_PAUSE: Final = 600.0
"""Seconds between two tries to make a partition that the kernel has not granted."""


class Domain(Struct, frozen=True):
    """A container's partition: what is wished, what the kernel says, and what is in the way.

    ``found`` is empty where the kernel's cgroups have no partitions.
    """

    pod: str
    cpus: CPUSet
    wished: str
    found: str
    problem: str

    @property
    def in_force(self) -> bool:
        """Whether it is as it is wished."""
        return self.found == self.wished


def wishes_of(view: View) -> Iterator[tuple[ContainerKey, str, CPUSet, Partition]]:
    """The containers that are to be partitions: key, pod, CPUs, and which."""
    for key, (pod, container) in view.pods.containers().items():
        where = view.where(pod, container)
        if (cpus := where.cpus) is not None and where.is_exclusive:
            wished = view.settings.partition_of(pod.workload.pod.annotations, container.name)
            if wished is not Partition.MEMBER:
                yield key, pod.name, cpus, wished


class DomainFollower:
    """Reads partitions back after each change and each period, and tries again.

    Args:
        books: who owns which CPUs, and the history.
        period: seconds between two looks.
    """

    def __init__(self, books: Books, period: float) -> None:
        self._books = books
        self._period = period
        self._tries: dict[ContainerKey, Backoff] = {}
        self.domains: Mapping[ContainerKey, Domain] = {}

    async def follow(self) -> None:
        """Look once; raises PortError."""
        if not any(wishes_of(self._books.view)):
            self.domains = {}
            self._tries.clear()
            return
        async with self._books.change() as draft:
            found = await self._look()
            now = asyncio.get_running_loop().time()
            for key, domain in found.items():
                if not domain.in_force and domain.found and self._tries[key].due <= now:
                    found[key] = await self._try(key, domain)
            before, self.domains = self.domains, found
            entries = [
                draft.entry(
                    "domain",
                    (key.pod_uid, domain.pod),
                    SchedulingDomain(
                        container=key.name,
                        cpus=str(domain.cpus),
                        wished=domain.wished,
                        found=domain.found,
                        problem=domain.problem,
                    ),
                )
                for key, domain in found.items()
                if before.get(key) != domain
            ]
            await draft.tell(*entries)
        for key, domain in found.items():
            if domain.problem and before.get(key) != domain:
                text = f"container {key.name}: partition {domain.wished} is not in force"
                self._books.observers.report(domain.pod, f"{text}: {domain.problem}")

    async def _look(self) -> dict[ContainerKey, Domain]:
        books = self._books
        seen = (await books.containers.cgroups.observe()).containers
        found = {}
        for key, pod, cpus, wished in wishes_of(books.view):
            status = books.statuses.get(key)
            if status is None or status.state is not ContainerState.RUNNING:
                continue
            if key in books.containers.seen.busy or key not in seen:
                continue  # it is being started or ended
            says, tries = seen[key].partition, self._tries.setdefault(key, _tries())
            if says == wished.value:
                tries.well()
                problem = ""
            elif says is None:
                problem = "partitions need cgroup v2, or rootLoadBalance: false on v1"
            else:
                problem = tries.problem or f"the kernel says {says!r}"
            found[key] = Domain(pod, cpus, wished.value, says or "", problem)
        for gone in self._tries.keys() - found.keys():
            del self._tries[gone]
        return found

    async def _try(self, key: ContainerKey, domain: Domain) -> Domain:
        """Place it once more, which makes its partition anew."""
        books, tries = self._books, self._tries[key]
        try:
            note = await books.containers.cgroups.place(key, books.placement(key))
            seen = (await books.containers.cgroups.observe()).containers.get(key)
        except PortError as error:
            note, seen = str(error), None
        says = domain.found if seen is None else seen.partition or ""
        if says == domain.wished:
            tries.well()
            return Domain(domain.pod, domain.cpus, domain.wished, says, "")
        tries.failed(note or domain.problem)
        return Domain(domain.pod, domain.cpus, domain.wished, says, tries.problem)

    async def go_on(self) -> None:
        """Follow, for ever; raises PortError."""
        while True:
            view = self._books.view
            await self.follow()
            await self._books.until_news(view, self._period)


def _tries() -> Backoff:
    return Backoff(FIRST_PAUSE, LONGEST_PAUSE)

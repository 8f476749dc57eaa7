"""What a runtime has on record for its containers' cpusets, and how that follows the kernel.

A cpuset that is only written into the kernel is lost when the runtime writes what it has on record,
at the next change of the container's resources by anybody.  So the record follows; a runtime takes
some 10 ms for each container.  It is told what holds at that moment; when that has changed while
the runtime wrote, the kernel is made right at once, and the record again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.node.runtime_writes import RuntimeWrites
from pinfold.ports.cgroups import Cgroups, Placement
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.nri import ContainerUpdate, Resources, RuntimeRecord

NO_CAP: Final = -1
"""A CPU quota that is none."""

ANSWERED: Final = 8
"""How many containers an answer to the runtime speaks of: 10 ms each before it goes on."""

SETTLED: Final = 3.0
"""Seconds after an answer before the runtime is told anything unasked.

It carries an answer out under the lock that its next events wait for, and an update that it is told
meanwhile takes a second lock that those events need: containerd 1.7 then stands still for good.
"""

PATIENCE: Final = 1.0
"""Seconds before a runtime that did not answer is asked again."""


def is_uncapped(placement: Placement | None) -> bool:
    """Whether who is placed so needs no CPU quota: nobody else runs on its CPUs."""
    return placement is not None and placement.cpus is not None and not placement.pooled


class _Entry(Struct, frozen=True):
    """A container's id, where it is placed, and what is on record for it.

    Before it is placed (``placement`` None), and where that says no NUMA nodes, whatever is on
    record holds.  ``capped`` is whether a CPU quota is on record.
    """

    container_id: str
    placement: Placement | None
    recorded: CPUSet | None
    recorded_mems: CPUSet | None = None
    capped: bool = False

    @property
    def owns(self) -> bool:
        return is_uncapped(self.placement)

    @property
    def shares(self) -> bool:
        return self.placement is None or self.placement.shares

    @property
    def mems(self) -> CPUSet | None:
        return None if self.placement is None else self.placement.mems


class RecordedCpusets:
    """The containers' CPUs as a runtime has them on record.

    Args:
        cgroups: makes the kernel right after the runtime has written.
        report: takes a problem for the operator (pod as ``namespace/name`` or None).
        batch: how many containers the runtime is told of in one call.
        gate: entered while the runtime writes, where the pool can wait for that; see
            :meth:`pinfold.ports.cgroups.GatedCgroups.starting`.
        settled: seconds without an answer before the runtime is told anything unasked.
        uncaps: whether owners of CPUs have no CPU quota.
    """

    def __init__(  # noqa: PLR0913 - the port, and how it is used
        self,
        cgroups: Cgroups,
        report: Callable[[str | None, str], None],
        *,
        batch: int,
        gate: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        settled: float = SETTLED,
        uncaps: bool = True,
    ) -> None:
        self._cgroups = cgroups
        self.uncaps = uncaps
        self._gate = gate
        self._batch = batch
        self._report = report
        self._entries: dict[ContainerKey, _Entry] = {}
        self._pool = CPUSet()
        self._changed = asyncio.Event()
        self._settled = settled
        self._answered: float | None = None
        self.writes = RuntimeWrites()

    def still(self, keys: Collection[ContainerKey] | None) -> AbstractAsyncContextManager[None]:
        """Entered when the runtime writes no older cpuset of these any more.

        ``keys`` None: of those who share the pool.
        """

        def concerns(key: ContainerKey) -> bool:
            if keys is not None:
                return key in keys
            entry = self._entries.get(key)
            return entry is None or entry.shares

        return self.writes.still(concerns)

    def put(  # noqa: PLR0913 - what holds and what is on record, of CPUs and of memory
        self,
        key: ContainerKey,
        container_id: str,
        placement: Placement | None,
        recorded: str,
        *,
        recorded_mems: str = "",
        capped: bool = False,
    ) -> None:
        """Take note of a container, and of the lists that the runtime has for it.

        One that has yet to be placed (``placement`` None) is not told of: the runtime would write
        it into the kernel, where somebody may have to leave first.

        NUMA nodes that the placement does not say are not told; ``capped`` tells of a CPU quota on
        record, which an owner of CPUs is not to have.
        """
        cpus, nodes = _read(recorded), _read(recorded_mems)
        self._entries[key] = _Entry(container_id, placement, cpus, nodes, capped)
        self._changed.set()

    def move(self, key: ContainerKey, placement: Placement) -> None:
        """A container runs elsewhere now; what is on record follows."""
        if (entry := self._entries.get(key)) is not None:
            self._entries[key] = replace(entry, placement=placement)
            self._changed.set()

    def forget(self, key: ContainerKey) -> None:
        """A container has ended."""
        self._entries.pop(key, None)
        self.writes.over(key)

    def follow(self, pool: CPUSet) -> None:
        """The shared pool has changed."""
        if pool != self._pool:
            self._pool = pool
            self._changed.set()

    @property
    def behind(self) -> int:
        """The containers for which something else is on record than what holds."""
        return sum(self._is_stale(entry) for entry in self._entries.values())

    def _uncaps(self, entry: _Entry) -> bool:
        return self.uncaps and entry.owns

    def _is_stale(self, entry: _Entry) -> bool:
        wanted = self._wanted(entry)
        if self._uncaps(entry) and entry.capped:
            return True
        if entry.mems is not None and entry.recorded_mems != entry.mems:
            return True
        return bool(wanted) and entry.recorded != wanted

    def _wanted(self, entry: _Entry) -> CPUSet:
        return CPUSet() if entry.placement is None else entry.placement.within(self._pool)

    def answer(self) -> tuple[ContainerUpdate, ...]:
        """What an answer to the runtime tells it of the others, a few of them at a time.

        It carries them out before it goes on, so they are taken for recorded.
        """
        self.answer_nothing()
        told = [] if self.writes.held else self._stale()[:ANSWERED]
        self.writes.told_besides(told)
        updates = tuple(self._update(self._entries[key]) for key in told)
        for key in told:
            entry = self._entries[key]
            self._entries[key] = replace(
                entry,
                recorded=self._wanted(entry),
                recorded_mems=entry.mems,
                capped=entry.capped and not self._uncaps(entry),
            )
        return updates

    def answer_nothing(self) -> None:
        """Take note of an answer that tells nothing of the others: somebody waits for a start."""
        self._answered = asyncio.get_running_loop().time()

    async def run(self, record: RuntimeRecord) -> None:
        """Let the record follow, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._stale():
                if (left := self._unsettled()) > 0:
                    await asyncio.sleep(left)
                    continue
                try:
                    await self._tell(record)
                except PortError as error:
                    self._report(None, f"the runtime's record of CPUs is behind: {error}")
                    await asyncio.sleep(PATIENCE)

    def _unsettled(self) -> float:
        """How long the runtime may still be at work on an answer."""
        if self._answered is None:
            return 0.0
        return self._answered + self._settled - asyncio.get_running_loop().time()

    def _stale(self) -> list[ContainerKey]:
        return [key for key, entry in self._entries.items() if self._is_stale(entry)]

    def _update(self, entry: _Entry) -> ContainerUpdate:
        told = Resources(
            cpus=str(self._wanted(entry)),
            mems=str(entry.mems or ""),
            cpu_quota=NO_CAP if self._uncaps(entry) and entry.capped else None,
        )
        return ContainerUpdate(entry.container_id, told, ignore_failure=True)

    async def _tell(self, record: RuntimeRecord) -> None:
        async with self.writes.telling(), self._gate():
            told = {key: self._entries[key] for key in self._stale()[: self._batch]}
            updates = [self._update(entry) for entry in told.values()]
            wanted = {key: (self._wanted(entry), entry.mems) for key, entry in told.items()}
            try:
                await record.update(updates)
            except PortError:
                # It may still be at it.
                self.writes.begun(*told)
                raise
            finally:
                # Also after a failure: the runtime may have written before it failed.
                for key, entry in told.items():
                    now = self._entries.get(key)
                    if now is None or now.placement is None:
                        continue
                    if now.container_id == entry.container_id:
                        await self._cgroups.place(key, now.placement)
            for key, entry in told.items():
                now = self._entries.get(key)
                if now is not None and now.container_id == entry.container_id:
                    # An answer that was given meanwhile was carried out before this.
                    cpus, mems = wanted[key]
                    capped = now.capped and not self._uncaps(entry)
                    self._entries[key] = replace(
                        now, recorded=cpus, recorded_mems=mems, capped=capped
                    )


def _read(recorded: str) -> CPUSet | None:
    try:
        return CPUSet.parse(recorded)
    except CPUSetError:
        return None

"""The cpusets of containers that somebody else makes: moved at once where a gate is above them.

Writing a gate moves everybody below it, however many they are, and holds when a runtime writes an
old set into a container's own cpuset.  It holds every owner and sharer below it: it is the union of
their sets.  Where that is wider than the shared pool, its sharers are written one by one before it
is; and when it is put back, each of them has the pool in its own cpuset before.  A mixed container
is both: a sharer that has its own CPUs besides the pool.

Whoever has no gate (cgroup v1, another tree, one that cannot be had) is written by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.adapters.cgroup.files import CgroupGoneError
from pinfold.adapters.cgroup.runtime.found_cpusets import FoundCpusets
from pinfold.adapters.cgroup.runtime.gate_record import GateRecord
from pinfold.adapters.cgroup.runtime.gates import Gates, RefusedGateError
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey, PortError

_NONE: Final = CPUSet()
_AT_ONCE: Final = 16
"""Containers that are written before others get their turn."""


class Known(Struct):
    """A container that was placed; ``folder`` is None until its cgroup was found."""

    key: ContainerKey
    placement: Placement
    folder: Path | None = None
    gate: Path | None = None

    def within(self, pool: CPUSet) -> CPUSet:
        """All CPUs that it is to run on; none while the pool has none, and it has none besides."""
        return self.placement.within(pool)


class _Below(Struct):
    """Who is below a gate: those who share, and the CPUs of all who own some."""

    sharers: list[Known] = []
    owned: CPUSet = _NONE


class ContainerCpusets:
    """Keeps containers on the shared pool, or on their own CPUs.

    A kill between any two of its writes leaves no CPU with two owners.  For the arguments see
    :class:`~.gates.Gates`.
    """

    def __init__(
        self,
        cpusets: FoundCpusets,
        record: GateRecord | None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cpusets = cpusets
        self.gates = Gates(cpusets, record, report)
        self.known: dict[ContainerKey, Known] = {}
        self.pool = CPUSet()
        self._applied: CPUSet | None = None
        self._unlooked = False
        """Whether somebody's threads were not looked at since they had to leave CPUs."""
        self._lock = asyncio.Lock()

    def open(self, pool: CPUSet) -> None:
        """Begin with this shared pool, and with the gates of before; raises PortError."""
        self.pool = pool
        self.gates.open()

    def place(self, key: ContainerKey, placement: Placement) -> Known:
        """Take note of where a container belongs; :meth:`pin` brings it there."""
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = Known(key, placement)
        known.placement = placement
        return known

    def locate(self, known: Known, folder: Path) -> None:
        """Take note of a container's cgroup; :meth:`pin` brings it to its CPUs."""
        if known.folder != folder:
            known.folder = folder
            known.gate = self.gates.above(folder)

    # --------------------------------------------------------------------------------- changes

    async def set_shared(self, cpus: CPUSet) -> None:
        """Bring everybody who shares to these CPUs; raises CgroupError."""
        async with self._lock:
            before, self.pool, self._applied = self._applied, cpus, None
            unlooked, self._unlooked = self._unlooked, True
            below = self._below()
            sharers = [one for one in self.known.values() if one.placement.shares]
            left: list[Known] = []
            alone = [one for one in sharers if one.gate not in below]
            leaving = before is not None and bool(before - cpus)
            cut: list[Known] | None = [] if leaving else None
            failed = await self._write(alone, left, cut=cut)
            for gate, who in below.items():
                try:
                    await self._hold(gate, who)
                except CgroupError as error:
                    failed = failed or error
            behind = [one for one in sharers if one.gate in self.gates.written]
            if before is None or cpus - before:
                # Their own cpusets may be as narrow as the pool has been.
                failed = await self._write(behind, left, only_behind=True) or failed
            if unlooked and not leaving:
                left = sharers
            # A runtime waits for those who leave: the threads behind a gate are looked at when it
            # is said again, before an owner's first instruction.
            later = leaving and (unlooked or bool(behind))
            await self._confirm(left)
            await self._confirm(cut or [], below=False)
            if failed is not None:
                raise failed
            self._applied, self._unlooked = cpus, later

    async def pin(self, known: Known) -> tuple[CPUSet, CPUSet] | None:
        """Bring one container to its CPUs; raises CgroupError where they are not in force.

        Gives the CPUs that it had to leave, and those in force; None while its cgroup is not known.
        """
        async with self._lock:
            own, folder = known.placement.cpus, known.folder
            if folder is None and own is not None:
                with suppress(CgroupError):  # it is tried again, and said, before it starts
                    await self._make_room(known.key.pod_uid)
            if folder is None or not known.within(self.pool):
                return None
            if own is None or known.placement.mixed:
                return await self._pin_sharer(known, folder)
            return await self._pin_owner(known, folder, own)

    async def confirm(self, known: Known) -> None:
        """See that no thread of a container may run elsewhere; raises CgroupError."""
        async with self._lock:
            await self._confirm([known])

    async def _pin_sharer(self, known: Known, folder: Path) -> tuple[CPUSet, CPUSet]:
        gate, mems, wanted = known.gate, known.placement.mems, known.within(self.pool)
        if gate is not None and (who := self._below().get(gate)) is not None:
            await self._hold(gate, who)
            if gate in self.gates.written and mems is None and self._has(folder, wanted):
                return _NONE, wanted
        return self._cpusets.set(folder, wanted, mems)

    async def _pin_owner(self, known: Known, folder: Path, own: CPUSet) -> tuple[CPUSet, CPUSet]:
        gate, mems = known.gate, known.placement.mems
        if gate is None or gate not in self.gates.before:
            return self._cpusets.set(folder, own, mems)
        who = self._below().get(gate) or _Below(owned=own)
        # On its way it keeps something that the gate has: with nothing, it might use all of it.
        also = _NONE
        with suppress(CgroupGoneError):
            also = self._cpusets.configured(gate) | self._cpusets.effective(folder)
        await self._hold(gate, who, also=also)
        result = self._cpusets.set(folder, own, mems)
        if who.sharers:
            await self._hold(gate, who)
        elif gate not in self.gates.inherited:
            self.gates.try_to_let_go(gate)
        return result

    async def _make_room(self, pod_uid: str) -> None:
        """Let the gate above an owner that is about to be created have its CPUs.

        With nothing that the gate has, it would be created on all of it.
        """
        below = self._below()
        for known in self.known.values():
            if known.key.pod_uid == pod_uid and known.gate in below:
                await self._hold(known.gate, below[known.gate])
                return

    async def forget(self, key: ContainerKey) -> None:
        """A container is looked after no more; one that runs stays where it is."""
        async with self._lock:
            known = self.known.pop(key, None)
            if known is None or (gate := known.gate) is None or gate not in self.gates.written:
                return
            with suppress(CgroupError):  # its gate holds all the same
                self._stand_alone(known)
            if gate not in self._below() and gate not in self.gates.inherited:
                self.gates.try_to_let_go(gate)

    async def settle(self) -> None:
        """Whatever exists was found: gates of before with nobody who shares below are let go."""
        async with self._lock:
            self.gates.inherited.clear()
            self.gates.refused.clear()
            for gate in self.gates.before.keys() - self._below().keys():
                self.gates.try_to_let_go(gate)

    async def close(self, *, everything: bool) -> None:
        """Put back what the gates had; each container keeps its CPUs by its own cpuset.

        With ``everything``, also the gates of before whose containers were never shown.

        Raises:
            PortError: a gate stays as it is, as somebody below cannot do without it.
        """
        async with self._lock:
            failed: PortError | None = None
            below = self._below()
            for gate in list(self.gates.before):
                if gate in self.gates.inherited and not everything:
                    continue
                sharers = below[gate].sharers if gate in below else []
                try:
                    await self._confirm([one for one in sharers if self._stand_alone(one)])
                    self.gates.let_go(gate)
                except PortError as error:
                    failed = failed or error
            if failed is not None:
                raise failed

    # ------------------------------------------------------------------------------------ gates

    def _below(self) -> dict[Path, _Below]:
        """The gates that are needed: somebody below them shares."""
        found: dict[Path, _Below] = {}
        owners: list[tuple[Known, CPUSet]] = []
        pods: dict[str, Path] = {}
        for known in self.known.values():
            if (own := known.placement.cpus) is not None:
                owners.append((known, own))
            if not known.placement.shares:
                continue
            if (gate := known.gate) is not None and gate not in self.gates.refused:
                if gate not in found:
                    found[gate] = _Below()
                found[gate].sharers.append(known)
                pods[known.key.pod_uid] = gate
        for owner, own in owners:
            # One that is being created has no cgroup yet: its pod has.
            above = owner.gate or pods.get(owner.key.pod_uid)
            if above in found:
                found[above].owned |= own
        return found

    async def _hold(self, gate: Path, who: _Below, *, also: CPUSet = _NONE) -> None:
        """Give a gate the CPUs of all below it, and these; who shares leaves the owners' before.

        Raises:
            CgroupError: somebody who shares may run elsewhere than on the shared pool.
        """
        try:
            if (who.owned | also) - self.pool:
                if gate in self.gates.before and (now := self._cpusets.configured(gate)):
                    # With nothing that the gate has, they might use all of it.
                    self.gates.write(gate, now | self.pool, who.owned)
                await self._move(who.sharers)
            self.gates.write(gate, self.pool | who.owned | also, who.owned)
        except CgroupGoneError:
            # So is everybody who was below.
            self.gates.try_to_let_go(gate)
        except RefusedGateError:
            left: list[Known] = []
            if (failed := await self._write(who.sharers, left)) is not None:
                # Whoever could not be written has nothing but what is left of the gate.
                raise failed from None
            self.gates.refused.add(gate)
            self.gates.try_to_let_go(gate)
            await self._confirm(left)
            await self._move(who.sharers)

    # --------------------------------------------------------------------------- one by one

    async def _move(self, sharers: Iterable[Known]) -> None:
        """Write the cpuset of each, and see that nobody runs elsewhere; raises CgroupError."""
        left: list[Known] = []
        failed = await self._write(sharers, left)
        await self._confirm(left)
        if failed is not None:
            raise failed

    async def _confirm(self, several: Iterable[Known], *, below: bool = True) -> None:
        """See that no thread of these may run elsewhere; raises CgroupError."""
        together: dict[CPUSet, list[Path]] = {}
        for known in several:
            if known.folder is not None:
                together.setdefault(known.within(self.pool), []).append(known.folder)
        for cpus, folders in together.items():
            await self._cpusets.confirm(folders, cpus, below=below)

    async def _write(
        self,
        sharers: Iterable[Known],
        left: list[Known],
        *,
        cut: list[Known] | None = None,
        only_behind: bool = False,
    ) -> CgroupError | None:
        """Write the cpuset of each; what the first that was refused was refused with.

        Args:
            sharers: whom to write.
            left: gets those who had to leave CPUs.
            cut: not None where all have to leave some; gets those for whom that was one write.
            only_behind: those who have all that they are to have are left alone.
        """
        failed: CgroupError | None = None
        for number, known in enumerate(sharers, 1):
            if (folder := known.folder) is None:
                continue
            try:
                mems, wanted = known.placement.mems, known.within(self.pool)
                if only_behind and self._has(folder, wanted):
                    continue
                if cut is not None and mems is None and self._cpusets.cut(folder, wanted):
                    cut.append(known)
                elif self._cpusets.set(folder, wanted, mems)[0]:
                    left.append(known)
            except CgroupError as error:
                failed = failed or error
            if not number % _AT_ONCE:
                # Hundreds of them must not hold up those who wait for something else.
                await asyncio.sleep(0)
        return failed

    def _has(self, folder: Path, wanted: CPUSet) -> bool:
        """Whether a container runs on these, and would on no less if its gate were wider."""
        try:
            own = self._cpusets.configured(folder)
            return (not own or wanted <= own) and self._cpusets.effective(folder) == wanted
        except CgroupGoneError:
            return True

    def _stand_alone(self, known: Known) -> bool:
        """Let a container keep the pool without its gate; whether it had to leave CPUs.

        Raises:
            CgroupError: it cannot.
        """
        folder = known.folder
        if folder is None or not known.placement.shares or not self.pool:
            return False
        wanted = known.within(self.pool)
        return bool(self._cpusets.set(folder, wanted, known.placement.mems)[0])

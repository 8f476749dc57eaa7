"""The cgroups of containers that a container runtime has made, wherever it made them.

Each container has a cpuset of its own there, exclusive or a copy of the shared pool.  It is written
straight into the kernel (a runtime starts a process for each), or held by a gate above it
(:mod:`pinfold.adapters.cgroup.runtime.gates`), and confirmed; the runtime's record of it is its own
affair (:class:`RuntimeRecord`'s user brings the two together).  Folders are the runtime's: they are
never made, and never removed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from pinfold.adapters.cgroup import migrating
from pinfold.adapters.cgroup.folders import members, remove_if_empty
from pinfold.adapters.cgroup.hierarchy import Hierarchies, find_hierarchies, mounted
from pinfold.adapters.cgroup.moving import end_all
from pinfold.adapters.cgroup.runtime.container_cpusets import ContainerCpusets, Known
from pinfold.adapters.cgroup.runtime.found_cpusets import FoundCpusets, cgroup_of, not_frozen
from pinfold.adapters.cgroup.runtime.gate_record import GateFile
from pinfold.adapters.cgroup.runtime.protection import PodProtection
from pinfold.adapters.cgroup.tasks import cgroups_of
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MemoryMoved
from pinfold.documents.status import CgroupTree, Gates
from pinfold.linux.cgroup_mounts import CPUSET, CgroupMount, every_cgroup_mount
from pinfold.linux.inotify import Inotify
from pinfold.linux.processes import age, began, lives, parse_cgroups
from pinfold.ports.cgroups import NoIdleSide, ObservedCgroups, ObservedContainer, Placement
from pinfold.ports.errors import CgroupError, ContainerKey, ProcessGoneError
from pinfold.ports.figures import Figure

PATIENCE: Final = 10.0
"""Seconds that a change of the shared pool waits for containers that are being started."""
_PARTS: Final = 10

MADE_BY_OTHERS: Final = (
    "a container runtime makes the cgroups of the containers and writes their weights, which the "
    "kernel refuses while a cgroup is idle (cpu.idle)"
)


def gate_figures(gates: Gates) -> Iterator[Figure]:
    """What the metrics tell of :meth:`RuntimeCgroups.gates`."""
    yield Figure(
        "pinfold_gates",
        "Cpusets above a kubelet's containers that hold those below them.",
        len(gates.held),
        kind="gauge",
    )
    yield Figure(
        "pinfold_gates_rewritten",
        "Times that one was written again, because somebody else had written it.",
        gates.rewritten,
    )


class RuntimeCgroups(NoIdleSide):
    """The :class:`pinfold.ports.cgroups.Cgroups` of containers that somebody else makes.

    Limits are left to the runtime, which got them with the container; only CPUs and memory nodes
    are written, and of pods that the runtime was told where to make how memory is protected.

    Args:
        parent: OCI's ``cgroupsPath`` of the cgroup in which the runtime was told to make those of a
            pod, by the pod's uid; the one above, of all pods, is removed in the end; None: they are
            somebody else's.
        gates: where it is written down what a kubelet's cpusets above those of containers had
            before they were used; None: they are not used.
        report: is told of one of these that cannot be put back.
        found: what is mounted; None: looked for.
        proc: where proc is mounted, as the host's processes are seen there.

    Raises:
        CgroupError: no cgroup hierarchy has the cpuset controller.
    """

    no_idle_side = MADE_BY_OTHERS

    def __init__(
        self,
        *,
        parent: Callable[[str], str] | None = None,
        gates: Path | None = None,
        report: Callable[[str], None] = lambda _: None,
        found: Hierarchies | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        found = found or find_hierarchies()
        self._root = "" if parent is None else parent("").rpartition("/")[0]
        self._version = found.version
        mount = found.unified if self._version == 2 else found.v1[CPUSET]
        assert mount is not None  # noqa: S101 - the version was taken from it
        self._mount: CgroupMount = mount
        self._mounts = found.v1
        self._protection = None if parent is None else PodProtection(found.version, mount, parent)
        self._cpusets = FoundCpusets(self._version, mount.point, found.v1)
        record = None if gates is None else GateFile(gates, mount)
        self._all = ContainerCpusets(self._cpusets, record, report)
        self._ids: dict[ContainerKey, str] = {}
        self._proc = proc
        self._mains: dict[ContainerKey, tuple[int, int]] = {}
        self._starting = 0
        self._changing = asyncio.Lock()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def identify(self, key: ContainerKey, container_id: str) -> None:
        """See :class:`pinfold.ports.cgroups.MadeCgroups`."""
        self._ids[key] = container_id

    @property
    def pool(self) -> CPUSet:
        """The shared pool, as it was set last."""
        return self._all.pool

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """See :class:`pinfold.ports.cgroups.GatedCgroups`."""
        async with self._changing:
            self._starting += 1
            self._quiet.clear()
        try:
            yield
        finally:
            self._starting -= 1
            if not self._starting:
                self._quiet.set()

    def describe(self) -> CgroupTree:
        """The version, and where the hierarchy is mounted."""
        return CgroupTree(version=self._version, path=str(self._mount.point), kind="runtime")

    async def open(self, shared: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        if not self._mount.writable or not os.access(self._mount.point, os.W_OK):
            raise CgroupError(
                f"{self._mount.point}: cannot be written",
                "run as root, and mount the host's cgroup hierarchy read-write",
            )
        self._all.open(shared)

    async def set_shared(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        if not cpus:
            raise CgroupError(
                "the shared pool would have no CPUs",
                "leave the shared pool as it is until there is a CPU for it",
            )
        async with self._changing:
            # In parts: one that is over because this program was stopped for a while counts once.
            for _ in range(_PARTS):
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE / _PARTS):
                        await self._quiet.wait()
                if self._quiet.is_set():
                    break
            else:
                raise CgroupError(
                    f"{self._starting} containers are being started since {PATIENCE:g} s, and "
                    "cannot be moved until they are",
                    "see what the container runtime does",
                )
            await self._all.set_shared(cpus)

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """See :class:`pinfold.ports.cgroups.Cgroups`; without a cgroup yet it is only noted."""
        self.expect_none(placement)
        note = await self._pin(self._all.place(key, placement))
        if self._protection is None:
            return note
        return "; ".join(filter(None, [note, *self._protection.put(key.pod_uid, placement)]))

    async def weigh(self, key: ContainerKey, mems: CPUSet) -> int:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return await migrating.weigh(self._found(key), mems)

    async def migrate(self, key: ContainerKey, mems: CPUSet) -> MemoryMoved:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        known = self._all.known.get(key)
        moved = await migrating.migrate(self._found(key), mems)
        if known is not None:
            known.placement = replace(known.placement, mems=mems)
        return moved

    def _found(self, key: ContainerKey) -> Path:
        known = self._all.known.get(key)
        if known is None or known.folder is None or not known.folder.exists():
            raise CgroupError(f"container {key}: its cgroup is not known", "place it")
        return known.folder

    async def enter(self, key: ContainerKey, pid: int, *, start: int | None = None) -> None:
        """Find the cgroup that the runtime has put a process into, and place it.

        Raises:
            ProcessGoneError: the process has ended, whoever has its number now.
            CgroupError: it is in no cgroup of its own, or its CPUs are not in force.
        """
        known, main = self._all.known.get(key), self._mains.get(key)
        if known is None:
            raise CgroupError(f"container {key} was not placed", "place it")
        if start is None and main and main[0] == pid:
            start = main[1]
        began_at = self.began(pid)
        if began_at is None or start not in (None, began_at):
            raise _gone(key, pid)
        main = (pid, began_at)
        self._all.locate(known, self._folder_of(key, main))
        self._mains[key] = main
        await self._pin(known)

    async def find(self, key: ContainerKey, cgroups_path: str) -> bool:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        known = self._all.known.get(key)
        folder = self._mount.folder(cgroup_of(cgroups_path))
        if known is None or folder == self._mount.point or not folder.is_dir():
            return False
        self._all.locate(known, folder)
        await self._pin(known)
        return True

    def began(self, pid: int) -> int | None:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        return began(pid, self._proc)

    def age(self, pid: int) -> float | None:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        return age(pid, self._proc)

    def lives(self, pid: int) -> bool:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return lives(pid, self._proc)

    async def kill(self, key: ContainerKey, *, wait: float = 5.0) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        known = self._all.known.get(key)
        if known is not None and (folder := known.folder) is not None and folder.exists():
            await end_all(lambda: members(folder), wait=wait, freeze=not_frozen)

    async def remove(self, key: ContainerKey) -> None:
        """Forget a container; its cgroup is the runtime's to remove."""
        await self._all.forget(key)
        self._mains.pop(key, None)
        self._ids.pop(key, None)
        others = any(one.pod_uid == key.pod_uid for one in self._all.known)
        if self._protection is not None and not others:
            self._protection.forget(key.pod_uid)

    async def settle(self) -> None:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        await self._all.settle()

    def gates(self) -> Gates:
        """The cpusets above the containers' that are used."""
        held = {str(gate): str(cpus) for gate, cpus in self._all.gates.written.items()}
        return Gates(held=held, rewritten=self._all.gates.rewritten)

    def folder_of(self, key: ContainerKey, controller: str) -> Path | None:
        """See :class:`pinfold.ports.observation.Located`; as in cpuset's hierarchy."""
        known = self._all.known.get(key)
        mount = self._mount if self._version == 2 else self._mounts.get(controller)
        if known is None or known.folder is None or mount is None:
            return None
        return mount.folder(self._mount.path(known.folder))

    async def changes(self) -> AsyncIterator[ContainerKey | None]:
        """See :class:`pinfold.ports.cgroups.Watchful`; gates are made right at once."""
        inotify, something = Inotify(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(inotify.descriptor, something.set)
        self._all.gates.on_change = something.set
        watched: set[Path] = set()
        try:
            while True:
                changed = {event.folder for event in inotify.events()}
                gates = set(self._all.gates.written)
                for gone in watched - gates:
                    inotify.forget(gone)
                for new in gates - watched:
                    inotify.watch(new)
                looked = gates if None in changed else gates & changed | gates - watched
                watched = gates
                if [gate for gate in looked if self._all.gates.mend(gate)]:
                    yield None
                await something.wait()
                something.clear()
        finally:
            loop.remove_reader(inotify.descriptor)
            inotify.close()

    async def observe(self) -> ObservedCgroups:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        found = {}
        for key, known in self._all.known.items():
            if (folder := known.folder) is None:
                continue
            try:
                effective = self._cpusets.effective(folder)
                configured = self._cpusets.configured(folder)
            except CgroupError:
                continue  # the runtime has removed it
            found[key] = ObservedContainer(
                key,
                exclusive=known.placement.cpus is not None,
                configured=configured,
                effective=effective,
                populated=bool(members(folder)),
            )
        return ObservedCgroups(self._all.gates.found(self._all.pool), self._all.pool, found)

    async def close(self, *, remove: bool) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        await self._all.close(everything=remove)
        if remove and self._root:
            self.remove_parent(self._root)

    def remove_parent(self, cgroups_path: str) -> None:
        """See :class:`pinfold.ports.cgroups.GatedCgroups`."""
        path = cgroup_of(cgroups_path)
        for mount in every_cgroup_mount(mounted(self._proc)):
            folder = mount.folder(path)
            if folder != mount.point:
                remove_if_empty(folder)

    def _folder_of(self, key: ContainerKey, main: tuple[int, int]) -> Path:
        pid = main[0]
        text = cgroups_of(*main, self._proc)
        if text is None:
            raise _gone(key, pid)
        path = parse_cgroups(text).get("" if self._version == 2 else CPUSET, "/")
        name = self._ids.get(key)
        if name:
            # An init system in the container, or a nested runtime, has gone further down.
            parts = path.split("/")
            inside = [index for index, part in enumerate(parts) if name in part]
            path = "/".join(parts[: inside[0] + 1]) if inside else path
        folder = self._mount.folder(path)
        if folder == self._mount.point or not folder.is_dir():
            raise CgroupError(
                f"container {key}: process {pid} is in cgroup {path}, which is no container's",
                "the runtime has to make a cgroup for each container, in a hierarchy that is "
                f"mounted at {self._mount.point} here",
            )
        return folder

    async def _pin(self, known: Known) -> str:
        pinned = await self._all.pin(known)
        if pinned is None or (folder := known.folder) is None:
            return ""
        left, effective = pinned
        wanted = known.within(self._all.pool)
        # An owner each time: who was here last may have been ended between the write and the look.
        if await self._cpusets.bring_back(folder) or left or known.placement.cpus is not None:
            await self._all.confirm(known)
        missing = wanted - effective
        notes = [f"CPUs {missing} are not in force: offline"] if missing else []
        if known.placement.frozen:
            notes.append("not frozen: its runtime stops containers")
        return "; ".join(notes)


def _gone(key: ContainerKey, pid: int) -> ProcessGoneError:
    return ProcessGoneError(f"container {key}: there is no process {pid}")

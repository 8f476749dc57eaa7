"""A manager on the kernel of this machine: its cgroups, processes and folders, on every CPU."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pinfold.adapters.cgroup import open_cgroups
from pinfold.adapters.machines.source import open_machine
from pinfold.adapters.podfiles import AssignmentFolders, PodFileFolder
from pinfold.adapters.process import ProcessRuntime
from pinfold.adapters.volumes import VolumeFolders
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.moves.owners import MoveOptions, Owner, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.node.announcements import Announcements
from pinfold.node.books import Books
from pinfold.node.moves.moving import Moving
from pinfold.node.observers import Observers
from pinfold.node.pods.containers import PodContainers
from pinfold.node.pods.manager import Manager
from pinfold.node.pods.resumption import take_over
from pinfold.node.recovery.recovery import OnMismatch, restore
from pinfold.node.settings import NodeSettings
from pinfold.node.tellings import Tellings
from pinfold.planning.fakes import MemoryStore
from pinfold.planning.planner import Planner
from pinfold.ports.cgroups import Cgroups, Placement
from pinfold.ports.errors import ContainerKey
from tests.scenes.manager_harness import no_document, parse


def threads_on(pid: int) -> set[str]:
    """Where the threads of a process may run, as the kernel says."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("Cpus_allowed_list:"))
        found.add(line.partition(":")[2].strip())
    return found


class Narrowing:
    """In front of cgroups: where the threads were allowed just before they got other CPUs."""

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self.pids: dict[ContainerKey, int] = {}
        self._last: dict[ContainerKey, str] = {}
        self.seen: list[tuple[float, str, set[str]]] = []
        """When, the CPUs that are written, and where the threads could run until then."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cgroups, name)

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        cpus = str(placement.cpus)
        # What is written once more, for its limits, narrows nothing.
        if (pid := self.pids.get(key)) is not None and self._last.get(key) != cpus:
            self.seen.append((time.time(), cpus, threads_on(pid)))
        self._last[key] = cpus
        return await self._cgroups.place(key, placement)


class LiveNode:
    """What :func:`live_node` gives."""

    def __init__(self, manager: Manager, cgroups: Narrowing, assignments: Path) -> None:
        self.manager = manager
        self.cgroups = cgroups
        self.assignments = assignments

    async def admit(self, manifest: Mapping[str, Any], text: str) -> int:
        """Run a pod; the pid of its first container."""
        await self.manager.admit(parse(text), manifest=text)
        uid = manifest["metadata"]["uid"]
        await asyncio.wait_for(self.manager.lives[uid].started.wait(), 60)
        key = ContainerKey(uid, manifest["spec"]["containers"][0]["name"])
        pid = self.manager.books.statuses[key].pid
        assert pid is not None, self.manager.books.statuses[key]
        self.cgroups.pids[key] = pid
        return pid

    async def move(self, owner: Owner, cpus: str, delay: float) -> Moving:
        """Begin a move."""
        async with self.manager.books.change() as draft:
            wish = Wish(owner, CPUSet.parse(cpus), delay=delay)
            # Two CPUs are all that a small machine has.
            options = MoveOptions(pool_may_be_empty=True)
            plan = plan_moves(draft.state.ledger, [wish], options)
            return await self.manager.mover.begin(draft, plan, why="resize")


@asynccontextmanager
async def live_node(folder: Path) -> AsyncIterator[LiveNode]:
    """A manager; at the end nothing is left of its pods.  Pods are given all CPUs but CPU 0 first.

    No CPU is reserved on record, so that a pod may be moved to any.
    """
    config = NodeConfig(cpu_manager_policy="static", kube_reserved={"cpu": Quantity.parse("1")})
    planner = Planner(open_machine(None), config, rules=SOUND)
    empty = planner.empty_with(planner.view.topology.cpus - CPUSet(os.sched_getaffinity(0)))
    limits = replace(empty.ledger.limits, reserved=CPUSet())
    empty = replace(empty, ledger=replace(empty.ledger, bounds=limits))
    store, problems = MemoryStore(), list[str]()
    restored = restore(
        await store.load(), planner.node, empty, parse=parse, on_mismatch=OnMismatch.REFUSE
    )
    observers = Observers(
        time.time, no_document, lambda pod, text: problems.append(f"{pod}: {text}")
    )
    found = open_cgroups(None, f"pinfold-test-{secrets.token_hex(4)}")
    found.claim.take()
    cgroups = Narrowing(found)
    runtime = ProcessRuntime(folder / "containers", log_root=folder / "logs")
    settings = NodeSettings()
    volumes = VolumeFolders(folder / "pods")
    containers = PodContainers(cgroups, runtime, settings, runtime, volumes=volumes)
    assignments = folder / "assignments"
    books = Books(
        planner.node,
        restored,
        containers=containers,
        store=store,
        announcements=Announcements(
            PodFileFolder(folder / "pods"),
            lambda _state, _pods: None,
            observers.report,
            Tellings(AssignmentFolders(assignments, observers.report), observers),
            volumes,
        ),
        settings=settings,
        observers=observers,
    )
    manager = Manager(books, containers)
    follower = asyncio.create_task(containers.exits.follow(runtime.exits()))
    try:
        await take_over(manager, restored)
        yield LiveNode(manager, cgroups, assignments)
        assert problems == []
    finally:
        for pod in list(books.view.pods.active.values()):
            await manager.release(pod.uid, grace=0)
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        await manager.close()
        await runtime.close()
        await found.close(remove=True)
        found.claim.release()

"""Workloads of the manager on fakes: its own work, without a kernel, on a node of 256 CPUs."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.agent_measuring import cpu_time, detailed
from benchmarks.agent_scene import GivenUpError, pod
from benchmarks.measure import Result
from pinfold.adapters.store import SQLiteStore
from pinfold.admission.model import build_node, empty_state
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.announcements import Announcements
from pinfold.node.books import Books
from pinfold.node.observers import Observers
from pinfold.node.pods.containers import PodContainers
from pinfold.node.pods.manager import Manager
from pinfold.node.reconciler import reconcile
from pinfold.node.recovery.recovery import Restored
from pinfold.node.settings import NodeSettings
from pinfold.planning.fake_cgroups import FakeCgroups
from pinfold.planning.fake_guardian import FakeGuardian
from pinfold.planning.fakes import FakeRuntime, MemoryPodFiles, MemoryStore
from pinfold.ports.records import PodPhase
from pinfold.ports.store import Store

MACHINE: Final = "2s64c2t@half"
PODS: Final = 1000
RECONCILED: Final = 500
SHAPES: Final = ("", "", "2", "500m", "1", "4")
"""The CPUs of the pods, drawn at random: a third BestEffort, half exclusive."""
TIMES: Final = 5
RESIZED: Final = 200
RESIZES: Final = 40


STATIC: Final = NodeConfig(
    cpu_manager_policy="static", reserved_system_cpus=CPUSet([0, 128]), max_pods=PODS
)


def make_manager(store: Store | None = None, config: NodeConfig = STATIC) -> Manager:
    """A manager of an empty node, on fakes, but for the record where one is given."""
    machine = parse_short_form(MACHINE)
    view = kubelet_view(machine)
    node = build_node(machine, config, view=view, rules=SOUND)
    settings = NodeSettings(
        reserved_system_cpus=config.reserved_system_cpus,
        idle_side=config.own is not None and config.own.need_idle_side,
    )
    cgroups = FakeCgroups(view.topology.cpus)
    report = lambda _pod, text: _give_up(text)  # noqa: E731 - one use
    containers = PodContainers(cgroups, FakeRuntime(cgroups), settings)
    books = Books(
        node,
        Restored(empty_state(node, view.topology.cpus)),
        containers=containers,
        store=store or MemoryStore(),
        announcements=Announcements(MemoryPodFiles(), lambda _state, _pods: None, report),
        settings=settings,
        observers=Observers(time.time, no_document, report),
        guardian=FakeGuardian(None, lambda: 0.0),
    )
    return Manager(books, containers, dynamic=config.dynamic)


async def no_document(_decision: object, _state: object) -> str:
    """What would be written of a decision."""
    return "{}"


def _give_up(text: str) -> None:
    raise GivenUpError(text)


async def admit(
    manager: Manager, name: str, cpus: str, annotations: Mapping[str, str] | None = None
) -> PodPhase:
    """A pod of one container comes."""
    manifest = pod(name, ("run",), cpus)
    manifest["metadata"] |= {"uid": name, "annotations": dict(annotations or {})}
    record = await manager.admit(workload_from_api(manifest), manifest=json.dumps(manifest))
    return record.phase


async def _in_and_out(pods: int) -> tuple[int, int]:
    """Every third admission one random pod goes, at the end all; CPU time and admitted ones."""
    manager = make_manager()
    async with manager.books.change() as draft:
        await draft.apply_pool()
    chance = random.Random(3)  # noqa: S311 - pods, not secrets
    admitted = 0
    began = time.process_time_ns()
    for number in range(pods):
        phase = await admit(manager, f"p{number}", chance.choice(SHAPES))
        admitted += phase is not PodPhase.REJECTED
        if number % 3 == 2 and manager.books.view.pods.active:
            await manager.release(chance.choice(list(manager.books.view.pods.active)), grace=0)
    for uid in list(manager.books.view.pods.active):
        await manager.release(uid, grace=0)
    took = time.process_time_ns() - began
    if manager.books.view.state.ledger.exclusive:
        raise GivenUpError("CPUs were lost")
    await manager.close()
    return took, admitted


def _churn(pods: int) -> Result:
    """Admit so many pods and release them; the CPU time of all."""
    runs = [asyncio.run(_in_and_out(pods)) for _ in range(TIMES)]
    times = [took for took, _ in runs]
    return detailed(times, pods_per_cpu_second=pods / (min(times) / 1e9), admitted=runs[0][1])


def _reconcile(count: int) -> Result:
    """CPU time of one reconciliation when nothing changed; a fifth of the containers are owners."""
    with asyncio.Runner() as runner:
        manager = make_manager()

        async def fill() -> None:
            async with manager.books.change() as draft:
                await draft.apply_pool()
            for number in range(count):
                await admit(manager, f"p{number}", "" if number % 5 else "1")
            for life in manager.lives.values():
                await life.started.wait()

        def call() -> None:
            if drifts := runner.run(reconcile(manager.books)):
                raise GivenUpError(f"something has changed: {drifts[0]}")

        runner.run(fill())
        if len(manager.books.view.pods.active) != count:
            raise GivenUpError(f"{len(manager.books.view.pods.active)} of {count} pods run")
        result = cpu_time(call)
        runner.run(manager.close())
    return result


async def _resizes(count: int, folder: Path) -> tuple[list[int], list[int]]:
    """Nanoseconds of resizes beside so many containers: until the kernel has it, and until all is.

    The kernel is a fake, the record is on the disk.
    """
    store = SQLiteStore.open(folder / "pinfold.db")
    manager = make_manager(store)
    async with manager.books.change() as draft:
        await draft.apply_pool()
    for number in range(count):
        await admit(manager, f"p{number}", "" if number % 5 else "2")
    for life in manager.lives.values():
        await life.started.wait()
    confirmed, over = [], []
    for number in range(RESIZES):
        began = time.perf_counter_ns()
        answer = await manager.resizing.resize("p0", None, 2 if number % 2 else 4)
        while not (number % 2 or _is_made(manager)):  # noqa: ASYNC110 - a step is looked for
            await asyncio.sleep(0)
        took = time.perf_counter_ns() - began
        if answer.moving is None or not (await answer.moving.ended()).done:
            raise GivenUpError(f"a resize was not made: {answer.decision.message}")
        over.append(time.perf_counter_ns() - began)
        if not number % 2:
            confirmed.append(took)
    await manager.close()
    await store.close()
    return confirmed, over


def _is_made(manager: Manager) -> bool:
    """Whether the kernel has confirmed a grow: the pool has left, the owner is there."""
    move = manager.books.view.move
    return move is None or move.made >= 2


def _resize(count: int) -> Result:
    """From the request to grow until the kernel has confirmed it."""
    with tempfile.TemporaryDirectory() as folder:
        confirmed, over = asyncio.run(_resizes(count, Path(folder)))
    return detailed(confirmed, until_over_ms=statistics.median(over) / 1e6)


MEASURED: Final[dict[str, Callable[[], Result]]] = {
    f"agent.admit.fakes.{PODS}": partial(_churn, PODS),
    f"agent.reconcile.fakes.{RECONCILED}": partial(_reconcile, RECONCILED),
    f"agent.resize.fakes.{RESIZED}": partial(_resize, RESIZED),
}

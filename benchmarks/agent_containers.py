"""Workloads of an agent whose containers a runtime runs.

``answer`` and ``move`` use cgroups of their own with processes that sleep, in place of a runtime's;
``runtime.*`` use a real containerd, and a kubelet's stand-in that asks it over the CRI.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.scenes.agent_process import AgentProcess
from tests.scenes.containerd_node import ContainerdNode, containerd_node, why_no_containerd
from tests.scenes.kubelet_stand_in import KubeletStandIn
from tests.scenes.runtime_place import Place

from benchmarks.agent_measuring import detailed
from benchmarks.agent_scene import GivenUpError, NotHereError, agent_within, require_node
from benchmarks.measure import Result
from pinfold.adapters.cgroup.runtime.runtime_cgroups import RuntimeCgroups
from pinfold.adapters.cgroup.watch import CPUS
from pinfold.adapters.cri import CriClient, CriRecord
from pinfold.agent.nri import GATES
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.inotify import Inotify
from pinfold.node.nri.events import PluginEvents
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey
from pinfold.ports.nri import Container, ContainerState, ContainerUpdate, PodSandbox, Resources

_P = TypeVar("_P")

MOVED: Final = (10, 100, 300)
PRESENT: Final = (10, 50, 100, 500)
ROUNDS: Final = 60
CREATED: Final = 30
UPDATED: Final = 100

OWNER: Final = Resources(cpu_shares=1024, cpu_quota=100_000, cpu_period=100_000, memory=1 << 26)
SHARED: Final = Resources(cpu_shares=2)


@contextmanager
def _place() -> Iterator[Place]:
    require_node()
    place = Place()
    try:
        yield place
    finally:
        place.clean()


@contextmanager
def _counting(place: Place) -> Iterator[Callable[[], float]]:
    """How many cpusets of the place were written meanwhile, as the kernel tells it."""
    inotify = Inotify()
    try:
        for folder in (place.root, *place.root.rglob("*/")):
            inotify.watch(folder)

        def written() -> float:
            files = set()
            while events := inotify.events():
                files |= {(event.folder, event.name) for event in events}
            return float(sum(name == CPUS for _, name in files))

        yield written
    finally:
        inotify.close()


def _percentiles(times: Sequence[float]) -> dict[str, float]:
    ranked = sorted(times)
    return {
        "p50_ms": statistics.median(ranked) / 1e6,
        "p99_ms": ranked[min(len(ranked) - 1, len(ranked) * 99 // 100)] / 1e6,
    }


def _move(count: int) -> Result:
    """Take a CPU from so many shared containers, each in a cgroup of its own, until confirmed."""
    with _place() as place, tempfile.TemporaryDirectory(prefix="pinfold-bench-") as folder:

        async def work() -> Result:
            cgroups = RuntimeCgroups(gates=Path(folder) / GATES)
            await cgroups.open(place.cpus)
            for number in range(count):
                key = ContainerKey("uid", f"c{number}")
                path, _ = place.container("kubepods", "burstable", "pod", f"c{number}")
                await cgroups.place(key, Placement())
                await cgroups.find(key, path)
            moves = []
            for _ in range(15):
                began = time.perf_counter_ns()
                await cgroups.set_shared(place.low)
                moves.append(float(time.perf_counter_ns() - began))
                await cgroups.set_shared(place.cpus)
            with _counting(place) as writes:
                await cgroups.set_shared(place.low)
                counted = writes()
            await cgroups.close(remove=True)
            each = statistics.median(moves) / count / 1e6
            return detailed(moves, ms_per_container=each, kernel_writes=counted)

        return asyncio.run(work())


def _answer(count: int) -> Result:
    """From the runtime's question to the answer, when an owner comes beside so many others.

    With the real record on disk; the owner's CPU is taken from all the others in the kernel.
    """
    with _place() as place, tempfile.TemporaryDirectory(prefix="pinfold-bench-") as folder:
        events: list[PluginEvents] = []

        def front(port: _P, /) -> _P:
            if isinstance(port, PluginEvents):
                events.append(port)
            return port

        node = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
        socket = str(Path(folder, "nri", "nri.sock"))
        with agent_within(folder, node, front, runtime="nri", nriSocket=socket) as (runner, agent):
            result = runner.run(_answers(place, events[0], count))
            runner.run(agent.books.containers.cgroups.close(remove=True))
            return result


async def _answers(place: Place, lifecycle: PluginEvents, count: int) -> Result:
    for number in range(count):
        path, pid = place.container("kubepods", "burstable", f"pod{number}", "main")
        pod = PodSandbox(f"s{number}", f"uid-{number}", f"pod-{number}", "default")
        seen = Container(f"c{number}", pod.id, "main", resources=SHARED, cgroups_path=path)
        await lifecycle.create_container(pod, seen)
        await lifecycle.post_create_container(pod, seen)
        await lifecycle.post_start_container(pod, _running(seen, pid))
    times = []
    for number in range(ROUNDS):
        pod = PodSandbox(f"o{number}", f"uid-o{number}", f"owner-{number}", "default")
        seen = Container(f"oc{number}", pod.id, "main", resources=OWNER)
        began = time.perf_counter_ns()
        answer = await lifecycle.create_container(pod, seen)
        times.append(float(time.perf_counter_ns() - began))
        if answer.resources.cpus == "0":
            raise GivenUpError("the owner got no CPU of its own")
        await lifecycle.post_create_container(pod, seen)
        await lifecycle.stop_pod_sandbox(pod)
        await lifecycle.remove_pod_sandbox(pod)
    pod = PodSandbox("one-more", "uid-one-more", "one-more", "default")
    with _counting(place) as writes:
        await lifecycle.create_container(pod, Container("one", pod.id, "main", resources=OWNER))
        counted = writes()
    return detailed(times, **_percentiles(times), kernel_writes=counted)


def _running(seen: Container, pid: int) -> Container:
    return Container(
        seen.id,
        seen.sandbox_id,
        seen.name,
        ContainerState.RUNNING,
        resources=seen.resources,
        cgroups_path=seen.cgroups_path,
        pid=pid,
    )


@contextmanager
def _kubelet() -> Iterator[tuple[ContainerdNode, KubeletStandIn]]:
    require_node()
    if (reason := why_no_containerd()) is not None:
        raise NotHereError(reason)
    with containerd_node() as node:
        kubelet = KubeletStandIn(node)
        try:
            yield node, kubelet
        finally:
            kubelet.close()


@contextmanager
def _plugin(node: ContainerdNode) -> Iterator[AgentProcess]:
    with tempfile.TemporaryDirectory(prefix="pinfold-bench-") as folder:
        agent = AgentProcess(Path(folder))
        del agent.config["staticPodPath"]
        agent.config["pinfold"] |= {"runtime": "nri", "nriSocket": str(node.nri)}
        agent.start()
        try:
            _wait(lambda: agent.client.get("/v1/status")["agent"]["nri"]["connected"])
            yield agent
        finally:
            agent.stop()


def _wait(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        if time.monotonic() > deadline:
            raise GivenUpError("the plugin is not connected")
        time.sleep(0.02)


def _create(count: int) -> Result:
    """CreateContainer of an owner beside so many others: with the plugin, and without it."""
    with _kubelet() as (node, kubelet):
        others = [kubelet.pod(f"other-{number}", "besteffort") for number in range(count)]
        for pod in others:
            kubelet.run(pod, "main")
        pod = kubelet.pod("owner")
        without = _creations(kubelet, pod)
        with _plugin(node) as agent:
            within = _creations(kubelet, pod)
            status = Path(f"/proc/{agent.process.pid if agent.process else 0}/status").read_text()
            rss = int(status.split("VmRSS:")[1].split()[0]) / 1024
        ratio = statistics.median(within) / statistics.median(without)
        return detailed(
            within,
            **_percentiles(within),
            without_p50_ms=statistics.median(without) / 1e6,
            ratio=ratio,
            agent_rss_mb=rss,
        )


def _creations(kubelet: KubeletStandIn, pod: str) -> list[float]:
    times = []
    for number in range(CREATED):
        began = time.perf_counter_ns()
        container = kubelet.create(pod, f"main-{number}", 1)
        times.append(float(time.perf_counter_ns() - began))
        kubelet.remove(container)
    return times


def _update() -> Result:
    """The same move as ``move.100``, told to the runtime for each container."""
    with _kubelet() as (node, kubelet):
        ids = [
            kubelet.run(kubelet.pod(f"other-{number}", "besteffort"), "main")
            for number in range(UPDATED)
        ]

        async def work() -> list[float]:
            client = CriClient(f"unix://{node.address}")
            times = []
            for at_once in (1, 8):
                record = CriRecord(client, at_once=at_once)
                updates = [ContainerUpdate(one, Resources(cpus="0")) for one in ids]
                began = time.perf_counter_ns()
                await record.update(updates)
                times.append(float(time.perf_counter_ns() - began))
            with suppress(Exception):
                await client.close()
            return times

        one_by_one, eight = asyncio.run(work())
        return detailed([eight], one_after_the_other_ms=one_by_one / 1e6)


MEASURED: Final[dict[str, Callable[[], Result]]] = {
    **{f"containers.move.{count}": partial(_move, count) for count in MOVED},
    **{f"containers.answer.{count}": partial(_answer, count) for count in PRESENT},
    **{f"runtime.create.{count}": partial(_create, count) for count in (0, 10, 50)},
    f"runtime.update.{UPDATED}": _update,
}

"""Workloads of one allocation, of the hints for one container, and of the static policy.

Two sockets, two threads per core (numbered in the second half, as Intel servers do), every other
core free.  The topology is built outside the timing, as it is once per start in the kubelet, and
what it remembers about itself is known; the answer is computed anew in every call.

``random`` takes 1 to 16 CPUs of 200 free sets by chance instead: so, of a topology that was never
asked before (``cold``), and of one that is built in each call (``built``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Final

from pinfold.core.cpu.allocation import take_packed
from pinfold.core.cpu.distribution import take_distributed
from pinfold.core.cpu.static_policy import PodTransaction, StaticPolicy
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.machine.topology import CPUInfo, CPUTopology
from pinfold.core.pod.api import pod_from_api
from pinfold.core.values.cpuset import CPUSet

Workload = Callable[[], Callable[[], object]]

NUMA_NODES: Final = {8: 2, 64: 2, 256: 4, 512: 8, 1024: 8}
"""CPUs of the machine -> its NUMA nodes."""
REQUEST: Final = 4
"""CPUs asked for unless the name says otherwise."""
_FREE_SETS: Final = 200
_MOST_WANTED: Final = 16
_RANDOM_SIZES: Final = (64, 256, 512)
_NEW: Final = 20
"""Topologies that are asked for the first time in one batch."""


def machine(cpus: int, nodes: int) -> CPUTopology:
    """A machine of two sockets (one if it has one NUMA node) with one uncore cache per node."""
    return CPUTopology(_rows(cpus, nodes))


def _rows(cpus: int, nodes: int) -> Iterator[CPUInfo]:
    cores = cpus // 2
    sockets = min(2, nodes)
    for cpu in range(cpus):
        core = cpu % cores
        node = core * nodes // cores
        yield CPUInfo(cpu, core, core * sockets // cores, node, node)


def half_free(topology: CPUTopology) -> int:
    """The CPUs of every other core."""
    return sum(mask for core, mask in topology.cores.items() if core % 2 == 0)


def _packed(cpus: int, n: int) -> Callable[[], object]:
    topology = machine(cpus, NUMA_NODES[cpus])
    free = half_free(topology)
    return lambda: take_packed(topology, free, n)


def random_free_sets(cpus: int) -> list[tuple[int, int]]:
    """``(free CPUs, how many are wanted)``, 200 times: each CPU is free by a chance of a half."""
    random = Random(f"free of {cpus}")  # noqa: S311 - the same every time
    found: list[tuple[int, int]] = []
    while len(found) < _FREE_SETS:
        free, n = random.getrandbits(cpus), random.randint(1, _MOST_WANTED)
        if free.bit_count() >= n:
            found.append((free, n))
    return found


def _random(cpus: int) -> Callable[[], object]:
    topology = machine(cpus, NUMA_NODES[cpus])
    asked, turn = random_free_sets(cpus), 0

    def work() -> object:
        nonlocal turn
        turn = (turn + 1) % len(asked)
        return take_packed(topology, *asked[turn])

    return work


def _random_built(cpus: int) -> Callable[[], object]:
    rows = list(_rows(cpus, NUMA_NODES[cpus]))
    asked, turn = random_free_sets(cpus), 0

    def work() -> object:
        nonlocal turn
        turn = (turn + 1) % len(asked)
        return take_packed(CPUTopology(rows), *asked[turn])

    return work


def _random_cold(cpus: int) -> Callable[[], int]:
    """Measures its own clock, for the topologies are built outside of it."""
    rows = list(_rows(cpus, NUMA_NODES[cpus]))
    asked, turn = random_free_sets(cpus), 0

    def work() -> int:
        nonlocal turn
        turn = (turn + _NEW) % len(asked)
        new = [(CPUTopology(rows), *one) for one in asked[turn : turn + _NEW]]
        began = time.perf_counter_ns()
        for topology, free, n in new:
            take_packed(topology, free, n)
        return (time.perf_counter_ns() - began) // _NEW

    return work


def _distributed(cpus: int, n: int) -> Callable[[], object]:
    topology = machine(cpus, NUMA_NODES[cpus])
    free = half_free(topology)
    return lambda: take_distributed(topology, free, n)


def _policy(topology: CPUTopology) -> StaticPolicy:
    return StaticPolicy(topology, StaticPolicyOptions(), CPUSet(), CPUSet())


def _pod(cpus: int) -> dict[str, object]:
    resources = {"cpu": str(cpus), "memory": "1Gi"}
    container = {"name": "c", "resources": {"requests": resources, "limits": resources}}
    return {"metadata": {"name": "p", "uid": "p"}, "spec": {"containers": [container]}}


def _hints(cpus: int, nodes: int) -> Callable[[], object]:
    topology = machine(cpus, nodes)
    policy = _policy(topology)
    pod = pod_from_api(_pod(REQUEST))
    transaction = PodTransaction(pod.uid, half_free(topology))
    return lambda: policy.container_hints(transaction, pod, pod.containers[0])


def _allocate_and_remove(cpus: int) -> Callable[[], object]:
    topology = machine(cpus, NUMA_NODES[cpus])
    policy = _policy(topology)
    pod = pod_from_api(_pod(2))
    container = pod.containers[0]
    free = half_free(topology)

    def work() -> int:
        transaction = PodTransaction(pod.uid, free)
        policy.allocate(transaction, pod, container)
        policy.remove(transaction, container.name)
        return transaction.default

    return work


def _workloads() -> dict[str, Workload]:
    found: dict[str, Workload] = {}
    for cpus, nodes in NUMA_NODES.items():
        quarter = cpus // 4
        found[f"allocate.packed.{cpus}"] = partial(_packed, cpus, min(REQUEST, quarter * 2))
        found[f"allocate.packed.{cpus}.n1"] = partial(_packed, cpus, 1)
        found[f"allocate.packed.{cpus}.n2"] = partial(_packed, cpus, 2)
        found[f"allocate.packed.{cpus}.half"] = partial(_packed, cpus, quarter)
        found[f"allocate.distributed.{cpus}"] = partial(_distributed, cpus, quarter)
        found[f"hints.{cpus}"] = partial(_hints, cpus, nodes)
        found[f"policy.{cpus}"] = partial(_allocate_and_remove, cpus)
    for nodes in (1, 4, 8):
        found[f"hints.64.numa{nodes}"] = partial(_hints, 64, nodes)
    for cpus in _RANDOM_SIZES:
        found[f"allocate.random.{cpus}"] = partial(_random, cpus)
        found[f"allocate.random.{cpus}.built"] = partial(_random_built, cpus)
    return found


WORKLOADS: Final = _workloads()
OWN_CLOCK: Final = {
    f"allocate.random.{cpus}.cold": partial(_random_cold, cpus) for cpus in _RANDOM_SIZES
}

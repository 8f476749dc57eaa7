"""Workloads of one allocation, of the hints for one container, and of the static policy.

Two sockets, two threads per core (numbered in the second half, as Intel servers do), every other
core free.  The topology is built outside the timing, as it is once per start in the kubelet; the
answer is computed anew in every call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pinfold.core.cpu.allocation import take_packed
from pinfold.core.cpu.distribution import take_distributed
from pinfold.core.cpu.static_policy import PodTransaction, StaticPolicy
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.pod.api import pod_from_api
from pinfold.core.values.cpuset import CPUSet

Workload = Callable[[], Callable[[], object]]

NUMA_NODES: Final = {8: 2, 64: 2, 256: 4, 512: 8, 1024: 8}
"""CPUs of the machine -> its NUMA nodes."""
REQUEST: Final = 4
"""CPUs asked for unless the name says otherwise."""


def machine(cpus: int, nodes: int) -> CPUTopology:
    """A machine of two sockets (one if it has one NUMA node) with one uncore cache per node."""
    cores = cpus // 2
    sockets = min(2, nodes)
    return CPUTopology.from_rows(
        (
            cpu,
            cpu % cores,
            cpu % cores * sockets // cores,
            cpu % cores * nodes // cores,
            cpu % cores * nodes // cores,
        )
        for cpu in range(cpus)
    )


def half_free(topology: CPUTopology) -> int:
    """The CPUs of every other core."""
    return sum(mask for core, mask in topology.cores.items() if core % 2 == 0)


def _packed(cpus: int, n: int) -> Callable[[], object]:
    topology = machine(cpus, NUMA_NODES[cpus])
    free = half_free(topology)
    return lambda: take_packed(topology, free, n)


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
    return found


WORKLOADS: Final = _workloads()

"""Workloads of the device manager, and of whole admissions in which it has a part.

``list-10000`` makes everything anew: the values of 10,000 devices, their tables, the hints, the
choice, the new state.  ``flap-10000`` is the same with the list known and one device gone bad.
``full-10000`` finds the last free one.  ``admit.8-nodes`` is CPUs, memory and four device
resources, asked, merged and allocated; nothing fits one NUMA node, so the whole merge is done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks.allocation import machine
from pinfold.admission.cpu_manager import CPUManager
from pinfold.admission.devices.manager import DeviceManager
from pinfold.admission.memory_manager import MemoryManager
from pinfold.core.cpu.static_policy import PodTransaction, StaticPolicy
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.memory.memory import NodeMemory
from pinfold.core.memory.policy import MemoryTransaction, StaticMemoryPolicy
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import NUMAInfo
from pinfold.core.topology_manager.manager import TopologyManager
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity

_RESOURCE: Final = "example.com/vf"
_NODES: Final = tuple(range(8))
_GIB: Final = 1 << 30


def _listed(name: str, count: int, sick: int = -1) -> DeviceResource:
    """Devices one after the other on each NUMA node."""
    ids = (f"{name}-{number}" for number in range(count))
    devices = {
        id_: Device(id_, number != sick, (number % len(_NODES),)) for number, id_ in enumerate(ids)
    }
    return DeviceResource(name, devices)


def _one_device() -> Pod:
    limits = {_RESOURCE: Quantity(1)}
    return Pod("p", "p", containers=(Container("c", limits, limits),))


def _admit(state: DeviceState, pod: Pod, topology: TopologyManager) -> DeviceState:
    manager = DeviceManager(state, {}, _NODES)
    if not topology.admit(pod, pod.all_containers, [manager]).admitted:
        raise AssertionError("the device was to be had")
    return state.with_pod(pod.uid, manager.held)


def _topology() -> TopologyManager:
    return TopologyManager.create(NUMAInfo(_NODES), "best-effort", "container", {})


def _list(count: int) -> Callable[[], object]:
    pod, topology = _one_device(), _topology()
    return lambda: _admit(DeviceState({_RESOURCE: _listed(_RESOURCE, count)}), pod, topology)


def _flap(count: int) -> Callable[[], object]:
    pod, topology = _one_device(), _topology()
    state = DeviceState({_RESOURCE: _listed(_RESOURCE, count)})
    state.table(_RESOURCE)
    sick = _listed(_RESOURCE, count, sick=0)
    return lambda: _admit(state.with_inventory({_RESOURCE: sick}), pod, topology)


def _full(count: int) -> Callable[[], object]:
    pod, topology = _one_device(), _topology()
    listed = _listed(_RESOURCE, count)
    state = DeviceState({_RESOURCE: listed}).with_pod(
        "other", {"c": {_RESOURCE: list(listed.devices)[:-1]}}
    )
    return lambda: _admit(state, pod, topology)


def _everything() -> Callable[[], object]:
    cpus = machine(256, len(_NODES))
    cpu_policy = StaticPolicy(cpus, StaticPolicyOptions(), CPUSet(), CPUSet())
    reserved = [{"numaNode": 0, "limits": {"memory": Quantity(_GIB)}}]
    memory_policy = StaticMemoryPolicy.create(
        {node: NodeMemory(32 * _GIB) for node in _NODES},
        reserved,
        {"memory": Quantity(_GIB)},
    )
    names = [f"example.com/{kind}" for kind in ("gpu", "nic", "fpga", "qat")]
    state = DeviceState({name: _listed(name, 64) for name in names})
    wanted = {"cpu": 40, "memory": 80 * _GIB} | dict(zip(names, (9, 17, 33, 12), strict=True))
    limits = {name: Quantity(count) for name, count in wanted.items()}
    pod = Pod("p", "p", containers=(Container("c", limits, limits),))
    topology = _topology()

    def admit() -> object:
        devices = DeviceManager(state, {}, _NODES)
        cpu = CPUManager(cpu_policy, PodTransaction(pod.uid, cpus.all, {}))
        memory = MemoryManager(memory_policy, MemoryTransaction(pod.uid, memory_policy.empty_state))
        admission = topology.admit(pod, pod.all_containers, [devices, cpu, memory])
        if not admission.admitted:
            raise AssertionError(admission.message)
        return state.with_pod(pod.uid, devices.held)

    return admit


WORKLOADS: Final = {
    "devices.list-10000": partial(_list, 10_000),
    "devices.flap-10000": partial(_flap, 10_000),
    "devices.full-10000": partial(_full, 10_000),
    "devices.admit.8-nodes": _everything,
}

"""Wishes to run near a device: annotations, hints, and what becomes of them on two sockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pinfold import NodeConfig
from pinfold.core.cpuset import CPUSet
from pinfold.core.kubelet_faults import SOUND
from pinfold.core.locality import Localities
from pinfold.core.machine import Machine, PCIFunction
from pinfold.core.pod import Container, Pod
from pinfold.core.pod_api import pod_from_api
from pinfold.core.short_form import parse_short_form
from pinfold.core.static_policy import PodTransaction
from pinfold.core.topology_manager import Admission, HintProvider
from pinfold.node.cpu_manager import CPUManager
from pinfold.node.nearness import near_attempts
from pinfold.planning.planner import Planner


def machine(form: str = "2s8c1t") -> Machine:
    """A machine with a network card at each node, and a disk of which nobody knows where it is."""
    made = parse_short_form(form)
    cards = tuple(
        PCIFunction(f"0000:{16 + node.id:02x}:00.0", "0x020000", node.id, node.cpus, (f"eth{at}",))
        for at, node in enumerate(made.numa_nodes)
    )
    nowhere = PCIFunction("0000:ff:00.0", "0x010802", -1, made.online, ("nvme0n1",))
    return replace(made, pci=(*cards, nowhere))


def pod(annotations: Mapping[str, Any], *cpus: int) -> Pod:
    return pod_from_api(
        {
            "metadata": {"name": "p", "uid": "u", "annotations": annotations},
            "spec": {
                "containers": [
                    {
                        "name": f"c{at}",
                        "resources": {
                            kind: {"cpu": count, "memory": "1Gi"} for kind in ("limits", "requests")
                        },
                    }
                    for at, count in enumerate(cpus)
                ]
            },
        }
    )


class Scene:
    """One node, as :mod:`pinfold.node.admission` puts its ingredients together."""

    def __init__(
        self, form: str = "2s8c1t", policy: str = "none", scope: str = "container"
    ) -> None:
        self.machine = machine(form)
        self.localities = Localities.of(self.machine)
        config = NodeConfig(
            cpu_manager_policy="static",
            reserved_system_cpus=CPUSet([0]),
            topology_manager_policy=policy,
            topology_manager_scope=scope,
        )
        self.node = Planner(self.machine, config, rules=SOUND).node
        self.free = self.machine.online
        self.notes: tuple[str, ...] = ()

    def admit(self, pod: Pod) -> tuple[Admission, dict[str, CPUSet]]:
        policy = self.node.cpu_policy
        assert policy is not None
        for attempt in near_attempts(self.node.topology_manager, self.localities, pod):
            manager = CPUManager(policy, PodTransaction(pod.uid, self.free.mask, {}))
            providers: list[HintProvider[Pod, Container]] = [manager]
            providers += attempt.providers(manager.allocations)
            admission = attempt.manager.admit(pod, pod.all_containers, providers)
            self.notes = attempt.notes
            if admission.admitted:
                break
        return admission, {name: one.cpus for name, one in manager.allocations.items()}


NEAR = "near.pinfold.dev/pod"
POLICY = "near-policy.pinfold.dev/pod"


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_cpus_come_from_the_devices_node(policy: str) -> None:
    for card, node in (("eth0", "1-3"), ("eth1", "8-10"), ("11:00.0", "8-10")):
        admission, given = Scene(policy=policy).admit(pod({NEAR: card}, 3))
        assert admission.admitted
        assert str(given["c0"]) == node


def test_without_a_wish_nothing_changes() -> None:
    scene = Scene()
    (attempt,) = near_attempts(scene.node.topology_manager, scene.localities, pod({}, 2))
    assert attempt.manager is scene.node.topology_manager
    assert attempt.providers({}) == ()


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_it_spills_only_when_it_must(policy: str) -> None:
    scene = Scene(policy=policy)
    scene.free -= CPUSet(range(8, 13))
    admission, given = scene.admit(pod({NEAR: "eth1"}, 4))
    assert admission.admitted
    assert given["c0"] >= CPUSet([13, 14, 15])
    assert len(given["c0"]) == 4


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_a_preferred_wish_costs_no_admission(policy: str) -> None:
    scene = Scene(policy=policy)
    scene.free -= CPUSet(range(8, 13))
    admission, given = scene.admit(pod({NEAR: "eth1"}, 4))
    assert admission.admitted
    assert str(given["c0"]) == "1-4"


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_a_required_wish_refuses(policy: str, scope: str) -> None:
    scene = Scene(policy=policy, scope=scope)
    wish = {NEAR: "eth1", POLICY: "required"}
    admission, given = scene.admit(pod(wish, 4))
    assert admission.admitted
    assert str(given["c0"]) == "8-11"
    scene.free -= CPUSet(range(8, 13))
    admission, _ = scene.admit(pod(wish, 4))
    assert not admission.admitted
    assert admission.reason == "TopologyAffinityError"
    if policy in {"none", "best-effort"}:
        assert admission.message == (
            "to be near eth1 is required, but only 3 of the 4 CPUs for container c0 can be had at "
            "NUMA node {1}; end what runs there, ask for fewer CPUs, or say preferred instead of "
            "required"
        )

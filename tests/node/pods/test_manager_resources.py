"""CPUs, memory and devices of one pod: all of it or nothing, from admission to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.node.recovery.recovery import MismatchError, OnMismatch
from pinfold.ports.records import PodPhase
from tests.scenes.manager_harness import ALL_MANAGERS, STATIC, Harness, manifest, run_virtually

GPU = "example.com/gpu"
NIC = "example.com/nic"
MIB = 1 << 20


def node_with(**resources: DeviceResource) -> Harness:
    node = Harness(machine="2s2c2t", config=ALL_MANAGERS)
    node.plugins.put_devices(GPU, Device("g0", numa_nodes=(0,)), Device("g1", numa_nodes=(1,)))
    node.plugins.put_devices(NIC, Device("n1", numa_nodes=(1,)), Device("n2", numa_nodes=(1,)))
    for resource in resources.values():
        node.plugins.put(resource)
    return node


def held(node: Harness) -> tuple[object, ...]:
    """Who has what."""
    state = node.books.view.state
    return state.ledger, state.memory, state.devices.allocations, state.pods


def on(node: Harness, work: Callable[[Harness], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        await node.start()
        await work(node)
        await node.settle()
        node.check()
        await node.kill()

    run_virtually(whole())


def test_everything_comes_from_the_node_of_the_device() -> None:
    async def work(node: Harness) -> None:
        pod = manifest("app", "2", more={NIC: "1"})
        record = await node.admit(pod)
        assert record.phase is PodPhase.ADMITTED
        assert str(record.assignments["c0"]) == "4-5"
        (block,) = record.memory["c0"]
        assert (block.numa_affinity, block.type, block.size) == ((1,), "memory", 64 * MIB)
        assert record.devices["c0"][NIC].ids == ("n1",)
        (spec,) = node.runtime.specs.values()
        assert spec.env["NIC"] == "n1"
        assert spec.placement is not None
        assert str(spec.placement.mems) == "1"
        assert node.plugins.calls == [(NIC, ("n1",))]
        await node.manager.release("app")
        state, policy = node.books.view.state, node.books.view.node.memory_policy
        assert policy is not None
        assert state.memory == policy.empty_state
        assert not state.devices.allocations.pods

    on(node_with(), work)


def test_a_plugin_does_not_set_what_pinfold_tells() -> None:
    """Also not what it does not tell: a container of the shared pool has no CPUs of its own."""
    names = ("pinfold-cpus", "pinfold-pod", "pinfold-new", "gomaxprocs", "other")
    wants = {f"example.com/{name}": "1" for name in names}
    lists = {name: DeviceResource(name, {"evil": Device("evil")}) for name in wants}

    async def work(node: Harness) -> None:
        for pod, cpus, for_go in (("own", "2", "2"), ("shared", "", "evil")):
            await node.admit(manifest(pod, cpus, more=wants))
            (spec,) = (s for s in node.runtime.specs.values() if s.pod_name == pod)
            assert spec.placement is not None
            own = spec.placement.cpus
            assert spec.env.get("PINFOLD_CPUS") == (None if own is None else str(own))
            assert spec.env["GOMAXPROCS"] == for_go
            assert spec.env["PINFOLD_POD"] == f"default/{pod}"
            assert "PINFOLD_NEW" not in spec.env
            assert spec.env["OTHER"] == "evil"
            assert any("what a device plugin says is passed over" in p for p in node.problems)
            node.problems.clear()
            await node.manager.release(pod)

    on(node_with(**lists), work)


def test_a_manifest_sets_all_but_the_facts() -> None:
    async def work(node: Harness) -> None:
        pod = manifest("app", "")
        given = {"PINFOLD_CPUS": "0-99", "PINFOLD_VOLUME_A": "/", "PINFOLD_MINE": "1", "A": "b"}
        env = [{"name": name, "value": value} for name, value in given.items()]
        pod["spec"]["containers"][0]["env"] = env
        await node.admit(pod)
        (spec,) = node.runtime.specs.values()
        assert spec.process.env == {n: v for n, v in given.items() if n != "PINFOLD_CPUS"}
        assert "PINFOLD_CPUS" not in spec.env
        words = "only Pinfold sets PINFOLD_CPUS; what the manifest says"
        assert any(words in problem for problem in node.problems)

    on(node_with(), work)


def test_devices_of_two_nodes_are_refused_and_nothing_is_held() -> None:
    async def work(node: Harness) -> None:
        before = held(node)
        await node.admit(manifest("first", "", more={GPU: "1"}))
        state = held(node)
        record = await node.admit(manifest("app", "1", more={GPU: "1", NIC: "3"}))
        assert record.phase is PodPhase.REJECTED
        assert (record.assignments, record.memory, record.devices) == ({}, {}, {})
        assert held(node) == state
        await node.manager.release("first")
        assert held(node) == before

    on(node_with(), work)


def test_a_plugin_that_refuses_leaves_nothing_behind() -> None:
    async def work(node: Harness) -> None:
        before = held(node)
        for failing in (1, 2):
            node.plugins.faults.calls, node.plugins.faults.fail_at = 0, {failing}
            pod = manifest(f"app{failing}", "1", more={GPU: "1", NIC: "1"})
            pod["spec"]["containers"][0]["resources"]["limits"][GPU] = "1"
            record = await node.admit(pod)
            resource = (GPU, NIC)[failing - 1]
            assert record.reason == "UnexpectedAdmissionError"
            assert record.message == (
                f"Allocate failed due to the plugin of {resource} failed, which is unexpected"
            )
            assert held(node) == before
        assert (await node.admit(manifest("app", "1", more={GPU: "1", NIC: "1"}))).message is None

    on(node_with(), work)


def test_the_plugin_is_asked_which_devices_it_prefers() -> None:
    devices = {f"d{n}": Device(f"d{n}") for n in range(5)}
    disks = DeviceResource("example.com/disk", devices, preferred_allocation=True)

    async def work(node: Harness) -> None:
        record = await node.admit(manifest("app", "", more={"example.com/disk": "2"}))
        # The fake prefers the last ones.
        assert record.devices["c0"]["example.com/disk"].ids == ("d3", "d4")

    on(node_with(disks=disks), work)


def test_two_pods_that_are_asked_about_at_once_get_different_devices() -> None:
    async def work(node: Harness) -> None:
        pods = [manifest(f"p{n}", "", more={NIC: "1"}) for n in range(3)]
        records = await asyncio.gather(*(node.admit(pod) for pod in pods))
        given = [r.devices["c0"][NIC].ids for r in records if r.phase is PodPhase.ADMITTED]
        assert sorted(given) == [("n1",), ("n2",)]
        (refused,) = [r for r in records if r.phase is PodPhase.REJECTED]
        assert refused.reason == "TopologyAffinityError"

    on(node_with(), work)


def test_a_device_that_fails_fails_its_pod_and_no_other() -> None:
    async def work(node: Harness) -> None:
        for name in ("a", "b"):
            await node.admit(manifest(name, "1", more={NIC: "1"}))
        node.plugins.set_health(NIC, "n1", healthy=False)
        await node.health.take(node.plugins.inventory())
        await node.settle()
        ended = node.books.view.pods.ended["uid-a"]
        assert (ended.phase, ended.reason) == (PodPhase.FAILED, "UnhealthyDevice")
        assert ended.message == "device n1 of example.com/nic is unhealthy"
        assert "uid-b" in node.books.view.pods.active
        record = await node.admit(manifest("c", "1", more={NIC: "1"}))
        assert record.phase is PodPhase.REJECTED

    on(node_with(), work)


def test_a_plugin_that_is_gone_leaves_its_pods_alone() -> None:
    async def work(node: Harness) -> None:
        await node.admit(manifest("a", "1", more={NIC: "1"}))
        node.plugins.disconnect(NIC)
        await node.health.take(node.plugins.inventory())
        await node.settle()
        assert node.cpus("a")
        record = await node.admit(manifest("b", "1", more={NIC: "1"}))
        assert record.phase is PodPhase.REJECTED

    on(node_with(), work)


def test_a_restarted_agent_knows_who_has_which_devices_before_plugins_return() -> None:
    async def work(node: Harness) -> None:
        await node.admit(manifest("a", "2", more={NIC: "2"}))
        before = held(node)
        await node.kill()
        listed = node.plugins.inventory()
        for resource in listed.values():
            node.plugins.disconnect(resource.name)
        await node.start()
        assert held(node) == before
        assert not any(r.connected for r in node.books.view.state.devices.inventory.values())
        for resource in listed.values():
            node.plugins.put(resource)
        await node.health.take(node.plugins.inventory())
        assert held(node) == before
        assert (await node.admit(manifest("b", "", more={NIC: "1"}))).phase is PodPhase.REJECTED

    on(node_with(), work)


def test_a_record_of_another_memory_policy_is_refused_or_repaired() -> None:
    async def work(node: Harness) -> None:
        await node.admit(manifest("a", "2", more={NIC: "1"}))
        await node.kill()
        node.config = STATIC
        words = 'configured policy "None" differs from state checkpoint policy "Static"'
        with pytest.raises(MismatchError, match=words):
            await node.start()
        await node.start(OnMismatch.REPAIR)
        (pod,) = node.books.view.pods.active.values()
        assert pod.record.memory == {}
        assert pod.record.devices["c0"][NIC].ids == ("n1",)
        assert str(pod.record.assignments["c0"]) == "2-3"

    on(node_with(), work)

"""Random lives of pods with memory and devices: no memory is given twice, none is lost."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.devices.locality import GivenDevices
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.policy import device_hints
from pinfold.core.devices.table import DeviceTable
from pinfold.core.pod.pod import Container, Pod
from pinfold.ports.errors import PortError
from pinfold.ports.nri import RefusedError, Resources
from tests.scenes.lifecycle_harness import GIB, LifecycleHarness, guaranteed
from tests.scenes.manager_harness import ALL_MANAGERS, run_virtually
from tests.scenes.random_life import NAMES, step

POLICIES = ("none", "best-effort", "restricted", "single-numa-node")


def _amount(choice: random.Random) -> Resources:
    memory = choice.choice((1, 2, 5, 8, 12)) * GIB
    return replace(guaranteed(choice.choice((0.5, 1, 2, 3, 4))), memory=memory)


def _begun(h: LifecycleHarness, choice: random.Random, pod: str) -> tuple[str, str]:
    for name in NAMES:
        if choice.random() < 0.5:
            h.kubelet.give(pod, name, "example.com/nic", n=choice.randrange(3))
    return pod, choice.choice(("guaranteed", "guaranteed", "burstable"))


async def _step(h: LifecycleHarness, choice: random.Random, number: int) -> None:
    await step(
        h,
        choice,
        begin=lambda: _begun(h, choice, f"p{number}"),
        amount=lambda: _amount(choice),
        again=lambda before: replace(before, cpus="", mems=""),
    )


async def _life(seed: int, length: int, *, faults: bool) -> None:
    choice = random.Random(seed)  # noqa: S311 - reproducible
    config = replace(
        ALL_MANAGERS,
        topology_manager_policy=choice.choice(POLICIES),
        topology_manager_scope=choice.choice(("container", "pod")),
    )
    machine = choice.choice(("2s2c2t@8Gi", "2s2n2c1t@8Gi", "1s4c2t@16Gi"))
    h = LifecycleHarness(machine, config, over_cri=choice.random() < 0.5)
    await h.start()
    for number in range(length):
        h.kubelet.delay = choice.choice((0.0, 0.1, 1.0))
        if faults and choice.random() < 0.2:
            port = choice.choice(
                (h.store.faults, h.cgroups.faults, h.node.record_faults, h.node.creation_faults)
            )
            port.fail_at = {port.calls + choice.randrange(1, 4)}
        with suppress(RefusedError, *([PortError] if faults else [])):
            await _step(h, choice, number)
        for port in (h.store.faults, h.cgroups.faults):
            port.fail_at = set()
        if h.node.plugin is None:
            await h.start()
        if faults:
            # What the kernel refused is made right by the next reconciliation; here by a restart.
            await h.kill()
            await h.start()
        await h.until_moved()
        h.check()
    await h.settle()
    await h.until_moved()
    h.check()
    assert h.ledger.behind == 0
    assert h.recorded() == h.kernel()
    for pod in list(h.node.pods.values()):
        await h.node.stop_pod(pod)
    policy = h.books.view.node.memory_policy
    assert policy is not None
    assert h.books.view.state.memory == policy.empty_state, "memory is leaked"
    await h.kill()


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_lives_of_pods(seed: int, length: int) -> None:
    run_virtually(_life(seed, length, faults=False))


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_lives_of_pods_with_faults(seed: int, length: int) -> None:
    run_virtually(_life(seed, length, faults=True))


@pytest.mark.parametrize("seed", range(2))
def test_long_lives(seed: int) -> None:
    run_virtually(_life(seed, 400, faults=False))


# ---------------------------------------------------------------------------------------- hints


@given(
    nodes=st.lists(st.integers(0, 63), min_size=1, max_size=6, unique=True).map(sorted),
    places=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=5),
)
def test_hints_are_those_of_a_device_manager(nodes: list[int], places: list[list[int]]) -> None:
    devices = tuple(
        Device(f"d{n}", numa_nodes=tuple({nodes[at % len(nodes)] for at in place}))
        for n, place in enumerate(places)
    )
    container = Container("main")
    pod = Pod(uid="u", name="p", containers=(container,))
    found = GivenDevices({"main": {"r": devices}}, nodes).get_topology_hints(pod, container)
    table = DeviceTable.of(DeviceResource("r", {one.id: one for one in devices}))
    every = table.mask(one.id for one in devices)
    assert found == {"r": device_hints(table, nodes, 0, every, len(devices))}


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_nodes_that_are_not_there_are_nowhere(places: list[int]) -> None:
    container = Container("main")
    pod = Pod(uid="u", name="p", containers=(container,))
    devices = (Device("d", numa_nodes=tuple(place for place in places if place not in {0, 1})),)
    given_devices = GivenDevices({"main": {"r": devices}}, (0, 1))
    assert given_devices.get_topology_hints(pod, container) == {"r": None}
    assert not given_devices.locates(container)

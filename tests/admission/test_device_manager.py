"""The device manager as a provider: init containers, preferences, all or nothing, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.admission.devices.manager import Answers, DeviceManager
from pinfold.core.devices.devices import Device, DeviceResource, PreferenceQuestion
from pinfold.core.devices.policy import PreferenceNeededError
from pinfold.core.devices.state import DeviceState
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import AllocationError, NUMAInfo, TopologyHint
from pinfold.core.topology_manager.manager import Admission, TopologyManager
from pinfold.core.values.quantity import Quantity
from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.device_checkpoint import (
    DeviceManagerCheckpoint,
    Holding,
    PodDevicesEntry,
    checkpoint_of,
    restore_devices,
)

GPU = "example.com/gpu"
NIC = "example.com/nic"
ANYWHERE = TopologyHint(None, preferred=False)
PLUGIN_ERROR = "device plugin GetPreferredAllocation rpc failed with err: no preference today"


def container(name: str, *, sidecar: bool = False, **devices: int) -> Container:
    limits = {f"example.com/{kind}": Quantity(count) for kind, count in devices.items()}
    return Container(name, limits, limits, "Always" if sidecar else None)


def pod(*containers: Container, init: tuple[Container, ...] = (), uid: str = "u") -> Pod:
    return Pod(uid, uid, init_containers=init, containers=containers)


def resource(name: str, count: int, nodes: int = 2, *, asks: bool = False) -> DeviceResource:
    """Devices d0, d1, ... one after the other on each NUMA node; 0 nodes for no locality."""
    devices = {
        f"d{i}": Device(f"d{i}", numa_nodes=(i % nodes,) if nodes else ()) for i in range(count)
    }
    return DeviceResource(name, devices, preferred_allocation=asks)


def node(gpus: int = 4, nics: int = 4, nodes: int = 2, *, asks: bool = False) -> DeviceState:
    return DeviceState(
        {GPU: resource(GPU, gpus, nodes, asks=asks), NIC: resource(NIC, nics, nodes)}
    )


def admit(
    state: DeviceState, pod: Pod, answers: Answers | None = None, policy: str = "best-effort"
) -> tuple[Admission, DeviceManager]:
    manager = DeviceManager(state, answers or {}, (0, 1))
    topology = TopologyManager.create(NUMAInfo((0, 1)), policy, "container", {})
    return topology.admit(pod, pod.all_containers, [manager]), manager


def test_a_pod_gets_devices_of_one_numa_node() -> None:
    wanted = pod(container("c", gpu=2, nic=1))
    admission, manager = admit(node(), wanted, policy="single-numa-node")
    assert admission.affinity["c"] == TopologyHint(0b01, preferred=True)
    assert manager.allocations == {"c": {GPU: ("d0", "d2"), NIC: ("d0",)}}
    assert manager.held == manager.allocations


def test_hints_of_resources_without_locality_are_no_preference() -> None:
    wanted = container("c", gpu=1, nic=9)
    state = DeviceState({GPU: resource(GPU, 2, 0), NIC: resource(NIC, 2)})
    manager = DeviceManager(state, {}, (0, 1))
    assert manager.get_topology_hints(pod(wanted), wanted) == {GPU: None, NIC: []}
    assert manager.get_pod_topology_hints(pod(wanted)) == {GPU: None, NIC: []}


def test_resources_that_no_plugin_registered_are_not_its_business() -> None:
    wanted = container("c", fpga=3)
    admission, manager = admit(node(), pod(wanted))
    assert admission.admitted
    assert manager.allocations == {}
    assert manager.get_topology_hints(pod(wanted), wanted) == {}


def test_a_resource_that_somebody_has_is_its_business_though_its_plugin_is_gone() -> None:
    state = DeviceState().with_pod("v", {"c": {GPU: ["d0"]}})
    admission, manager = admit(state, pod(container("c", gpu=1)))
    assert admission.message == (
        f"Allocate failed due to cannot allocate unregistered device {GPU}, which is unexpected"
    )
    assert manager.get_pod_topology_hints(pod(container("c", gpu=1))) == {GPU: None}


def test_requests_alone_do_not_count() -> None:
    admission, manager = admit(node(), pod(Container("c", requests={GPU: Quantity(1)})))
    assert admission.admitted
    assert manager.allocations == {}


def test_devices_of_init_containers_go_on_to_later_ones() -> None:
    wanted = pod(
        container("c", gpu=2),
        container("d", gpu=1),
        init=(container("i", gpu=1), container("j", gpu=3)),
    )
    admission, manager = admit(node(gpus=3), wanted)
    assert admission.admitted
    got = {name: devices[GPU] for name, devices in manager.allocations.items()}
    assert got["j"] == ("d0", "d1", "d2")
    assert set(got["i"]) < set(got["j"])
    assert sorted(got["c"] + got["d"]) == ["d0", "d1", "d2"]
    after = node(gpus=3).with_pod("u", manager.held, init_containers=["i", "j"])
    assert after.in_use(GPU) == {"d0", "d1", "d2"}


def test_sidecars_keep_what_they_took_over() -> None:
    wanted = pod(
        container("c", gpu=1),
        init=(container("i", gpu=1), container("s", sidecar=True, gpu=1)),
    )
    _, manager = admit(node(gpus=2), wanted)
    got = {name: devices[GPU] for name, devices in manager.allocations.items()}
    assert got == {"i": ("d0",), "s": ("d0",), "c": ("d1",)}
    refused, _ = admit(node(gpus=1), wanted)
    assert refused.failed_container == "c"
    assert refused.message == (
        f"Allocate failed due to requested number of devices unavailable for {GPU}. "
        "Requested: 1, Available: 0, which is unexpected"
    )


def test_pod_hints_count_what_runs_at_once() -> None:
    init = (container("s", sidecar=True, gpu=1), container("i", gpu=4))
    manager = DeviceManager(node(gpus=5), {}, (0, 1))
    wanted = pod(container("c", gpu=2), init=init)
    assert manager.get_pod_topology_hints(wanted) == {
        GPU: [TopologyHint(0b11, preferred=True)],
    }
    assert DeviceManager(node(gpus=4), {}, (0, 1)).get_pod_topology_hints(wanted) == {GPU: []}


def test_what_a_container_has_it_keeps() -> None:
    wanted = pod(container("c", gpu=2))
    state = node().with_pod("u", {"c": {GPU: ["d1", "d3"]}})
    admission, manager = admit(state, wanted, policy="single-numa-node")
    assert admission.affinity["c"] == TopologyHint(0b10, preferred=True)
    assert manager.allocations == {}
    assert manager.held == {"c": {GPU: ("d1", "d3")}}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            node().with_pod("u", {"c": {GPU: ["d1"]}}),
            f'pod "u" container "c" changed request for resource "{GPU}" from 1 to 2',
        ),
        (
            node(gpus=2).with_pod("u", {"c": {GPU: ["d1", "d3"]}}),
            (
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {GPU}"
            ),
        ),
        (node(gpus=0), f"no healthy devices present; cannot allocate unhealthy devices {GPU}"),
    ],
)
def test_refusals(state: DeviceState, words: str) -> None:
    wanted = container("c", gpu=2)
    with pytest.raises(AllocationError) as refusal:
        DeviceManager(state, {}, (0, 1)).allocate(pod(wanted), wanted, ANYWHERE)
    assert str(refusal.value) == words


def test_a_missing_answer_ends_the_admission_with_the_question() -> None:
    state, wanted = node(asks=True), pod(container("c", gpu=1))
    with pytest.raises(PreferenceNeededError) as needed:
        admit(state, wanted)
    question = needed.value.question
    assert question == PreferenceQuestion(GPU, ("d0", "d2"), (), 1)
    _, manager = admit(state, wanted, {question: ("d2",)})
    assert manager.allocations == {"c": {GPU: ("d2",)}}
    failed, manager = admit(state, wanted, {question: "no preference today"})
    assert failed.message == f"Allocate failed due to {PLUGIN_ERROR}, which is unexpected"
    assert manager.allocations == {}


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        (("d3", "d2"), ("d2", "d3")),
        (("d0", "d9", ""), ("d0", "d1")),
        (("d2", "d2", "d2"), ("d0", "d2")),
        (("d4",), ("d0", "d1")),
        ((), ("d0", "d1")),
    ],
)
def test_an_answer_is_taken_as_far_as_it_is_available(
    answer: tuple[str, ...], got: tuple[str, ...]
) -> None:
    state = node(gpus=5, nodes=0, asks=True).with_pod("v", {"c": {GPU: ["d4"]}})
    question = PreferenceQuestion(GPU, ("d0", "d1", "d2", "d3"), (), 2)
    _, manager = admit(state, pod(container("c", gpu=2)), {question: answer})
    assert manager.allocations == {"c": {GPU: got}}


def test_no_plugin_is_asked_when_there_is_no_choice() -> None:
    _, manager = admit(node(gpus=1, asks=True), pod(container("c", gpu=1)))
    assert manager.allocations == {"c": {GPU: ("d0",)}}


def test_a_container_gets_all_its_resources_or_none() -> None:
    wanted = container("c", gpu=1, nic=9)
    manager = DeviceManager(node(), {}, (0, 1))
    with pytest.raises(AllocationError, match=r"Requested: 9, Available: 4"):
        manager.allocate(pod(wanted), wanted, ANYWHERE)
    assert manager.allocations == manager.held == {}
    less = container("c", gpu=4, nic=4)
    manager.allocate(pod(less), less, ANYWHERE)
    assert len(manager.allocations["c"][GPU]) == 4


def test_a_draft_is_of_one_pod() -> None:
    manager = DeviceManager(node(), {}, (0, 1))
    manager.get_pod_topology_hints(pod())
    with pytest.raises(ValueError, match="a draft of pod 'u' is no use for pod 'v'"):
        manager.get_pod_topology_hints(pod(uid="v"))


containers = st.builds(
    lambda gpu, nic, sidecar: (gpu, nic, sidecar),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
)


@st.composite
def pods(draw: st.DrawFn, uid: str) -> Pod:
    made = [
        [
            container(f"{kind}{number}", sidecar=sidecar, gpu=gpu, nic=nic)
            for number, (gpu, nic, sidecar) in enumerate(draw(st.lists(containers, max_size=3)))
        ]
        for kind in ("i", "c")
    ]
    return pod(*made[1], init=tuple(made[0]), uid=uid)


def answered(state: DeviceState, wanted: Pod, policy: str) -> tuple[Admission, DeviceManager]:
    """Decide anew with each answer; the plugin prefers its last devices."""
    answers: dict[PreferenceQuestion, tuple[str, ...] | str] = {}
    while True:
        try:
            return admit(state, wanted, answers, policy)
        except PreferenceNeededError as needed:
            question = needed.question
            assert question not in answers
            answers[question] = question.available[-question.size :]


def shuffled(state: DeviceState, data: st.DataObject) -> DeviceState:
    inventory = {
        name: DeviceResource(
            name,
            dict(data.draw(st.permutations(list(listed.devices.items())))),
            preferred_allocation=listed.preferred_allocation,
        )
        for name, listed in reversed(list(state.inventory.items()))
    }
    return state.with_inventory(inventory)


def separate_containers(wanted: Pod) -> Iterator[str]:
    """The containers that run beside each other."""
    yield from (c.name for c in wanted.init_containers if c.is_sidecar)
    yield from (c.name for c in wanted.containers)


@given(st.data())
def test_admissions_keep_the_invariants(data: st.DataObject) -> None:
    state = node(
        data.draw(st.integers(0, 6)),
        data.draw(st.integers(0, 6)),
        data.draw(st.integers(0, 3)),
        asks=data.draw(st.booleans()),
    )
    policy = data.draw(st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]))
    for uid in ("u", "v"):
        wanted = data.draw(pods(uid))
        before = state.allocations
        admission, manager = answered(state, wanted, policy)
        again, replayed = answered(shuffled(state, data), wanted, policy)
        assert (again, replayed.allocations) == (admission, manager.allocations)
        assert state.allocations == before
        if not admission.admitted:
            continue
        for one in wanted.all_containers:
            got = {name: len(ids) for name, ids in manager.held.get(one.name, {}).items()}
            assert got == {name: q.value() for name, q in one.limits.items() if q.value()}
        # Raises when a device would have two owners at once.
        ending = [c.name for c in wanted.init_containers if not c.is_sidecar]
        after = state.with_pod(uid, manager.held, init_containers=ending)
        for name in (GPU, NIC):
            together = [
                d
                for c in separate_containers(wanted)
                for d in manager.held.get(c, {}).get(name, ())
            ]
            assert len(together) == len(set(together))
            assert not set(together) & set(state.in_use(name))
            assert after.in_use(name) <= state.inventory[name].devices.keys()
        assert after.without(uid).allocations == before
        state = after
        assert restored(state) == state.allocations


def restored(state: DeviceState) -> object:
    """The allocations by way of a checkpoint's bytes."""
    responses = {
        Holding(uid, name, resource): f"{uid} {name} {resource}".encode()
        for uid, containers in state.allocations.pods.items()
        for name, resources in containers.items()
        for resource in resources
    }
    checkpoint = DeviceManagerCheckpoint.parse(checkpoint_of(state, responses).encode())
    checkpoint.verify()
    again = restore_devices(checkpoint)
    assert again.responses == responses
    return again.state.allocations


def test_a_checkpoint_lists_devices_by_numa_node() -> None:
    devices = [Device("d0", numa_nodes=(1, 0)), Device("d1", numa_nodes=(1,)), Device("d2")]
    listed = DeviceResource(GPU, {device.id: device for device in devices})
    state = DeviceState({GPU: listed}).with_pod("u", {"c": {GPU: ["d2", "d1", "d0", "gone"]}})
    checkpoint = checkpoint_of(state, {Holding("u", "c", GPU): b"answer"})
    held = {-1: ("d2", "gone"), 0: ("d0",), 1: ("d0", "d1")}
    assert checkpoint.pod_device_entries == (PodDevicesEntry("u", "c", GPU, held, b"answer"),)
    assert checkpoint.registered_devices == {GPU: ("d0", "d1", "d2")}
    checkpoint.verify()
    again, responses = restore_devices(checkpoint)
    assert responses == {Holding("u", "c", GPU): b"answer"}
    assert again.allocations == state.allocations
    assert again.inventory[GPU].devices["d0"].numa_nodes == (0, 1)
    assert again.allocatable() == {GPU: 0}
    assert checkpoint_of(again, responses).registered_devices == {GPU: ()}


def test_nothing_makes_the_checkpoint_of_a_kubelet_without_pods() -> None:
    checkpoint = checkpoint_of(DeviceState(), {})
    assert checkpoint.pod_device_entries is None
    assert restore_devices(checkpoint) == (DeviceState(), {})


def test_a_response_has_to_be_known() -> None:
    state = DeviceState().with_pod("u", {"c": {GPU: ["d0"]}})
    with pytest.raises(CheckpointError, match=f"pod 'u', container 'c': the answer of .* {GPU}"):
        checkpoint_of(state, {})


def entry(**changes: object) -> PodDevicesEntry:
    fields: dict[str, object] = {
        "pod_uid": "u",
        "container_name": "c",
        "resource_name": GPU,
        "device_ids": {0: ("d0",)},
        "alloc_resp": b"",
    }
    return PodDevicesEntry(**(fields | changes))  # type: ignore[arg-type] # what is wrong is the test


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([entry(pod_uid="")], r"PodDeviceEntries\[0\]: no PodUID"),
        ([entry(), entry(container_name="")], r"PodDeviceEntries\[1\]: no ContainerName"),
        ([entry(resource_name="")], "no ResourceName"),
        ([entry(), entry()], r"\[1\]: the same pod, container and resource once more"),
        ([entry(alloc_resp=None)], "no AllocResp"),
        ([entry(device_ids=None)], "no DeviceIDs"),
        ([entry(device_ids={0: None, 1: ()})], "no DeviceIDs"),
        ([entry(device_ids={-2: ("d0",)})], "-2 is no NUMA node"),
        ([entry(device_ids={0: ("",)})], "a device without an id"),
        ([entry(device_ids={0: ("d0", "d0")})], "device 'd0' twice on NUMA node 0"),
        ([entry(), entry(pod_uid="v")], "device 'd0' of example.com/gpu belongs to pod 'u'"),
    ],
)
def test_nonsense_in_a_checkpoint_is_refused(entries: list[PodDevicesEntry], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        restore_devices(DeviceManagerCheckpoint(tuple(entries), None))


@pytest.mark.parametrize(
    ("registered", "words"),
    [
        ({"": ()}, "a resource without a name"),
        ({GPU: ("a", "a")}, r"RegisteredDevices\['example.com/gpu'\]: a device without an id"),
        ({GPU: ("",)}, "a device without an id"),
    ],
)
def test_nonsense_in_registered_devices_is_refused(
    registered: dict[str, tuple[str, ...]], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        restore_devices(DeviceManagerCheckpoint(None, registered))

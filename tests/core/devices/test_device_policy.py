"""The choice of devices: recorded decisions, tables, allocations and their invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.cpu.hints import MAX_HINT_NODES, TooManyNUMANodesError
from pinfold.core.devices.devices import Device, DeviceResource, PreferenceQuestion
from pinfold.core.devices.policy import (
    DeviceRequest,
    device_hints,
    devices_to_allocate,
    nodes_with_devices,
)
from pinfold.core.devices.state import (
    DeviceAllocations,
    DeviceOwnershipError,
    DeviceState,
    DeviceUser,
)
from pinfold.core.devices.table import DeviceTable, in_natural_order
from pinfold.core.topology_manager.hints import AllocationError, TopologyHint, iter_numa_masks
from tests.scenes.state_vectors import VECTORS, replay, sample

GPU = "example.com/gpu"
NIC = "example.com/nic"


def listed(*devices: Device, name: str = GPU, connected: bool = True) -> DeviceResource:
    return DeviceResource(name, {device.id: device for device in devices}, connected=connected)


def on_nodes(*nodes: tuple[int, ...]) -> DeviceTable:
    """Devices d0, d1, ... on these NUMA nodes."""
    devices = (Device(f"d{i}", numa_nodes=near) for i, near in enumerate(nodes))
    return DeviceTable.of(listed(*devices))


def test_sample_of_recorded_decisions() -> None:
    tally = replay(sample("device_policy"), "device_policy")
    assert tally.failures == []
    assert tally.passed == 95


@pytest.mark.skipif(not VECTORS.exists(), reason="the whole recording is not at hand")
def test_whole_recording() -> None:
    tally = replay(VECTORS / "devicemanager.jsonl", "device_policy")
    assert tally.failures == []
    assert tally.passed == 564


@pytest.mark.skipif(not VECTORS.exists(), reason="the whole recording is not at hand")
@pytest.mark.parametrize(
    ("name", "count"), [("device_hints.jsonl", 264), ("devicemanager_changed.jsonl", 32)]
)
def test_whole_recording_of_later_versions(name: str, count: int) -> None:
    tally = replay(VECTORS / "1.36" / name, "device_policy")
    assert tally.failures == []
    assert tally.passed == count


def test_natural_order() -> None:
    ordered = ["a", "a0", "a00", "a01", "a1", "a2", "a10", "a10-2", "a10-10", "b"]
    assert in_natural_order(reversed(ordered)) == ordered
    huge = [f"a{'9' * 5000}", f"a1{'0' * 5000}"]
    assert in_natural_order(reversed(huge)) == huge
    assert in_natural_order([]) == []
    assert in_natural_order(["a\0b", "a", "\0"]) == ["\0", "a", "a\0b"]


ids = st.text("ab019-", min_size=1, max_size=4)
localities = st.lists(st.sampled_from([-1, 0, 1, 2, 3, 70]), max_size=3).map(tuple)
devices_ = st.builds(Device, ids, st.booleans(), localities) | st.builds(
    Device, ids, st.booleans(), located_nowhere=st.booleans()
)
resources = st.lists(devices_, max_size=8, unique_by=lambda device: device.id)


@given(st.sets(st.integers(0, 300), max_size=200), st.integers(0, 3))
def test_masks_and_names_are_inverse(bits: set[int], unhealthy: int) -> None:
    table = DeviceTable.of(listed(*(Device(f"d{i}", i % 4 != unhealthy) for i in range(301))))
    names = tuple(f"d{bit}" for bit in sorted(bits))
    mask = table.mask(reversed(names))
    assert mask == sum(1 << bit for bit in bits)
    assert table.names(mask) == names
    assert table.names(table.healthy) == tuple(f"d{i}" for i in range(301) if i % 4 != unhealthy)


@given(resources, resources)
def test_a_table_made_from_another_is_the_same(old: list[Device], new: list[Device]) -> None:
    fresh = DeviceTable.of(listed(*new))
    assert DeviceTable.of(listed(*new), DeviceTable.of(listed(*old))) == fresh
    assert DeviceTable.of(listed(*reversed(new))) == fresh


def expected_hints(
    devices: list[Device], nodes: int, available: set[str], reusable: set[str], request: int
) -> list[TopologyHint]:
    """The hints by looking at every device for every combination."""

    def near(device: Device, mask: int) -> bool:
        return any(node >= 0 and mask >> node & 1 for node in device.numa_nodes)

    def located(device: Device) -> bool:
        return bool(device.numa_nodes) or device.located_nowhere

    masks = list(iter_numa_masks(range(nodes)))
    enough = [m.bit_count() for m in masks if sum(near(d, m) for d in devices) >= request]
    least = min(enough, default=nodes)
    return [
        TopologyHint(mask, mask.bit_count() == least)
        for mask in masks
        if all(near(d, mask) for d in devices if d.id in reusable and located(d))
        and sum(near(d, mask) * ((d.id in available) + (d.id in reusable)) for d in devices)
        >= request
    ]


@given(resources, st.integers(1, 4), st.data())
def test_hints_agree_with_looking_at_every_device(
    devices: list[Device], nodes: int, data: st.DataObject
) -> None:
    names = [device.id for device in devices]
    some = st.sets(st.sampled_from(names)) if names else st.just(set[str]())
    available, reusable = data.draw(some), data.draw(some)
    request = data.draw(st.integers(0, 5))
    table = DeviceTable.of(listed(*devices))
    got = device_hints(table, range(nodes), table.mask(available), table.mask(reusable), request)
    assert got == expected_hints(devices, nodes, available, reusable, request)


def test_numa_nodes_are_in_the_order_of_the_machine_and_may_have_gaps() -> None:
    table = on_nodes((8,), (1,), (1, 8), (4,))
    hints = device_hints(table, (8, 1), table.healthy, 0, 2)
    assert hints == [
        TopologyHint(1 << 8, preferred=True),
        TopologyHint(1 << 1, preferred=True),
        TopologyHint(1 << 8 | 1 << 1, preferred=False),
    ]


@given(resources, st.permutations(range(4)), st.integers(1, 5))
def test_hints_over_nodes_with_devices_are_those_that_some_device_is_near(
    devices: list[Device], nodes: list[int], request: int
) -> None:
    table = DeviceTable.of(listed(*devices))
    near = {node for device in devices for node in device.numa_nodes}
    considered = nodes_with_devices(table, nodes)
    assert considered == ([node for node in nodes if node in near] or nodes)
    narrow = device_hints(table, considered, table.healthy, 0, request)
    wide = device_hints(table, nodes, table.healthy, 0, request)
    known = sum(1 << node for node in considered)
    assert {h.mask for h in narrow} == {h.mask for h in wide if (h.mask or 0) & ~known == 0}


def test_whoever_takes_over_a_device_that_is_nowhere_is_aligned_with_nothing() -> None:
    devices = [Device("d0", numa_nodes=(0,)), Device("d1", located_nowhere=True), Device("d2")]
    table = DeviceTable.of(listed(*devices))
    assert device_hints(table, (0, 1), table.mask(["d0"]), table.mask(["d1"]), 1) == []
    assert device_hints(table, (0, 1), table.mask(["d0"]), table.mask(["d2"]), 1) != []


def test_too_many_numa_nodes_are_refused() -> None:
    table = on_nodes((0,))
    with pytest.raises(TooManyNUMANodesError, match=r"21 NUMA nodes have 2\^21"):
        device_hints(table, range(MAX_HINT_NODES + 1), table.healthy, 0, 1)


@given(resources, st.data())
def test_choice_is_sound_and_does_not_depend_on_the_order(
    devices: list[Device], data: st.DataObject
) -> None:
    table = DeviceTable.of(listed(*devices))
    other = DeviceTable.of(listed(*data.draw(st.permutations(devices))))
    every = (1 << len(devices)) - 1
    in_use = data.draw(st.integers(0, every))
    reusable = data.draw(st.integers(0, every)) & in_use & table.healthy
    required = data.draw(st.integers(0, 6))
    affinity = data.draw(st.none() | st.integers(0, 15))
    request = DeviceRequest("u", "c", GPU, required, None, in_use, reusable, affinity)
    liked = data.draw(st.none() | st.lists(ids, max_size=6))
    asked: list[PreferenceQuestion] = []

    def ask(question: PreferenceQuestion) -> list[str]:
        asked.append(question)
        assert liked is not None
        return liked

    def outcome(of: DeviceTable) -> int | str:
        try:
            return devices_to_allocate(of, request, None if liked is None else ask)
        except AllocationError as error:
            return str(error)

    chosen = outcome(table)
    assert outcome(other) == chosen
    if isinstance(chosen, str):
        assert not table.healthy or (table.healthy & ~in_use | reusable).bit_count() < required
        return
    assert chosen.bit_count() == required
    assert chosen & ~(table.healthy & ~in_use | reusable) == 0
    assert reusable & ~chosen == 0 or chosen & ~reusable == 0
    tiers = table.tiers(table.healthy & ~in_use, affinity)
    assert chosen & tiers.aligned in (tiers.aligned, chosen & ~reusable)
    for question in asked:
        assert set(question.must_include) <= set(question.available)
        assert len(question.must_include) < question.size == required
        assert len(question.available) >= question.size
        assert set(question.must_include) <= set(table.names(chosen)) <= set(question.available)
        assert list(question.available) == in_natural_order(question.available)
        wanted = set(liked or ()) & set(question.available)
        got = set(table.names(chosen))
        assert wanted <= got or got <= wanted | set(question.must_include)


def test_a_disconnected_plugin_has_nothing_to_give() -> None:
    state = DeviceState({GPU: listed(Device("a"), Device("b", healthy=False), connected=False)})
    assert state.capacity() == {GPU: 2}
    assert state.allocatable() == {GPU: 0}
    with pytest.raises(AllocationError, match="no healthy devices present; cannot allocate"):
        devices_to_allocate(state.table(GPU), DeviceRequest("u", "c", GPU, 1))


def test_counts() -> None:
    state = DeviceState({GPU: listed(Device("a"), Device("b", healthy=False)), NIC: listed()})
    assert state.capacity() == {GPU: 2, NIC: 0}
    assert state.with_pod("u", {"c": {GPU: ["a"]}}).allocatable() == {GPU: 1, NIC: 0}


def test_a_table_is_kept_until_the_plugin_lists_something_else() -> None:
    state = DeviceState({GPU: listed(Device("a"))})
    table = state.table(GPU)
    assert state.with_pod("u", {"c": {GPU: ["a"]}}).table(GPU) is table
    assert state.with_inventory(dict(state.inventory)).table(GPU) is table
    sick = state.with_inventory({GPU: listed(Device("a", healthy=False))}).table(GPU)
    assert sick is not None
    assert sick.healthy == 0
    assert state.with_inventory({}).table(GPU) is None


def test_what_is_replaced_takes_no_owner_along_and_is_checked() -> None:
    before = DeviceAllocations({"other": {"c": {GPU: ("a",)}}})
    assert replace(before, pods={}).owners(GPU) == {}
    assert replace(before, pods={"u": {"c": {GPU: ("b",)}}}).owners(GPU) == {"b": "u"}
    with pytest.raises(DeviceOwnershipError, match="belongs to pod 'u'"):
        replace(before, pods={"u": {"c": {GPU: ("a",)}}, "v": {"c": {GPU: ("a",)}}})


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"c": {GPU: []}}, f"pod 'u', container 'c', {GPU}: no device to assign"),
        ({"c": {GPU: ["x", "x"]}}, "device 'x' is assigned twice"),
        ({"c": {GPU: ["x", ""]}}, "a device without an id"),
        ({"c": {GPU: ["a"]}}, f"pod 'u': device 'a' of {GPU} belongs to pod 'other'"),
        ({"c": {GPU: ["x"]}, "d": {GPU: ["x"]}}, "belong to containers 'c' and 'd' at once"),
    ],
)
def test_allocations_refuse(given_: dict[str, dict[str, list[str]]], words: str) -> None:
    before = DeviceAllocations({"other": {"c": {GPU: ("a",)}}})
    with pytest.raises(DeviceOwnershipError, match=words):
        before.with_pod("u", given_, init_containers=["i"])
    assert before == DeviceAllocations({"other": {"c": {GPU: ("a",)}}})


def test_devices_of_two_pods_are_refused_in_whole_allocations_too() -> None:
    with pytest.raises(DeviceOwnershipError, match="belongs to pod 'u'"):
        DeviceAllocations({"u": {"c": {GPU: ("a",)}}, "v": {"c": {GPU: ("a",)}}})


def test_users_of_devices() -> None:
    state = DeviceState().with_pod(
        "u", {"i": {GPU: ["a", "b"]}, "c": {GPU: ["a"], NIC: ["a"]}}, init_containers=["i"]
    )
    state = state.with_pod("v", {"c": {GPU: ["c"]}})
    assert state.users_of(GPU, ["a", "z"]) == (
        DeviceUser("u", "i", ("a",)),
        DeviceUser("u", "c", ("a",)),
    )
    assert state.users_of(GPU, ["c"]) == (DeviceUser("v", "c", ("c",)),)
    assert state.users_of(NIC, ["b"]) == ()
    assert state.without("u", "i").in_use(GPU) == {"a", "c"}


pods = st.dictionaries(
    st.sampled_from("uvw"),
    st.dictionaries(
        st.sampled_from("cd"),
        st.dictionaries(
            st.sampled_from([GPU, NIC]), st.sets(ids, min_size=1, max_size=3), max_size=2
        ),
        max_size=2,
    ),
)


@given(pods, st.sampled_from("uvw"), st.sampled_from([None, "c"]))
def test_removal_undoes_and_indexes_stay_right(
    given_: dict[str, dict[str, dict[str, set[str]]]], uid: str, container: str | None
) -> None:
    allocations = DeviceAllocations()
    for name, containers in given_.items():
        try:
            allocations = allocations.with_pod(name, containers)
        except DeviceOwnershipError:
            continue
    removed = allocations.without(uid, container)
    # A value that was changed step by step is the one made from its content at once.
    assert removed == DeviceAllocations(removed.pods)
    for resource in (GPU, NIC):
        assert removed.owners(resource) == DeviceAllocations(removed.pods).owners(resource)
        devices = [
            device
            for containers in removed.pods.values()
            for device in {d for c in containers.values() for d in c.get(resource, ())}
        ]
        assert len(devices) == len(set(devices))
        assert removed.in_use(resource) == set(devices)
    assert removed.with_pod(uid, allocations.of_pod(uid)) == allocations


def test_states_compare_by_what_they_say_and_not_by_what_was_computed() -> None:
    inventory = {GPU: listed(Device("a"), Device("b"))}
    first, second = DeviceState(inventory), DeviceState(inventory)
    assert first.table(GPU) is not None
    assert first == second
    assert not first != second  # noqa: SIM202 - both operators are meant
    assert first != DeviceState({})

"""Devices by class: the same allocation among other candidates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.decision import Decision
from pinfold.admission.devices.classes import MOST_WAYS, Ways, ways_to_serve
from pinfold.admission.model import build_node, empty_state
from pinfold.admission.pod_draft import PodDraft
from pinfold.admission.settling import release, settle
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.names import class_resource
from pinfold.core.classes.resource_class import (
    CLUSTERLEVEL,
    ProvisionConfig,
    Requirement,
    ResourceClass,
)
from pinfold.core.devices.classes import DeviceClasses
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity

GPU, OTHER = "nvidia.com/gpu", "amd.com/gpu"
MACHINE = parse_short_form("1s2n4c1t")


def requires(key: str, operator: str, *values: str) -> tuple[tuple[Requirement, ...], ...]:
    return ((Requirement(key, operator, values),),)


ANY = ResourceClass("any", requires("Kind", "Exists"))
BIG = ResourceClass("big", requires("memory", "GtEq", "12G"), priority=5)


Listed = tuple[DeviceResource, tuple[ComputeResource, ...]]


def gpus(count: int, big: int, name: str = GPU) -> Listed:
    """As many, of which the last ``big`` have more memory; one after the other on both nodes."""
    ids = [f"d{at}" for at in range(count)]
    listed = {id_: Device(id_, numa_nodes=(at % 2,)) for at, id_ in enumerate(ids)}
    small = ComputeResource(f"{name}-small", "", name, {"memory": "8G"})
    large = tuple(ids[count - big :])
    said = (small, ComputeResource(f"{name}-big", "", name, {"memory": "16G"}, devices=large))
    return DeviceResource(name, listed), said if big else said[:1]


def node_state(*classes: ResourceClass, listed: tuple[Listed, ...], policy: str = "none") -> Scene:
    config = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet([0]),
        topology_manager_policy=policy,
    )
    node = build_node(MACHINE, config)
    said = tuple(one for _, some in listed for one in some)
    inventory = {one.name: one for one, _ in listed}
    devices = DeviceState(inventory, classes=DeviceClasses.of(classes, said))
    return Scene(node, replace(empty_state(node, CPUSet(range(4))), devices=devices))


class Scene:
    def __init__(self, node: Node, state: NodeState) -> None:
        self.node, self.state = node, state
        self.pods: list[Pod] = []

    def admit(self, *containers: dict[str, int], init: tuple[dict[str, int], ...] = ()) -> Decision:
        def made(limits: dict[str, int], name: str) -> Container:
            quantities = {resource: Quantity(count) for resource, count in limits.items()}
            return Container(name, quantities, quantities)

        uid = f"u{len(self.pods)}"
        pod = Pod(
            uid,
            uid,
            init_containers=tuple(made(one, f"i{at}") for at, one in enumerate(init)),
            containers=tuple(made(one, f"c{at}") for at, one in enumerate(containers)),
        )
        decision = decide(self.node, self.state, pod)
        self.pods.append(pod)
        self.state = settle(self.state, decision)
        return decision


def wants(name: str, count: int = 1) -> dict[str, int]:
    return {class_resource(name): count}


def test_a_class_gets_its_own_devices_and_the_raw_name_any() -> None:
    node = node_state(ANY, BIG, listed=(gpus(4, 2),))
    assert node.admit(wants("big")).devices == {"c0": {GPU: ("d2",)}}
    assert node.admit(wants("any", 2)).devices == {"c0": {GPU: ("d0", "d1")}}
    short = node.admit(wants("any"))
    assert short.message == (
        "Allocate failed due to requested number of devices unavailable for "
        "class.pinfold.dev/any. Requested: 1, Available: 0, which is unexpected"
    )
    assert node.admit({GPU: 1}).devices == {"c0": {GPU: ("d3",)}}


def test_one_container_asks_by_several_names() -> None:
    node = node_state(ANY, BIG, listed=(gpus(4, 2),))
    decision = node.admit({**wants("any"), **wants("big"), GPU: 2})
    assert decision.devices == {"c0": {GPU: ("d0", "d1", "d2", "d3")}}
    assert decision.by_class == {
        "c0": {class_resource("any"): ("d0",), class_resource("big"): ("d2",)}
    }


def test_two_classes_that_select_the_same_share_it() -> None:
    """The proposal's example: both classes select both resources, and either can be bound."""
    first, second = (ResourceClass(name, requires("Kind", "Exists")) for name in ("rc1", "rc2"))
    node = node_state(first, second, listed=(gpus(2, 1),))
    assert node.admit(wants("rc2")).by_class == {"c0": {class_resource("rc2"): ("d0",)}}
    assert node.admit(wants("rc2")).by_class == {"c0": {class_resource("rc2"): ("d1",)}}
    assert not node.admit(wants("rc1")).admitted


def test_a_class_without_devices_is_out_of_them() -> None:
    node = node_state(BIG, listed=(gpus(2, 0),))
    decision = node.admit(wants("big"))
    assert (decision.reason, decision.message) == (
        "OutOfclass.pinfold.dev/big",
        (
            "Node didn't have enough resource: class.pinfold.dev/big, requested: 1, used: 0, "
            "capacity: 0"
        ),
    )


def test_the_cluster_level_is_no_matter_of_a_node() -> None:
    provision = ProvisionConfig(CLUSTERLEVEL)
    floating = ResourceClass("ip", requires("Kind", "Exists"), priority=9, provision=provision)
    node = node_state(floating, ANY, listed=(gpus(2, 0),))
    decision = node.admit({**wants("ip", 7), **wants("any", 2)})
    assert decision.admitted
    assert decision.devices == {"c0": {GPU: ("d0", "d1")}}


def test_the_resource_is_one_that_has_enough() -> None:
    node = node_state(ANY, listed=(gpus(1, 0, OTHER), gpus(4, 0)))
    assert node.admit(wants("any", 2)).devices == {"c0": {GPU: ("d0", "d1")}}
    assert node.admit(wants("any")).devices == {"c0": {OTHER: ("d0",)}}


def test_another_resource_is_tried_where_the_first_cannot_be_aligned() -> None:
    apart = DeviceResource(OTHER, {f"d{n}": Device(f"d{n}", numa_nodes=(n,)) for n in (0, 1)})
    node = node_state(ANY, listed=((apart, ()), gpus(4, 0)), policy="single-numa-node")
    decision = node.admit({**wants("any", 2), "cpu": 1, "memory": 1})
    assert decision.devices == {"c0": {GPU: ("d0", "d2")}}


def test_init_containers_hand_on_what_is_of_the_class() -> None:
    node = node_state(ANY, BIG, listed=(gpus(4, 2),))
    decision = node.admit(wants("big", 2), wants("any"), init=({GPU: 3},))
    assert decision.devices["c0"] == {GPU: ("d2", "d3")}
    assert decision.devices["c1"] == {GPU: ("d0",)}


def test_what_is_described_besides_wins_over_what_is_listed() -> None:
    said = (
        ComputeResource("a", "here", GPU, {"memory": "64G"}, devices=("d0",)),
        ComputeResource("b", "there", GPU, {"memory": "64G"}),
    )
    classes = DeviceClasses.of((ANY, BIG), said, "here")
    listed, _ = gpus(3, 0)
    members = classes.members({GPU: listed})
    assert members == {
        class_resource("any"): {GPU: {"d1", "d2"}},
        class_resource("big"): {GPU: {"d0"}},
    }
    assert list(classes.outranked({GPU: listed})) == [(ANY, "big", 1)]


def many(classes: int, resources: int, each: int) -> Scene:
    """Classes that all select all devices; as many of each resource."""
    every = [ResourceClass(f"c{at}", requires("Kind", "Exists")) for at in range(classes)]
    return node_state(*every, listed=tuple(gpus(each, 0, f"v.com/r{n}") for n in range(resources)))


def asking(classes: int, count: int = 1, **more: int) -> dict[str, int]:
    return {class_resource(f"c{at}"): count for at in range(classes)} | more


def ways(node: Scene, limits: dict[str, int]) -> Ways:
    quantities = {name: Quantity(count) for name, count in limits.items()}
    pod = Pod("u", "u", containers=(Container("c", quantities, quantities),))
    return ways_to_serve(node.state.devices, pod)


def test_what_is_short_is_not_tried() -> None:
    found = ways(many(6, 8, each=1), asking(6, count=2))
    assert (len(found.bindings), found.complete) == (1, True)


def test_classes_that_share_a_resource_have_to_fit_together() -> None:
    found = ways(many(2, 3, each=1), asking(2))
    assert (len(found.bindings), found.complete) == (6, True)
    assert all(len(set(one.values())) == 2 for one in found.bindings)


def test_the_number_of_attempts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Counter[str]()
    decide = PodDraft.decide

    def counting(draft: PodDraft, containers: Sequence[Container]) -> Decision:
        tried["attempts"] += 1
        return decide(draft, containers)

    monkeypatch.setattr(PodDraft, "decide", counting)
    # There are devices enough, and far too few CPUs for whichever of 8 ** 6 ways.
    decision = many(6, 8, each=8).admit(asking(6, cpu=400, memory=1))
    assert not decision.admitted
    assert tried["attempts"] == MOST_WAYS
    (note,) = decision.notes
    assert note.startswith("only 64 of the ways to serve its classes were tried")
    assert many(6, 8, each=8).admit(asking(6)).admitted
    assert tried["attempts"] == MOST_WAYS + 1


def test_a_search_without_an_end_is_given_up() -> None:
    """Twelve cannot have one each of eleven, which nobody knows before 11! ways are looked at."""
    found = ways(many(12, 11, each=1), asking(12))
    assert (len(found.bindings), found.complete) == (1, False)


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ((ANY, BIG), "there is no class bigg; there is big"),
        ((ANY,), "there is no class bigg; there is any"),
        ((), "there is no class bigg; there are none"),
    ],
)
def test_an_unknown_class_is_refused(classes: tuple[ResourceClass, ...], said: str) -> None:
    node = node_state(*classes, listed=(gpus(2, 1),))
    decision = node.admit(wants("bigg"))
    assert (decision.reason, decision.message) == ("UnexpectedAdmissionError", said)
    assert node.admit(wants("bigg", 0)).admitted


NAMES = ("any", "big", "even", "floor")
CLASSES = st.lists(
    st.builds(
        ResourceClass,
        st.sampled_from(NAMES),
        st.sampled_from(
            [requires("Kind", "Exists"), requires("memory", "GtEq", "12G"), requires("Kind", "In")]
        ),
        st.integers(0, 2),
    ),
    unique_by=lambda one: one.name,
    max_size=4,
)
ASKS = st.dictionaries(
    st.sampled_from([GPU, OTHER, *map(class_resource, NAMES)]), st.integers(1, 2), max_size=2
)


@given(CLASSES, st.lists(st.tuples(ASKS, ASKS, st.booleans()), max_size=6), st.booleans())
def test_every_device_is_of_its_class_and_has_one_owner(
    classes: list[ResourceClass],
    asks: list[tuple[dict[str, int], dict[str, int], bool]],
    aligned: bool,
) -> None:
    listed = (gpus(5, 2), gpus(3, 1, OTHER))
    policy = "restricted" if aligned else "none"
    node = node_state(*classes, listed=listed, policy=policy)
    known = {class_resource(one.name): one for one in classes}
    members = node.state.devices.members()
    for first, second, ends in asks:
        decision = node.admit(first, second)
        if not decision.admitted:
            assert not decision.devices
            continue
        for at, asked in enumerate((first, second)):
            given = decision.devices.get(f"c{at}", {})
            by_class = decision.by_class.get(f"c{at}", {})
            wanted = {n: q for n, q in asked.items() if n in known or n in (GPU, OTHER)}
            # Counts add up: as many devices as all names together ask for.
            assert sum(map(len, given.values())) == sum(wanted.values())
            for name in wanted.keys() & known.keys():
                ids = set(by_class[name])
                assert len(ids) == asked[name]
                assert any(
                    ids <= set(given.get(resource, ())) and ids <= some
                    for resource, some in members[name].items()
                )
        if ends:
            node.state = release(node.state, node.pods[-1])
    # One owner for each device.
    for resource in (GPU, OTHER):
        owners = Counter(
            id_
            for containers in node.state.devices.allocations.pods.values()
            for devices in containers.values()
            for id_ in devices.get(resource, ())
        )
        assert all(count == 1 for count in owners.values())
    # With priorities that differ, a device can be asked for by one class at most.
    if len({one.priority for one in classes}) == len(classes):
        names = Counter(
            (resource, id_)
            for some in members.values()
            for resource, ids in some.items()
            for id_ in ids
        )
        assert all(count == 1 for count in names.values())

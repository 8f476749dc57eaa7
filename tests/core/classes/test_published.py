"""What a publisher does: what is there at rest, and what holds on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.classes.compute_resource import (
    MOST_DEVICES,
    PART,
    ComputeResource,
    compute_resource_name,
    device_resources,
)
from pinfold.core.classes.published import Known, Step, Verb, next_steps, settled
from pinfold.core.values.quantity import Quantity

GPU = "nvidia.com/gpu"
DEVICES = tuple(f"gpu-{number}" for number in range(6))


def wanted(kinds: Mapping[str, str], node: str = "n") -> list[ComputeResource]:
    """The compute resources of devices of these types."""
    return [*device_resources(node, {GPU: {id_: {"type": one} for id_, one in kinds.items()}})]


def name_of(kind: str) -> str:
    return compute_resource_name("n", GPU, {"type": kind})


def after(there: Known, step: Step) -> dict[str, ComputeResource]:
    """What an API server has after a write; it refuses what it would refuse."""
    now, one = dict(there), step.resource
    match step.verb:
        case Verb.CREATE:
            assert one.name not in now
            assert len(one.devices) <= MOST_DEVICES
            now[one.name] = replace(one, capacity=None)
        case Verb.UPDATE:
            old = now[one.name]
            assert old.properties == one.properties
            assert len(one.devices) <= MOST_DEVICES
            now[one.name] = replace(one, capacity=old.capacity)
        case Verb.CAPACITY:
            now[one.name] = replace(now[one.name], capacity=one.capacity)
        case Verb.DELETE:
            del now[one.name]
    return now


def at_rest(
    wanted: Iterable[ComputeResource], there: Known, in_use: Iterable[str]
) -> dict[str, ComputeResource]:
    """What is there when all is written, each write with a new look at what is there."""
    used, now = {GPU: {*in_use}}, dict(there)
    every = [*wanted]
    for _ in range(100):
        steps = next_steps(settled(every, now, used), now)
        if not steps:
            return now
        now = after(now, steps[0])
    raise AssertionError("it never rests")


def devices(known: Known) -> dict[str, tuple[str, ...]]:
    return {name: one.devices for name, one in known.items()}


def test_a_device_goes_to_its_new_properties_when_its_pod_has_ended() -> None:
    old = at_rest(wanted(dict.fromkeys(DEVICES[:3], "K80")), {}, ())
    assert devices(old) == {name_of("K80"): DEVICES[:3]}
    new = wanted(dict.fromkeys(DEVICES[:3], "P100"))
    now = at_rest(new, old, ["gpu-1"])
    assert devices(now) == {name_of("K80"): ("gpu-1",), name_of("P100"): ("gpu-0", "gpu-2")}
    assert {str(one.capacity) for one in now.values()} == {"1", "2"}
    # It has it under the old ones, and another who takes one has it under the new ones.
    assert at_rest(new, now, ["gpu-0", "gpu-1"]) == now
    assert devices(at_rest(new, now, ())) == {name_of("P100"): DEVICES[:3]}


def test_a_device_that_is_gone_is_told_of_while_a_pod_has_it() -> None:
    now = at_rest(wanted({"gpu-0": "K80"}), {}, ())
    assert at_rest([], now, ["gpu-0"]) == now
    assert at_rest([], now, ["gpu-5"]) == {}


def test_something_else_under_the_name_is_replaced() -> None:
    (one,) = wanted({"gpu-0": "K80"})
    wrong = {one.name: replace(one, properties={"type": "other"}, capacity=Quantity(7))}
    assert at_rest([one], wrong, ["gpu-0"]) == {one.name: one}


def test_what_is_not_counted_by_devices_has_the_capacity_that_it_has() -> None:
    memory = ComputeResource("m", "n", "memory", {"numaNode": "0"}, Quantity(1 << 30))
    assert at_rest([memory], {}, ()) == {"m": memory}
    less = replace(memory, capacity=Quantity(1))
    (step,) = next_steps(settled([less], {"m": memory}, {}), {"m": memory})
    assert (step.verb, step.resource.capacity) == (Verb.CAPACITY, Quantity(1))
    # Nobody says how many: what somebody else says stays.
    assert (
        next_steps(settled([replace(memory, capacity=None)], {"m": memory}, {}), {"m": memory})
        == []
    )


def test_more_than_one_object_may_name_are_in_several() -> None:
    ids = [f"d{number}" for number in range(MOST_DEVICES + 3)]
    now = at_rest(wanted(dict.fromkeys(ids, "vf")), {}, ())
    assert sorted(len(one.devices) for one in now.values()) == [3, MOST_DEVICES]
    assert {one.properties.get(PART) for one in now.values()} == {None, "2"}
    assert {id_ for one in now.values() for id_ in one.devices} == {*ids}


def test_one_that_is_full_of_what_is_in_use_waits_with_the_others() -> None:
    ids = [f"d{number}" for number in range(2 * MOST_DEVICES)]
    old = at_rest(wanted(dict.fromkeys(ids[:MOST_DEVICES], "vf")), {}, ())
    # All others are listed now: each pod keeps what it has, and the free ones fill the rest.
    used = ids[:4000]
    now = at_rest(wanted(dict.fromkeys(ids[MOST_DEVICES:], "vf")), old, used)
    (one,) = now.values()
    assert len(one.devices) == MOST_DEVICES
    assert {*used} <= {*one.devices}
    assert str(one.capacity) == str(MOST_DEVICES)


KINDS = st.dictionaries(st.sampled_from(DEVICES), st.sampled_from(["a", "b", "c"]))
USES = st.sets(st.sampled_from(DEVICES))
HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), KINDS),
        st.tuples(st.just("use"), USES),
        st.tuples(st.just("write"), st.integers(1, 4)),
        # Of what was computed, later writes are done after others have changed what is so.
        st.tuples(st.just("late"), st.integers(1, 4)),
    ),
    max_size=30,
)


@given(HAPPENINGS)
def test_whatever_happens_nobodys_device_is_in_none_and_at_rest_each_is_in_one(
    happenings: list[tuple[str, object]],
) -> None:
    kinds: Mapping[str, str] = {}
    used: set[str] = set()
    there: dict[str, ComputeResource] = {}

    def overstated() -> set[str]:
        return {
            name
            for name, one in there.items()
            if one.capacity is not None and one.capacity > Quantity(len(one.devices))
        }

    def published() -> set[str]:
        return {id_ for one in there.values() for id_ in one.devices}

    for what, value in happenings:
        match what, value:
            case "change", dict():
                kinds = value
            case "use", set():
                # A pod is given what is listed, and has what it has though it is not listed.
                used = {one for one in value if one in kinds or one in used}
            case _, int():
                before = published() & (used | kinds.keys())
                for _ in range(value):
                    steps = next_steps(settled(wanted(kinds), there, {GPU: used}), there)
                    for step in steps[:1] if what == "write" else steps:
                        there = after(there, step)
                        assert before <= published(), step
                        assert not overstated(), "whoever stops here"
    rest = at_rest(wanted(kinds), there, used)
    found = [id_ for one in rest.values() for id_ in one.devices]
    assert len(found) == len(set(found))
    assert set(found) == set(kinds) | (used & published())
    for name, one in rest.items():
        assert one.capacity == Quantity(len(one.devices)) != Quantity(0)
        for id_ in one.devices:
            is_old = kinds.get(id_) is None or name != name_of(kinds[id_])
            assert not is_old or id_ in used
    assert at_rest(wanted(kinds), rest, used) == rest

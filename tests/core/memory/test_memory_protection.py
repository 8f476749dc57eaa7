"""MemoryQoS: what is protected is what is requested, by tier, and nobody is throttled below it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import V1_35, V1_36, V1_37, KubeletVersion
from pinfold.core.memory.protection import PAGE, MemoryQoS, Protection, Reservation, memory_qos
from pinfold.core.pod.pod import Container, Pod, QOSClass
from pinfold.core.values.quantity import Quantity
from tests.scenes.state_vectors import VECTORS, replay, sample

MIB = 1 << 20
RECORDED = VECTORS / "1.36" / "memory_qos.jsonl"
SIZES = st.integers(0, 1 << 40)
RULES = st.builds(
    MemoryQoS,
    st.sampled_from(Reservation),
    st.none() | st.floats(0.01, 1.0),
    st.none() | st.integers(0, 1 << 42),
)


def pod(request: int, limit: int, *, cpu: bool = False, uid: str = "p") -> Pod:
    def sizes(amount: int) -> dict[str, Quantity]:
        found = {"memory": Quantity.parse(str(amount))} if amount else {}
        return {**found, "cpu": Quantity.parse("1")} if cpu else found

    return Pod(uid, uid, containers=(Container("c", sizes(request), sizes(limit)),))


def test_replays_the_sample() -> None:
    tally = replay(sample("memory_qos"), "memory_qos")
    assert (tally.failures, tally.passed > 10) == ([], True)


@pytest.mark.skipif(not RECORDED.exists(), reason="the whole recording is not at hand")
def test_replays_the_whole_recording() -> None:
    tally = replay(RECORDED, "memory_qos")
    assert (tally.failures, tally.passed) == ([], 181)


def test_tiers_follow_the_class() -> None:
    rules = MemoryQoS(Reservation.TIERED)
    guaranteed, burstable = pod(MIB, MIB, cpu=True), pod(MIB, 4 * MIB)
    assert (guaranteed.qos, burstable.qos) == (QOSClass.GUARANTEED, QOSClass.BURSTABLE)
    assert rules.of_container(guaranteed, guaranteed.containers[0]) == Protection(min=MIB)
    throttled = rules.of_container(burstable, burstable.containers[0])
    assert throttled == Protection(low=MIB, high=int((1 + 3 * 0.9) * MIB) // PAGE * PAGE)
    assert rules.of_pod(guaranteed) == Protection(min=MIB)
    assert rules.of_pod(burstable) == Protection(low=MIB)
    assert rules.of_classes((guaranteed, burstable)) == (
        Protection(min=2 * MIB),
        Protection(low=MIB),
    )
    assert rules.of_container(pod(0, 0), Container("c")).unified == {
        "memory.min": "0",
        "memory.low": "0",
    }


@given(RULES, SIZES, SIZES)
def test_nobody_is_throttled_below_his_request_or_beyond_his_limit(
    rules: MemoryQoS, request: int, more: int
) -> None:
    limit = request + more if more else 0
    one = pod(request, limit)
    high = rules.of_container(one, one.containers[0]).high
    assert high is None or (
        high % PAGE == 0 and request < high <= (limit or rules.allocatable or 0)
    )


@given(RULES, st.lists(st.tuples(SIZES, SIZES, st.booleans()), max_size=6))
def test_parts_have_no_more_than_their_whole(
    rules: MemoryQoS, sizes: list[tuple[int, int, bool]]
) -> None:
    pods = [
        pod(min(request, limit or request), limit, cpu=cpu, uid=f"p{number}")
        for number, (request, limit, cpu) in enumerate(sizes)
    ]
    everybody, burstable = rules.of_classes(pods)
    wholes = [rules.of_pod(one) for one in pods]
    parts = [rules.of_container(one, one.containers[0]) for one in pods]
    for part, whole in zip(parts, wholes, strict=True):
        assert (part.min or 0) <= (whole.min or 0)
        assert (part.low or 0) <= (whole.low or 0)
        assert whole.high is None
    assert sum(one.min or 0 for one in wholes) <= (everybody.min or 0)
    assert sum(one.low or 0 for one in wholes) <= (burstable.low or 0)
    assert {everybody.low, everybody.high, burstable.high} == {None}
    if rules.reservation is Reservation.NONE:
        assert not any(one.min or one.low for one in (*wholes, *parts, everybody, burstable))


@pytest.mark.parametrize(
    ("version", "reservation"), [(V1_35, Reservation.UNTIERED), (V1_36, Reservation.TIERED)]
)
def test_tiers_came_with_a_version(version: KubeletVersion, reservation: Reservation) -> None:
    config = NodeConfig(
        feature_gates={"MemoryQoS": True},
        memory_reservation_policy="TieredReservation",
        kubelet_version=version,
    )
    assert memory_qos(config, 5) == MemoryQoS(reservation, 0.9, 5)
    assert memory_qos(NodeConfig(kubelet_version=version), 5) is None


def test_the_newest_throttle_only_where_they_are_told_to() -> None:
    plain = NodeConfig(kubelet_version=V1_37)
    rules = memory_qos(plain, 1 << 30)
    assert rules == MemoryQoS(Reservation.NONE, None, 1 << 30)
    burstable = pod(MIB, 4 * MIB)
    assert rules.of_container(burstable, burstable.containers[0]).high is None
    told = memory_qos(replace(plain, memory_throttling_factor=0.9), 1 << 30)
    assert told is not None
    assert told.of_container(burstable, burstable.containers[0]).high

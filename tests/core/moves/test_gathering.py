"""Work on few packages: who moves, who stays, and what is idle then."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.moves.gathering import gather, idle_parts
from pinfold.core.moves.objective import NUMA_NODES, PARKED
from pinfold.core.moves.owners import MoveOptions, Owner
from pinfold.core.moves.rebalance import RebalanceOptions
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Bounds, Ledger

TOPOLOGY = kubelet_view(parse_short_form("4s4c1t")).topology
CPUS = CPUSet(range(16))


def ledger(*places: str, reserved: str = "0") -> Ledger:
    found = Ledger.fresh("static", Bounds(CPUS, CPUSet.parse(reserved)))
    for at, cpus in enumerate(places):
        found = found.with_assignment(f"p{at}", "c", CPUSet.parse(cpus))
    return found


def test_owners_go_to_the_fewest_packages_that_have_room() -> None:
    found = gather(ledger("1", "4-5", "8", "12"), TOPOLOGY, RebalanceOptions(), need=2)
    assert found is not None
    assert str(found.kept) == "0-7"
    assert {wish.owner.pod_uid for wish in found.moves.wishes} == {"p2", "p3"}
    assert all(wish.cpus <= found.kept for wish in found.moves.wishes)


def test_the_pool_has_what_it_needs() -> None:
    more = gather(ledger("1", "4-5", "8", "12"), TOPOLOGY, RebalanceOptions(), need=6)
    assert more is not None
    assert len(more.kept) == 12
    assert gather(ledger("1", "4-5", "8", "12"), TOPOLOGY, RebalanceOptions(), need=8) is None


def test_who_may_not_move_keeps_his_package() -> None:
    fixed = RebalanceOptions(fixed={Owner("p1", "c"): "it says so"})
    found = gather(ledger("1", "13"), TOPOLOGY, fixed, need=1)
    assert found is not None
    assert str(found.kept) == "0-3,12-15"
    assert found.moves.wishes == ()


def test_nobody_goes_far_from_his_memory() -> None:
    options = RebalanceOptions(near={Owner("p1", "c"): 1 << 3})
    found = gather(ledger("1", "13"), TOPOLOGY, options, need=1)
    assert found is not None
    assert found.moves.wishes == ()


@given(
    st.lists(st.integers(0, 6), min_size=15, max_size=15),
    st.integers(0, 6),
    st.integers(1, 3),
    st.sets(st.integers(0, 5)),
)
def test_it_comes_to_an_end_within_the_budget(
    who: list[int], need: int, most: int, fixed: set[int]
) -> None:
    held: dict[str, set[int]] = {}
    for cpu, one in enumerate(who, 1):
        if one:
            held.setdefault(f"p{one}", set()).add(cpu)
    state = Ledger.fresh("static", Bounds(CPUS, CPUSet([0])))
    for uid, cpus in held.items():
        state = state.with_assignment(uid, "c", CPUSet(cpus))
    options = RebalanceOptions(
        moves=MoveOptions(),
        levels=(NUMA_NODES, PARKED),
        fixed={Owner(f"p{one}", "c"): "fixed" for one in fixed},
        most_moved=most,
    )
    for _ in range(8):
        found = gather(state, TOPOLOGY, options, need)
        if found is None or not found.moves.wishes:
            break
        assert len(found.moves.wishes) <= most
        for wish in found.moves.wishes:
            assert wish.owner not in options.fixed
            assert found.moves.after <= found.moves.before
        new = {wish.owner.pod_uid: wish.cpus for wish in found.moves.wishes}
        after = Ledger.fresh("static", Bounds(CPUS, CPUSet([0])))
        for uid, was in state.assignments.items():
            after = after.with_assignment(uid, "c", new.get(uid, was["c"]))
        state = after
    else:
        raise AssertionError("it moves for ever")
    if found is not None:
        assert state.exclusive <= found.kept
        assert len(found.kept - state.exclusive) >= need


def test_what_is_idle_is_counted_in_cores_and_packages() -> None:
    threads = kubelet_view(parse_short_form("2s2c2t")).topology
    found = idle_parts(threads, CPUSet.parse("3-7"))
    assert (found.cores, found.packages) == (2, 1)

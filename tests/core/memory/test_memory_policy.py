"""The memory manager's static policy: recorded decisions, and what it refuses."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.core.cpu.hints import TooManyNUMANodesError
from pinfold.core.memory.memory import (
    Block,
    MemoryState,
    MemoryStateError,
    MemoryTable,
    NodeMemory,
    remove_container,
    remove_pod,
)
from pinfold.core.memory.policy import MemoryTransaction, StaticMemoryPolicy
from pinfold.core.memory.reservation import MemoryPolicyError, MemoryReservationError
from pinfold.core.pod.pod import PodResources
from pinfold.core.topology_manager.hints import AllocationError, TopologyHint, numa_mask
from pinfold.core.values.quantity import Quantity
from tests.scenes.memory_scene import (
    GIANT,
    GIB,
    GUESS,
    PAGES,
    admit,
    container,
    fresh,
    hint,
    pod,
    policy,
    table,
)
from tests.scenes.state_vectors import VECTORS, replay, sample


class TestRecorded:
    def test_sample(self) -> None:
        tally = replay(sample("memory_policy"), "memory_policy")
        assert tally.failures == []
        assert tally.passed > 25

    @pytest.mark.skipif(not VECTORS.exists(), reason="the whole recording is not at hand")
    def test_whole(self) -> None:
        tally = replay(VECTORS / "memorymanager.jsonl.gz", "memory_policy")
        assert tally.failures == []
        assert tally.passed == 240


class TestHints:
    def test_fewest_nodes_of_an_empty_machine_are_preferred(self) -> None:
        made = policy(4, 4, 4)
        big = pod("p", container("c", memory="7Gi"))
        hints = made.container_hints(fresh(made), big, big.containers[0])
        assert hints == {
            "memory": [hint(0, 1), hint(0, 2), hint(1, 2), hint(0, 1, 2, preferred=False)]
        }

    def test_one_list_serves_all_resources(self) -> None:
        made = policy(4, 4)
        one = pod("p", container("c", memory="1Gi", pages="1100Mi"))
        hints = made.container_hints(fresh(made), one, one.containers[0])
        assert hints == {PAGES: [hint(0, 1)], "memory": [hint(0, 1)]}

    def test_node_ids_need_not_be_in_a_row(self) -> None:
        made = StaticMemoryPolicy({8: NodeMemory(GIB), 1: NodeMemory(GIB)})
        one = pod("p", container("c", memory="2Gi"))
        assert made.container_hints(fresh(made), one, one.containers[0]) == {"memory": [hint(1, 8)]}

    def test_used_nodes_and_groups_do_not_mix(self) -> None:
        made = policy(4, 4, 4, 4)
        state = admit(made, made.empty_state, pod("a", container("c", memory="7Gi")))
        state = admit(made, state, pod("b", container("c", memory="1Gi")))
        assert state.machine[0].cells == state.machine[1].cells == (0, 1)
        assert state.machine[2].cells == (2,)
        one = pod("c", container("c", memory="1Gi"))
        transaction = MemoryTransaction("c", state)
        assert made.container_hints(transaction, one, one.containers[0]) == {
            "memory": [hint(2), hint(3), hint(0, 1, preferred=False)]
        }

    def test_nothing_fits_now(self) -> None:
        made = policy(4)
        one = pod("p", container("c", memory="5Gi"))
        assert made.container_hints(fresh(made), one, one.containers[0]) == {}
        assert made.pod_hints(fresh(made), one) == {}

    def test_a_pod_counts_what_runs_at_any_one_time(self) -> None:
        made = policy(4, 4)
        side = container("s", "Always", memory="1Gi")
        for init, last, preferred in (("1Gi", "3Gi", 1), ("3Gi", "1Gi", 1), ("4Gi", "1Gi", 2)):
            one = pod(
                "p",
                container("c", memory=last),
                init=(side, container("i", memory=init, pages="2Mi")),
            )
            hints = made.pod_hints(fresh(made), one)
            assert hints is not None
            assert hints.keys() == {"memory"}
            best = [h.mask.bit_count() for h in hints["memory"] if h.preferred and h.mask]
            assert set(best) == {preferred}

    def test_an_assignment_makes_its_hint_again(self) -> None:
        made = policy(4, 4)
        one = pod("p", container("c", memory="1Gi", pages="2Mi"))
        transaction = MemoryTransaction("p", admit(made, made.empty_state, one, hint(1)))
        want = {PAGES: [hint(1)], "memory": [hint(1)]}
        assert made.container_hints(transaction, one, one.containers[0]) == want
        assert made.pod_hints(transaction, one) == want
        more = pod("p", container("c", memory="2Gi", pages="2Mi"))
        assert made.container_hints(transaction, more, more.containers[0]) is None
        for other in (container("c", memory="1Gi"), container("c", memory="1Gi", giant="1Gi")):
            assert made.container_hints(transaction, pod("p", other), other) is None
        third = container("c", memory="1Gi", pages="2Mi", giant="1Gi")
        assert made.container_hints(transaction, pod("p", third), third) is None

    @pytest.mark.parametrize("limited", [False, True])
    def test_pods_that_are_left_alone(self, limited: bool) -> None:
        made = policy(4)
        one = container("c", memory="1Gi")
        if limited:
            amounts = {"cpu": Quantity(1), "memory": Quantity.parse("1Gi")}
            left_alone = replace(pod("p", one), resources=PodResources(amounts, amounts))
        else:
            left_alone = pod("p", replace(one, limits={}))
        transaction = fresh(made)
        assert made.container_hints(transaction, left_alone, one) is None
        assert made.pod_hints(transaction, left_alone) is None
        assert made.allocate(transaction, left_alone, one, hint(0)) is None
        assert transaction.state.assignments == {}

    def test_eight_nodes_and_three_resources_take_no_time(self) -> None:
        made = policy(*[64] * 8, giants=8)
        one = pod("p", container("c", memory="20Gi", pages="64Mi", giant="2Gi"))
        times = []
        for _ in range(5):
            start = time.perf_counter()
            hints = made.container_hints(fresh(made), one, one.containers[0])
            times.append(time.perf_counter() - start)
        assert hints is not None
        assert {name: len(found) for name, found in hints.items()} == {
            GIANT: 255,
            PAGES: 255,
            "memory": 255,
        }
        assert min(times) < 0.005


class TestAllocation:
    def test_blocks_by_name_on_the_nodes_of_the_answer(self) -> None:
        made = policy(4, 4)
        one = pod("p", container("c", memory="1Gi", pages="4Mi"))
        transaction = fresh(made)
        blocks = made.allocate(transaction, one, one.containers[0], hint(1))
        assert blocks == (Block((1,), PAGES, 4 << 20), Block((1,), "memory", GIB))
        assert transaction.state.machine[1].number_of_assignments == 2
        assert table(transaction.state, 1) == MemoryTable(5 * GIB, 0, 4 * GIB, GIB, 3 * GIB)
        assert transaction.state.nodes_of("p", "c") == (1,)
        assert transaction.state.nodes_of("p", "other") == ()

    def test_it_may_be_asked_again(self) -> None:
        made = policy(4, 4)
        one = pod("p", container("c", memory="1Gi"))
        transaction = fresh(made)
        blocks = made.allocate(transaction, one, one.containers[0], hint(1))
        before = transaction.state
        assert made.allocate(transaction, one, one.containers[0], hint(0)) == blocks
        assert transaction.state is before

    def test_an_answer_that_is_too_narrow_is_widened(self) -> None:
        made = policy(4, 4, 4)
        one = pod("p", container("c", memory="5Gi"))
        transaction = fresh(made)
        made.allocate(transaction, one, one.containers[0], hint(2))
        assert transaction.state.nodes_of("p", "c") == (0, 2)
        assert table(transaction.state, 0).free == 0
        assert table(transaction.state, 2).reserved == GIB

    @pytest.mark.parametrize(
        ("amount", "answer", "words"),
        [
            ("9Gi", GUESS, "failed to get the default NUMA affinity, no NUMA nodes with enough"),
            ("9Gi", hint(0), "failed to find NUMA nodes to extend the current topology hint"),
            ("1.5", GUESS, "failed to represent quantity as int64"),
            ("1Gi", hint(0, 1), "preferred hint violates NUMA node allocation"),
            ("1Gi", hint(7), "NUMA node 7, which the memory manager does not know"),
        ],
    )
    def test_refusals(self, amount: str, answer: TopologyHint, words: str) -> None:
        made = policy(4, 4, 4)
        state = admit(made, made.empty_state, pod("a", container("c", memory="1Gi")))
        state = admit(made, state, pod("b", container("c", memory="1Gi")), hint(1))
        state = admit(made, state, pod("d", container("c", memory="1Gi")), hint(2))
        one = pod("p", container("c", memory=amount))
        transaction = MemoryTransaction("p", state)
        with pytest.raises(AllocationError, match=words):
            made.allocate(transaction, one, one.containers[0], answer)
        assert transaction.state is state

    @pytest.mark.parametrize(
        ("nodes", "words"),
        [([0], "failed to find the extended preferred hint"), (None, "the default preferred hint")],
    )
    def test_worse_than_the_answer(self, nodes: list[int] | None, words: str) -> None:
        made = policy(2, 2, 4)
        state = admit(made, made.empty_state, pod("a", container("c", memory="2Gi")), hint(2))
        one = pod("p", container("c", memory="3Gi"))
        mask = None if nodes is None else numa_mask(nodes)
        with pytest.raises(AllocationError, match=words):
            admit(made, state, one, TopologyHint(mask, preferred=True))
        after = admit(made, state, one, TopologyHint(mask, preferred=False))
        assert after.nodes_of("p", "c") == (0, 1)

    def test_a_fraction_of_a_byte_has_no_hints(self) -> None:
        made = policy(4)
        one = pod("p", container("c", memory="1.5"))
        assert made.container_hints(fresh(made), one, one.containers[0]) is None
        assert made.pod_hints(fresh(made), one) is None
        init = pod("p", container("c", memory="1Gi"), init=(container("i", memory="1.5"),))
        assert made.pod_hints(fresh(made), init) is None

    def test_a_page_size_that_the_machine_has_not(self) -> None:
        made = policy(4, 4)
        one = pod("p", container("c", memory="1Gi", giant="1Gi"))
        transaction = fresh(made)
        assert made.container_hints(transaction, one, one.containers[0]) == {GIANT: []}
        assert made.pod_hints(transaction, one) == {GIANT: []}
        for answer in (GUESS, hint(0)):
            with pytest.raises(AllocationError, match="container c asks for hugepages-1Gi, but no"):
                made.allocate(transaction, one, one.containers[0], answer)
        assert transaction.state == made.empty_state

    def test_none_of_a_page_size_that_the_machine_has_not(self) -> None:
        made = policy(4)
        one = pod("p", container("c", memory="1Gi", giant="0"))
        assert made.container_hints(fresh(made), one, one.containers[0]) == {"memory": [hint(0)]}
        assert admit(made, made.empty_state, one).blocks_of("p", "c") == (
            Block((0,), "memory", GIB),
        )

    def test_a_page_size_that_only_one_node_has(self) -> None:
        made = StaticMemoryPolicy({0: NodeMemory(8 * GIB), 1: NodeMemory(8 * GIB, {2048: 512})})
        one = pod("p", container("c", memory="1Gi", pages="2Mi"))
        assert made.container_hints(fresh(made), one, one.containers[0]) == {
            name: [hint(1), hint(0, 1, preferred=False)] for name in (PAGES, "memory")
        }
        state = admit(made, made.empty_state, one, hint(0, 1))
        assert table(state, 1, PAGES).reserved == 2 << 20
        assert MemoryState.of(made.nodes, state.assignments) == state

    def test_more_nodes_than_can_be_combined(self) -> None:
        made = policy(*[1] * 21)
        one = pod("p", container("c", memory="1Gi"))
        with pytest.raises(TooManyNUMANodesError, match="21 NUMA nodes"):
            made.container_hints(fresh(made), one, one.containers[0])
        with pytest.raises(AllocationError, match="use memory manager policy None"):
            made.allocate(fresh(made), one, one.containers[0], GUESS)
        assert admit(made, made.empty_state, one, hint(20)).nodes_of("p", "c") == (20,)


class TestInitContainers:
    def test_their_memory_is_used_again(self) -> None:
        made = policy(4)
        one = pod("p", container("c", memory="3Gi"), init=(container("i", memory="4Gi"),))
        state = admit(made, made.empty_state, one)
        assert state.assignments["p"] == {
            "i": (Block((0,), "memory", GIB),),
            "c": (Block((0,), "memory", 3 * GIB),),
        }
        assert table(state, 0).reserved == 4 * GIB

    def test_each_takes_over_what_the_last_left(self) -> None:
        made = policy(4)
        init = (container("i", memory="2Gi"), container("j", memory="3Gi"))
        one = pod("p", container("c", memory="1Gi"), container("d", memory="3Gi"), init=init)
        state = admit(made, made.empty_state, one)
        sizes = {name: blocks[0].size for name, blocks in state.assignments["p"].items()}
        assert sizes == {"i": 0, "j": 0, "c": GIB, "d": 3 * GIB}
        assert table(state, 0).free == 0

    def test_sidecars_keep_theirs(self) -> None:
        made = policy(4)
        init = (container("s", "Always", memory="2Gi"),)
        fits = pod("p", container("c", memory="2Gi"), init=init)
        assert table(admit(made, made.empty_state, fits), 0).free == 0
        with pytest.raises(AllocationError):
            admit(made, made.empty_state, pod("p", container("c", memory="3Gi"), init=init))

    def test_nothing_is_taken_from_what_starts_later(self) -> None:
        made = policy(6)
        init = (container("i", memory="2Gi"), container("j", memory="3Gi"))
        one = pod("p", container("c", memory="1Gi"), init=init)
        state = remove_container(admit(made, made.empty_state, one), "p", "i")
        assert state.assignments["p"]["j"][0].size == 2 * GIB
        state = admit(made, state, one)
        assert state.assignments["p"]["j"][0].size == 2 * GIB
        assert table(state, 0).reserved == 5 * GIB

    def test_not_on_other_nodes(self) -> None:
        made = policy(4, 4)
        one = pod("p", container("c", memory="3Gi"), init=(container("i", memory="4Gi"),))
        state = admit(made, made.empty_state, one, hint(0), hint(1))
        assert [table(state, node).reserved for node in (0, 1)] == [4 * GIB, 3 * GIB]


class TestReservedMemory:
    NODES = staticmethod(lambda: {0: NodeMemory(8 * GIB, {2048: 512}), 1: NodeMemory(4 * GIB)})

    def create(self, reservation: str, *items: tuple[int, str, str]) -> StaticMemoryPolicy:
        listed: list[dict[str, Any]] = [
            {"numaNode": node, "limits": {name: Quantity.parse(amount)}}
            for node, name, amount in items
        ]
        return StaticMemoryPolicy.create(
            self.NODES(), listed, {"cpu": Quantity(1), "memory": Quantity.parse(reservation)}
        )

    def test_it_is_taken_off(self) -> None:
        made = self.create("2Gi", (0, "memory", "1536Mi"), (1, "memory", "512Mi"))
        assert made.allocatable == (
            Block((0,), PAGES, GIB),
            Block((0,), "memory", 11 * GIB // 2),
            Block((1,), "memory", 7 * GIB // 2),
        )

    @pytest.mark.parametrize(
        ("items", "words"),
        [
            ([], 'the total amount "0" of type "memory" is not equal to the value "5Gi" determ'),
            ([(2, "memory", "5Gi")], "references a NUMA node 2 that does not exist"),
            ([(0, "memory", "5Gi"), (0, PAGES, "2Mi")], 'amount "2Mi" of type "hugepages-2Mi" is'),
            ([(1, "memory", "5Gi")], "keeps 5Gi of memory of NUMA node 1, which has"),
        ],
    )
    def test_refusals(self, items: list[tuple[int, str, str]], words: str) -> None:
        with pytest.raises(MemoryReservationError, match=words):
            self.create("5Gi", *items)

    def test_some_must_be_reserved(self) -> None:
        with pytest.raises(MemoryReservationError, match="you should specify the system reserved"):
            StaticMemoryPolicy.create(self.NODES(), [], {})

    def test_huge_pages_beyond_the_memory(self) -> None:
        one_gib = {"memory": Quantity(GIB)}
        with pytest.raises(MemoryReservationError, match="node 1, which has -1Gi "):
            StaticMemoryPolicy.create(
                {0: NodeMemory(GIB), 1: NodeMemory(GIB, {2048: 1024})},
                [{"numaNode": 0, "limits": one_gib}],
                one_gib,
            )

    def test_a_node_beyond_any_mask(self) -> None:
        with pytest.raises(MemoryPolicyError, match="NUMA node id 64 is outside 0-63"):
            StaticMemoryPolicy.create({64: NodeMemory(GIB)}, [], {})


class TestRecords:
    NODES = staticmethod(lambda: policy(4, 4, 4).nodes)

    @pytest.mark.parametrize(
        ("blocks", "words"),
        [
            ([Block((5,), "memory", 1)], r"pod p0, container c: .*NUMA node 5, .* nodes 0,1,2;"),
            ([Block((0,), "memory", 5 * GIB)], "5Gi of memory on NUMA node 0 do not fit, 1Gi are"),
            ([Block((0,), GIANT, GIB)], f"1Gi of {GIANT} on NUMA node 0 do not fit.*forget"),
            ([Block((), "memory", 1)], "1 of memory on no NUMA node; the record is damaged"),
            ([Block(None, "memory", 1)], "the record is damaged"),
            ([Block((0, 0), "memory", 1)], "on NUMA nodes 0,0; the record is damaged"),
            ([Block((0,), "memory", -2048)], "-2Ki of memory on .*; the record is damaged"),
            (
                [Block((0, 1), "memory", 1), Block((1, 2), "memory", 1)],
                r"pod p1, container c: .*node 1 is in the group \[0, 1\] of another",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(self, blocks: list[Block], words: str) -> None:
        records = {f"p{number}": {"c": (block,)} for number, block in enumerate(blocks)}
        with pytest.raises(MemoryStateError, match=words):
            MemoryState.of(self.NODES(), records)

    def test_what_must_be_on_a_node_comes_first(self) -> None:
        records = {
            "a": {"c": (Block((0, 1), "memory", 5 * GIB),)},
            "b": {"c": (Block((0,), "memory", 3 * GIB),)},
        }
        state = MemoryState.of(self.NODES(), records)
        assert [table(state, node).free for node in range(3)] == [0, 0, 4 * GIB]
        # As it is where the second came to a node of the group: no more of the group, only alone.
        assert (state.machine[0].cells, state.machine[1].cells) == ((0,), (0, 1))

    def test_a_container_keeps_what_it_has_alone_in_a_group(self) -> None:
        made = policy(4, 4)
        state = admit(made, made.empty_state, pod("a", container("c", memory="5Gi")))
        state = admit(made, state, pod("b", container("c", memory="1Gi")), hint(0, 1))
        state = admit(made, remove_pod(state, "a"), pod("d", container("c", memory="4Gi")), hint(0))
        state = remove_pod(state, "b")
        assert table(state, 0).free == 0
        assert table(state, 1).reserved == 0

    def test_removing_what_is_not_there(self) -> None:
        state = admit(policy(4), policy(4).empty_state, pod("p", container("c", memory="1Gi")))
        assert remove_container(state, "p", "x") is state
        assert remove_container(state, "x", "c") is state
        assert remove_pod(state, "x") is state
        transaction = MemoryTransaction("p", state)
        policy(4).remove(transaction, "c")
        assert transaction.state == policy(4).empty_state

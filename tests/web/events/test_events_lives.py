"""Whatever happens to a node, who follows its events knows what it says when it is asked."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.kubelet.own_policies import DynamicOptions, OwnPolicies
from pinfold.core.moves.owners import MoveError
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.moves.moving import BusyError
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.settings import NodeSettings
from pinfold.ports.errors import PortError
from tests.scenes.followed_node import QUICK, ToldNode
from tests.scenes.manager_harness import STATIC, Harness, run_virtually
from tests.scenes.random_pods import comes_to_rest, operate

SAID = (PortError, NameTakenError, UnknownPodError, BusyError, MoveError)
PODS = st.integers(0, 4)
SHAPES = st.sampled_from([("",), ("1",), ("2",), ("3", "500m"), ("8",), ("500m", ""), ("4",)])
OPERATIONS = st.one_of(
    st.tuples(st.just("admit"), PODS, SHAPES),
    st.tuples(st.just("admit"), PODS, SHAPES),
    st.tuples(st.just("mixed"), PODS, st.sampled_from([("1500m",), ("2500m", "500m")])),
    st.tuples(st.just("init"), PODS, st.sampled_from(["", "2", "4"])),
    st.tuples(st.just("release"), PODS, st.none()),
    st.tuples(st.just("exit"), st.integers(0, 20), st.integers(0, 2)),
    st.tuples(st.just("restart"), st.none(), st.none()),
    st.tuples(st.just("fault"), st.sampled_from(["store", "cgroups", "runtime"]), st.just(1)),
    st.tuples(st.just("reconcile"), st.none(), st.none()),
    st.tuples(st.just("drift"), st.integers(0, 20), st.none()),
    st.tuples(st.just("offline"), st.sampled_from(["", "7", "4-5"]), st.none()),
    st.tuples(st.just("resize"), PODS, st.integers(1, 6)),
    st.tuples(st.just("lend"), PODS, st.none()),
    st.tuples(st.just("away"), st.none(), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.1, 5.0]), st.none()),
)


async def happens(told: ToldNode, kind: str, what: Any, how: Any) -> None:
    node = told.node
    if kind == "resize":
        owners = sorted(node.books.view.state.ledger.assignments) or [f"uid-p{what}"]
        await node.manager.resizing.resize(owners[what % len(owners)], "c0", how)
    elif kind == "lend":
        await node.books.lend(node.books.view.lendable - node.books.view.lent)
    elif kind == "wait":
        await asyncio.sleep(what)
    elif kind == "away":
        await told.reader.end()
    else:
        await operate(node, kind, what, how)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(OPERATIONS, min_size=5, max_size=40),
    st.sampled_from(["", "2-3,6-7"]),
    st.booleans(),
)
def test_events_say_what_the_status_says(
    operations: list[tuple[str, Any, Any]], isolated: str, dynamic: bool
) -> None:
    policy = "dynamic" if dynamic else "static"
    options = DynamicOptions(make_room=True, moves_per_hour=3600)
    config = replace(STATIC, cpu_manager_policy=policy, own=OwnPolicies(options))
    borrows = NodeSettings(backoff=0.01, idle_side=True)
    node = Harness("1s4c2t", CPUSet.parse(isolated), config, borrows, dynamic=options)

    async def whole() -> None:
        await node.start()
        told = ToldNode(node)
        await told.follow()
        for operation in operations:
            with contextlib.suppress(*SAID):
                await asyncio.wait_for(happens(told, *operation), 600)
            if operation[0] in {"restart", "away"}:
                await told.follow()
            await asyncio.sleep(2 * QUICK.look)
            while node.books.is_changing:  # noqa: ASYNC110 - whatever is under way
                await asyncio.sleep(2 * QUICK.look)
            assert told.told() == told.asked()
        await comes_to_rest(node)
        await asyncio.sleep(2 * QUICK.look)
        assert told.told() == told.asked()
        restarts = sum(kind == "restart" for kind, _, _ in operations)
        assert told.reader.kinds.count("whole") <= 1 + restarts
        await told.reader.end()
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 60_000))

"""Containers that are alone on their cores, on a live node: their siblings are nobody's, ever."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.own_policies import OwnPolicies, SMTIsolate
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.observation.pod_resources import allocatable_resources, pod_resources
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.reconciler import reconcile
from pinfold.node.recovery.recovery import OnMismatch, restore
from pinfold.planning.planner import Planner
from pinfold.ports.records import NodeRecord, PodPhase, PodRecord, Record
from pinfold.web.documents import Documents
from tests.scenes.manager_harness import (
    STATIC,
    Copy,
    Harness,
    manifest,
    parse,
    run,
    run_virtually,
)


def alone(name: str, *cpus: str, said: str = "true", **more: Any) -> dict[str, Any]:
    pod = manifest(name, *cpus, **more)
    annotations = {"smt-isolate.pinfold.dev/pod": said}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}


def use(*, everywhere: bool) -> Any:
    return replace(STATIC, own=OwnPolicies(smt_isolate=SMTIsolate(use=everywhere)))


def check(node: Harness) -> None:
    """Nobody runs on an idle sibling, and the record and the mirror keep them from others."""
    node.check()
    ledger = node.books.view.state.ledger
    for pid, key in node.cgroups.processes.items():
        assert key is None or node.cgroups.allowed(pid).isdisjoint(ledger.idle_siblings)
    for uid, containers in ledger.idle.items():
        for name, idle in containers.items():
            used = ledger.cpus_of(uid, name)
            assert used is not None
            cores = [m for m in node.view.topology.cores.values() if m & used.mask]
            assert len(cores) == len(used)
            assert idle | used == CPUSet.union_of(map(CPUSet.from_mask, cores))
    recorded = {uid: dict(pod.idle) for uid, pod in node.store.pods.items() if pod.idle}
    assert recorded == {uid: dict(one) for uid, one in ledger.idle.items()}
    assert (node.cgroups.shared or CPUSet()).isdisjoint(ledger.exclusive)


def test_it_runs_on_one_thread_of_each_core() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        await node.admit(alone("quick", "2"))
        assert node.cpus("quick") == {"c0": "2,4"}
        assert node.cpus("web") == {"c0": "1,6-7"}
        check(node)
        books = node.books
        told = Documents(books).pod("default/quick")
        assert (told.containers[0].cpus, told.containers[0].idle) == ("2,4", "3,5")
        listed = pod_resources(books.view.state, books.view.pods)
        assert [str(c.cpus) for pod in listed if pod.name == "quick" for c in pod.containers] == [
            "2,4"
        ]
        free = allocatable_resources(books.view.node, books.view.state).cpus
        assert str(free) == "1-2,4,6-7"
        assert str(node.mirrored[-1].assignments["uid-quick"]["c0"]) == "2-5"
        await node.manager.release("uid-quick")
        assert node.cpus("web") == {"c0": "1-7"}

    run(scenario)


def test_a_restart_gives_the_same_whatever_the_configuration_says_then() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(alone("quick", "2"))
        await node.admit(alone("plain", "2", said="false"))
        for everywhere in (True, False):
            await node.kill()
            node.config = use(everywhere=everywhere)
            await node.start()
            await node.settle()
            assert node.cpus("quick") == {"c0": "2,4"}
            assert node.cpus("plain") == {"c0": "6-7"}
            check(node)

    run(scenario)


@pytest.mark.parametrize("promised", [True, False])
def test_a_record_that_knows_less_finds_the_siblings_again(promised: bool) -> None:
    async def scenario(node: Harness) -> None:
        earlier = Copy(node)
        await node.admit(alone("quick", "2"))
        await node.kill()
        earlier.put_back(node, promised=promised)
        await node.start(OnMismatch.REPAIR)
        await node.settle()
        assert node.cpus("quick") == {"c0": "2,4"}
        assert str(node.books.view.state.ledger.idle_siblings) == "3,5"
        check(node)

    run(scenario)


def test_a_sibling_that_goes_offline_stays_claimed() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(alone("quick", "2"))
        await node.kill()
        node.cgroups.online -= CPUSet([3])
        await node.start()
        await node.settle()
        assert node.cpus("quick") == {"c0": "2,4"}
        assert str(node.books.view.state.ledger.idle_siblings) == "3,5"
        check(node)

    run(scenario)


def test_the_reconciliation_takes_strangers_and_the_owner_off_idle_siblings() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("web", ""))
        await node.admit(alone("quick", "2"))
        (key,) = [k for k in node.cgroups.groups if k.pod_uid == "uid-quick"]
        group = node.cgroups.groups[key]
        group.placement = replace(group.placement, cpus=CPUSet.parse("2-5"))
        node.cgroups.shared = CPUSet.parse("1,3,6-7")
        await reconcile(node.books)
        await node.settle()
        assert node.cpus("quick") == {"c0": "2,4"}
        assert node.cpus("web") == {"c0": "1,6-7"}
        check(node)

    run(scenario)


def test_init_containers_give_back_what_nobody_needs() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(alone("quick", "1", init=["3"]), wait=False)
        await node.settle()
        (first,) = [s for s in node.runtime.known() if s.key.name == "i0"]
        assert node.cpus("quick") == {"i0": "2,4,6"}
        node.runtime.exit(first.id, 0)
        await node.settle()
        assert node.cpus("quick")["c0"] == "2"
        assert str(node.books.view.state.ledger.idle_siblings) == "3"
        check(node)

    run(scenario)


def test_a_sibling_that_nobody_knew_joins_its_core() -> None:
    """CPU 3 was offline when core 2 was given, and is online at this start."""
    planner = Planner(parse_short_form("1s4c2t"), use(everywhere=False), rules=SOUND)
    everything, known = CPUSet(range(8)), CPUSet(range(8)) - CPUSet([3])
    pod = PodRecord(
        "uid-quick",
        "default",
        "quick",
        json.dumps(alone("quick", "1")),
        PodPhase.RUNNING,
        assignments={"c0": CPUSet([2])},
        idle={"c0": CPUSet()},
    )
    record = Record(
        NodeRecord("static", known - CPUSet([2]), CPUSet([0]), known), {pod.uid: pod}, generation=1
    )
    restored = restore(
        record,
        planner.node,
        planner.empty,
        parse=parse,
        on_mismatch=OnMismatch.REFUSE,
        arrived=CPUSet([3]),
    )
    ledger = restored.state.ledger
    assert (ledger.cpus_of(pod.uid, "c0"), ledger.idle_siblings) == (CPUSet([2]), CPUSet([3]))
    assert ledger.default == everything - CPUSet([2, 3])
    assert restored.active[pod.uid][0].idle == {"c0": CPUSet([3])}
    # Of anybody else it would be the pool's.
    plain = replace(pod, idle={})
    others = restore(
        replace(record, pods={pod.uid: plain}),
        planner.node,
        planner.empty,
        parse=parse,
        on_mismatch=OnMismatch.REFUSE,
        arrived=CPUSet([3]),
    )
    assert others.state.ledger.default == everything - CPUSet([2])


@settings(max_examples=40, deadline=None)
@given(
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from(["admit", "admit", "remove", "kill"]),
            st.integers(0, 5),
            st.sampled_from(["1", "2", "3", "", "500m"]),
            st.sampled_from(["true", "false", ""]),
        ),
        max_size=10,
    ),
)
def test_siblings_are_nobodys_whatever_happens(
    everywhere: bool, events: list[tuple[str, int, str, str]]
) -> None:
    async def whole() -> None:
        node = Harness(machine="2s4c2t", config=use(everywhere=everywhere))
        await node.start()
        for event, number, cpus, said in events:
            if event == "kill":
                await node.kill()
                await node.start()
            elif event == "remove":
                with contextlib.suppress(UnknownPodError):
                    await node.manager.release(f"uid-p{number}")
            else:
                pod = alone(f"p{number}", cpus, said=said) if said else manifest(f"p{number}", cpus)
                with contextlib.suppress(NameTakenError):
                    await node.admit(pod)
            await node.settle()
            check(node)
        for uid in list(node.books.view.pods.active):
            await node.manager.release(uid)
        ledger = node.books.view.state.ledger
        assert (ledger.default, ledger.idle) == (ledger.limits.pool, {})
        await node.kill()

    run_virtually(whole())

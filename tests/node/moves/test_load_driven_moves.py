"""Load-driven containers on a live node: promoted, demoted, and whoever dies in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.admission.admission import POOL_EMPTY
from pinfold.core.controllers.load_driven import Demote, LoadDriven
from pinfold.core.controllers.proposals import Rank
from pinfold.core.controllers.seen import Seen
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.observation.rates import Load
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.control import LoadDrivenContainer
from pinfold.node.control.looking import look
from pinfold.node.control.loop import Control, ControlLoop
from pinfold.node.control.telling import control_document, load_driven_containers
from pinfold.node.observation.pod_resources import pod_resources
from pinfold.node.reconciler import reconcile
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import ByLoad
from pinfold.ports.runtime import ContainerState
from tests.scenes.load_driven_pods import CONFIG, OPTIONS, A, LoadDrivenNode, by_load
from tests.scenes.manager_harness import manifest, run_virtually
from tests.scenes.mortal_harness import every_death, next_starts


def run(scenario: Callable[[LoadDrivenNode], Awaitable[None]], **harness: Any) -> None:
    async def whole() -> None:
        node = LoadDrivenNode(
            config=harness.pop("config", CONFIG), dynamic=DynamicOptions(), **harness
        )
        node.arm(0, after=False)
        await node.start()
        await scenario(node)
        await node.settle()
        node.check()
        assert await reconcile(node.books) == []
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 600))


def test_it_comes_and_goes_and_is_told() -> None:
    async def scenario(node: LoadDrivenNode) -> None:
        await node.admit(by_load("a", "2"))
        await node.admit(manifest("web", ""))
        assert node.has() == {}
        assert node.cpus("a") == {"c0": "1-7"}
        assert node.quota() == 200_000
        listed = pod_resources(node.books.view.state, node.books.view.pods)
        told = node.teller.assignments[ContainerKey(*A)]
        assert not told.current.cpus

        assert await node.promote() == ""
        assert node.cpus("a") == {"c0": "2-3"}
        assert node.cpus("web") == {"c0": "1,4-7"}
        assert node.quota() == -1
        assert pod_resources(node.books.view.state, node.books.view.pods) == listed
        told = node.teller.assignments[ContainerKey(*A)]
        assert (str(told.current.cpus), told.reason) == ("2-3", "load-driven")

        assert await node.demote() == ""
        assert node.has() == {}
        assert node.cpus("a") == node.cpus("web") == {"c0": "1-7"}
        assert node.quota() == 200_000
        assert pod_resources(node.books.view.state, node.books.view.pods) == listed
        told = node.teller.assignments[ContainerKey(*A)]
        assert (str(told.current.cpus), told.reason) == ("", "load-driven")
        assert node.books.counters.moves["load-driven/done"].count == 2

    run(scenario)


def test_it_is_told_before_it_loses_its_cpus() -> None:
    async def scenario(node: LoadDrivenNode) -> None:
        await node.admit(by_load("a", "2", grace=3))
        await node.promote()
        began = asyncio.get_running_loop().time()
        wish = Demote(rank=Rank.LOAD_DRIVEN, why="idle", owners=frozenset({A}), moves=1)
        assert await node.by_load.carry_out(wish) == ""
        await asyncio.sleep(1)
        told = node.teller.assignments[ContainerKey(*A)]
        assert (str(told.current.cpus), str(told.coming.cpus)) == ("2-3", "")
        assert told.deadline is not None
        moving = node.manager.mover.in_flight
        assert moving is not None
        await moving.ended()
        assert asyncio.get_running_loop().time() >= began + 3

    run(scenario)


def test_what_the_next_decision_needs_is_on_record() -> None:
    async def scenario(node: LoadDrivenNode) -> None:
        await node.admit(by_load("a", "2", grace=3))
        assert node.by_record() == ByLoad()
        assert node.seen_one().settled == 0
        await asyncio.sleep(5)
        uptime = asyncio.get_running_loop().time()
        await node.promote()
        assert replace(node.by_record(), at=0.0) == ByLoad(1.25, uptime=uptime)
        assert node.by_record().at > 0
        await asyncio.sleep(5)
        for _ in range(2):
            one = node.seen_one()
            assert (one.promoted_with, one.load_driven) == (1.25, 2)
            assert one.settled == asyncio.get_running_loop().time() - uptime >= 5
            await node.kill()
            node.arm(0, after=False)
            await node.start()
        wish = Demote(rank=Rank.LOAD_DRIVEN, why="idle", owners=frozenset({A}), moves=1)
        assert await node.by_load.carry_out(wish) == ""
        # Who is told that he will lose them has them so far, and is about to begin anew.
        assert (node.seen_one().promoted_with, node.seen_one().settled) == (1.25, 0)
        await goes_on(node)
        after = node.by_record()
        assert after.uptime > uptime
        assert (node.seen_one().promoted_with, node.seen_one().settled < 1) == (None, True)
        # A promotion that is undone changes nothing of since when it shares.
        node.cgroups.faults.calls = 0
        node.cgroups.faults.fail_at = {2}
        await node.promote()
        assert node.has() == {}
        assert node.by_record().uptime == after.uptime

    run(scenario)


def test_how_it_has_its_cpus_is_told() -> None:
    async def scenario(node: LoadDrivenNode) -> None:
        def told(*, decides: bool = True) -> LoadDrivenContainer:
            control = Control("load-driven", LoadDriven(OPTIONS), {}, node.by_load.carry_out)
            loop = ControlLoop(lambda: look(node.books), node.manager.rebalancing.budget, [control])
            (one,) = load_driven_containers(node.books, loop if decides else None)
            return one

        await node.admit(by_load("a", "2"))
        one = told()
        assert (one.cpus, one.charged, one.since, one.because) == ("", 2, None, "it begins so")
        assert one.until.startswith("CPUs of its own once it uses 1.40 of its 2 CPUs")
        await node.promote()
        one = told()
        assert (one.cpus, one.charged, one.since) == ("2-3", 0, node.by_record().at)
        assert one.because == "it used 1.25 of 2 CPUs when its load asked for it"
        assert one.until.startswith("the shared pool once it uses less than 0.60 of its 2 CPUs")
        promoted = one.since
        await node.demote()
        one = told()
        assert (one.charged, one.because) == (2, "its load had fallen")
        assert one.since is not None
        assert promoted is not None
        assert one.since > promoted
        assert "loadDriven.use" in told(decides=False).until

    run(scenario)


def test_a_boot_begins_anew() -> None:
    known = ByLoad(1.0, 50.0, 100.0, "one")
    assert known.seconds(130.0, "one") == 30
    assert known.seconds(90.0, "one") == 0
    assert known.seconds(130.0, "two") == 0
    assert ByLoad().seconds(130.0, "") == 0


def test_if_nothing_fits_it_stays_and_that_is_said_once() -> None:
    async def scenario(node: LoadDrivenNode) -> None:
        carrier = node.by_load
        # By its number there is room for all; whole cores are not.
        await node.admit(by_load("a", "2"))
        await node.admit(by_load("b", "5"))
        node.cgroups.online -= CPUSet([6, 7])
        await node.books.set_offline(CPUSet([6, 7]))
        assert await node.promote("b", carrier) == ""
        problem = await node.promote("a", carrier)
        assert "not enough cpus available" in problem
        assert await node.promote("a", carrier) == problem
        assert node.books.counters.stays_shared == 1
        kinds = [one.kind for one in node.store.entries if one.pod_uid == "uid-a"]
        assert kinds.count("stays-shared") == 1
        node.cgroups.online |= CPUSet([6, 7])
        await node.books.set_offline(CPUSet())
        assert await node.promote("a", carrier) == ""

    run(scenario)


def test_the_last_cpu_of_the_pool_stays_there() -> None:
    strict = replace(CONFIG, cpu_manager_policy_options={"strict-cpu-reservation": "true"})

    async def scenario(node: LoadDrivenNode) -> None:
        await node.admit(by_load("a", "5"))
        await node.admit(by_load("b", "2"))
        assert await node.promote("a") == ""
        assert POOL_EMPTY in await node.promote("b")
        assert await node.demote("a") == ""
        assert await node.promote("b") == ""
        assert POOL_EMPTY in await node.promote("a")

    run(scenario, config=strict)


def test_nobody_goes_to_a_pool_without_a_cpu() -> None:
    strict = replace(CONFIG, cpu_manager_policy_options={"strict-cpu-reservation": "true"})

    async def scenario(node: LoadDrivenNode) -> None:
        await node.admit(by_load("a", "2", grace=3))
        assert await node.promote("a") == ""
        wish = Demote(rank=Rank.LOAD_DRIVEN, why="idle", owners=frozenset({A}), moves=1)
        assert await node.by_load.carry_out(wish) == ""
        # While it is told, nobody takes the last CPU of the pool.
        refused = await node.admit(manifest("b", "5"))
        assert refused.message == POOL_EMPTY
        pool = CPUSet.parse("1,4-7")
        node.cgroups.online -= pool
        await node.books.set_offline(pool)
        moving = node.manager.mover.in_flight
        assert moving is not None
        assert "no CPU of the shared pool" in (await moving.ended()).problem
        assert node.cpus("a") == {"c0": "2-3"}
        assert "no CPU of the shared pool" in await node.demote("a")
        node.cgroups.online |= pool
        await node.books.set_offline(CPUSet())
        assert (await node.admit(manifest("b", "5"))).reason is None
        assert "no CPU of the shared pool" in await node.demote("a")
        assert node.cpus("a") == {"c0": "2-3"}

    run(scenario, config=strict)


def test_admission_counts_what_is_charged() -> None:
    async def scenario(node: LoadDrivenNode) -> None:
        await node.admit(by_load("a", "5"))
        for _ in range(2):
            refused = await node.admit(manifest("b", "3"))
            assert "requested=3, available=2" in refused.message
            await node.kill()
            node.arm(0, after=False)
            await node.start()
        assert (await node.admit(manifest("c", "2"))).reason is None
        assert await node.promote("a") == ""
        refused = await node.admit(manifest("b", "1"))
        assert refused.message is not None

    run(scenario)


def test_a_refusal_of_the_kernel_leaves_it_where_it_was() -> None:
    async def scenario(node: LoadDrivenNode) -> None:
        await node.admit(by_load("a", "2"))
        await node.admit(manifest("web", ""))
        for promoted in (True, False):
            for at in range(1, 4):
                node.cgroups.faults.calls = 0
                node.cgroups.faults.fail_at = {at}
                await (node.promote() if promoted else node.demote())
                node.cgroups.faults.fail_at = set()
                await node.books.settle()
                await node.settle()
                node.check()
                if promoted:
                    await node.demote()
                else:
                    await node.promote()
            await (node.promote() if promoted else node.demote())
            node.check()

    run(scenario)


def test_why_it_stays_in_the_pool_is_told() -> None:
    async def scenario(node: LoadDrivenNode) -> None:
        await node.admit(by_load("a", "2"))
        await node.admit(by_load("b", "5"))
        node.cgroups.online -= CPUSet([6, 7])
        await node.books.set_offline(CPUSet([6, 7]))
        assert await node.promote("b") == ""
        at = 0.0

        def seen() -> Seen:
            found = look(node.books)
            return replace(
                found,
                at=at,
                containers={A: replace(found.containers[A], load=Load(1.0, usage=1.9))},
            )

        control = Control("load-driven", LoadDriven(OPTIONS), {}, node.by_load.carry_out)
        loop = ControlLoop(seen, node.manager.rebalancing.budget, [control])
        for _ in range(30):
            at += 1
            await loop.tick()
        (one,) = (o for o in load_driven_containers(node.books, loop) if o.charged)
        asks = "it uses 1.90 of 2 CPUs (95%), promoteUsage is 70%; no CPUs fit it: "
        assert one.why.startswith(asks)
        assert "not enough cpus available" in one.why
        node.cgroups.online |= CPUSet([6, 7])
        await node.books.set_offline(CPUSet())

    run(scenario)


def test_the_loop_gives_cpus_by_load_and_the_status_says_so() -> None:
    async def scenario(node: LoadDrivenNode) -> None:
        await node.admit(by_load("a", "2"))
        at, usage = 0.0, 1.9

        def seen() -> Seen:
            found = look(node.books)
            load = Load(1.0, usage=usage)
            containers = {o: replace(one, load=load) for o, one in found.containers.items()}
            return replace(found, at=at, containers=containers)

        control = Control("load-driven", LoadDriven(OPTIONS), {}, node.by_load.carry_out)
        loop = ControlLoop(seen, node.manager.rebalancing.budget, [control])
        said = []
        for busy in (True, False):
            usage = 1.9 if busy else 0.0
            for _ in range(70):
                at += 1
                await loop.tick()
                await goes_on(node)
                (one,) = control_document(node.books, loop, {}).load_driven or ()
                said.append((one.container, one.cpus, one.charged))
                if (one.cpus != "") is busy:
                    break
                # The first look at a new side begins to count.
                assert one.why.startswith("it uses") or one.why == ""
            assert bool(node.has()) is busy
        assert set(said) == {("default/a/c0", "", 2), ("default/a/c0", "2-3", 0)}
        less = "less than demoteUsage 30% and than half of the 1.90"
        assert [one.proposal.why for one in loop.decisions] == [
            "it uses 1.90 of 2 CPUs (95%), promoteUsage is 70%",
            f"it uses 0.00 of 2 CPUs (0%), {less} with which it was promoted",
        ]
        assert node.manager.rebalancing.budget.left == 4

    run(scenario)


async def comes_and_goes(node: LoadDrivenNode) -> None:
    await node.promote()
    await node.demote()
    await node.promote()


async def ends_in_between(node: LoadDrivenNode) -> None:
    await node.promote()
    wish = Demote(rank=Rank.LOAD_DRIVEN, why="idle", owners=frozenset({A}), moves=1)
    await node.by_load.carry_out(wish)
    await node.manager.release("a")
    await node.admit(manifest("b", "2"))


async def refused(node: LoadDrivenNode) -> None:
    node.cgroups.faults.calls = 0
    node.cgroups.faults.fail_at = {2}
    await node.promote()


Life = Callable[[LoadDrivenNode], Awaitable[None]]


async def goes_on(node: LoadDrivenNode) -> None:
    if (moving := node.manager.mover.in_flight) is not None:
        await asyncio.wait_for(moving.ended(), 60)
    await node.settle()


@pytest.mark.parametrize("life", [comes_and_goes, ends_in_between, refused])
def test_the_agent_may_die_at_every_call(life: Life) -> None:
    async def dies_and_goes_on(at: int, *, after: bool) -> bool:
        node = LoadDrivenNode(config=CONFIG, dynamic=DynamicOptions())
        node.arm(0, after=False)
        await node.start()
        await node.admit(by_load("a", "2", grace=1))
        await node.admit(manifest("web", ""))
        await node.kill()
        died = await next_starts(node, life, at, after=after)
        await goes_on(node)
        node.check()
        assert await reconcile(node.books) == []
        assert node.store.move is None
        for uid, record in node.store.pods.items():
            for name, known in record.load_driven.items():
                # Wherever it died: who has CPUs by load has on record what for and since when.
                owns = name in record.assignments
                assert not owns or (known.used == 1.25 and known.at), (uid, known)
        for status in node.runtime.known():
            assert status.state is ContainerState.RUNNING
        by_number = sum(
            count
            for uid, one in node.books.view.state.load_driven.items()
            for count in one.counts().values()
        )
        assert by_number == (2 if "uid-a" in node.books.view.pods.active else 0)
        for uid in list(node.books.view.pods.active):
            await node.manager.release(uid)
        await node.settle()
        node.check()
        assert str(node.books.view.state.ledger.default) == "0-7"
        assert node.books.view.state.load_driven == {}
        await node.kill()
        return died

    assert run_virtually(every_death(dies_and_goes_on)) > 20

"""The one loop: who is asked when, what is carried out in which order, and what is said of it."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec import Struct

from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.controllers.seen import Seen
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.moves.budget import MoveBudget
from pinfold.core.moves.owners import Owner
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.control.looking import look
from pinfold.node.control.loop import Control, ControlLoop, Decision
from pinfold.node.control.telling import PER_HOUR, DecisionHistory, control_document
from pinfold.ports.errors import PortError
from tests.scenes.manager_harness import Harness, manifest, mixed, run, run_virtually
from tests.scenes.watched_node import Watched

ALL = CPUSet.parse("0-7")
OWNER = Owner("a", "c0")


class Always(Struct, frozen=True):
    """Wishes the same each time, and remembers how often it was asked."""

    proposals: tuple[Proposal, ...]

    def step(self, memory: int, seen: Seen) -> tuple[int, tuple[Proposal, ...]]:
        assert seen.online == ALL
        return memory + 1, self.proposals


class Hands:
    """Carries out, and fails as it is told."""

    def __init__(self) -> None:
        self.did: list[Rank] = []
        self.nothing = ""
        self.error: PortError | None = None

    async def carry_out(self, proposal: Proposal) -> str:
        if self.error is not None:
            raise self.error
        self.did.append(proposal.rank)
        return self.nothing


def budget() -> MoveBudget:
    return MoveBudget(DynamicOptions(), lambda: 0.0)


def looked() -> Seen:
    return Seen(0.0, ALL, ALL)


def test_those_who_come_first_are_carried_out_first_and_one_change_each() -> None:
    async def scenario() -> None:
        hands = Hands()
        rest = Proposal(rank=Rank.PARKING, why="p", moves=1)
        lend = Proposal(rank=Rank.LENDING, why="l", owners=frozenset({OWNER}))
        back = Proposal(rank=Rank.RETURN, why="r", owners=frozenset({OWNER}))
        loop = ControlLoop(
            looked,
            budget(),
            [
                Control("park", Always((rest,)), 0, hands.carry_out),
                Control("lending", Always((lend, back)), 0, hands.carry_out),
            ],
        )
        await loop.tick()
        assert hands.did == [Rank.RETURN, Rank.PARKING]
        (refused,) = loop.waiting()
        assert (refused.proposal, refused.reason[:14]) == (lend, "return changes")
        assert loop.counted[Rank.LENDING, "refused"] == 1
        assert [one.proposal for one in loop.decisions] == [back, rest]
        assert loop.memories == {"park": 1, "lending": 1}

    run_virtually(scenario())


def test_what_fails_is_said_and_asked_again() -> None:
    async def scenario() -> None:
        hands = Hands()
        lend = Proposal(rank=Rank.LENDING, why="l")
        loop = ControlLoop(
            looked, budget(), [Control("lending", Always((lend,)), 0, hands.carry_out)]
        )
        hands.error = PortError("the kernel refused")
        await loop.tick()
        assert loop.waiting()[0].reason == loop.decisions[0].problem == "the kernel refused"
        hands.error = None
        await loop.tick()
        assert loop.waiting() == []
        hands.nothing = "nobody borrows"
        await loop.tick()
        assert loop.waiting()[0].reason == "nobody borrows"
        counted = {outcome: count for (_, outcome), count in loop.counted.items()}
        assert counted == {"failed": 1, "done": 1, "nothing": 1}
        assert len(loop.decisions) == 2, "what was nothing is no decision"

    run_virtually(scenario())


def test_each_is_asked_in_its_own_time() -> None:
    async def scenario(node: Harness) -> None:
        watched = Watched(node)
        hands = Hands()
        rare = Proposal(rank=Rank.REBALANCE, why="r")
        often = Proposal(rank=Rank.LENDING, why="l")
        loop = ControlLoop(
            looked,
            budget(),
            [
                Control("rare", Always((rare,)), 0, hands.carry_out, period=60.0),
                Control("often", Always((often,)), 0, hands.carry_out),
            ],
            watched.seen,
        )
        going = asyncio.create_task(loop.go_on())
        await asyncio.sleep(0)
        for _ in range(4):
            await watched.after(1.0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert loop.memories == {"rare": 0, "often": 4}
        # Nothing is read any more: they are told so all the same.
        await asyncio.sleep(59.5)
        assert loop.memories["often"] > 20
        assert loop.memories["rare"] == 0
        await asyncio.sleep(1.0)
        assert loop.memories["rare"] == 1
        going.cancel()

    run(scenario)


class Given:
    """What was given, until it is taken back."""

    def __init__(self) -> None:
        self.given = 0
        self.back_at: list[float] = []
        self.looked = 0
        self.taken_at = 0.0

    period = 0.025

    def is_needed(self) -> bool:
        return bool(self.given)

    def look(self, memory: int) -> tuple[int, list[Proposal]]:
        self.looked += 1
        now = asyncio.get_running_loop().time()
        back = Proposal(rank=Rank.RETURN, why="load")
        return memory, [back] if now >= self.taken_at else []

    async def carry_out(self, proposal: Proposal) -> str:
        self.given = proposal.rank is Rank.LENDING
        if not self.given:
            self.back_at.append(asyncio.get_running_loop().time())
        return ""


def test_it_is_looked_quickly_while_something_is_given_and_no_longer() -> None:
    async def scenario() -> None:
        given, time = Given(), asyncio.get_running_loop().time
        lend = Always((Proposal(rank=Rank.LENDING, why="l"),))
        control = Control("lending", lend, 0, given.carry_out, period=10.0, quick=given)
        loop = ControlLoop(looked, budget(), [control])
        going = [asyncio.create_task(work()) for work in (loop.go_on, loop.go_on_quickly)]
        await asyncio.sleep(9)
        assert given.looked == 0
        given.taken_at = time() + 2.0
        await asyncio.sleep(5)
        assert given.back_at == [pytest.approx(given.taken_at, abs=0.03)]
        assert given.looked == loop.quick_looks == pytest.approx(40, abs=2)
        for task in going:
            task.cancel()

    run_virtually(scenario())


def test_the_history_has_decisions_a_bounded_number_of_them() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("a", "2"))
        history = DecisionHistory(node.books)
        owner = Owner("uid-a", "c0")
        lend = Proposal(rank=Rank.LENDING, why="idle", owners=frozenset({owner}))
        back = Proposal(rank=Rank.RETURN, why="load", cpus=CPUSet([2]))
        for second in range(5000):
            history.decided(Decision(float(second), lend))
        history.decided(Decision(5000.0, back, "refused"))
        await node.settle()
        said = [json.loads(e.document) for e in node.store.entries if e.kind == "controlled"]
        lent = [one for one in said if one["rank"] == "lending"]
        assert len(lent) == 2 * PER_HOUR
        assert lent[0]["containers"] == ["default/a/c0"]
        assert lent[PER_HOUR]["unsaid"] == 3600 - PER_HOUR
        (last,) = [one for one in said if one["rank"] == "return"]
        assert (last["cpus"], last["problem"]) == ("2", "refused")

    run(scenario)


def test_what_the_status_says() -> None:
    async def scenario(node: Harness) -> None:
        hands = Hands()
        wish = Proposal(rank=Rank.PARKING, why="few", moves=100)
        park = Proposal(rank=Rank.PARKING, why="few", cpus=CPUSet([1]))
        loop = ControlLoop(
            looked, budget(), [Control("parking", Always((wish, park)), 0, hands.carry_out)]
        )
        await loop.tick()
        told = control_document(node.books, loop, {"lending": "no idle side"})
        assert (told.controllers, told.moves_left) == (["parking"], 4)
        assert [one.cpus for one in told.decided] == ["1"]
        assert told.waiting[0].reason == "100 moves are more than the 4 that are left"
        assert told.refused == {"lending": "no idle side"}

    run(scenario)


def test_a_look_has_what_the_books_say_and_what_is_fresh() -> None:
    async def scenario(node: Harness) -> None:
        for pod in (manifest("a", "2"), mixed(manifest("b", "1")), manifest("c", "")):
            await node.admit(pod)
        seen = look(node.books)
        own = {str(owner): str(one.cpus) for owner, one in seen.containers.items()}
        assert list(own.values()) == ["2-3", "1", ""]
        assert [one.mixed for one in seen.containers.values()] == [False, True, False]
        assert (seen.online, seen.pool) == (ALL, node.books.view.pool)
        assert seen.topology is not None
        assert all(one.load is None for one in seen.containers.values())
        watched = Watched(node)
        watched.at = asyncio.get_running_loop().time()
        await watched.after(0.0)
        await watched.after(1.0, idle=0.5)
        await asyncio.sleep(1.5)
        assert look(node.books, watched.seen).idle[0] == 0.5
        await asyncio.sleep(10.0)
        assert look(node.books, watched.seen).idle == {}, "too old"

    run(scenario)

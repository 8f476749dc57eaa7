"""Interrupts keep off the CPUs of owners: who comes, moves, goes, and who says otherwise."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pinfold.core.kubelet.own_policies import InterruptOptions
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.following.interrupts import InterruptFollower
from pinfold.planning.fake_interrupts import FakeInterrupts, FakeMachine
from pinfold.ports.interrupts import Balancer, InterruptError, KeptOff
from tests.scenes.manager_harness import Harness, manifest, run

ALL = CPUSet.parse("0-7")
USE = InterruptOptions(use=True)


def machine() -> FakeMachine:
    return FakeMachine({"24": ALL, "25": CPUSet([1]), "36": ALL, "default": ALL}, fixed=("36",))


def follower(
    node: Harness, kernel: FakeMachine, options: InterruptOptions = USE
) -> InterruptFollower:
    return InterruptFollower(node.books, FakeInterrupts(kernel), options, 10.0)


def saying(pod: dict[str, Any], said: str) -> dict[str, Any]:
    annotations = {"irqs.pinfold.dev/pod": said}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}


async def entries(node: Harness) -> list[dict[str, Any]]:
    found = await node.store.history(limit=50)
    return [json.loads(one.document) for one in found if one.kind == "interrupts"]


def test_an_owner_comes_and_goes() -> None:
    async def scenario(node: Harness) -> None:
        kernel = machine()
        seen = follower(node, kernel)
        await seen.follow()
        assert kernel.affinities == machine().affinities

        await node.admit(manifest("a", "2"))
        own = node.books.view.state.ledger.exclusive
        await seen.follow()
        assert kernel.affinities["24"] == kernel.affinities["default"] == ALL - own
        assert kernel.affinities["36"] == ALL
        assert [one.number for one in seen.last.fixed] == ["36"]
        assert seen.last.kept == (2 if 1 in own else 1)
        (entry,) = await entries(node)
        assert entry["cpus"] == str(own)
        assert "irq 24" in entry["moved"]
        assert entry["fixed"] == ["irq 36"]
        # Nothing new, nothing written.
        await seen.follow()
        assert len(await entries(node)) == 1

        await node.manager.release("uid-a")
        await node.settle()
        await seen.follow()
        assert kernel.affinities == machine().affinities
        assert not kernel.saved
        assert (await entries(node))[0]["cpus"] == ""

    run(scenario)


@pytest.mark.parametrize(
    ("use", "said", "kept"),
    [(False, "keep-off", True), (True, "allow", False), (False, "", False), (True, "what", True)],
)
def test_the_pod_has_the_last_word(use: bool, said: str, kept: bool) -> None:
    async def scenario(node: Harness) -> None:
        kernel = machine()
        await node.admit(saying(manifest("a", "1"), said) if said else manifest("a", "1"))
        seen = follower(node, kernel, InterruptOptions(use=use))
        await seen.follow()
        own = node.books.view.state.ledger.exclusive
        assert kernel.affinities["24"] == (ALL - own if kept else ALL)
        assert bool(seen.wish.owners) == kept

    run(scenario)


def test_they_go_where_the_configuration_says() -> None:
    async def scenario(node: Harness) -> None:
        kernel = machine()
        await node.admit(manifest("a", "1"))
        seen = follower(node, kernel, InterruptOptions(use=True, housekeeping="6-7"))
        await seen.follow()
        assert kernel.affinities["24"] == CPUSet([6, 7])

    run(scenario)


def test_new_ones_are_found_and_a_fight_is_told_once() -> None:
    async def scenario(node: Harness) -> None:
        kernel = machine()
        await node.admit(manifest("a", "1"))
        own = node.books.view.state.ledger.exclusive
        seen = follower(node, kernel)
        await seen.follow()
        kernel.affinities["99"] = ALL
        await seen.follow()
        assert kernel.affinities["99"] == ALL - own
        assert (await entries(node))[0]["moved"] == ["irq 99"]
        before = len(await entries(node))
        for _ in range(3):
            kernel.affinities["24"] = ALL
            await seen.follow()
            assert kernel.affinities["24"] == ALL - own
            assert "irq 24" in seen.problem
        assert seen.contested == 3
        assert len(await entries(node)) == before + 1
        await seen.follow()
        assert not seen.problem
        assert sum("irq 24" in text for text in node.problems) == 1

    run(scenario)


def test_the_next_life_gives_back_what_the_last_has_left() -> None:
    async def scenario(node: Harness) -> None:
        kernel = machine()
        await node.admit(manifest("a", "1"))
        seen = follower(node, kernel)
        await seen.follow()
        assert kernel.affinities != machine().affinities
        await node.kill()
        await node.start()
        # Nobody asks for it any more.
        await follower(node, kernel, InterruptOptions()).follow()
        assert kernel.affinities == machine().affinities
        again = follower(node, kernel)
        await again.follow()
        kernel.affinities["default"] = CPUSet([5])
        await again.close()
        assert kernel.affinities == {**machine().affinities, "default": CPUSet([5])}
        assert "somebody else has written" in node.problems[-1]

    run(scenario)


def test_it_looks_at_nothing_where_nobody_wishes_it_and_gives_back_what_failed() -> None:
    class Broken(FakeInterrupts):
        broken, asked = False, 0

        async def keep_off(self, cpus: CPUSet, others: CPUSet) -> KeptOff:
            self.asked += 1
            if self.broken:
                raise InterruptError("no file can be opened")
            return await super().keep_off(cpus, others)

    async def scenario(node: Harness) -> None:
        kernel = machine()
        broken = Broken(kernel)
        seen = InterruptFollower(node.books, broken, USE, 10.0)
        await seen.follow()
        await seen.follow()
        assert broken.asked == 1
        await node.admit(manifest("a", "1"))
        await seen.follow()
        broken.broken = True
        await node.manager.release("uid-a")
        await node.settle()
        with pytest.raises(InterruptError):
            await seen.follow()
        broken.broken = False
        await seen.follow()
        assert kernel.affinities == machine().affinities
        asked = broken.asked
        await seen.follow()
        assert broken.asked == asked

    run(scenario)


def test_it_hears_of_every_change() -> None:
    async def scenario(node: Harness) -> None:
        kernel = machine()
        seen = follower(node, kernel)
        going = asyncio.create_task(seen.go_on())
        try:
            began = asyncio.get_running_loop().time()
            await node.admit(manifest("a", "1"))
            await node.settle()
            assert kernel.affinities["24"] != ALL
            assert asyncio.get_running_loop().time() < began + 10.0
            kernel.affinities["24"] = ALL
            await asyncio.sleep(11)
            assert kernel.affinities["24"] != ALL
        finally:
            going.cancel()

    run(scenario)


class _Deaf(FakeInterrupts):
    async def keep_off(self, cpus: CPUSet, others: CPUSet) -> KeptOff:
        look = await super().keep_off(cpus, others)
        deaf = Balancer(17, problem="irqbalance was not told")
        return KeptOff(kept=look.kept, moved=look.moved, balancers=(deaf,))


def test_what_is_wrong_is_said_once() -> None:
    async def scenario(node: Harness) -> None:
        kernel = machine()
        seen = follower(node, kernel)
        kernel.problem = "/proc/irq: nobody may"
        with pytest.raises(InterruptError):
            await seen.follow()
        await node.admit(manifest("a", "1"))
        await seen.follow()
        await seen.follow()
        assert seen.problem == "/proc/irq: nobody may"
        assert sum("nobody may" in text for text in node.problems) == 1
        kernel.problem = ""
        await seen.follow()
        assert not seen.problem
        deaf = InterruptFollower(node.books, _Deaf(kernel), USE, 10.0)
        await deaf.follow()
        assert deaf.problem == "irqbalance was not told"

    run(scenario)

"""A node on fakes whose kernel looks at itself while CPUs move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pinfold.core.moves.owners import Owner, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.moves.moving import Moving
from tests.scenes.manager_harness import Harness, manifest, run_virtually
from tests.scenes.watched_cgroups import WatchedCgroups


class Node(Harness):
    """A node whose kernel looks at itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cgroups = WatchedCgroups(self.view.topology.cpus)
        self.runtime = type(self.runtime)(self.cgroups)

    @property
    def effects(self) -> list[tuple[str, str]]:
        assert isinstance(self.cgroups, WatchedCgroups)
        return self.cgroups.effects

    async def move(self, delay: float = 0.0, **wishes: str) -> Moving:
        """Begin moves of the first containers of pods."""
        async with self.books.change() as draft:
            told = [
                Wish(Owner(f"uid-{pod}", "c0"), CPUSet.parse(cpus), delay=delay)
                for pod, cpus in wishes.items()
            ]
            plan = plan_moves(draft.state.ledger, told)
            return await self.manager.mover.begin(draft, plan, why="rebalance")

    async def begin_resize(self, pod: str, cpus: int) -> Moving:
        """Begin a feasible resize."""
        answer = await self.manager.resizing.resize(pod, None, cpus)
        assert answer.moving is not None, answer.decision
        return answer.moving

    async def resize(self, pod: str, cpus: float, container: str | None = None) -> str:
        """Resize to the end: the CPUs of afterwards, or why not."""
        answer = await self.manager.resizing.resize(pod, container, cpus)
        if answer.moving is not None:
            assert (await answer.moving.ended()).done
        return answer.decision.reason or str(answer.decision.after)

    def has(self) -> dict[str, str]:
        """What everybody owns on record."""
        return {
            f"{uid.removeprefix('uid-')}/{name}": str(cpus)
            for uid, containers in self.books.view.state.ledger.assignments.items()
            for name, cpus in containers.items()
        }


async def pods(node: Node, **counts: str) -> None:
    for name, cpus in counts.items():
        await node.admit(manifest(name, cpus))


def run(scenario: Callable[[Node], Awaitable[None]], **harness: Any) -> Node:
    made: list[Node] = []

    async def whole() -> None:
        node = Node(**harness)
        made.append(node)
        await node.start()
        await scenario(node)
        await node.settle()
        node.check()
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 600))
    return made[0]


def allowed(node: Node, *names: str) -> Mapping[str, str]:
    return {name: node.cpus(name)["c0"] for name in names}

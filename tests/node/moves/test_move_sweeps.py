"""One trouble at each call of moves in turn: a refusal, an exit, a deletion, a CPU offline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.pod_table import UnknownPodError
from pinfold.node.reconciler import reconcile
from pinfold.ports.errors import CgroupError, StoreError
from pinfold.ports.runtime import ContainerState
from tests.scenes.manager_harness import manifest, mixed, run_virtually
from tests.scenes.mortal_harness import Death, MortalHarness
from tests.scenes.moves_harness import Node

_REFUSALS: Final = {
    "place": CgroupError,
    "set_shared": CgroupError,
    "enter": CgroupError,
    "commit": StoreError,
}


class Scene(Node, MortalHarness):
    """A node whose kernel looks at itself, and in which something happens at a call."""


Happens = Callable[[Scene], Awaitable[None]]


@dataclass
class Trouble(Death):
    """What happens at one of the calls that change something."""

    refused: bool = False
    happens: Callable[[], Awaitable[None]] | None = None
    is_over: bool = False

    async def call(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        refusal = _REFUSALS.get(work.__name__)
        self.calls += refusal is not None
        if refusal is None or self.calls != self.at or self.is_over:
            return await work(*args, **kwargs)
        self.is_over = True
        if self.happens is not None:
            meanwhile = asyncio.ensure_future(self.happens())
            await asyncio.sleep(0)
            meanwhile.add_done_callback(lambda task: task.exception())
        result = await work(*args, **kwargs) if self.after or not self.refused else None
        if self.refused and not (self.after and refusal is StoreError):
            raise refusal("as asked", "x")
        return result


async def grows(node: Scene) -> None:
    await resizes(node, 5)


async def shrinks(node: Scene) -> None:
    await resizes(node, 3)


async def shrinks_twice(node: Scene) -> None:
    first = asyncio.ensure_future(resizes(node, 3))
    await asyncio.sleep(1)
    await resizes(node, 2)
    await first


async def changes_places(node: Scene) -> None:
    ledger = node.books.view.state.ledger
    own = ledger.cpus_of("uid-a", "c0") or CPUSet()
    goal = (ledger.default - ledger.limits.reserved) | CPUSet([min(own)])
    await (await node.move(1.0, a=str(goal))).ended()


async def exchanges(node: Scene) -> None:
    """Over free CPUs, with an owner that uses the shared pool as well."""
    has = node.has()
    await (await node.move(1.0, m=has["b/c0"], b=has["m/c0"])).ended()


async def resizes(node: Scene, cpus: int) -> None:
    answer = await node.manager.resizing.resize("a", None, cpus)
    if answer.moving is not None:
        await answer.moving.ended()


async def nothing(node: Scene) -> None:
    """Nothing but the refusal."""


async def exits(node: Scene) -> None:
    for status in node.runtime.known():
        if status.key.pod_uid in {"uid-a", "uid-b"} and status.state is ContainerState.RUNNING:
            node.runtime.exit(status.id, 1)


async def is_deleted(node: Scene) -> None:
    if node.running is not None:
        with suppress(UnknownPodError):
            await node.manager.release("a")


async def goes_offline(node: Scene) -> None:
    gone = CPUSet.parse("3,5")
    node.cgroups.online -= gone
    if node.running is not None:
        await node.books.set_offline(gone)


async def begun(death: Death) -> Scene:
    """A node with an owner of four CPUs that is told three seconds before, and others."""
    node = Scene(machine="1s5c2t")
    node.arm(0, after=False)
    await node.start()
    await node.admit(manifest("a", "2", scaleDownGracePeriodSeconds=3))
    await node.admit(manifest("b", "1"))
    await node.admit(mixed(manifest("m", "1")))
    await node.admit(manifest("web", ""))
    await resizes(node, 4)
    await node.kill()
    node.death = death
    await node.start()
    await node.settle()
    death.calls = 0
    return node


async def is_well(node: Scene) -> None:
    """Nothing is left of the trouble once it is over."""
    await asyncio.sleep(120)
    node.cgroups.online = node.cgroups.machine
    await node.books.set_offline(CPUSet())
    for _ in range(2):
        await node.books.settle()
        await node.settle()
    await reconcile(node.books)
    node.check()
    assert node.books.view.move is None
    assert node.store.move is None
    assert [p for p in node.problems if "InvariantError" in p or "AssertionError" in p] == []
    assert await reconcile(node.books) == []
    assert list(node.books.problems()) == []
    for name in ("a", "b", "m", "web"):
        if f"uid-{name}" in node.books.view.pods.active:
            await node.manager.release(name)
    await node.settle()
    node.check()
    assert str(node.books.view.state.ledger.default) == "0-9"
    assert node.cgroups.groups == {}
    await node.kill()


LIVES = (grows, shrinks, shrinks_twice, changes_places, exchanges)


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize(
    ("happens", "refused", "after"),
    [
        (nothing, True, False),
        (nothing, True, True),
        (exits, False, False),
        (exits, True, False),
        (is_deleted, False, False),
        (goes_offline, False, False),
    ],
)
def test_nothing_is_left_of_what_happens_at_any_call(
    life: Happens, happens: Happens, refused: bool, after: bool
) -> None:
    async def scenario(at: int) -> bool:
        trouble = Trouble(after=after, refused=refused)
        node = await begun(trouble)
        trouble.happens, trouble.at = lambda: happens(node), at
        with suppress(UnknownPodError, StoreError, CgroupError):
            await asyncio.wait_for(life(node), 100)
        trouble.at = 0
        await is_well(node)
        return trouble.is_over

    at = 1
    while run_virtually(scenario(at)):
        at += 1
    assert at > 4


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("happens", [exits, goes_offline])
def test_what_happens_while_no_agent_runs(life: Happens, happens: Happens) -> None:
    async def scenario(at: int, *, after: bool) -> bool:
        death = Death()
        node = await begun(death)
        death.at, death.after = at, after
        living = asyncio.ensure_future(life(node))
        dying = asyncio.ensure_future(death.dead.wait())
        await asyncio.wait({living, dying}, return_when=asyncio.FIRST_COMPLETED)
        died = death.dead.is_set()
        await node.kill()
        for task in (living, dying):
            task.cancel()
        await asyncio.gather(living, dying, return_exceptions=True)
        await happens(node)
        node.arm(0, after=False)
        await node.start()
        await is_well(node)
        return died

    at = 1
    while run_virtually(scenario(at, after=bool(at % 2))):
        at += 1
    assert at > 6

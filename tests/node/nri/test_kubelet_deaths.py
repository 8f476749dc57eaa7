"""The agent dies at every call that it makes while a kubelet's CPUs move: the next one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.node.reconciler import reconcile
from pinfold.planning.fake_nri import FakeContainer
from pinfold.ports.nri import RefusedError
from tests.scenes.kubelet_node import LOOSE, ROOM, STRICT, Node, crowd, spread
from tests.scenes.lifecycle_harness import BEST_EFFORT, guaranteed
from tests.scenes.manager_harness import run_virtually
from tests.scenes.mortal_harness import Death, Mortal, every_death


class DeadPluginError(Exception):
    """The plugin died before it answered."""


class DyingPlugin:
    """A plugin that may die while it is asked; the runtime goes on as if there was none."""

    def __init__(self, plugin: Any, death: Death) -> None:
        self._plugin = plugin
        self._death = death

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            asked = asyncio.create_task(getattr(self._plugin, name)(*args))
            dying = asyncio.create_task(self._death.dead.wait())
            await asyncio.wait({asked, dying}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if not self._death.dead.is_set():
                return await asked
            self._death.buried = True
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            if name == "create_container":
                raise RefusedError("nobody has answered")
            return () if name in {"update_container", "stop_container"} else None

        return call


class MortalNode(Node):
    """A node whose agent dies at one call, before or after its effect."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.death = Death()
        self.front = lambda port: Mortal(port, self.death)

    async def begin(self) -> None:
        """Start an agent, which may die on the way."""
        connect = self.node.connect

        async def dying(plugin: Any) -> None:
            await connect(DyingPlugin(plugin, self.death))

        self.node.connect = dying  # type: ignore[method-assign] # between runtime and plugin
        try:
            starting = asyncio.create_task(self.start())
            ending = asyncio.create_task(self.death.dead.wait())
            await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            if not starting.done():
                self.death.buried = True
                starting.cancel()
                await asyncio.wait({starting})
            elif not self.death.dead.is_set():
                starting.result()
        finally:
            self.node.connect = connect  # type: ignore[method-assign] # as it was

    async def kill(self) -> None:
        self.death.dead.set()
        self.death.buried = True
        await super().kill()

    def again(self, at: int = 0, *, after: bool = False) -> None:
        """The agent that starts next dies at this call."""
        self.death = Death(at, after)


Life = tuple[Callable[[MortalNode], Awaitable[None]], Callable[[MortalNode], Awaitable[None]]]


async def owners(node: MortalNode) -> None:
    await node.run(await node.pod("web", "burstable"), "main", BEST_EFFORT)
    for name in ("a", "b"):
        owner = await node.owner(name, 2, scale_down_grace_period="3")
        await node.node.resize(owner, guaranteed(4))


def of(node: MortalNode, name: str) -> FakeContainer:
    return next(one for one in node.node.containers.values() if one.pod.name == name)


async def resizes(node: MortalNode) -> None:
    """A shrink after a delay whose place another takes, one that waits for it, and a grow."""
    for name, cpus in (("a", 3), ("b", 2), ("a", 2), ("b", 5)):
        await node.node.resize(of(node, name), guaranteed(cpus))
    await asyncio.sleep(8)


async def ends(node: MortalNode) -> None:
    """One pod is deleted in its delay, and the container of another exits in its own."""
    await node.node.resize(of(node, "a"), guaranteed(2))
    await node.node.stop_pod(of(node, "a").pod)
    await node.node.resize(of(node, "b"), guaranteed(2))
    await node.node.stop(of(node, "b"))
    await asyncio.sleep(8)


async def split(node: MortalNode) -> None:
    await spread(node, scale_down_grace_period="3")


async def rebalance(node: MortalNode) -> None:
    moves = asyncio.create_task(node.rebalancing.rebalance())
    await asyncio.sleep(8)
    moves.cancel()
    await asyncio.gather(moves, return_exceptions=True)


async def crowded(node: MortalNode) -> None:
    await crowd(node, scale_down_grace_period="3")


async def room(node: MortalNode) -> None:
    with suppress(RefusedError):
        await node.node.create(await node.sandbox("d"), "main", guaranteed(4))
    await asyncio.sleep(8)


async def dies_and_goes_on(life: Life, at: int, *, after: bool, **harness: Any) -> bool:
    prepare, act = life
    node = MortalNode("2s4c2t", **harness)
    await node.start()
    await prepare(node)
    await node.kill()
    node.again(at, after=after)
    await node.begin()
    await act(node)
    died = node.death.dead.is_set()
    await node.kill()
    node.again()
    await node.start()
    await node.settle()
    await asyncio.wait_for(node.until_moved(), 60)
    node.check()
    assert node.strangers == []
    assert await reconcile(node.books) == []
    assert node.recorded() == node.kernel()
    assert node.store.move is None
    for uid, containers in node.books.view.state.ledger.assignments.items():
        for name, cpus in containers.items():
            runtime_pod = node.pods.by_uid[uid]
            asked = node.pods.asked(runtime_pod.sandbox, runtime_pod.containers[name])
            assert len(cpus) == asked, (uid, name)
    for pod in list(node.node.pods.values()):
        await node.node.stop_pod(pod)
    assert node.books.view.state.ledger.assignments == {}
    assert node.books.view.state.requested.get("cpu", 0) == 0
    await node.kill()
    return died


@pytest.mark.parametrize(
    ("life", "harness", "least"),
    [
        ((owners, resizes), {"config": LOOSE}, 30),
        ((owners, ends), {"config": LOOSE}, 30),
        ((split, rebalance), {"config": LOOSE, "dynamic": DynamicOptions()}, 30),
        ((crowded, room), {"config": STRICT, "dynamic": ROOM}, 30),
    ],
    ids=["resizes", "ends", "rebalance", "room"],
)
@pytest.mark.parametrize("version", [1, 2])
def test_the_agent_may_die_at_every_call(
    life: Life, harness: dict[str, Any], least: int, version: int
) -> None:
    assert (
        run_virtually(
            every_death(partial(dies_and_goes_on, life, version=version, **harness), 1000)
        )
        > least
    )

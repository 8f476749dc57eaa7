"""A node on fakes whose CPUs go offline, and what has to hold there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.pods.manager import Manager
from pinfold.node.settings import NodeSettings, OwnerOffline
from pinfold.planning.fake_cgroups import FakeCgroups
from pinfold.ports.runtime import ContainerState
from tests.scenes.manager_harness import Harness, run_virtually

SETTINGS = NodeSettings(backoff=0.01)
EVERY = CPUSet(range(8))


class Node(Harness):
    """A node whose agent sees which CPUs are online, on either version of cgroups."""

    def __init__(self, version: int = 2, policy: OwnerOffline = OwnerOffline.SHARE) -> None:
        super().__init__(settings=replace(SETTINGS, owner_offline=policy))
        self.cgroups = FakeCgroups(self.view.topology.cpus, version)
        self.runtime = type(self.runtime)(self.cgroups)

    async def start(self, *args: object) -> Manager:
        manager = await super().start(*args)  # type: ignore[arg-type] # as it is called
        manager.books.observers = replace(
            manager.books.observers, online=lambda: self.cgroups.online
        )
        return manager

    async def switch(self, online: CPUSet, *, tell: bool = True) -> None:
        """Take CPUs offline and online; the agent may not have been told yet."""
        self.cgroups.online = online
        if tell:
            await self.manager.books.set_offline(EVERY - online)

    def check(self) -> None:
        """Nobody may run on CPUs that another owns; who has his own runs there."""
        state = self.books.view.state
        assert state.ledger.violations() == []
        for status in self.runtime.known():
            if status.pid is None or status.state is not ContainerState.RUNNING:
                continue
            uid, name = status.key.pod_uid, status.key.name
            cpus = self.cgroups.allowed(status.pid)
            own = state.ledger.cpus_of(uid, name)
            assert cpus.isdisjoint(state.ledger.exclusive - (own or CPUSet())), status.key
            if own is not None and own & self.cgroups.online:
                is_mixed = name in self.books.view.pods.active[uid].workload.pod.mixed
                pool = self.books.view.pool if is_mixed else CPUSet()
                assert cpus == (own | pool) & self.cgroups.online
            else:
                assert cpus <= self.books.view.pool


VERSIONS = pytest.mark.parametrize("version", [1, 2])
POLICIES = pytest.mark.parametrize("policy", [*OwnerOffline])


def run(scenario: Callable[[Node], Awaitable[None]], node: Node) -> None:
    async def whole() -> None:
        await node.start()
        await scenario(node)
        await node.settle()
        node.check()
        await node.kill()

    run_virtually(whole())

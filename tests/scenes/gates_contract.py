"""What a kubelet's cpusets above containers do, on the running kernel and in memory alike."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import FoundCgroups, ObservedContainer, Placement, Watchful
from pinfold.ports.errors import ContainerKey


class GatedWorld(Protocol):
    """Two or more CPUs, and a kubelet's tree with cgroup v2."""

    cpus: CPUSet

    def agent(self) -> FoundCgroups:
        """The cgroups of an agent; each is told of what the one before has written down."""

    async def container(self, pod: str, name: str) -> str:
        """A container that runs, in a cgroup that is given no CPUs; its path."""

    def allowed(self, path: str) -> CPUSet:
        """Where it may run."""

    def own(self, path: str) -> CPUSet:
        """What its own cpuset has."""

    def write(self, path: str, cpus: CPUSet) -> None:
        """Write somebody's cpuset, or one above, as others do."""

    def above(self, path: str, levels: int) -> str:
        """The cgroup so many levels above a container's."""


class GatesContract:
    """Tests of :class:`pinfold.ports.cgroups.FoundCgroups` in a kubelet's tree, by its layout."""

    world: GatedWorld

    @property
    def high(self) -> CPUSet:
        return CPUSet([max(self.world.cpus)])

    @property
    def low(self) -> CPUSet:
        return self.world.cpus - self.high

    def is_open(self, gate: str) -> bool:
        """Whether a gate holds nobody; one with somebody below cannot have none."""
        own = self.world.own(gate)
        return not own or self.world.cpus <= own

    async def put(
        self,
        cgroups: FoundCgroups,
        pod: str,
        name: str,
        own: CPUSet | None = None,
        *,
        mixed: bool = False,
    ) -> tuple[ContainerKey, str]:
        key, path = ContainerKey(pod, name), await self.world.container(pod, name)
        await cgroups.place(key, Placement(cpus=own, mixed=mixed))
        assert await cgroups.find(key, path)
        return key, path

    async def seen(self, cgroups: FoundCgroups, key: ContainerKey) -> ObservedContainer:
        return (await cgroups.observe()).containers[key]

    def test_one_write_moves_everybody_below(self) -> None:
        async def scenario() -> None:
            cgroups = self.world.agent()
            await cgroups.open(self.world.cpus)
            found = [await self.put(cgroups, f"burstable/pod{n}", f"c{n}") for n in range(4)]
            other = await self.put(cgroups, "besteffort/pod9", "c9")
            for cpus in (self.low, self.high, self.world.cpus, self.low):
                await cgroups.set_shared(cpus)
                assert (await cgroups.observe()).shared == cpus
                for key, path in (*found, other):
                    assert self.world.allowed(path) == cpus
                    assert (await self.seen(cgroups, key)).effective == cpus
            await cgroups.close(remove=False)

        asyncio.run(scenario())

    def test_what_a_runtime_writes_late_is_cut(self) -> None:
        async def scenario() -> None:
            cgroups = self.world.agent()
            await cgroups.open(self.low)
            _, path = await self.put(cgroups, "burstable/pod1", "a")
            self.world.write(path, self.world.cpus)
            assert self.world.allowed(path) == self.low
            await cgroups.close(remove=False)
            assert self.world.allowed(path) == self.low

        asyncio.run(scenario())

    def test_a_pod_with_an_owner_and_a_sharer(self) -> None:
        async def scenario() -> None:
            cgroups = self.world.agent()
            await cgroups.open(self.world.cpus)
            _, shared = await self.put(cgroups, "pod1", "shared")
            assert self.world.allowed(shared) == self.world.cpus
            await cgroups.set_shared(self.low)
            assert self.world.allowed(shared) == self.low
            key, owner = await self.put(cgroups, "pod1", "owner", self.high)
            assert self.world.allowed(owner) == self.high
            assert self.world.allowed(shared) == self.world.own(shared) == self.low
            assert (await self.seen(cgroups, key)).exclusive
            await cgroups.remove(key)
            await cgroups.set_shared(self.world.cpus)
            assert self.world.allowed(shared) == self.world.cpus
            await cgroups.close(remove=False)

        asyncio.run(scenario())

    def test_a_mixed_container_follows_the_pool(self) -> None:
        """It is narrowed with it, and its pod's cgroup holds it where a runtime writes late."""

        async def scenario() -> None:
            cgroups = self.world.agent()
            await cgroups.open(self.world.cpus)
            key, path = await self.put(cgroups, "pod1", "mixed", self.high, mixed=True)
            pod = self.world.above(path, 1)
            for pool in (self.low, self.high, self.world.cpus, self.high):
                await cgroups.set_shared(pool)
                assert self.world.allowed(path) == pool | self.high
                assert self.world.own(pod) == pool | self.high
                seen = await self.seen(cgroups, key)
                assert (seen.exclusive, seen.effective) == (True, pool | self.high)
            self.world.write(path, self.world.cpus)
            assert self.world.allowed(path) == self.high
            await cgroups.remove(key)
            assert self.is_open(pod)
            assert self.world.allowed(path) == self.high
            await cgroups.close(remove=False)

        asyncio.run(scenario())

    def test_what_was_there_is_put_back(self) -> None:
        async def scenario() -> None:
            cgroups = self.world.agent()
            await cgroups.open(self.low)
            _, path = await self.put(cgroups, "burstable/pod1", "a")
            _, alone = await self.put(cgroups, "pod2", "b")
            gates = (self.world.above(path, 2), self.world.above(alone, 1))
            assert [self.world.own(gate) for gate in gates] == [self.low, self.low]
            await cgroups.close(remove=False)
            assert all(self.is_open(gate) for gate in gates)
            for one in (path, alone):
                assert self.world.allowed(one) == self.world.own(one) == self.low

        asyncio.run(scenario())

    def test_an_agent_that_was_killed_leaves_what_the_next_puts_back(self) -> None:
        async def scenario() -> None:
            killed = self.world.agent()
            await killed.open(self.world.cpus)
            _, path = await self.put(killed, "burstable/pod1", "a")
            gate = self.world.above(path, 2)
            await killed.set_shared(self.low)
            del killed
            cgroups = self.world.agent()
            await cgroups.open(self.low)
            await cgroups.set_shared(self.low)
            assert self.world.allowed(path) == self.low
            key = ContainerKey("burstable/pod1", "a")
            await cgroups.place(key, Placement())
            assert await cgroups.find(key, path)
            await cgroups.settle()
            assert self.world.own(gate) == self.low
            await cgroups.remove(key)
            assert self.is_open(gate)
            assert self.world.allowed(path) == self.low

        asyncio.run(scenario())

    def test_who_else_writes_one_is_noticed(self) -> None:
        """As systemd does with its slices."""

        async def scenario() -> None:
            cgroups = self.world.agent()
            await cgroups.open(self.world.cpus)
            key, path = await self.put(cgroups, "burstable/pod1", "a")
            gate = self.world.above(path, 2)
            await cgroups.set_shared(self.low)
            await self.noticed(cgroups, gate, self.world.cpus)
            assert self.world.own(gate) == self.low
            assert self.world.allowed(path) == self.low
            assert (await cgroups.observe()).shared == self.world.cpus, "what was found is told"
            assert (await cgroups.observe()).shared == self.low
            assert (await self.seen(cgroups, key)).effective == self.low
            await cgroups.close(remove=False)

        asyncio.run(scenario())

    async def noticed(self, cgroups: FoundCgroups, gate: str, cpus: CPUSet) -> None:
        """Write a gate, and wait until the agent has noticed."""
        assert isinstance(cgroups, Watchful)
        changes = aiter(cgroups.changes())
        noticing = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.01)
        self.world.write(gate, cpus)
        async with asyncio.timeout(30):
            assert await noticing is None
        with suppress(RuntimeError):
            await changes.aclose()  # type: ignore[attr-defined] # it is a generator

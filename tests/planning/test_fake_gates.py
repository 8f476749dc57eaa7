"""The gates of the fake runtime's cgroups pass what those of the kernel do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_nri import FakeNode
from pinfold.planning.fake_runtime_cgroups import FakeRuntimeCgroups, MemoryGateRecord
from pinfold.ports.cgroups import FoundCgroups
from pinfold.ports.nri import PodSandbox, Resources
from tests.scenes.gates_contract import GatesContract


class MemoryWorld:
    """See :class:`tests.scenes.gates_contract.GatedWorld`."""

    def __init__(self) -> None:
        self.cpus = CPUSet(range(4))
        self.record = MemoryGateRecord()
        self._node = FakeNode(self.cpus)
        self._pods: dict[str, PodSandbox] = {}

    def agent(self) -> FoundCgroups:
        return FakeRuntimeCgroups(self._node, self.record)

    async def container(self, pod: str, name: str) -> str:
        if pod not in self._pods:
            self._pods[pod] = await self._node.run_pod(pod, pod, f"/kubepods/{pod}")
        one = await self._node.create(self._pods[pod], name, Resources())
        await self._node.start(one)
        return one.seen.cgroups_path

    def allowed(self, path: str) -> CPUSet:
        return self._node.effective(Path(path))

    def own(self, path: str) -> CPUSet:
        one = self._node.by_path(path)
        if one is not None and one.cpuset is not None:
            return one.cpuset
        return self._node.gates.get(Path(path), CPUSet())

    def write(self, path: str, cpus: CPUSet) -> None:
        one = self._node.by_path(path)
        if one is not None:
            one.cpuset = cpus
        else:
            self._node.gates[Path(path)] = cpus

    def above(self, path: str, levels: int) -> str:
        return str(Path(path).parents[levels - 1])


class TestMemoryGates(GatesContract):
    @pytest.fixture(autouse=True)
    def _world(self) -> Iterator[None]:
        world = self.world = MemoryWorld()
        yield
        assert not world.record.before

    async def noticed(self, cgroups: FoundCgroups, gate: str, cpus: CPUSet) -> None:
        """There is nobody who would tell; whoever looks finds it."""
        assert isinstance(cgroups, FakeRuntimeCgroups)
        self.world.write(gate, cpus)
        assert cgroups.all.gates.mend(Path(gate))

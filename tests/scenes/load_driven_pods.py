"""A node on fakes with containers that have their CPUs by load, whose agent may die."""

from __future__ import annotations

import asyncio
from typing import Any

from pinfold.core.controllers.load_driven import Demote, Promote
from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.controllers.seen import SeenContainer
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import LoadDrivenOptions, OwnPolicies
from pinfold.core.moves.owners import Owner
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.control.looking import look
from pinfold.node.moves.load_driven import LoadDrivenMoves
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import ByLoad
from tests.scenes.manager_harness import manifest
from tests.scenes.mortal_harness import MortalHarness
from tests.scenes.moves_harness import Node

OPTIONS = LoadDrivenOptions(use=True)
CONFIG = NodeConfig(
    cpu_manager_policy="dynamic",
    reserved_system_cpus=CPUSet([0]),
    own=OwnPolicies(load_driven=OPTIONS),
)
A = Owner("uid-a", "c0")


class LoadDrivenNode(Node, MortalHarness):
    """A node whose agent dies, and whose kernel looks at itself."""

    @property
    def by_load(self) -> LoadDrivenMoves:
        manager = self.manager
        rooms, budget = manager.rebalancing.rooms, manager.rebalancing.budget
        return LoadDrivenMoves(self.books, manager.mover, rooms, budget)

    async def promote(self, pod: str = "a", carrier: LoadDrivenMoves | None = None) -> str:
        owner = Owner(f"uid-{pod}", "c0")
        wish = Promote(
            rank=Rank.LOAD_DRIVEN,
            why="busy",
            owners=frozenset({owner}),
            moves=1,
            count=2,
            used=1.25,
        )
        return await self._carry_out(wish, carrier)

    async def demote(self, pod: str = "a", carrier: LoadDrivenMoves | None = None) -> str:
        owner = Owner(f"uid-{pod}", "c0")
        wish = Demote(rank=Rank.LOAD_DRIVEN, why="idle", owners=frozenset({owner}), moves=1)
        return await self._carry_out(wish, carrier)

    async def _carry_out(self, wish: Proposal, carrier: LoadDrivenMoves | None) -> str:
        problem = await (carrier or self.by_load).carry_out(wish)
        if (moving := self.manager.mover.in_flight) is not None:
            ended = await asyncio.wait_for(moving.ended(), 60)
            problem = problem or ended.problem
        await self.settle()
        return problem

    def by_record(self, pod: str = "a") -> ByLoad:
        """What is on record of it."""
        return self.store.pods[f"uid-{pod}"].load_driven["c0"]

    def seen_one(self) -> SeenContainer:
        """What a controller is shown of it."""
        return look(self.books).containers[A]

    def quota(self, pod: str = "a") -> int | None:
        return self.cgroups.groups[ContainerKey(f"uid-{pod}", "c0")].placement.limits.cpu_quota


def by_load(name: str, *cpus: str, grace: int = 0, **more: Any) -> dict[str, Any]:
    pod = manifest(name, *cpus, **more)
    pod["metadata"]["annotations"] = {"load-driven.pinfold.dev/pod": "true"}
    pod["spec"]["scaleDownGracePeriodSeconds"] = grace
    return pod

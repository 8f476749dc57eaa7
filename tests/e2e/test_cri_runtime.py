"""Containers through the CRI of a real containerd: the contract of every runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pinfold.ports.errors import ContainerKey
from pinfold.ports.runtime import ContainerState
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.cri_world import CriWorld
from tests.scenes.runtime_contract import (
    RuntimeContract,
    World,
    a_spec,
    opened,
    story,
    the,
)
from tests.scenes.waiting import until


@pytest.fixture
def world(containerd: ContainerdNode) -> Iterator[CriWorld]:
    world = CriWorld(containerd)
    yield world
    world.clear()


class TestCriRuntime(RuntimeContract):
    """The runtime of containers is a runtime."""

    @story
    async def test_a_created_container_waits_for_its_start(self, world: World) -> None:
        """As in the contract, but containerd makes the process when it is started."""
        process, is_marked = world.marking()
        async with opened(world) as runtime:
            created = await runtime.create(a_spec(process, attempt=3))
            assert (created.state, created.attempt) == (ContainerState.CREATED, 3)
            assert created.key == ContainerKey("uid-1", "main")
            assert created.pid is None
            assert (created.exit_code, created.started_at, created.finished_at) == (None,) * 3
            await asyncio.sleep(0.1)
            assert not is_marked()
            running = await runtime.start(created.id)
            assert running.state is ContainerState.RUNNING
            assert running.id == created.id
            assert running.pid is not None
            assert running.started_at is not None
            await until(is_marked)
            assert await the(runtime, created.id) == running

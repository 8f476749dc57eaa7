"""A plugin, and the in-process peer that is its runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from pinfold.adapters.nri import NriPlugin, PluginSettings
from pinfold.adapters.nri import nri_pb2 as nri
from tests.scenes.nri_peer import (
    Recorder,
    RuntimePeer,
    running_plugin,
    runtime,
)
from tests.scenes.waiting import until

POD = nri.PodSandbox(id="s", name="p", uid="u", namespace="ns")


def event(name: str = "c") -> nri.CreateContainerRequest:
    return nri.CreateContainerRequest(pod=POD, container=nri.Container(id=f"id-{name}", name=name))


class Scene:
    """A plugin that is connected to a runtime in this process."""

    def __init__(self, folder: Path, **settings: float) -> None:
        self.settings = PluginSettings(
            socket=folder / "nri.sock",
            retry=0.01,
            longest_retry=0.02,
            after_refusal=settings.pop("after_refusal", 0.05),
            patience=0.05,
            registration=settings.pop("registration", 10),
            synchronize=settings.pop("synchronize", 10),
            write=settings.pop("write", 10),
        )
        self.events = Recorder()
        self.reports: list[str] = []
        self.plugin: NriPlugin
        self.peers: asyncio.Queue[RuntimePeer]

    def play(
        self,
        scenario: Callable[[Scene, RuntimePeer], Awaitable[None]],
        *,
        synchronize: bool = True,
    ) -> None:
        async def play() -> None:
            async with asyncio.timeout(20), runtime(self.settings.socket) as self.peers:
                running = running_plugin(self.events, self.settings, self.reports)
                async with running as self.plugin:
                    peer = await self.peers.get()
                    if synchronize:
                        await peer.synchronize(request_timeout=2000)
                        await until(lambda: self.plugin.connected)
                    await scenario(self, peer)

        asyncio.run(play())

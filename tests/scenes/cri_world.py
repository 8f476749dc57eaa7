"""The world of a real containerd: what runs there, and how to get at it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from pinfold.adapters.cri import CriClient, CriRuntime, CriSettings
from pinfold.core.pod.workload import HostPath, Process, PullPolicy, VolumeMount
from tests.scenes.containerd_node import ContainerdNode

PODS = ("uid-1", "uid-2")


@dataclass
class CriWorld:
    """Fulfils :class:`tests.scenes.runtime_contract.World` on a containerd."""

    node: ContainerdNode
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="pinfold-cri-")))
    cgroup_parent: str = ""
    _marks: count[int] = field(default_factory=count)

    def client(self) -> CriClient:
        return CriClient(f"unix://{self.node.address}")

    def open(self, *, require_network: bool = False) -> CriRuntime:
        settings = replace(self.settings(), require_network=require_network)
        return CriRuntime(self.client(), settings)

    def settings(self) -> CriSettings:
        parent = self.cgroup_parent or f"/pinfold-cri-{self.node.folder.name}"
        return CriSettings(
            log_root=self.folder / "logs",
            volume_root=self.folder / "volumes",
            cgroup_parent=lambda _: parent,
        )

    def shell(self, script: str) -> Process:
        return self.process("sh", "-c", script)

    def process(self, *command: str) -> Process:
        return Process(
            argv=command,
            command=command,
            image=self.node.image,
            image_pull_policy=PullPolicy.NEVER,
        )

    def lasting(self) -> Process:
        # The first process of a pid namespace gets no signal that it has no handler for.
        traps = "; ".join(f"trap 'exit {128 + n}' {n}" for n in (1, 15))
        return self.shell(f"{traps}; while :; do sleep 1000 & wait; done")

    def ending(self, code: int) -> Process:
        return self.shell(f"exit {code}")

    def missing(self) -> Process:
        return self.process("no-such-command-anywhere")

    def marking(self) -> tuple[Process, Callable[[], bool]]:
        mark = self.folder / f"mark-{next(self._marks)}"
        lasting = self.lasting().command[-1]
        process = Process(
            command=("sh", "-c", f"echo > /world/{mark.name}; {lasting}"),
            image=self.node.image,
            image_pull_policy=PullPolicy.NEVER,
            volume_mounts=(VolumeMount("world", "/world", HostPath(str(self.folder))),),
        )
        return process, mark.exists

    @contextlib.asynccontextmanager
    async def runtime(self) -> AsyncIterator[CriRuntime]:
        runtime = self.open()
        try:
            yield runtime
        finally:
            await runtime.close()

    def clear(self) -> None:
        """Remove every container and pod of ours."""

        async def remove_all() -> None:
            async with self.runtime() as runtime:
                for status in await runtime.containers():
                    await runtime.remove(status.id)
                for uid in PODS:
                    await runtime.remove_pod(uid)

        asyncio.run(remove_all())
        shutil.rmtree(self.folder)
        # containerd removes the containers' cgroups and leaves the pods'.
        name = f"pinfold-cri-{self.node.folder.name}"
        root = Path("/sys/fs/cgroup")
        for parent in (*root.glob(f"*/{name}"), *root.glob(name)):
            for group in (*parent.glob("*/"), parent):
                group.rmdir()

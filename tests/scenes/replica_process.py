"""``pinfold quota serve``, or another that serves a cluster, as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.scenes.waiting import PATIENCE

NAME = "pinfold-quota"


class ReplicaProcess:
    """One replica; ``port`` is where API servers ask, ``ports`` are all that it has told."""

    def __init__(
        self,
        config: Path,
        certificates: Path,
        *words: str,
        command: Sequence[str] = ("quota", "serve"),
        namespace: str = NAME,
        host: str = "127.0.0.1",
    ) -> None:
        self._words = (
            *(*command, "--kubeconfig", str(config), "--certificates", str(certificates)),
            *("--namespace", namespace, "--make-certificates", "--drain", "0"),
            *("--listen", f"{host}:0", "--health-listen", "127.0.0.1:0", *words),
        )
        self.lines: list[str] = []
        self.ports: dict[str, int] = {}

    async def start(self) -> None:
        """Return when it is ready."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pinfold", *self._words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        told = asyncio.Event()
        self._reading = asyncio.create_task(self._read(told))
        async with asyncio.timeout(30 * PATIENCE):
            await told.wait()
            assert self.process.returncode is None, self.text
            told_ports = re.findall(r"\b(\w*port)=(\d+)", self.text)
            self.ports = {name: int(number) for name, number in told_ports}
            while (await self.get("/readyz"))[0] != 200:  # noqa: ASYNC110 - it tells of no event
                await asyncio.sleep(0.05)

    @property
    def port(self) -> int:
        return self.ports["port"]

    @property
    def text(self) -> str:
        """What it has said."""
        return "".join(self.lines)

    async def _read(self, told: asyncio.Event) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(line.decode())
            if b"health_port=" in line:
                told.set()
        told.set()

    async def stop(self) -> None:
        """Have it stop (SIGTERM)."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()

    async def end(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def get(self, path: str) -> tuple[int, str]:
        """What its health has to say; whoever else is in this process goes on meanwhile."""
        return await asyncio.to_thread(
            fetched, f"http://127.0.0.1:{self.ports['health_port']}{path}"
        )


@asynccontextmanager
async def replica_process(
    config: Path, certificates: Path, *words: str, **settings: Any
) -> AsyncIterator[ReplicaProcess]:
    """One that is ready, until the block ends."""
    found = ReplicaProcess(config, certificates, *words, **settings)
    try:
        await found.start()
        yield found
    finally:
        await found.end()


def fetched(url: str) -> tuple[int, str]:
    """Status and text."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own server
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

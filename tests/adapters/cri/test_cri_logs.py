"""The logs that a container runtime writes: rotated as the kubelet does it, whatever goes wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from pinfold.adapters.cri import CriClient, CriRuntime, CriSettings
from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.logs.layout import LogLimits, parts, put_aside
from tests.scenes.cri_peer import Peer, a_container, peer

LIMITS = LogLimits(size=1000, files=3)
RUNNING = pb.ContainerState.CONTAINER_RUNNING


class LoggingPeer:
    """A runtime with one container, which has its log open."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "logs"
        self.log = self.root / "default_web_uid-1" / "main" / "1.log"
        self.log.parent.mkdir(parents=True)
        self.file = self.log.open("ab", buffering=0)
        self.container = a_container("c1", RUNNING)
        self.refuses = False

    def write(self, size: int) -> None:
        self.file.write(b"x" * (size - 1) + b"\n")

    async def status(self, _request: bytes) -> bytes:
        item = self.container
        wire = pb.ContainerStatus(
            id="c1",
            metadata=item.metadata,
            state=item.state,
            labels=item.labels,
            log_path=str(self.log),
        )
        return pb.ContainerStatusResponse(status=wire).SerializeToString()

    async def reopen(self, request: bytes) -> bytes:
        assert pb.ReopenContainerLogRequest.FromString(request).container_id == "c1"
        if self.refuses:
            return b"\xff"  # an answer that is none
        self.file.close()
        self.file = self.log.open("ab", buffering=0)
        return b""

    def runtime(self, found: Peer, limits: LogLimits = LIMITS) -> CriRuntime:
        found.answers |= {
            "ListContainers": pb.ListContainersResponse(
                containers=[self.container]
            ).SerializeToString(),
            "ContainerStatus": self.status,
            "ReopenContainerLog": self.reopen,
        }
        settings = CriSettings(self.root, found.folder / "volumes", limits, oom_score_floor=0)
        return CriRuntime(CriClient(found.address, quick=5.0, long=5.0), settings)


def test_a_log_that_is_too_large_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    async def run() -> None:
        async with peer() as found:
            world = LoggingPeer(tmp_path)
            runtime = world.runtime(found)
            for old in ("0.log", "0.log.00000001"):
                (world.log.parent / old).touch()
            assert await runtime.bound_logs() == []  # nobody has asked the runtime yet
            await runtime.containers()
            world.write(999)
            assert await runtime.bound_logs() == []
            assert found.asked.get("ReopenContainerLog") is None
            for number in range(1, 6):
                world.write(1500)
                assert await runtime.bound_logs() == []
                assert found.asked["ReopenContainerLog"] == number
                assert len(parts(world.log)) == min(number + 1, LIMITS.files)
                assert world.log.stat().st_size == 0
            names = [part.name for part in parts(world.log)]
            assert names == ["1.log.00000004", "1.log.00000005", "1.log"]
            # The attempt before is kept, with its own.
            assert (world.log.parent / "0.log").exists()
            await runtime.close()
            world.file.close()

    asyncio.run(run())


@pytest.mark.parametrize("how", ["refused", "nonsense", "unknown"])
def test_a_runtime_that_does_not_open_it_anew_keeps_it(tmp_path: Path, how: str) -> None:
    async def run() -> None:
        async with peer() as found:
            world = LoggingPeer(tmp_path)
            runtime = world.runtime(found)
            await runtime.containers()
            world.write(1500)
            world.refuses = True
            if how == "refused":
                found.answers["ReopenContainerLog"] = grpc.StatusCode.INTERNAL
            elif how == "unknown":
                del found.answers["ReopenContainerLog"]
            (problem,) = await runtime.bound_logs()
            assert problem.startswith(f"{world.log} cannot be rotated: ")
            assert [part.name for part in parts(world.log)] == ["1.log"]
            world.write(10)
            assert world.log.stat().st_size == 1510
            world.refuses = False
            found.answers["ReopenContainerLog"] = world.reopen
            assert await runtime.bound_logs() == []
            assert len(parts(world.log)) == 2
            await runtime.close()
            world.file.close()

    asyncio.run(run())


def test_a_rotation_that_was_cut_short_is_brought_to_its_end(tmp_path: Path) -> None:
    """Of an agent that was killed before it had told the runtime."""

    async def run() -> None:
        async with peer() as found:
            world = LoggingPeer(tmp_path)
            runtime = world.runtime(found)
            await runtime.containers()
            world.write(1500)
            aside = put_aside(world.log, LIMITS)
            world.write(10)
            assert aside.stat().st_size == 1510
            del found.answers["ReopenContainerLog"]
            (problem,) = await runtime.bound_logs()
            assert problem.startswith(f"{world.log} cannot be rotated: ")
            # It is found again under its own name.
            assert [part.name for part in parts(world.log)] == ["1.log"]
            put_aside(world.log, LIMITS)
            found.answers["ReopenContainerLog"] = world.reopen
            asked = found.asked.get("ReopenContainerLog", 0)
            for _ in range(3):
                assert await runtime.bound_logs() == []
            assert found.asked["ReopenContainerLog"] == asked + 1
            world.write(10)
            assert [part.stat().st_size for part in parts(world.log)] == [1510, 10]
            await runtime.close()
            world.file.close()

    asyncio.run(run())


def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with peer() as found:
            world = LoggingPeer(tmp_path)
            runtime = world.runtime(found)
            world.write(1500)
            world.log = tmp_path / "elsewhere.log"
            world.log.write_bytes(b"x" * 5000)
            await runtime.containers()
            assert await runtime.bound_logs() == []
            assert world.log.stat().st_size == 5000
            await runtime.close()
            world.file.close()

    asyncio.run(run())

"""A container runtime that comes late, or is away for a while."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import pytest

from pinfold.adapters.cri import CriError, NoRuntimeError, wait_for_runtime
from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.ports.errors import RuntimeFailedError
from tests.scenes.cri_peer import Answer, hanging, peer, runtime_on

READY = pb.StatusResponse(
    status=pb.RuntimeStatus(
        conditions=[
            pb.RuntimeCondition(type="RuntimeReady", status=True),
            pb.RuntimeCondition(type="NetworkReady", status=True),
        ]
    )
)
SOUND: dict[str, Answer | bytes | grpc.StatusCode] = {
    "Version": pb.VersionResponse(
        version="0.1.0", runtime_name="peer", runtime_version="7", runtime_api_version="v1"
    ).SerializeToString(),
    "Status": READY.SerializeToString(),
    "RuntimeConfig": pb.RuntimeConfigResponse().SerializeToString(),
}


def test_a_runtime_that_comes_late_is_waited_for() -> None:
    async def case() -> None:
        async with peer(**SOUND) as runtime:
            await runtime.stop()
            said: list[str] = []
            waiting = asyncio.create_task(
                wait_for_runtime(runtime.address, patience=30, report=said.append)
            )
            while not said:  # noqa: ASYNC110 - a list, no event
                await asyncio.sleep(0.01)
            # As containerd answers before its CRI is ready.
            runtime.answers["Version"] = grpc.StatusCode.UNKNOWN
            await runtime.start()
            while len(said) < 2:  # noqa: ASYNC110 - a list, no event
                await asyncio.sleep(0.01)
            runtime.answers["Version"] = SOUND["Version"]
            client, info = await waiting
            await client.close()
            assert (info.name, info.version, info.not_ready) == ("peer", "7", "")
            assert said[0].startswith(
                f"{runtime.folder}/cri.sock (the configuration): there is no socket (start the "
            )
            assert said[1].startswith("Version at unix://")
            assert len(said) == 2

    asyncio.run(asyncio.wait_for(case(), 20))


def test_the_patience_ends(tmp_path: Path) -> None:
    async def case() -> None:
        said: list[str] = []
        with pytest.raises(NoRuntimeError, match=r"none \(the configuration\): there is no"):
            await wait_for_runtime(f"unix://{tmp_path}/none", patience=0.7, report=said.append)
        assert len(said) == 1

    asyncio.run(asyncio.wait_for(case(), 20))


def test_what_waiting_does_not_change_is_told_at_once() -> None:
    async def case() -> None:
        async with peer() as runtime:
            with pytest.raises(CriError, match="is not offered"):
                await wait_for_runtime(runtime.address, patience=60, report=pytest.fail)
        with pytest.raises(RuntimeFailedError, match="no address of a container runtime"):
            await wait_for_runtime("tcp://1.2.3.4", patience=60, report=pytest.fail)

    asyncio.run(asyncio.wait_for(case(), 20))


EMPTY = pb.ListContainersResponse().SerializeToString()


@pytest.mark.parametrize("silence", ["stopped", "hanging", "failing"])
def test_a_runtime_that_is_away_is_told_until_it_is_back(silence: str) -> None:
    async def case() -> None:
        async with peer(ListContainers=EMPTY) as runtime, runtime_on(runtime, quick=1.0) as mine:
            assert mine.problem == ""
            assert await mine.containers() == []
            assert mine.problem == ""
            words = f"the container runtime at {runtime.address} does not answer"
            if silence == "stopped":
                await runtime.stop()
            elif silence == "hanging":
                runtime.answers["ListContainers"] = hanging
            else:
                runtime.answers["ListContainers"] = grpc.StatusCode.INTERNAL
                words = f"ListContainers at {runtime.address} failed: as asked"
            began = time.monotonic()
            while not mine.problem:  # noqa: ASYNC110 - a property, no event
                await asyncio.sleep(0.02)
            # A runtime that only restarts is back before.
            assert time.monotonic() - began > 1.5
            assert mine.problem == words
            runtime.answers["ListContainers"] = EMPTY
            if silence == "stopped":
                await runtime.start()
            while mine.problem:  # noqa: ASYNC110 - a property, no event
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(case(), 30))

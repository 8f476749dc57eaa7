"""A container runtime that hangs, restarts, answers garbage, or is none."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import grpc
import pytest

from pinfold.adapters.cri import (
    CriClient,
    CriError,
    CriListing,
    CriRecord,
    list_cri_containers,
    runtime_info,
)
from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.core.pod.workload import Process
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.nri import ContainerUpdate, Resources
from pinfold.ports.runtime import ContainerState, ContainerStatus
from tests.scenes.cri_peer import a_container, client_of, hanging, peer, runtime_on
from tests.scenes.runtime_contract import a_spec, next_exit, play

VERSION = pb.VersionResponse(runtime_name="peer", runtime_version="1", runtime_api_version="v1")
UP_TO_CREATE: Final = {
    "ListPodSandbox": b"",
    "Status": b"",
    "RunPodSandbox": pb.RunPodSandboxResponse(pod_sandbox_id="s").SerializeToString(),
}
"""The answers of a runtime that makes the sandbox."""


async def version(client: CriClient) -> pb.VersionResponse:
    return await client.call("Version", pb.VersionRequest(), pb.VersionResponse)


async def failure(client: CriClient) -> CriError:
    with pytest.raises(CriError) as raised:
        await version(client)
    assert "Version" in raised.value.problem
    assert client.address in raised.value.problem
    return raised.value


def test_a_runtime_that_hangs_is_given_up() -> None:
    async def case() -> None:
        async with peer(Version=hanging) as runtime, client_of(runtime, quick=0.3) as client:
            began = time.monotonic()
            error = await failure(client)
            assert error.code == "DEADLINE_EXCEEDED"
            assert time.monotonic() - began < 3

    play(case())


def test_bytes_that_are_no_message_are_an_error() -> None:
    async def case() -> None:
        async with peer(Version=b"\xff\xff\xff") as runtime, client_of(runtime) as client:
            assert (await failure(client)).code == "DATA_LOSS"

    play(case())


@pytest.mark.parametrize(
    "greeting",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 64, b""],
    ids=["HTTP/1", "zeros", "nothing"],
)
def test_a_peer_that_speaks_something_else_is_an_error(greeting: bytes) -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    async def case() -> None:
        async with peer() as runtime:
            await runtime.stop()
            server = await asyncio.start_unix_server(babble, runtime.folder / "cri.sock")
            async with server, client_of(runtime, quick=0.5) as client:
                assert (await failure(client)).code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")

    play(case())


def test_nobody_listens() -> None:
    async def case() -> None:
        async with peer() as runtime:
            await runtime.stop()
            async with client_of(runtime, quick=0.4) as client:
                error = await failure(client)
                assert error.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")

    play(case())


def test_a_runtime_that_restarts_is_waited_for() -> None:
    async def case() -> None:
        async with (
            peer(Version=VERSION.SerializeToString()) as runtime,
            client_of(runtime) as client,
        ):
            assert await version(client) == VERSION
            await runtime.stop()
            waiting = asyncio.create_task(version(client))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            await runtime.start()
            assert await waiting == VERSION

    play(case())


def test_unavailable_is_tried_again_only_where_that_is_safe() -> None:
    async def case() -> None:
        async with (
            peer(
                Version=grpc.StatusCode.UNAVAILABLE,
                ListContainers=b"",
                ListPodSandbox=b"",
                Status=b"",
                RunPodSandbox=grpc.StatusCode.UNAVAILABLE,
            ) as runtime,
            client_of(runtime, quick=0.4) as client,
        ):
            assert (await failure(client)).code == "UNAVAILABLE"
            assert runtime.asked["Version"] > 2
            async with runtime_on(runtime) as containers:
                with pytest.raises(RuntimeFailedError, match="sandbox of pod default/web"):
                    await containers.create(a_spec(Process(("true",), image="x:1")))
            assert runtime.asked["RunPodSandbox"] == 1

    play(case())


def test_no_cri_is_said_with_a_remedy() -> None:
    async def case() -> None:
        async with peer() as runtime, client_of(runtime) as client:
            error = await failure(client)
            assert error.code == "UNIMPLEMENTED"
            assert "disabled_plugins" in error.remedy

    play(case())


def test_another_version_is_refused() -> None:
    old = pb.VersionResponse(runtime_name="old", runtime_api_version="0.1.0")

    async def case() -> None:
        async with peer(Version=old.SerializeToString()) as runtime, client_of(runtime) as client:
            with pytest.raises(CriError, match=r"'0\.1\.0'"):
                await runtime_info(client)

    play(case())


def test_a_networks_absence_is_said_in_the_runtimes_words() -> None:
    status = pb.StatusResponse(
        status=pb.RuntimeStatus(
            conditions=[
                pb.RuntimeCondition(type="RuntimeReady", status=True),
                pb.RuntimeCondition(type="NetworkReady", reason="NoCNI", message="no plugin"),
            ]
        ),
        info={"config": "{not JSON"},
    )

    async def case() -> None:
        answers = {"Version": VERSION.SerializeToString(), "Status": status.SerializeToString()}
        async with peer(**answers) as runtime, client_of(runtime) as client:
            info = await runtime_info(client)
            assert (info.name, info.not_ready) == ("peer", "")
            assert info.network_problem == "NoCNI: no plugin"
            assert info.cgroup_driver is None

    play(case())


def test_a_garbled_status_is_an_error() -> None:
    """Somebody else's, another's than was asked for, or no id at all."""
    listed = pb.ListContainersResponse(
        containers=[a_container("a", pb.ContainerState.CONTAINER_RUNNING)]
    )
    other = pb.ContainerStatusResponse(status=pb.ContainerStatus(id="b"))
    foreign = pb.ContainerStatusResponse(status=pb.ContainerStatus(id="a"))

    async def case() -> None:
        async with peer(ListContainers=listed.SerializeToString()) as runtime:
            for answer, text in ((other, "another container"), (foreign, "somebody else's")):
                runtime.answers["ContainerStatus"] = answer.SerializeToString()
                async with runtime_on(runtime) as containers:
                    with pytest.raises(RuntimeFailedError, match=text):
                        await containers.containers()

    play(case())


def test_containers_of_a_kubelet_are_not_seen() -> None:
    """Even by a runtime that ignores the label selector."""
    theirs = a_container("a", pb.ContainerState.CONTAINER_RUNNING, **{"pinfold.dev/managed": ""})
    listed = pb.ListContainersResponse(containers=[theirs])

    async def case() -> None:
        async with peer(ListContainers=listed.SerializeToString()) as runtime:
            async with runtime_on(runtime) as containers:
                assert await containers.containers() == []
            assert "ContainerStatus" not in runtime.asked

    play(case())


@pytest.mark.parametrize("with_events", [False, True])
def test_an_exit_is_found_with_and_without_events(with_events: bool) -> None:
    async def case() -> None:
        item = a_container("a", pb.ContainerState.CONTAINER_RUNNING)

        async def listing(_: bytes) -> bytes:
            return pb.ListContainersResponse(containers=[item]).SerializeToString()

        async def status(_: bytes) -> bytes:
            answer = pb.ContainerStatus(
                id="a",
                labels=dict(item.labels),
                state=item.state,
                exit_code=3,
                finished_at=5 * 10**9,
            )
            return pb.ContainerStatusResponse(status=answer).SerializeToString()

        async with peer(ListContainers=listing, ContainerStatus=status) as runtime:
            if with_events:
                stopped = pb.ContainerEventType.CONTAINER_STOPPED_EVENT
                event = pb.ContainerEventResponse(container_id="a", container_event_type=stopped)
                # The second is garbage: the stream breaks, and is opened again.
                runtime.events = [event.SerializeToString(), b"\xff"]
            async with runtime_on(runtime) as containers:
                (running,) = await containers.containers()
                assert (running.state, running.exit_code) == (ContainerState.RUNNING, None)
                item.state = pb.ContainerState.CONTAINER_EXITED
                told = await next_exit(containers)
                assert (told.id, told.exit_code, told.finished_at) == ("a", 3, 5.0)
                if with_events:
                    await runtime.listened_to(2)

    play(case())


def test_one_that_was_removed_by_others_has_exited() -> None:
    async def case() -> None:
        items = [a_container("a", pb.ContainerState.CONTAINER_RUNNING)]

        async def listing(_: bytes) -> bytes:
            return pb.ListContainersResponse(containers=items).SerializeToString()

        status = pb.ContainerStatus(
            id="a", labels=dict(items[0].labels), state=pb.ContainerState.CONTAINER_RUNNING
        )
        answer = pb.ContainerStatusResponse(status=status).SerializeToString()
        async with (
            peer(ListContainers=listing, ContainerStatus=answer) as runtime,
            runtime_on(runtime) as containers,
        ):
            assert len(await containers.containers()) == 1
            items.clear()
            told = await next_exit(containers)
            assert (told.id, told.exit_code) == ("a", 137)
            assert "removed" in told.message

    play(case())


def test_a_creation_of_unknown_outcome_is_undone() -> None:
    async def case() -> None:
        created: list[pb.Container] = []

        async def create(request: bytes) -> bytes:
            config = pb.CreateContainerRequest.FromString(request).config
            item = a_container("new", pb.ContainerState.CONTAINER_CREATED)
            item.annotations.update(config.annotations)
            created.append(item)
            return await hanging(request)

        async def listing(_: bytes) -> bytes:
            return pb.ListContainersResponse(containers=created).SerializeToString()

        async def remove(request: bytes) -> bytes:
            assert pb.RemoveContainerRequest.FromString(request).container_id == "new"
            created.clear()
            return b""

        async with (
            peer(
                **UP_TO_CREATE,
                CreateContainer=create,
                ListContainers=listing,
                RemoveContainer=remove,
            ) as runtime,
            runtime_on(runtime, quick=0.5) as containers,
        ):
            with pytest.raises(RuntimeFailedError, match="not answered in time"):
                await containers.create(a_spec(Process(("true",), image="x:1")))
            assert created == []
            assert runtime.asked["RemoveContainer"] == 1

    play(case())


def test_a_runtime_that_hangs_holds_up_nobody_who_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinfold.adapters.cri.creation._LAST_UNDO", 0.1)

    async def case() -> None:
        creating = asyncio.Event()

        async def create(request: bytes) -> bytes:
            creating.set()
            return await hanging(request)

        async def listing(request: bytes) -> bytes:
            return await hanging(request) if creating.is_set() else b""

        async with (
            peer(
                **UP_TO_CREATE,
                CreateContainer=create,
                ListContainers=listing,
            ) as runtime,
            runtime_on(runtime, quick=1000.0) as containers,
        ):
            spec = a_spec(Process(("true",), image="x:1"))
            task = asyncio.create_task(containers.create(spec))
            await creating.wait()
            task.cancel()
            await asyncio.wait({task})
            async with asyncio.timeout(30):
                await containers.close()

    play(case())


@pytest.mark.parametrize(
    ("image", "text"),
    [(None, "without an image"), ("x:1", "could not be pulled")],
)
def test_an_image_that_cannot_be_had(image: str | None, text: str) -> None:
    async def case() -> None:
        async with (
            peer(ImageStatus=b"", PullImage=grpc.StatusCode.NOT_FOUND) as runtime,
            runtime_on(runtime) as containers,
        ):
            with pytest.raises(RuntimeFailedError, match=text):
                await containers.pull(a_spec(Process(("true",), image=image)))

    play(case())


def test_updates_that_fail_are_named() -> None:
    async def case() -> None:
        async def update(request: bytes) -> bytes:
            container_id = pb.UpdateContainerResourcesRequest.FromString(request).container_id
            if container_id == "slow":
                await asyncio.sleep(0.1)
            return b""

        async with peer(UpdateContainerResources=update) as runtime, client_of(runtime) as client:
            record = CriRecord(client)
            wanted = Resources(cpus="0")
            assert (
                await record.update([ContainerUpdate("a", wanted), ContainerUpdate("slow", wanted)])
                == []
            )
            assert await record.update([]) == []
            runtime.answers["UpdateContainerResources"] = grpc.StatusCode.NOT_FOUND
            assert await record.update([ContainerUpdate("a", wanted, ignore_failure=True)]) == []
            with pytest.raises(RuntimeFailedError, match="container a"):
                await record.update([ContainerUpdate("a", wanted)])

    play(case())


def test_a_listing_leaves_out_what_goes_away_meanwhile() -> None:
    async def case() -> None:
        pods = pb.ListPodSandboxResponse(items=[pb.PodSandbox(id="s")])
        listed = pb.ListContainersResponse(
            containers=[a_container("a", pb.ContainerState.CONTAINER_RUNNING)]
        )
        async with (
            peer(
                ListPodSandbox=pods.SerializeToString(),
                ListContainers=listed.SerializeToString(),
                PodSandboxStatus=grpc.StatusCode.NOT_FOUND,
                ContainerStatus=grpc.StatusCode.NOT_FOUND,
            ) as runtime,
            client_of(runtime) as client,
        ):
            assert await list_cri_containers(client) == ([], [])

    play(case())


def test_what_exists_by_id() -> None:
    async def case() -> None:
        ready, stopped = pb.PodSandboxState.SANDBOX_READY, pb.PodSandboxState.SANDBOX_NOTREADY
        pods = pb.ListPodSandboxResponse(
            items=[pb.PodSandbox(id="up", state=ready), pb.PodSandbox(id="down", state=stopped)]
        )
        listed = pb.ListContainersResponse(
            containers=[
                a_container("made", pb.ContainerState.CONTAINER_CREATED),
                a_container("runs", pb.ContainerState.CONTAINER_RUNNING),
                a_container("ended", pb.ContainerState.CONTAINER_EXITED),
                a_container("unclear", pb.ContainerState.CONTAINER_UNKNOWN),
            ]
        )
        async with (
            peer(
                ListPodSandbox=pods.SerializeToString(),
                ListContainers=listed.SerializeToString(),
            ) as runtime,
            client_of(runtime) as client,
        ):
            there = await CriListing(client).existing()
            assert there.sandboxes == {"up": True, "down": False}
            assert there.containers == {"made": True, "runs": True, "ended": False, "unclear": True}
            runtime.answers["ListPodSandbox"] = b"\xff"
            with pytest.raises(RuntimeFailedError):
                await CriListing(client).existing()

    play(case())


def test_one_that_the_runtime_has_lost_track_of_has_ended() -> None:
    async def case() -> None:
        item = a_container("a", pb.ContainerState.CONTAINER_UNKNOWN)
        listed = pb.ListContainersResponse(containers=[item])
        told = pb.ContainerStatus(id="a", labels=dict(item.labels), state=item.state)
        async with (
            peer(
                ListContainers=listed.SerializeToString(),
                ContainerStatus=pb.ContainerStatusResponse(status=told).SerializeToString(),
            ) as found,
            runtime_on(found) as runtime,
        ):
            (status,) = await runtime.containers()
            assert (status.state, status.exit_code) == (ContainerState.EXITED, 137)

    play(case())


def test_a_look_that_fails_loses_no_exit() -> None:
    """Whoever listens is told of the failure once; who listens again is told of the exit."""

    async def case() -> None:
        item = a_container("a", pb.ContainerState.CONTAINER_RUNNING)
        no_files = True

        async def listing(_: bytes) -> bytes:
            return pb.ListContainersResponse(containers=[item]).SerializeToString()

        async def status(_: bytes) -> bytes:
            answer = pb.ContainerStatus(id="a", labels=dict(item.labels), state=item.state)
            return pb.ContainerStatusResponse(status=answer).SerializeToString()

        async with (
            peer(ListContainers=listing, ContainerStatus=status) as runtime,
            runtime_on(runtime) as containers,
        ):
            await containers.containers()
            table = containers._table  # noqa: SLF001 - where files would be short
            assert table is not None
            look = table.refresh

            async def failing() -> list[ContainerStatus]:
                if no_files:
                    raise OSError(24, "Too many open files")
                return await look()

            table.refresh = failing  # type: ignore[method-assign] # as when no file can be opened
            for _ in range(3):
                with pytest.raises(ExceptionGroup):
                    await next_exit(containers)
            item.state = pb.ContainerState.CONTAINER_EXITED
            no_files = False
            assert (await next_exit(containers)).id == "a"

    play(case())

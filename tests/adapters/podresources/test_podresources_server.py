"""The podresources server over a real socket: answers, the kubelet's errors, the rate, the file."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from pinfold.adapters.podresources.service import BURST, QPS, TokenBucket
from pinfold.adapters.podresources_client import PodResourcesClient
from pinfold.adapters.podresources_client import podresources_pb2 as older
from pinfold.core.values.cpuset import CPUSet
from pinfold.formats.grpc_limits import CONNECTIONS
from pinfold.linux.socket_places import LONGEST_PATH
from pinfold.ports.errors import PortError
from pinfold.ports.podresources import (
    ContainerDevices,
    ContainerMemory,
    ContainerResources,
    PodResources,
)
from tests.scenes.podresources_world import (
    LISTER,
    Rows,
    ServerTask,
    inode,
    reading,
    serving,
    some_pod,
)
from tests.scenes.waiting import PATIENCE, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pod-resources" / "pinfold.sock"


async def refusal(call: Callable[[], Awaitable[object]]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call()
    return raised.value.code(), raised.value.details() or ""


# -------------------------------------------------------------------------------------- answers


def test_it_answers_what_the_source_says_now(path: Path) -> None:
    async def scenario() -> None:
        source = Rows()
        async with serving(source, path), reading(path) as reader:
            (pod,) = (await reader.list_pods()).pod_resources
            assert (pod.namespace, pod.name, list(pod.containers[0].cpu_ids)) == (
                "prod",
                "web",
                [2, 3],
            )
            source.rows = [some_pod("a"), some_pod("b", 5)]
            assert await reader.names() == ["a", "b"]
            assert list((await reader.get("prod", "b")).pod_resources.containers[0].cpu_ids) == [5]
            assert list((await reader.allocatable()).cpu_ids) == list(range(1, 8))
            source.cpus = CPUSet()
            assert (await reader.allocatable()).ByteSize() == 0
            assert await reader.raw("/v1alpha1.PodResourcesLister/List") == (
                b"\x0a\x11\x0a\x01a\x12\x04prod\x1a\x06\x0a\x04main"
                b"\x0a\x11\x0a\x01b\x12\x04prod\x1a\x06\x0a\x04main"
            )

    asyncio.run(scenario())


def test_clients_of_any_age_read_a_pod_that_has_cpus_as_a_whole(path: Path) -> None:
    """Those from before 1.37 know nothing of the pod's own fields, and skip them."""

    async def scenario() -> None:
        nic = ContainerDevices("example.com/nic", ("a",), (1,))
        main = ContainerResources("main", CPUSet([2, 3]), devices=(nic,))
        shared = ContainerResources("side", restartable_init=True)
        memory = ContainerMemory("memory", 1 << 30, (1,))
        pod = PodResources("prod", "web", (shared, main), CPUSet(range(2, 6)), (memory,))
        async with serving(Rows([pod]), path), reading(path) as reader:
            (told,) = (await reader.list_pods()).pod_resources
            assert list(told.cpu_ids) == [2, 3, 4, 5]
            assert [(one.memory_type, one.size) for one in told.memory] == [("memory", 1 << 30)]
            assert [node.ID for one in told.memory for node in one.topology.nodes] == [1]
            assert [list(one.cpu_ids) for one in told.containers] == [[], [2, 3]]
            assert (await reader.get("prod", "web")).pod_resources == told
            old = older.ListPodResourcesResponse.FromString(await reader.raw(LISTER + "List"))
            assert {field.name for field, _ in old.pod_resources[0].ListFields()} == {
                "name",
                "namespace",
                "containers",
            }
            client = PodResourcesClient(path)
            try:
                found = await client.pod("prod", "web", within=20)
                assert {name: list(devices) for name, devices in found.items()} == {
                    "side": [],
                    "main": ["example.com/nic"],
                }
                assert list(await client.pods(within=20)) == [("prod", "web")]
            finally:
                await client.close()

    asyncio.run(scenario())


def test_errors_are_the_kubelets(path: Path) -> None:
    async def scenario() -> None:
        async with serving(Rows(), path), reading(path) as reader:
            assert await refusal(lambda: reader.get("prod", "gone")) == (
                grpc.StatusCode.UNKNOWN,
                "pod gone in namespace prod not found",
            )
            # Both names count, and neither is guessed.
            code, text = await refusal(lambda: reader.get("", "web"))
            assert (code, text) == (
                grpc.StatusCode.UNKNOWN,
                "pod web in namespace  not found",
            )
            code, _ = await refusal(lambda: reader.raw(LISTER + "Watch"))
            assert code is grpc.StatusCode.UNIMPLEMENTED
            code, _ = await refusal(lambda: reader.raw("/v2.PodResourcesLister/List"))
            assert code is grpc.StatusCode.UNIMPLEMENTED
            code, text = await refusal(lambda: reader.raw(LISTER + "Get", b"\x0a\xff"))
            assert code is grpc.StatusCode.INTERNAL
            assert text.startswith("grpc: failed to unmarshal the received message")
            assert await reader.names() == ["web"]

    asyncio.run(scenario())


def test_answers_of_up_to_16_mib(path: Path) -> None:
    devices = tuple(ContainerDevices("x.com/d", (f"{n:0>1000}",), (0,)) for n in range(14_000))

    async def scenario() -> None:
        source = Rows([PodResources("n", "big", (ContainerResources("c", devices=devices),))])
        async with serving(source, path), reading(path) as reader:
            answer = await reader.list_pods()
            assert 12 << 20 < answer.ByteSize() < 16 << 20
            assert len(answer.pod_resources[0].containers[0].devices) == 14_000

    asyncio.run(scenario())


def test_other_talk_on_the_socket_harms_nobody(path: Path) -> None:
    def talk(data: bytes) -> None:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(5 * PATIENCE)
            peer.connect(str(path))
            peer.sendall(data)

    async def scenario() -> None:
        async with serving(Rows(), path), reading(path) as reader:
            for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 5000, b"PRI * HTTP/2.0\r\n\r\nSM"):
                await asyncio.to_thread(talk, data)
            assert await reader.names() == ["web"]

    asyncio.run(scenario())


# ----------------------------------------------------------------------------------------- rate


def test_the_bucket_is_gos() -> None:
    now = [100.0]
    bucket = TokenBucket(lambda: now[0])
    assert (QPS, BURST) == (100.0, 10)
    assert [bucket.allow() for _ in range(12)] == [True] * 10 + [False] * 2
    now[0] += 0.0099
    assert not bucket.allow()
    now[0] += 0.0002
    assert bucket.allow()
    assert not bucket.allow()
    now[0] += 3600
    assert sum(bucket.allow() for _ in range(50)) == 10


def test_all_readers_and_methods_share_one_rate(path: Path) -> None:
    async def scenario() -> None:
        async with serving(Rows(), path), reading(path) as one, reading(path) as two:
            await asyncio.gather(one.list_pods(), two.list_pods())
            await asyncio.sleep(0.2)
            calls = [
                call()
                for _ in range(20)
                for call in (
                    one.list_pods,
                    two.allocatable,
                    lambda: one.get("prod", "web"),
                    lambda: two.raw("/v1alpha1.PodResourcesLister/List"),
                )
            ]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            refused = [a for a in answers if isinstance(a, grpc.aio.AioRpcError)]
            # A slow machine may earn some tokens meanwhile; it cannot get through as a whole.
            assert len(refused) >= 20
            assert {(e.code(), e.details()) for e in refused} == {
                (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            }
            await asyncio.sleep(0.1)
            assert await one.names() == ["web"]

    asyncio.run(scenario())


# ----------------------------------------------------------------------------------------- file


def test_the_file_is_for_its_owner_only_and_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a b%20" / "pod#r?" / "p.sock"

    async def scenario() -> None:
        async with serving(Rows(), path), reading(path) as reader:
            assert await reader.names() == ["web"]
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
            assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o750
            assert os.listdir(path.parent) == ["p.sock"]
        assert os.listdir(path.parent) == []

    asyncio.run(scenario())


def test_a_group_may_connect(path: Path) -> None:
    async def scenario() -> None:
        async with serving(Rows(), path, group=os.getegid()):
            found = path.lstat()
            assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, os.getegid())
            assert path.parent.stat().st_gid == os.getegid()

    asyncio.run(scenario())


def test_a_group_that_is_none(path: Path) -> None:
    with pytest.raises(PortError, match=r"pinfold\.sock: there is no group 'nobody-is-in-it'"):
        asyncio.run(ServerScenario(path, group="nobody-is-in-it").start())
    assert not path.parent.exists()


class ServerScenario:
    """A start that is refused."""

    def __init__(self, path: Path, group: str | None = None) -> None:
        self.path, self.group = path, group

    async def start(self) -> None:
        await ServerTask(Rows(), self.path, self.group).started()


def dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))


def test_the_file_of_a_dead_server_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    dead_socket(path)

    async def scenario() -> None:
        async with serving(Rows(), path), reading(path) as reader:
            assert await reader.names() == ["web"]

    asyncio.run(scenario())


def test_a_server_that_lives_is_left_alone(path: Path) -> None:
    async def scenario() -> None:
        async with serving(Rows(), path), reading(path) as reader:
            before = inode(path)
            with pytest.raises(PortError, match="another process listens there"):
                await ServerTask(Rows([]), path).started()
            assert inode(path) == before
            assert os.listdir(path.parent) == ["pinfold.sock"]
            assert await reader.names() == ["web"]

    asyncio.run(scenario())


def test_of_many_that_start_on_a_stale_file_one_serves(path: Path) -> None:
    path.parent.mkdir()

    async def scenario() -> None:
        for _ in range(5):
            dead_socket(path)
            servers = [ServerTask(Rows([some_pod(str(n))]), path) for n in range(4)]
            started = await asyncio.gather(
                *(server.started() for server in servers), return_exceptions=True
            )
            assert sorted(type(result).__name__ for result in started) == [
                "NoneType",
                *["PortError"] * 3,
            ]
            winner = servers[started.index(None)]
            async with reading(path) as reader:
                assert await reader.names() == [str(servers.index(winner))]
            await winner.end()
            assert os.listdir(path.parent) == []

    asyncio.run(scenario())


def test_a_folder_that_somebody_locks(path: Path) -> None:
    path.parent.mkdir()
    held = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(PortError, match="its folder is locked"):
            asyncio.run(ServerScenario(path).start())
        assert os.listdir(path.parent) == []
    finally:
        os.close(held)


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(PortError, match="is there and is no socket"):
        asyncio.run(ServerScenario(path).start())
    assert path.read_text() == "precious"
    path.unlink()
    path.symlink_to(path.parent / "elsewhere")
    with pytest.raises(PortError, match="is there and is no socket"):
        asyncio.run(ServerScenario(path).start())
    assert path.is_symlink()


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    long = tmp_path / ("x" * LONGEST_PATH)
    with pytest.raises(PortError, match="107 bytes at most"):
        asyncio.run(ServerScenario(long).start())
    (tmp_path / "file").write_text("")
    with pytest.raises(PortError, match="is no folder"):
        asyncio.run(ServerScenario(tmp_path / "file" / "s").start())
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PortError, match="others may write there"):
        asyncio.run(ServerScenario(tmp_path / "open" / "s").start())
    # Its private folder's name is longer than that of the socket.
    near = tmp_path / ("y" * (LONGEST_PATH - len(str(tmp_path)) - 4)) / "s"
    with pytest.raises(PortError, match="107 bytes at most"):
        asyncio.run(ServerScenario(near).start())
    assert os.listdir(near.parent) == []


@pytest.mark.parametrize("whole_folder", [False, True])
def test_a_file_that_is_deleted_comes_back(path: Path, whole_folder: bool) -> None:
    async def scenario() -> None:
        async with serving(Rows(), path) as server, reading(path) as early:
            assert await early.names() == ["web"]
            for _ in range(3):
                if whole_folder:
                    shutil.rmtree(path.parent)
                else:
                    path.unlink()
                await until(path.exists)
                async with reading(path) as late:
                    assert await late.names() == ["web"]
                # Who was connected goes on without noticing.
                assert await early.names() == ["web"]
                assert os.listdir(path.parent) == ["pinfold.sock"]
            assert server.reports == []

    asyncio.run(scenario())


def test_what_somebody_puts_in_its_place_stays_there(path: Path) -> None:
    async def scenario() -> None:
        async with serving(Rows(), path) as server, reading(path) as early:
            assert await early.names() == ["web"]
            path.unlink()
            path.write_text("precious")
            await until(lambda: bool(server.reports))
            await asyncio.sleep(0.1)
            (report,) = server.reports
            assert "is there and is no socket" in report
            assert await early.names() == ["web"]
        assert path.read_text() == "precious"

    asyncio.run(scenario())


def test_it_gives_the_place_back_when_it_is_free(path: Path) -> None:
    async def scenario() -> None:
        async with serving(Rows(), path) as server:
            path.unlink()
            with socket.socket(socket.AF_UNIX) as other:
                other.bind(str(path))
                other.listen()
                await until(lambda: bool(server.reports))
                theirs = inode(path)
                await asyncio.sleep(0.05)
                assert inode(path) == theirs
            # The other one died and left its file.
            await until(lambda: path.exists() and inode(path) != theirs)
            async with reading(path) as reader:
                assert await reader.names() == ["web"]

    asyncio.run(scenario())


def test_requests_at_the_end_are_answered_or_refused_and_it_ends(path: Path) -> None:
    async def scenario() -> None:
        async with serving(Rows(), path), reading(path) as reader:
            calls = [asyncio.create_task(reader.list_pods()) for _ in range(5)]
            await asyncio.sleep(0.01)
        await asyncio.wait(calls, timeout=20)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert not path.exists()

    asyncio.run(scenario())


def test_who_connects_and_says_nothing_keeps_no_reader_out(path: Path) -> None:
    async def scenario() -> None:
        async with serving(Rows(), path):
            before = len(os.listdir("/proc/self/fd"))
            silent = []
            for _ in range(300):
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(0)
                with contextlib.suppress(BlockingIOError):
                    sock.connect(str(path))
                silent.append(sock)
            await asyncio.sleep(0.5)
            assert len(os.listdir("/proc/self/fd")) - before <= 300 + CONNECTIONS + 8
            async with reading(path) as reader, asyncio.timeout(20):
                while True:  # as a reader does that is refused
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        assert await reader.names() == ["web"]
                        break
                    await asyncio.sleep(0.1)
            for sock in silent:
                sock.close()

    asyncio.run(scenario())

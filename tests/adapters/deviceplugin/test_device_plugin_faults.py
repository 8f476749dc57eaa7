"""Device plugins that misbehave: each harms its own resource only, and is told or reported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from pinfold.core.devices.devices import Device, PreferenceQuestion
from pinfold.formats.grpc_limits import CONNECTIONS
from pinfold.ports.devices import DevicePluginError
from tests.scenes.device_plugin_peer import (
    QUICK,
    WIDGET,
    PluginPeer,
    a_good_one,
    an_answer,
    hanging,
    refusal,
    scene,
    some_devices,
    the_good_one_serves,
)
from tests.scenes.waiting import PATIENCE, until

UNKNOWN = grpc.StatusCode.UNKNOWN


# ------------------------------------------------------------------------------- registration


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"version": "v1alpha1"},
            'version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]',
        ),
        (
            {"version": ""},
            'version "" is not supported by kubelet. Supported version is ["v1beta1"]',
        ),
        ({"resource_name": "cpu"}, 'the ResourceName "cpu" is invalid'),
        ({"resource_name": "hugepages-2Mi"}, 'the ResourceName "hugepages-2Mi" is invalid'),
        ({"resource_name": "kubernetes.io/x"}, 'the ResourceName "kubernetes.io/x" is invalid'),
        ({"resource_name": "a/../b"}, 'the ResourceName "a/../b" is invalid'),
        ({"resource_name": "a.com/b\0c"}, 'the ResourceName "a.com/b\\x00c" is invalid'),
        ({"resource_name": "a.com/" + "x" * 9999}, 'the ResourceName "a.com/xxx'),
        ({"endpoint": ""}, 'the endpoint "" is invalid'),
        ({"endpoint": "."}, 'the endpoint "." is invalid'),
        ({"endpoint": ".."}, 'the endpoint ".." is invalid'),
        ({"endpoint": "../p.sock"}, 'the endpoint "../p.sock" is invalid'),
        ({"endpoint": "/run/x.sock"}, 'the endpoint "/run/x.sock" is invalid'),
        ({"endpoint": "p.sock\0"}, 'the endpoint "p.sock\\x00" is invalid'),
        ({"endpoint": "kubelet.sock"}, 'the endpoint "kubelet.sock" is invalid'),
        ({"endpoint": "x" * 9999}, 'the endpoint "xxx'),
        ({"endpoint": "file"}, "/file: is no socket"),
        ({"endpoint": "link-out"}, "link-out: a symbolic link that leads out of "),
        ({"endpoint": "loop"}, "loop: "),
        ({"endpoint": "not-there.sock"}, "not-there.sock is not there"),
    ],
)
def test_who_may_not_register(fields: dict[str, str], said: str) -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, dial=0.1)) as found:
            plugin = await found.plugin(some_devices(1))
            outside = await found.plugin(folder=found.folder.parent)
            (found.folder / "file").touch()
            (found.folder / "link-out").symlink_to(outside.path)
            (found.folder / "loop").symlink_to("loop")
            code, text = await refusal(plugin.register(**fields))
            assert code is UNKNOWN
            assert said in text
            assert len(found.reports) == 1
            assert "\0" not in found.reports[0]
            assert not found.server.inventory()
            # It may do better the next time.
            await plugin.register()
            await until(found.healthy)

    asyncio.run(scenario())


def test_garbage_instead_of_a_registration() -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = await found.plugin(some_devices(1))
            for garbage in (b"\xff", b"\x0a\xff", b"\x0a\x02\xff\xfe"):
                code, text = await refusal(plugin.register_raw(garbage))
                assert code is grpc.StatusCode.INTERNAL
                assert text.startswith("grpc: failed to unmarshal the received message")
            code, _ = await refusal(plugin.register_raw(b"\x0a" + b"x" * (5 << 20)))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            await plugin.register()

    asyncio.run(scenario())


def test_other_talk_on_the_socket_harms_nobody() -> None:
    def talk(path: Path, data: bytes) -> None:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(5 * PATIENCE)
            peer.connect(str(path))
            peer.sendall(data)

    async def scenario() -> None:
        async with scene() as found:
            for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 5000, b"PRI * HTTP/2.0\r\n\r\nSM"):
                await asyncio.to_thread(talk, found.folder / "kubelet.sock", data)
            await found.registered(some_devices(1))

    asyncio.run(scenario())


@pytest.mark.parametrize("talk", [b"", b"SSH-2.0-no\r\n", b"\0\xff" * 9999])
def test_a_socket_that_speaks_no_grpc(talk: bytes) -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, dial=0.4)) as found:
            await a_good_one(found)

            async def other(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(talk)
                await asyncio.sleep(0.05)
                writer.close()

            server = await asyncio.start_unix_server(other, found.folder / "p.sock")
            plugin = PluginPeer(found.folder)
            code, text = await refusal(plugin.register())
            assert code is UNKNOWN
            assert "failed to dial device plugin: " in text
            assert "p.sock did not answer within 0.4 s" in text
            server.close()
            await server.wait_closed()
            await the_good_one_serves(found)

    asyncio.run(scenario())


def test_one_that_serves_only_after_it_registers_is_waited_for() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, dial=20)) as found:
            plugin = PluginPeer(found.folder)
            plugin.lists(some_devices(1))
            found.peers.append(plugin)
            registering = asyncio.create_task(plugin.register())
            await asyncio.sleep(0.2)
            assert not registering.done()
            await plugin.start()
            await registering
            await until(found.healthy)

    asyncio.run(scenario())


def test_options_that_fail_or_never_come() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, options=0.1)) as found:
            plugin = await found.plugin(some_devices(1))
            plugin.answers["GetDevicePluginOptions"] = hanging
            code, text = await refusal(plugin.register())
            assert (code, "was not answered within 0.1 s" in text) == (UNKNOWN, True)
            assert text.startswith("failed to get device plugin options: ")
            plugin.answers["GetDevicePluginOptions"] = b"\xff"
            _, text = await refusal(plugin.register())
            assert "1 bytes that are no DevicePluginOptions" in text
            plugin.answers["GetDevicePluginOptions"] = grpc.StatusCode.PERMISSION_DENIED
            _, text = await refusal(plugin.register())
            assert "rpc error: code = PermissionDenied desc = as asked" in text

    asyncio.run(scenario())


def test_many_registrations_of_one_resource_at_once() -> None:
    async def scenario() -> None:
        async with scene() as found:
            peers = [await found.plugin([Device(f"d{n}")], socket=f"{n}.sock") for n in range(8)]
            results = await asyncio.gather(
                *(peer.register() for peer in peers for _ in range(3)), return_exceptions=True
            )
            for result in results:
                assert result is None or isinstance(result, grpc.aio.AioRpcError)
            # One stream is left in the end, and the devices are those of its plugin.
            await until(
                lambda: (
                    sum(len(peer.streams) for peer in peers) == 1
                    and found.healthy() == [f"d{n}" for n, peer in enumerate(peers) if peer.streams]
                )
            )

    asyncio.run(scenario())


def test_an_early_registration_that_hangs_does_not_hinder_a_later_one() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, options=20)) as found:
            free = asyncio.Event()

            async def late(_: bytes) -> bytes:
                await free.wait()
                return b""

            slow = await found.plugin([Device("slow")])
            slow.answers["GetDevicePluginOptions"] = late
            waiting = asyncio.create_task(slow.register())
            await until(lambda: "GetDevicePluginOptions" in slow.asked)
            await found.registered([Device("quick")], socket="quick.sock")
            free.set()
            code, text = await refusal(waiting)
            assert (code, text) == (UNKNOWN, f"{WIDGET}: a later registration has come first")
            assert found.healthy() == ["quick"]

    asyncio.run(scenario())


def test_one_that_dies_while_it_registers() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, options=20)) as found:
            await a_good_one(found)
            plugin = await found.plugin(some_devices(1))
            plugin.answers["GetDevicePluginOptions"] = hanging
            waiting = asyncio.create_task(plugin.register())
            await until(lambda: "GetDevicePluginOptions" in plugin.asked)
            waiting.cancel()
            await plugin.stop()
            await asyncio.wait({waiting})
            await the_good_one_serves(found)
            assert WIDGET not in found.server.inventory()

    asyncio.run(scenario())


def test_one_that_is_refused_again_and_again_is_reported_once() -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = await found.plugin()
            for _ in range(5):
                await refusal(plugin.register(version="v2"))
            for number in range(5):
                await refusal(plugin.register(version=f"v{number}\x1b[2J"))
            assert len(found.reports) == 6
            assert all(report.isprintable() for report in found.reports)

    asyncio.run(scenario())


# -------------------------------------------------------------------------------------- calls


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (hanging, "was not answered within 0.2 s"),
        (grpc.StatusCode.UNKNOWN, ": rpc error: code = Unknown desc = as asked"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "was not answered"),
        (b"\xff", "was answered with 1 bytes that are no "),
    ],
)
def test_calls_that_fail(answer: bytes | grpc.StatusCode, said: str) -> None:
    limits = replace(QUICK, allocate=0.2, preferred=0.2, pre_start=0.2)

    async def scenario() -> None:
        async with scene(limits) as found:
            plugin = await found.registered(some_devices(2))
            for method in ("Allocate", "GetPreferredAllocation", "PreStartContainer"):
                plugin.answers[method] = answer
            question = PreferenceQuestion(WIDGET, ("d0", "d1"), (), 1)
            for method, call in (
                ("Allocate", found.server.allocate(WIDGET, ["d0"])),
                ("GetPreferredAllocation", found.server.preferred_allocation(question)),
                ("PreStartContainer", found.server.pre_start(WIDGET, ["d0"])),
            ):
                with pytest.raises(DevicePluginError) as raised:
                    await call
                assert raised.value.problem.startswith(f"{WIDGET}: {method}")
                assert said in raised.value.problem
                assert raised.value.remedy == "see the plugin's log"
            assert found.healthy() == ["d0", "d1"]

    asyncio.run(scenario())


def test_an_allocation_for_no_container_or_for_two() -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = await found.registered(some_devices(2))
            for answer, count in ((b"", 0), (an_answer() + an_answer(), 2)):
                plugin.answers["Allocate"] = answer
                with pytest.raises(DevicePluginError, match=f"was answered for {count}"):
                    await found.server.allocate(WIDGET, ["d0"])

    asyncio.run(scenario())


def test_an_answer_that_is_late_is_given_in_time() -> None:
    async def late(_: bytes) -> bytes:
        await asyncio.sleep(0.3)
        return an_answer(LATE="1")

    async def scenario() -> None:
        async with scene(replace(QUICK, allocate=20)) as found:
            await a_good_one(found)
            plugin = await found.registered(some_devices(1))
            plugin.answers["Allocate"] = late
            waiting = asyncio.create_task(found.server.allocate(WIDGET, ["d0"]))
            await the_good_one_serves(found)
            assert not waiting.done()
            assert found.server.options(await waiting).envs == {"LATE": "1"}

    asyncio.run(scenario())


def test_one_that_dies_in_allocate() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, allocate=20)) as found:
            await a_good_one(found)
            plugin = await found.registered(some_devices(1))
            plugin.answers["Allocate"] = hanging
            waiting = asyncio.create_task(found.server.allocate(WIDGET, ["d0"]))
            await until(lambda: "Allocate" in plugin.asked)
            await plugin.stop()
            with pytest.raises(DevicePluginError, match=f"{WIDGET}: Allocate"):
                await waiting
            await until(lambda: not found.healthy())
            await the_good_one_serves(found)

    asyncio.run(scenario())


def test_one_that_is_replaced_while_it_is_asked() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, allocate=20)) as found:
            plugin = await found.registered(some_devices(1))
            plugin.answers["Allocate"] = hanging
            waiting = asyncio.create_task(found.server.allocate(WIDGET, ["d0"]))
            await until(lambda: "Allocate" in plugin.asked)
            await found.registered([Device("new")], socket="new.sock")
            with pytest.raises(DevicePluginError, match="has gone or was replaced meanwhile"):
                await waiting

    asyncio.run(scenario())


def test_who_asks_may_be_cancelled() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, allocate=20)) as found:
            plugin = await found.registered(some_devices(1))
            plugin.answers["Allocate"] = hanging
            waiting = asyncio.create_task(found.server.allocate(WIDGET, ["d0"]))
            await until(lambda: "Allocate" in plugin.asked)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert found.healthy() == ["d0"]

    asyncio.run(scenario())


def test_the_end_waits_for_nobody() -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, allocate=60, options=60, dial=60)) as found:
            plugin = await found.registered(some_devices(1))
            plugin.answers["Allocate"] = hanging
            asking = asyncio.create_task(found.server.allocate(WIDGET, ["d0"]))
            await until(lambda: "Allocate" in plugin.asked)
            stuck = await found.plugin(socket="stuck.sock", resource="example.com/stuck")
            stuck.answers["GetDevicePluginOptions"] = hanging
            registering = asyncio.create_task(stuck.register())
            in_registry = PluginPeer(found.registry)
            in_registry.answers["GetInfo"] = hanging
            found.peers.append(in_registry)
            await in_registry.start()
            await until(lambda: "GetInfo" in in_registry.asked and stuck.asked)
            async with asyncio.timeout(10 * PATIENCE):
                await found.server.close()
            with pytest.raises(DevicePluginError):
                await asking
            await refusal(registering)

    asyncio.run(scenario())


def test_resources_without_number_are_refused() -> None:
    async def run() -> None:
        async with scene(replace(QUICK, resources=5, grace=0.5)) as found:
            await a_good_one(found)
            flood = await found.plugin(some_devices(1), socket="flood.sock", resource="a.b/flood")
            for number in range(4):
                await flood.register(resource_name=f"a.b/r{number}")
            for number in range(4, 200):
                code, text = await refusal(flood.register(resource_name=f"a.b/r{number}"))
                assert code is grpc.StatusCode.UNKNOWN
                assert text == "5 resources have a device plugin: no more are taken"
            await until(lambda: len(found.server.inventory()) == 5)
            # One that is known comes back, and the others still serve.
            await flood.register(resource_name="a.b/r0")
            await the_good_one_serves(found)
            # Those that have gone count until they are given up.
            await flood.stop()
            await until(lambda: len(found.server.inventory()) == 1)
            await found.registered(some_devices(1), socket="late.sock", resource="a.b/late")

    asyncio.run(run())


def test_who_connects_and_says_nothing_keeps_no_plugin_out() -> None:
    """Nor do they take the files of the agent."""

    async def run() -> None:
        async with scene() as found:
            before = len(os.listdir("/proc/self/fd"))
            silent = []
            for _ in range(300):
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(0)
                with contextlib.suppress(BlockingIOError):
                    sock.connect(str(found.folder / "kubelet.sock"))
                silent.append(sock)
            await asyncio.sleep(0.5)
            assert len(os.listdir("/proc/self/fd")) - before <= 300 + CONNECTIONS + 8
            await found.registered(some_devices(1))
            assert found.healthy() == ["d0"]
            for sock in silent:
                sock.close()

    asyncio.run(run())

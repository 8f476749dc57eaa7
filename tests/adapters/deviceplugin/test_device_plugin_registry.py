"""The files of device plugins: ``kubelet.sock`` and the sockets in the registry of plugins."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import grpc
import pytest
from msgspec.structs import replace

from pinfold.adapters.deviceplugin import DevicePluginServer
from pinfold.adapters.deviceplugin import pluginregistration_pb2 as registry_pb
from pinfold.ports.errors import PortError
from tests.scenes.device_plugin_peer import (
    QUICK,
    PluginPeer,
    a_good_one,
    hanging,
    scene,
    some_devices,
    the_good_one_serves,
)
from tests.scenes.waiting import until

# ------------------------------------------------------------------------------------ socket


def test_the_socket_is_private_and_comes_back_when_it_is_removed() -> None:
    async def scenario() -> None:
        async with scene() as found:
            path = found.folder / "kubelet.sock"
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
            assert stat.S_IMODE(found.folder.stat().st_mode) == 0o750
            assert os.listdir(found.folder) == ["kubelet.sock"]
            plugin = await found.registered(some_devices(1))
            path.unlink()
            await until(path.exists)
            assert plugin.path.exists()
            assert found.healthy() == ["d0"]
            await plugin.register()

    asyncio.run(scenario())


def test_at_the_start_what_earlier_plugins_left_is_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = tmp_path / "dp"
        folder.mkdir(mode=0o750)
        for name in ("kubelet.sock", "old.sock"):
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(folder / name))
        (folder / "kubelet_internal_checkpoint").touch()
        server = DevicePluginServer(folder)
        await server.start()
        assert sorted(os.listdir(folder)) == ["kubelet.sock", "kubelet_internal_checkpoint"]
        await server.close()
        assert os.listdir(folder) == ["kubelet_internal_checkpoint"]

    asyncio.run(scenario())


def test_sockets_in_a_folder_of_many_things_are_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "somebody").mkdir()
        tmp_path.chmod(0o750)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(tmp_path / "other.sock"))
        server = DevicePluginServer(tmp_path)
        await server.start()
        await server.close()
        assert sorted(os.listdir(tmp_path)) == ["other.sock", "somebody"]

    asyncio.run(scenario())


def test_where_another_listens_there_is_no_start() -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = await found.registered(some_devices(1))
            with pytest.raises(PortError, match=r"kubelet\.sock: another process .* listens there"):
                await DevicePluginServer(found.folder).start()
            assert plugin.path.exists()
            assert found.healthy() == ["d0"]

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["file", "writable", "folder is a file", "long"])
def test_a_folder_that_cannot_be_used(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "dp"
    if kind == "file":
        folder.mkdir(mode=0o750)
        (folder / "kubelet.sock").touch()
    elif kind == "writable":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "folder is a file":
        folder.touch()
    else:
        folder /= "x" * 100
    with pytest.raises(PortError, match=str(folder)):
        asyncio.run(DevicePluginServer(folder).start())
    assert kind != "file" or (folder / "kubelet.sock").is_file()


# ---------------------------------------------------------------------------------- registry


def an_info(peer: PluginPeer, **fields: object) -> registry_pb.PluginInfo:
    told = {"type": "DevicePlugin", "name": peer.resource, "supported_versions": ["v1beta1"]}
    return registry_pb.PluginInfo(**{**told, **fields})  # type: ignore[arg-type]  # - from a test


def test_a_socket_in_the_registry_is_a_plugin_as_long_as_it_is_there() -> None:
    async def scenario() -> None:
        async with scene() as found:
            (found.registry / "vendor").mkdir()
            plugin = PluginPeer(found.registry / "vendor")
            plugin.info = an_info(plugin, supported_versions=["v1alpha1", "v1beta1"])
            plugin.lists(some_devices(2))
            found.peers.append(plugin)
            await plugin.start()
            await until(lambda: found.healthy() == ["d0", "d1"])
            await until(lambda: plugin.statuses == [(True, "")])
            plugin.path.unlink()
            await until(lambda: not found.healthy())
            assert "was removed" in found.reports[-1]
            await plugin.stop()
            await plugin.start()
            await until(found.healthy)

    asyncio.run(scenario())


def test_a_registry_plugin_may_serve_at_another_socket() -> None:
    async def scenario() -> None:
        async with scene() as found:
            serving = await found.plugin(some_devices(1), folder=found.folder.parent)
            told = PluginPeer(found.registry, socket="told.sock")
            told.info = an_info(told, endpoint=str(serving.path))
            found.peers.append(told)
            await told.start()
            await until(found.healthy)
            assert len(serving.streams) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"type": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin at socket "),
        (
            {"supported_versions": ["v1", "v2"]},
            "err: manager version, v1beta1, is not among plugin supported versions [v1 v2]",
        ),
        (
            {"name": "cpu"},
            'err: invalid name of device plugin socket: the ResourceName "cpu" is invalid',
        ),
        ({"endpoint": "relative.sock"}, 'the endpoint "relative.sock" is invalid'),
        ({"endpoint": "/run/../p.sock"}, 'the endpoint "/run/../p.sock" is invalid'),
        ({"endpoint": "/dev/null"}, "registration failed with err: /dev/null: is no socket"),
    ],
)
def test_a_registry_plugin_is_told_why_it_is_refused(fields: dict[str, object], said: str) -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = PluginPeer(found.registry)
            plugin.info = an_info(plugin, **fields)
            found.peers.append(plugin)
            await plugin.start()
            await until(lambda: plugin.statuses)
            ok, text = plugin.statuses[0]
            assert not ok
            assert text.startswith("RegisterPlugin error -- ")
            assert said in text
            await until(lambda: found.reports)
            assert not found.server.inventory()

    asyncio.run(scenario())


def test_a_registry_plugin_whose_stream_ended_is_asked_again() -> None:
    async def scenario() -> None:
        async with scene() as found:
            plugin = PluginPeer(found.registry)
            plugin.info = an_info(plugin)
            plugin.lists(some_devices(1))
            found.peers.append(plugin)
            await plugin.start()
            await until(found.healthy)
            plugin.end_streams()
            await until(lambda: not found.healthy())
            await until(found.healthy)

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [hanging, b"\xff", grpc.StatusCode.UNIMPLEMENTED])
def test_a_socket_in_the_registry_that_does_not_say_who_it_is(
    answer: bytes | grpc.StatusCode,
) -> None:
    async def scenario() -> None:
        async with scene(replace(QUICK, info=0.1)) as found:
            await a_good_one(found)
            plugin = PluginPeer(found.registry)
            plugin.answers["GetInfo"] = answer
            found.peers.append(plugin)
            await plugin.start()
            await until(lambda: len(plugin.asked.get("GetInfo", ())) > 1)
            # It is asked again, and reported once.
            (report,) = found.reports
            assert report.startswith(f"plugin at {plugin.path} was not registered: GetInfo")
            assert not plugin.statuses
            await the_good_one_serves(found)

    asyncio.run(scenario())


def test_what_in_the_registry_is_no_socket_or_hidden_is_left_alone() -> None:
    async def scenario() -> None:
        async with scene() as found:
            (found.registry / "file").touch()
            (found.registry / "loop").symlink_to("loop")
            (found.registry / "up").symlink_to("..")
            hidden = PluginPeer(found.registry, socket=".hidden.sock")
            found.peers.append(hidden)
            await hidden.start()
            outside = await found.plugin(folder=found.folder.parent)
            (found.registry / "out.sock").symlink_to(outside.path)
            os.mkfifo(found.registry / "fifo")
            await asyncio.sleep(0.2)
            assert not hidden.asked
            assert not outside.asked
            assert found.reports == []

    asyncio.run(scenario())

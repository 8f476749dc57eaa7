"""The sample device plugin as a process of its own: registers, is killed, comes back."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pinfold.adapters.deviceplugin import DevicePluginServer
from pinfold.core.devices.devices import PreferenceQuestion
from pinfold.ports.devices import DevicePluginError
from tests.scenes.device_plugin_peer import (
    Scene,
    scene,
)
from tests.scenes.waiting import until

PROGRAM = Path(__file__).parents[2] / "examples" / "device-plugin" / "plugin.py"
WIDGET = "example.com/widget"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="the sample plugin needs grpcio-tools"
)


@asynccontextmanager
async def plugin(found: Scene, *options: str) -> AsyncIterator[Process]:
    """The program in the scene's folder, ended afterwards."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(PROGRAM),
        "--folder",
        str(found.folder),
        *options,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def test_it_lists_its_devices_and_is_asked(tmp_path: Path) -> None:
    sick = tmp_path / "sick"

    async def scenario() -> None:
        async with (
            scene() as found,
            plugin(
                found,
                *("--devices", "4", "--numa-nodes", "2", "--health-file", str(sick)),
                *("--pre-start", "--prefer", "--device-node", "/dev/null"),
            ) as process,
        ):
            await until(lambda: len(found.healthy()) == 4)
            resource = found.server.inventory()[WIDGET]
            assert (resource.pre_start_required, resource.preferred_allocation) == (True, True)
            assert [resource.devices[f"widget-{n}"].numa_nodes for n in range(4)] == [
                *((0,), (0,), (1,), (1,))
            ]
            question = PreferenceQuestion(
                WIDGET, ("widget-0", "widget-2", "widget-3"), ("widget-2",), 2
            )
            preferred = await found.server.preferred_allocation(question)
            assert tuple(preferred) == ("widget-2", "widget-3")
            options = found.server.options(await found.server.allocate(WIDGET, preferred))
            assert options.envs == {"WIDGETS": "widget-2,widget-3"}
            assert [node.host_path for node in options.devices] == ["/dev/null"]
            await found.server.pre_start(WIDGET, preferred)
            sick.write_text("widget-1\n")
            await until(lambda: found.healthy() == ["widget-0", "widget-2", "widget-3"])
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            await until(lambda: not found.healthy())

    asyncio.run(scenario())


def test_killed_and_back() -> None:
    async def scenario() -> None:
        async with scene() as found:
            async with plugin(found) as process:
                await until(lambda: len(found.healthy()) == 4)
                process.kill()
                await until(lambda: not found.healthy())
            assert len(found.server.inventory()[WIDGET].devices) == 4
            async with plugin(found, "--devices", "5"):
                await until(lambda: len(found.healthy()) == 5)

    asyncio.run(scenario())


def test_it_registers_again_when_the_agent_was_restarted() -> None:
    async def scenario() -> None:
        async with scene() as found, plugin(found):
            await until(lambda: len(found.healthy()) == 4)
            await found.server.close()
            again = DevicePluginServer(found.folder)
            await again.start()
            try:
                await until(lambda: WIDGET in again.inventory())
                assert again.inventory()[WIDGET].connected
                await again.allocate(WIDGET, ["widget-0"])
            finally:
                await again.close()

    asyncio.run(scenario())


def test_it_waits_for_an_agent_that_is_not_there_yet() -> None:
    async def scenario() -> None:
        async with scene() as found:
            await found.server.close()
            async with plugin(found):
                await asyncio.sleep(1)
                later = DevicePluginServer(found.folder)
                await later.start()
                try:
                    await until(later.inventory)
                finally:
                    await later.close()

    asyncio.run(scenario())


def test_one_that_is_killed_in_allocate() -> None:
    async def scenario() -> None:
        async with scene() as found, plugin(found, "--misbehave", "die"):
            await until(found.healthy)
            with pytest.raises(DevicePluginError, match="Allocate"):
                await found.server.allocate(WIDGET, ["widget-0"])
            await until(lambda: not found.healthy())

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("old-version", 'requested API version "v1alpha1" is not supported'),
        ("outside", 'the endpoint "../outside.sock" is invalid'),
        ("duplicate-ids", "4 of 8 devices repeat the id of another"),
    ],
)
def test_it_can_misbehave(how: str, said: str) -> None:
    async def scenario() -> None:
        async with scene() as found, plugin(found, "--misbehave", how):
            await until(lambda: found.reports)
            assert said in found.reports[0]

    asyncio.run(scenario())


def test_a_flapping_one_leaves_room_for_another() -> None:
    async def scenario() -> None:
        async with (
            scene() as found,
            plugin(found, "--misbehave", "flap", "--devices", "1000"),
            plugin(found, "--resource", "example.com/good"),
        ):
            await until(lambda: WIDGET in found.server.inventory())
            await until(lambda: found.healthy("example.com/good"))
            response = await found.server.allocate("example.com/good", ["widget-1"])
            assert found.server.options(response).envs == {"WIDGETS": "widget-1"}

    asyncio.run(scenario())

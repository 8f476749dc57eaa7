"""Changes that the plugin asks a runtime for, between that one's questions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.nri import nri_pb2 as nri
from pinfold.adapters.nri.frames import MessageType
from pinfold.ports.errors import RuntimeFailedError
from tests.scenes.nri_peer import (
    RuntimePeer,
    cpus,
)
from tests.scenes.nri_scene import Scene, event
from tests.scenes.waiting import until

POD = nri.PodSandbox(id="s", name="p", uid="u", namespace="ns")


def test_updates_and_what_can_go_wrong_with_them(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        async def answer(**how: object) -> None:
            stream, payload = await peer.asked("UpdateContainers")
            request = nri.UpdateContainersRequest.FromString(payload)
            failed = nri.UpdateContainersResponse(failed=request.update[1:])
            peer.reply(stream, failed, **how)  # type: ignore[arg-type] # the error's text

        assert await scene.plugin.update([]) == ()
        both = asyncio.create_task(scene.plugin.update([cpus("a", "0"), cpus("b", "1")]))
        await answer()
        assert await both == ["b"]
        refused = asyncio.create_task(scene.plugin.update([cpus("a", "9")]))
        await answer(error="cannot")
        with pytest.raises(RuntimeFailedError, match=r"nri.sock: UpdateContainers: cannot .code 2"):
            await refused
        garbage = asyncio.create_task(scene.plugin.update([cpus("a", "9")]))
        stream, _ = await peer.asked("UpdateContainers")
        peer.send(stream, b"\xff", MessageType.RESPONSE)
        with pytest.raises(RuntimeFailedError, match="UpdateContainers"):
            await garbage
        lost = asyncio.create_task(scene.plugin.update([cpus("a", "9")]))
        await peer.asked("UpdateContainers")
        peer.hang_up()
        with pytest.raises(RuntimeFailedError, match=r"connection|closed"):
            await lost
        counted = scene.plugin.counters
        assert (counted.updates, counted.failed_updates) == (1, 4)

    Scene(tmp_path).play(scenario)


def test_an_update_within_a_handler_goes_out_after_the_answer(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        async def within(_name: str) -> None:
            assert await scene.plugin.update([cpus("a", "0")]) == ()
            await asyncio.sleep(0.02)
            assert peer.requests.empty()

        scene.events.on = {"create_container": within}
        answer = peer.ask("CreateContainer", event())
        stream, _ = await peer.asked("UpdateContainers")
        assert answer.done()
        peer.reply(stream, error="gone")
        await until(lambda: scene.reports)
        assert "was put off failed" in scene.reports[0]

    Scene(tmp_path).play(scenario)


def test_an_update_that_crosses_a_question_is_followed_by_the_newer(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        async def hold(_name: str) -> None:
            await asyncio.sleep(0.1)

        change = asyncio.create_task(scene.plugin.update([cpus("a", "0-3"), cpus("b", "0-3")]))
        stream, _ = await peer.asked("UpdateContainers")
        # The runtime asks before it has carried that out, and the answer is about "a", too.
        scene.events.on = {"update_container": hold}
        scene.events.updates = [cpus("a", "0-1")]
        changing = peer.ask("UpdateContainer", event())
        with pytest.raises(RuntimeFailedError, match="the change is made after it"):
            await change
        await changing
        peer.reply(stream, nri.UpdateContainersResponse())
        stream, payload = await peer.asked("UpdateContainers")
        (again,) = nri.UpdateContainersRequest.FromString(payload).update
        assert (again.container_id, again.linux.resources.cpu.cpus) == ("a", "0-1")
        peer.reply(stream, nri.UpdateContainersResponse())
        await until(lambda: scene.plugin.counters.repeated_updates == 1)

    Scene(tmp_path).play(scenario)


def test_an_update_goes_out_when_the_questions_pause(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        change = asyncio.create_task(scene.plugin.update([cpus("a", "0")]))
        for _ in range(50):
            await peer.ask("StopContainer", event())
            await asyncio.sleep(0.001)
            assert peer.requests.empty()
        stream, _ = await peer.asked("UpdateContainers")
        peer.reply(stream, nri.UpdateContainersResponse())
        assert await change == []

    scene = Scene(tmp_path)
    scene.settings = replace(scene.settings, pause=0.3)
    scene.play(scenario)


def test_a_handler_that_waits_for_who_waits_for_an_update(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        lock, asked = asyncio.Lock(), asyncio.Event()

        async def locking(_name: str) -> None:
            asked.set()
            async with lock:
                pass

        scene.events.on = {"create_container": locking}
        async with lock:
            creating = peer.ask("CreateContainer", event())
            await asked.wait()
            with pytest.raises(RuntimeFailedError, match="nothing was changed"):
                await scene.plugin.update([cpus("a", "0")])
        await creating
        assert peer.requests.empty()

    Scene(tmp_path).play(scenario)

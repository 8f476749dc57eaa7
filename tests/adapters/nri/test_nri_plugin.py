"""The NRI plugin against a runtime in this process that does what no real one should."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pinfold.adapters.nri import PluginSettings
from pinfold.adapters.nri import nri_pb2 as nri
from pinfold.adapters.nri import ttrpc_pb2 as envelope
from pinfold.adapters.nri.conversation import EVENTS, MOST_SYNCHRONIZED
from pinfold.adapters.nri.frames import MAX_MESSAGE, Message, MessageType, encode_message
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.nri import ContainerAdjustment, ContainerState, RefusedError, Resources
from tests.scenes.nri_peer import (
    Recorder,
    RuntimePeer,
    cpus,
    running_plugin,
)
from tests.scenes.nri_scene import Scene, event
from tests.scenes.waiting import until

POD = nri.PodSandbox(id="s", name="p", uid="u", namespace="ns")


def test_registration_says_who_and_what(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        assert not scene.plugin.connected
        request = await peer.register()
        assert (request.plugin_name, request.plugin_idx) == ("pinfold", "90")
        answer = await peer.ask("Configure", nri.ConfigureRequest(runtime_name="cri-o"))
        assert nri.ConfigureResponse.FromString(answer.payload).events == EVENTS
        assert EVENTS == 0x7FF
        await peer.ask("Synchronize", nri.SynchronizeRequest())
        await until(lambda: scene.plugin.connected)
        assert scene.plugin.runtime == "cri-o"
        assert scene.plugin.problem == ""

    Scene(tmp_path).play(scenario, synchronize=False)


@pytest.mark.parametrize(
    "settings", [{"index": "9"}, {"index": "9x"}, {"name": ""}, {"name": "a b"}]
)
def test_names_that_no_runtime_takes(settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="NRI plugin"):
        PluginSettings(**settings)  # type: ignore[arg-type] # only texts are given


def test_synchronize_in_pieces(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        await peer.register()
        for piece in range(3):
            container = nri.Container(
                id=f"{piece}", name=f"c{piece}", state=nri.CONTAINER_PAUSED, pod_sandbox_id="s"
            )
            request = nri.SynchronizeRequest(
                pods=[POD] if piece == 0 else [], containers=[container], more=piece < 2
            )
            answer = await peer.ask("Synchronize", request)
            response = nri.SynchronizeResponse.FromString(answer.payload)
            assert response.more == (piece < 2)
            assert scene.events.calls == ([] if piece < 2 else [("synchronize", "1 3")])
        assert scene.events.seen["c1"].state is ContainerState.PAUSED

    Scene(tmp_path).play(scenario, synchronize=False)


def test_a_state_without_end_is_refused(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        await peer.register()
        pods = [nri.PodSandbox()] * (MOST_SYNCHRONIZED // 2)
        for code in (0, 0, 8):
            answer = await peer.ask("Synchronize", nri.SynchronizeRequest(pods=pods, more=True))
            assert answer.status.code == code
            pods = [nri.PodSandbox()] * (MOST_SYNCHRONIZED // 2)
        assert not scene.plugin.connected

    Scene(tmp_path).play(scenario, synchronize=False)


def test_events_by_methods_of_their_own_and_by_state_change(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        own = ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]
        for method in own:
            assert (await peer.ask(method, nri.PodEvent(pod=POD))).status.code == 0
        of_containers = [
            "PostCreateContainer", "StartContainer", "PostStartContainer", "RemoveContainer",
        ]  # fmt: skip
        for method in of_containers:
            assert (await peer.ask(method, event())).status.code == 0
        by_methods = scene.events.calls[1:]
        for number in (1, 2, 3, 5, 6, 7, 11):
            request = nri.StateChangeEvent(event=number, pod=POD, container=event().container)  # type: ignore[arg-type] # enum numbers
            assert (await peer.ask("StateChange", request)).status.code == 0
        assert scene.events.calls[1:] == by_methods * 2
        # An event that is newer than this plugin is no error.
        newer = nri.StateChangeEvent(event=99, pod=POD)  # type: ignore[arg-type] # an unknown one
        assert (await peer.ask("StateChange", newer)).status.code == 0
        assert scene.plugin.counters.methods["StartContainer"].requests == 2

    Scene(tmp_path).play(scenario)


def test_the_answers_have_everything(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        scene.events.adjustment = ContainerAdjustment(
            Resources(512, 20000, 100000, "2-3", "0", 1 << 20, {"2MB": 4 << 20}, {"cpu.idle": "1"}),
            {"CPUS": "2-3", "GONE": None},
            {"a": "b"},
        )
        answer = await peer.ask("CreateContainer", event())
        response = nri.CreateContainerResponse.FromString(answer.payload)
        resources = response.adjust.linux.resources
        assert (resources.cpu.cpus, resources.cpu.mems) == ("2-3", "0")
        assert (resources.cpu.shares.value, resources.cpu.quota.value) == (512, 20000)
        assert (resources.cpu.period.value, resources.memory.limit.value) == (100000, 1 << 20)
        assert [(h.page_size, h.limit) for h in resources.hugepage_limits] == [("2MB", 4 << 20)]
        assert dict(resources.unified) == {"cpu.idle": "1"}
        assert [(e.key, e.value) for e in response.adjust.env] == [("CPUS", "2-3"), ("-GONE", "")]
        assert dict(response.adjust.annotations) == {"a": "b"}
        scene.events.updates = [cpus("other", "0-1", ignore_failure=True)]
        answer = await peer.ask("UpdateContainer", event())
        (update,) = nri.UpdateContainerResponse.FromString(answer.payload).update
        assert (update.container_id, update.ignore_failure) == ("other", True)
        assert update.linux.resources.cpu.cpus == "0-1"
        assert not update.linux.resources.cpu.HasField("shares")
        scene.events.adjustment = ContainerAdjustment(Resources(cpu_shares=-1))
        answer = await peer.ask("CreateContainer", event())
        assert answer.status.code == 2
        assert answer.status.message.startswith("pinfold failed: ValueError")

    Scene(tmp_path).play(scenario)


def test_concurrent_requests_are_handled_one_by_one_in_order(tmp_path: Path) -> None:
    async def pause(_name: str) -> None:
        await asyncio.sleep(0.001)

    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        scene.events.on = {"create_container": pause}
        names = [f"c{number}" for number in range(50)]
        await asyncio.gather(*(peer.ask("CreateContainer", event(name)) for name in names))
        assert [name for _, name in scene.events.calls[1:]] == names

    Scene(tmp_path).play(scenario)


def test_errors_are_answered(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        async def refuse(_name: str) -> None:
            raise RefusedError("SMTAlignmentError \udcff")

        scene.events.on = {"create_container": refuse, "update_container": refuse}
        for method in ("CreateContainer", "UpdateContainer"):
            answer = await peer.ask(method, event())
            assert (answer.status.code, answer.status.message) == (2, "SMTAlignmentError ?")
        assert (await peer.ask("NoSuchMethod", b"")).status.code == 12
        answer = await peer.ask("CreateContainer", b"", service="other.Service")
        assert answer.status.code == 12
        assert "other.Service/CreateContainer" in answer.status.message
        assert (await peer.ask("CreateContainer", b"\xff\xff")).status.code == 3
        assert (await peer.ask_raw(b"\xff\xff", 1001)).status.code == 3
        assert (await peer.ask_raw(b"", 1002)).status.code == 3
        expired = peer.ask("CreateContainer", event(), timeout=1e-9)
        assert (await expired).status.code == 4
        # Unknown connections, streams and kinds are nothing to answer.
        peer.writer.write(encode_message(7, Message(1, 1, b"x")))
        peer.send(999, b"", MessageType.RESPONSE)
        peer.send(1, b"x", MessageType.DATA)
        peer.send(1, b"x", 200)
        assert (await peer.ask("StopContainer", event())).status.code == 0
        assert scene.plugin.connected

    Scene(tmp_path).play(scenario)


def test_an_oversized_request_is_answered_and_the_connection_lives(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        length = MAX_MESSAGE + 1
        answer = peer.answers[51] = asyncio.get_running_loop().create_future()
        peer.writer.write(struct.pack(">II", 1, 10) + struct.pack(">IIBB", length, 51, 1, 0))
        peer.writer.write(struct.pack(">II", 1, length) + bytes(length))
        assert (await answer).status.code == 8
        assert (await peer.ask("StopContainer", event())).status.code == 0
        # An answer that is too long becomes an error, too.
        scene.events.updates = [cpus("x" * 1000, "0")] * 5000
        assert (await peer.ask("StopContainer", event())).status.code == 8

    Scene(tmp_path).play(scenario)


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 100, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["ones", "http"]
)
def test_a_peer_that_speaks_no_nri_is_left_and_tried_again(tmp_path: Path, garbage: bytes) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        peer.writer.write(garbage)
        await (await scene.peers.get()).synchronize()
        await until(lambda: scene.plugin.connected)
        assert any("speaks no NRI" in report for report in scene.reports)

    Scene(tmp_path).play(scenario, synchronize=False)


def test_a_peer_that_closes_at_any_byte(tmp_path: Path) -> None:
    body = envelope.Request(
        service="nri.pkg.api.v1alpha1.Plugin", method="StopContainer", payload=b""
    ).SerializeToString()
    data = encode_message(1, Message(1, MessageType.REQUEST, body))

    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        for end in range(len(data)):
            peer.writer.write(data[:end])
            await peer.writer.drain()
            peer.writer.close()
            peer = await scene.peers.get()
        await peer.synchronize()
        await until(lambda: scene.plugin.connected)
        assert scene.events.methods == ["synchronize"]

    Scene(tmp_path, after_refusal=0.001).play(scenario, synchronize=False)


def test_a_refused_registration_is_told_and_tried_again(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        for again in range(3):
            stream, _ = await peer.asked("RegisterPlugin")
            peer.reply(stream, error="invalid plugin index")
            await peer.closed.wait()
            peer = await scene.peers.get()
            assert scene.plugin.counters.failed_connects == again + 1
        assert len(scene.reports) == 1
        assert "invalid plugin index" in scene.reports[0]
        assert "90-pinfold was not registered" in scene.plugin.problem

    Scene(tmp_path).play(scenario, synchronize=False)


def test_a_runtime_that_says_nothing(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        peer = await scene.peers.get()
        assert "RegisterPlugin: no answer within 0.05 s" in scene.reports[0]
        stream, _ = await peer.asked("RegisterPlugin")
        peer.reply(stream, nri.Empty())
        await until(lambda: len(scene.reports) == 2)
        assert "has not synchronized it yet" in scene.reports[1]
        await peer.ask("Synchronize", nri.SynchronizeRequest())
        await until(lambda: scene.plugin.connected)

    Scene(tmp_path, registration=0.05, synchronize=0.05).play(scenario, synchronize=False)


def test_a_runtime_that_takes_nothing_is_left(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        peer.reading.cancel()
        scene.events.updates = [cpus("x" * 1000, "0")] * 3000
        for number in range(100):
            peer.send(2 * number + 1001, envelope.Request(
                service="nri.pkg.api.v1alpha1.Plugin", method="StopContainer",
                payload=event().SerializeToString()).SerializeToString())  # fmt: skip
        await (await scene.peers.get()).synchronize()
        assert "the runtime took nothing for 0.1 s" in "".join(scene.reports)
        # What it asked for meanwhile has waited in the socket.
        assert scene.events.methods.count("stop_container") == 1

    Scene(tmp_path, write=0.1).play(scenario)


def test_a_late_answer_is_told(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        async def slow(_name: str) -> None:
            await asyncio.sleep(0.05)
            peer.hang_up()
            await asyncio.sleep(0.05)

        scene.events.on = {"create_container": slow}
        peer.ask("CreateContainer", event(), timeout=0.04)
        await (await scene.peers.get()).synchronize()
        await until(lambda: scene.plugin.connected)
        assert re.search(r"CreateContainer of ns/p/c: answered after \d+\.\d", scene.reports[0])
        assert "the runtime waits 0.04 s" in scene.reports[0]
        counted = scene.plugin.counters
        assert (counted.methods["CreateContainer"].late, counted.reconnects) == (1, 1)
        # The decision came to its end before the next was asked for.
        assert scene.events.methods == ["synchronize", "create_container", "synchronize"]

    Scene(tmp_path).play(scenario)


@pytest.mark.parametrize("waits", ["as the request says", "as Configure says"])
def test_a_late_synchronize_is_no_connection(tmp_path: Path, waits: str) -> None:
    """A containerd 1.7 keeps the connection, and never tells anything over it."""
    configured, told = (0, 0.05) if waits == "as the request says" else (50, 0)

    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        async def slow(_name: str) -> None:
            await asyncio.sleep(0.1)

        scene.events.on = {"synchronize": slow}
        for _ in range(2):
            await peer.register(request_timeout=configured)
            peer.ask("Synchronize", nri.SynchronizeRequest(), timeout=told)
            await peer.closed.wait()
            assert not scene.plugin.connected
            peer = await scene.peers.get()
        scene.events.on = {}
        await peer.synchronize()
        await until(lambda: scene.plugin.connected)
        assert (scene.plugin.counters.registrations, scene.plugin.counters.disconnects) == (1, 0)
        assert "the runtime did not wait for the answer to Synchronize" in scene.reports[1]

    Scene(tmp_path).play(scenario, synchronize=False)


def test_registering_again_on_request(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        async def refuse(_name: str) -> None:
            assert not scene.plugin.register_again("while the runtime waits")

        scene.events.on = {"create_container": refuse}
        await peer.ask("CreateContainer", event())
        await until(lambda: scene.plugin.register_again("something was not told"))
        await peer.closed.wait()
        await (await scene.peers.get()).synchronize()
        await until(lambda: scene.plugin.connected)
        assert scene.events.methods == ["synchronize", "create_container", "synchronize"]
        # The problem once, and the end of it.
        assert scene.events.taken_by == [scene.plugin.runtime] * 2
        assert scene.reports == [
            f"{scene.settings.socket}: something was not told; connecting again"
        ]

    Scene(tmp_path).play(scenario)


def test_a_failed_synchronize_is_no_connection(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        async def fail(_name: str) -> None:
            raise OSError("disk full")

        scene.events.on = {"synchronize": fail}
        await peer.register()
        answer = await peer.ask("Synchronize", nri.SynchronizeRequest())
        assert answer.status.message == "pinfold failed: OSError: disk full"
        assert not scene.plugin.connected
        peer.hang_up()
        scene.events.on = {}
        await (await scene.peers.get()).synchronize()
        await until(lambda: scene.plugin.connected)

    Scene(tmp_path).play(scenario, synchronize=False)


def test_a_request_that_is_worked_on_is_answered_before_the_end(tmp_path: Path) -> None:
    async def scenario(scene: Scene, peer: RuntimePeer) -> None:
        asked = asyncio.Event()

        async def slow(_name: str) -> None:
            asked.set()
            await asyncio.sleep(0.05)

        scene.events.on = {"create_container": slow}
        scene.answer = peer.ask("CreateContainer", event())  # type: ignore[attr-defined] # kept alive
        await asked.wait()
        scene.answer.add_done_callback(lambda _: scene.reports.append("answered"))  # type: ignore[attr-defined] # the same

    scene = Scene(tmp_path)
    scene.play(scenario)
    assert scene.reports == ["answered"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _path: None, ["no such socket", "disable = false", "enable_nri"]),
        (lambda path: path.write_text(""), ["nobody listens"]),
        (lambda path: path.symlink_to(path), ["Too many levels of symbolic links"]),
    ],
    ids=["absent", "no socket", "loop"],
)
def test_no_runtime(tmp_path: Path, make: Callable[[Path], object], words: list[str]) -> None:
    async def scenario() -> None:
        reports = list[str]()
        settings = PluginSettings(socket=tmp_path / "nri.sock", retry=0.001, longest_retry=0.002)
        make(settings.socket)
        async with running_plugin(Recorder(), settings, reports) as plugin:
            await until(lambda: plugin.counters.failed_connects > 2)
            assert len(reports) == 1
            assert plugin.problem == reports[0]
            assert reports[0].startswith(str(settings.socket))
            assert all(word in reports[0] for word in words)
            with pytest.raises(RuntimeFailedError, match="no runtime is connected"):
                await plugin.update([cpus("a", "0")])
        assert plugin.problem == "stopped"

    asyncio.run(scenario())

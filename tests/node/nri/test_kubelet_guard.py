"""Pinfold yields to a kubelet that pins containers itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.nri import NriPlugin, PluginSettings
from pinfold.agent.guarded_plugin import GuardedPlugin, look_at_kubelet
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.documents.node import Node
from pinfold.documents.status import Status
from pinfold.node.nri.kubelet_guard import KubeletPolicy, judge_kubelet
from pinfold.ports.errors import StoreError
from pinfold.render.svg import render_plan_svg
from pinfold.render.terminal import Style
from pinfold.render.text import render_plan
from pinfold.state.cpu_manager_state import CPUManagerCheckpoint
from pinfold.state.layouts import Layout
from pinfold.views.status import Hardware, status_view
from tests.scenes.manager_harness import STATIC
from tests.scenes.nri_peer import (
    Recorder,
)
from tests.scenes.published_schemas import machine_document
from tests.scenes.waiting import until
from tests.scenes.web_world import served

FILE = "/var/lib/kubelet/cpu_manager_state"


def state(policy: str, layout: Layout = Layout.V2) -> bytes:
    return CPUManagerCheckpoint(layout, policy, "0-3", {}).sealed().encode()


@pytest.mark.parametrize("layout", Layout)
def test_policies(layout: Layout) -> None:
    assert judge_kubelet(state("none", layout), FILE).may_pin
    static = judge_kubelet(state("static", layout), FILE)
    assert not static.may_pin
    assert static.policy is KubeletPolicy.STATIC
    assert static.problem.startswith(f"{FILE}: the kubelet's CPU manager policy is static")
    assert "remove this file" in static.problem


def test_what_a_kubelet_1_34_writes_under_policy_none() -> None:
    content = b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
    assert judge_kubelet(content, FILE).policy is KubeletPolicy.NONE


def test_the_name_counts_and_not_the_checksum() -> None:
    for policy in ("none", "static"):
        damaged = state(policy).replace(b'"checksum":', b'"checksum":1')
        assert judge_kubelet(damaged, FILE).policy.value == policy


def test_no_file_is_nobody() -> None:
    verdict = judge_kubelet(None, FILE)
    assert verdict.may_pin
    assert verdict.policy is KubeletPolicy.ABSENT


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "unexpected end"),
        (b"\x00\x01", "cannot tell"),
        (state("none")[:-5], "cannot tell"),
        (b"[]", "cannot tell"),
        (state("dynamic"), "'dynamic', which is not known here"),
        (b"{}", "'', which is not known here"),
    ],
)
def test_a_damaged_or_strange_file_is_no_leave_to_pin(content: bytes, words: str) -> None:
    verdict = judge_kubelet(content, FILE)
    assert not verdict.may_pin
    assert verdict.policy is KubeletPolicy.UNKNOWN
    assert FILE in verdict.problem
    assert words in verdict.problem


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_have_a_verdict(content: bytes) -> None:
    verdict = judge_kubelet(content, FILE)
    assert verdict.may_pin == (verdict.policy is KubeletPolicy.NONE)


def test_a_file_that_cannot_be_read_is_no_leave_to_pin(tmp_path: Path) -> None:
    assert look_at_kubelet(None).may_pin
    assert look_at_kubelet(tmp_path / "none").may_pin
    verdict = look_at_kubelet(tmp_path)
    assert not verdict.may_pin
    assert "Is a directory" in verdict.problem


class Scene:
    """A guarded plugin without a runtime, whose comings and goings are written down."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "cpu_manager_state"
        self.log: list[str] = []
        self.reports: list[str] = []
        self.failing = False
        settings = replace(PluginSettings(), socket=folder / "nri.sock")

        async def serve(plugin: NriPlugin) -> None:
            self.log.append("registered")
            try:
                await plugin.run()
            finally:
                self.log.append("gone")

        async def let_go() -> None:
            self.log.append("let go")
            if self.failing:
                raise StoreError("the disk is full")

        self.guarded = GuardedPlugin(
            lambda: NriPlugin(Recorder(), settings, report=self.reports.append),
            serve,
            let_go,
            self.reports.append,
            state_file=self.file,
            period=0.01,
        )

    def says(self, policy: str) -> None:
        """The kubelet writes as kubelets do."""
        new = self.file.with_suffix(".new")
        new.write_bytes(state(policy))
        new.rename(self.file)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.guarded.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def logged(scene: Scene, *expected: str) -> None:
    wanted: Callable[[], bool] = lambda: scene.log == list(expected)  # noqa: E731 - one line
    await until(wanted)


def test_the_plugin_follows_the_kubelets_policy(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        async with scene.running():
            await logged(scene, "registered")
            assert scene.guarded.verdict.policy.value == "absent"
            assert "nri.sock" in scene.guarded.problem
            scene.says("static")
            await logged(scene, "registered", "gone", "let go")
            assert not scene.guarded.connected
            assert scene.guarded.runtime == ""
            assert scene.guarded.verdict.policy.value == "static"
            assert not scene.guarded.verdict.may_pin
            assert "only audits" in scene.guarded.problem
            scene.says("none")
            await logged(scene, "registered", "gone", "let go", "registered")
        assert scene.log[-1] == "gone"
        assert [text for text in scene.reports if "only audits" in text] == scene.reports[1:2]

    asyncio.run(scenario())


def test_a_static_kubelet_is_left_alone_from_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        scene.says("static")
        async with scene.running():
            await logged(scene, "let go")
            await asyncio.sleep(0.1)
            assert scene.log == ["let go"]
            scene.file.write_bytes(b"{broken")
            await until(lambda: len(scene.reports) == 2)
            assert "cannot tell" in scene.guarded.problem
            assert scene.log == ["let go"]
            scene.file.unlink()
            await logged(scene, "let go", "registered")

    asyncio.run(scenario())


def test_a_record_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        scene = Scene(tmp_path)
        scene.failing = True
        scene.says("static")
        async with scene.running():
            await until(lambda: len(scene.reports) == 2)
        assert scene.reports[1] == "the pods of before are still recorded: the disk is full"

    asyncio.run(scenario())


def test_a_plugin_that_fails_is_no_secret(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def serve(_: NriPlugin) -> None:
            raise StoreError("out of order")

        async def let_go() -> None:
            return

        guarded = GuardedPlugin(
            lambda: NriPlugin(Recorder(), report=lambda _: None),
            serve,
            let_go,
            lambda _: None,
            state_file=tmp_path / "none",
        )
        with pytest.raises(StoreError, match="out of order"):
            await guarded.run()

    asyncio.run(scenario())


def nri(policy: str, *, audits_only: bool, problem: str) -> dict[str, Any]:
    """What an agent tells of a runtime that it is not connected to."""
    return {
        "socket": "/var/run/nri/nri.sock",
        "connected": False,
        "runtime": "",
        "kubeletPolicy": policy,
        "auditsOnly": audits_only,
        "problem": problem,
        "behind": 0,
        "kubeletPodResources": {"socket": "", "asked": 0, "unanswered": 0, "problem": ""},
    }


def test_the_status_beside_such_a_kubelet_says_so(tmp_path: Path) -> None:
    machine = parse_short_form("1s4c2t")
    verdict = judge_kubelet(state("static"), "/var/lib/kubelet/cpu_manager_state")
    with served(tmp_path / "s", machine="1s4c2t", config=STATIC) as server:
        document = server.ask("GET", "/v1/status").json
        node = msgspec.convert(server.ask("GET", "/v1/node").json, Node)
    hardware = machine_document(machine, kubelet_view(machine))
    assert document["pool"] != document["shared"]
    pinning = render_plan(
        status_view(msgspec.convert(document, Status), Hardware.told(hardware), node),
        Style(width=100),
    )
    assert "shared containers run on 1-7" in pinning
    document["agent"]["nri"] = nri("static", audits_only=True, problem=verdict.problem)
    view = status_view(msgspec.convert(document, Status), Hardware.told(hardware), node)
    text = render_plan(view, Style(width=1000))
    assert "audits only · the kubelet's CPU manager static" in text
    assert verdict.problem in text
    # Where anybody runs is the kubelet's affair.
    for words in ("hared", "Reserved", "Allocatable", "Exclusive", "run on"):
        assert words not in text
    assert "audits only" in render_plan_svg(view)


def test_a_status_while_the_runtime_is_away_says_so(tmp_path: Path) -> None:
    machine = parse_short_form("1s4c2t")
    with served(tmp_path / "s", machine="1s4c2t", config=STATIC) as server:
        document = server.ask("GET", "/v1/status").json
        node = msgspec.convert(server.ask("GET", "/v1/node").json, Node)
    away = "/var/run/nri/nri.sock: nobody listens"
    document["agent"]["nri"] = nri("none", audits_only=False, problem=away)
    hardware = Hardware.told(machine_document(machine, kubelet_view(machine)))
    view = status_view(msgspec.convert(document, Status), hardware, node)
    text = render_plan(view, Style(width=100))
    assert away in text
    assert "Shared pool" in text

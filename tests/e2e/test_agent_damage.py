"""The real agent finds damaged files when it starts: it starts, and whoever lives is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.process_world import is_alive


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    node = AgentProcess(tmp_path)
    yield node
    node.clean_up()


def removed(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [removed, emptied, flipped])
@pytest.mark.parametrize("name", ["spec.json", "state", "started"])
@pytest.mark.parametrize("flags", [(), ("--on-mismatch=repair",)], ids=["refuse", "repair"])
def test_a_damaged_file_of_a_container_stops_no_start(
    node: AgentProcess, name: str, damage: Callable[[Path], None], flags: tuple[str, ...]
) -> None:
    node.start()
    node.apply(manifest("owner", ("main", IDLE, "1")))
    node.apply(manifest("web", ("main", IDLE, "")))
    before = {pod: node.pids(pod)["main"] for pod in ("owner", "web")}
    own = allowed(before["owner"])
    node.kill()
    for folder in (node.state / "containers").iterdir():
        damage(folder / name)
    node.start(*flags)
    assert {pod: node.pids(pod)["main"] for pod in before} == before
    assert allowed(before["owner"]) == own
    assert node.client.post("/v1/reconcile")["drifts"] == []
    if name != "started":
        assert f"/{name} " in node.log() or f"/{name}:" in node.log()
        kinds = [entry["kind"] for entry in node.client.get("/v1/history")["entries"]]
        assert kinds.count("repaired") == 2
    for pod in before:
        node.client.delete(f"/v1/pods/default/{pod}", grace=0)
    assert not any(map(is_alive, before.values()))
    assert list((node.state / "containers").iterdir()) == []

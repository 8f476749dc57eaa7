"""The real agent finds damaged files when it starts: it starts, and whoever lives is left alone."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.process_world import is_alive


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


SEEDS = int(os.environ.get("PINFOLD_DAMAGE_ROUNDS", "8"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_bits_that_flip_in_the_write_ahead_log_cost_no_owner_its_life(
    node: AgentProcess, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - bits, not secrets
    node.start()
    node.apply(manifest("web", ("main", IDLE, "")))
    node.apply(manifest("owner", ("main", IDLE, "1")))
    before = {pod: node.pids(pod)["main"] for pod in ("owner", "web")}
    own = allowed(before["owner"])
    node.kill()
    log = node.state / "pinfold.db-wal"
    data = bytearray(log.read_bytes())
    # Early, so that much is lost.
    for _ in range(4):
        data[chance.randrange(len(data) // 4)] ^= 1 << chance.randrange(8)
    log.write_bytes(data)
    status, said = node.refused()
    assert status == 1, said
    assert "changes are missing from the record" in said
    assert "--on-mismatch=repair" in said
    assert all(map(is_alive, before.values())), "a refusal ends nobody"
    assert allowed(before["owner"]) == own
    node.start("--on-mismatch=repair")
    assert {pod: node.pids(pod)["main"] for pod in before} == before
    assert allowed(before["owner"]) == own
    assert node.client.post("/v1/reconcile")["drifts"] == []
    node.kill()
    node.start()
    assert {pod: node.pids(pod)["main"] for pod in before} == before
    for pod in before:
        node.client.delete(f"/v1/pods/default/{pod}", grace=0)
    assert not any(map(is_alive, before.values()))


@pytest.mark.parametrize("folders", ["there", "removed"])
def test_without_any_record_what_runs_is_adopted(node: AgentProcess, folders: str) -> None:
    node.start()
    node.apply(manifest("owner", ("main", IDLE, "1")))
    pid = node.pids("owner")["main"]
    own = allowed(pid)
    node.kill()
    for file in node.state.glob("pinfold.db*"):
        file.unlink()
    if folders == "removed":
        shutil.rmtree(node.state / "containers")
    status, said = node.refused()
    assert status == 1, said
    assert "does not know pods that run" in said
    assert is_alive(pid)
    node.start("--on-mismatch=repair")
    (pod,) = node.client.get("/v1/pods")["pods"]
    assert [one["pid"] for one in pod["containers"]] == [pid]
    assert allowed(pid) == own
    node.client.delete(f"/v1/pods/default/{pod['name']}", grace=0)
    assert not is_alive(pid)

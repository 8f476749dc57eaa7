"""Owners come and go beside twenty who share; the kernel is sampled all the time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import (
    skip_unless_an_agent_can_run,
)
from tests.scenes.churn import SECONDS, Churn, check, end_all, owner_pod, sampled, shared_pod
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.pod_worlds import CriWorld, NriWorld, World, started
from tests.scenes.waiting import eventually


@pytest.fixture(params=["cri", "nri"])
def world(
    request: pytest.FixtureRequest, fresh_containerd: ContainerdNode, tmp_path: Path
) -> Iterator[World]:
    skip_unless_an_agent_can_run()
    kind = CriWorld if request.param == "cri" else NriWorld
    with started(kind(tmp_path, fresh_containerd)) as one:
        yield one


def test_no_stranger_on_an_exclusive_cpu(world: World) -> None:
    whole = world.agent.client.get("/v1/status")["shared"]
    churn = Churn(world)
    churn.fill()
    with sampled(world) as found:
        churn.begin()
        time.sleep(SECONDS)
        churn.end()
    said = {key: value for key, value in found.items() if key not in ("owners", "findings")}
    print(  # noqa: T201 - for whoever runs it
        f"{world.name}: {churn.owners} owners ({len(found['owners'])} sampled), "
        f"{churn.replaced} replaced, {churn.refused} refused, {said}"
    )
    assert churn.troubles == []
    assert (found["strangers"], found["misplaced"]) == (0, 0), found["findings"]
    # How many is a matter of the machine's speed; that there were some makes zero strangers count.
    assert len(found["owners"]) >= 1
    assert found["judged"] > 50
    assert found["ran"] > 5
    check(world)
    end_all(world, set(churn.live))
    eventually(lambda: world.agent.client.get("/v1/status")["shared"], whole)


def test_the_sampler_sees_a_stranger(world: World) -> None:
    """One that is put there is found: by where it may run, and by where it did."""
    world.run(world.dress(shared_pod(0)))
    owner = world.run(world.dress(owner_pod(1)))["main"]
    folder = world.root / "planted"
    folder.mkdir()
    stranger = subprocess.Popen(["/bin/sh", "-c", "while :; do :; done", "planted"])
    try:
        with sampled(world) as clean:
            time.sleep(2)
        _plant(folder, stranger.pid, owner.allowed)
        with sampled(world) as found:
            time.sleep(2)
    finally:
        stranger.kill()
        stranger.wait()
        folder.rmdir()
    assert (clean["strangers"], len(clean["owners"])) == (0, 1), clean
    assert found["strangers"] > 10
    assert any("may run on the CPUs" in text for text in found["findings"])
    assert any("ran on the CPUs" in text for text in found["findings"])
    assert all("planted" in text for text in found["findings"]), found["findings"]


def _plant(folder: Path, pid: int, cpus: CPUSet) -> None:
    for name, value in (("cpuset.cpus", str(cpus)), ("cpuset.mems", "0")):
        (folder / name).write_text(value)
    (folder / "cgroup.procs").write_text(str(pid))

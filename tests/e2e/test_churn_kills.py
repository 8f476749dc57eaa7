"""Agent, runtime or both are killed while pods come and go; afterwards all of it has to agree."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.cri import cri_pb2 as cri
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import (
    skip_unless_an_agent_can_run,
)
from tests.scenes.churn import (
    SECONDS,
    Churn,
    check,
    end_all,
    owner_pod,
    problems,
    running_below,
    shared_pod,
)
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.pod_worlds import CriWorld, NriWorld, started
from tests.scenes.waiting import eventually

ROUNDS = max(2, round(SECONDS / 10))


@pytest.fixture(params=["cri", "nri"])
def world(
    request: pytest.FixtureRequest, fresh_containerd: ContainerdNode, tmp_path: Path
) -> Iterator[CriWorld | NriWorld]:
    skip_unless_an_agent_can_run()
    kind = CriWorld if request.param == "cri" else NriWorld
    with started(kind(tmp_path, fresh_containerd)) as one:
        assert isinstance(one, CriWorld | NriWorld)
        yield one


def _kill(world: CriWorld | NriWorld, victims: str) -> None:
    if victims != "containerd":
        world.agent.kill()
    if victims != "agent":
        world.node.kill()
    time.sleep(0.3)
    if victims != "agent":
        world.node.start()
    if victims != "containerd":
        world.agent.start()
    if isinstance(world, NriWorld):
        world.connected()


@pytest.mark.parametrize("victims", ["agent", "containerd", "both"])
def test_killed_in_the_middle_of_churn(world: CriWorld | NriWorld, victims: str) -> None:
    whole = CPUSet.parse(world.agent.client.get("/v1/status")["shared"])
    churn = Churn(world)
    churn.fill()
    chance = random.Random(victims)  # noqa: S311 - moments, not secrets
    for _ in range(ROUNDS):
        churn.begin()
        time.sleep(chance.uniform(1, 3))
        _kill(world, victims)
        time.sleep(1)
        churn.end()
        check(world)
    print(  # noqa: T201 - for whoever runs it
        f"{world.name}, {victims} killed {ROUNDS} times: {churn.owners} owners, "
        f"{churn.replaced} replaced, unknown {len(churn.lost)}, "
        f"{len(churn.troubles)} errors of killed peers"
    )
    missing = {name for name in churn.live if f"uid-{name}" not in " ".join(running_below(world))}
    assert missing == set(), "containers were lost"
    _end_everything(world, churn)
    eventually(lambda: CPUSet.parse(world.agent.client.get("/v1/status")["shared"]), whole)
    assert problems(world) == []
    eventually(lambda: running_below(world), set())


@pytest.mark.parametrize("listed", [True, False], ids=["over CRI", "by the kernel"])
def test_pods_that_end_without_a_word_keep_no_cpus(
    fresh_containerd: ContainerdNode, tmp_path: Path, *, listed: bool
) -> None:
    """As containerd's pods do once it was started again: their stop is told to nobody."""
    skip_unless_an_agent_can_run()
    world = NriWorld(tmp_path, fresh_containerd)
    if not listed:
        del world.agent.config["pinfold"]["runtimeEndpoint"]
    with started(world):
        whole = CPUSet.parse(world.agent.client.get("/v1/status")["shared"])
        world.run(world.dress(shared_pod(9)))
        world.run(world.dress(owner_pod(1)))
        world.node.kill()
        world.node.start()
        eventually(world.is_connected, expected=True, seconds=30)
        assert _shared(world) < whole
        stop = cri.StopPodSandboxRequest(pod_sandbox_id=world.sandboxes["owner-1"])
        world.kubelet.call("StopPodSandbox", stop, cri.StopPodSandboxResponse)
        eventually(lambda: _shared(world), whole, seconds=30)
        assert "and nobody was told" in world.agent.log()
        check(world)


def test_a_container_that_its_runtime_has_lost_track_of_runs_again(
    fresh_containerd: ContainerdNode, tmp_path: Path
) -> None:
    """As one does whose runtime was killed while it created it: it is listed, in no state."""
    skip_unless_an_agent_can_run()
    world = CriWorld(tmp_path, fresh_containerd)
    with started(world):
        before = world.run(world.dress(shared_pod(9)))["main"].pid
        lost = world.kubelet.running()[("uid-shared-9", "main")]
        world.agent.kill()
        world.node.kill()
        kept = fresh_containerd.folder / "root" / "io.containerd.grpc.v1.cri" / "containers"
        (kept / lost / "status").unlink()
        world.node.start()
        assert lost in world.kubelet.containers(cri.CONTAINER_UNKNOWN).values()
        world.agent.start()
        check(world)
        assert lost not in world.kubelet.running().values()
        assert not Path(f"/proc/{before}").exists()


def _shared(world: NriWorld) -> CPUSet:
    return CPUSet.parse(world.agent.client.get("/v1/status")["shared"])


def _end_everything(world: CriWorld | NriWorld, churn: Churn) -> None:
    """Also what was asked for when somebody was killed: it may be there or not."""
    if isinstance(world, NriWorld):
        end_all(world, set(world.sandboxes))
        for sandbox in world.kubelet.sandboxes():
            world.kubelet.forget(sandbox)
    else:
        end_all(world, {one["name"] for one in world.agent.client.get("/v1/pods")["pods"]})
    churn.live.clear()

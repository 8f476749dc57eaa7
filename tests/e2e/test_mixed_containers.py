"""A mixed container of a real runtime: its cpuset, and what the runtime has on record of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import allowed, skip_unless_an_agent_can_run
from tests.scenes.churn import owner_pod, shared_pod
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.pod_worlds import CriWorld, Manifest, NriWorld, World, started
from tests.scenes.waiting import eventually


@pytest.fixture(params=["cri", "nri"])
def world(
    request: pytest.FixtureRequest, fresh_containerd: ContainerdNode, tmp_path: Path
) -> Iterator[World]:
    skip_unless_an_agent_can_run()
    kind = CriWorld if request.param == "cri" else NriWorld
    with started(kind(tmp_path, fresh_containerd)) as one:
        yield one


def lane() -> Manifest:
    pod = owner_pod(1)
    metadata = {**pod["metadata"], "annotations": {"mixed-cpus.pinfold.dev/pod": "true"}}
    return {**pod, "metadata": metadata}


def test_own_cpus_and_the_pool(world: World) -> None:
    shared = world.run(world.dress(shared_pod(0)))["main"]
    everything = shared.allowed
    mixed = world.run(world.dress(lane()))["main"]
    status = world.agent.client.get("/v1/status")
    (seen,) = (
        one for pod in status["pods"] for one in pod["containers"] if pod["name"] == "owner-1"
    )
    own, pool = CPUSet.parse(seen["cpus"]), CPUSet.parse(seen["shared"])
    assert len(own) == 1
    assert pool == CPUSet.parse(status["pool"])
    assert own.isdisjoint(pool)
    eventually(lambda: allowed(shared.pid), pool)
    assert allowed(mixed.pid) == own | pool

    def behind() -> int:
        agent = world.agent.client.get("/v1/status")["agent"]
        return int((agent.get("nri") or agent["containerRuntime"])["behind"])

    eventually(behind, 0)
    # Whatever the runtime writes by itself, the next agent finds it where it belongs.
    world.agent.kill()
    world.start()
    eventually(lambda: allowed(mixed.pid), own | pool)
    variables = Path(f"/proc/{mixed.pid}/environ").read_bytes().split(b"\0")
    assert f"PINFOLD_EXCLUSIVE_CPUS={own}".encode() in variables
    assert f"PINFOLD_SHARED_CPUS={pool}".encode() in variables
    eventually(behind, 0)
    world.end("owner-1")
    eventually(lambda: allowed(shared.pid), everything)
    assert os.sched_getaffinity(shared.pid) == set(everything)

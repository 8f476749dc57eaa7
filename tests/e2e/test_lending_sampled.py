"""CPUs of an owner are lent; the kernel is sampled all the time, also while agents die and stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import skip_unless_an_agent_can_run
from tests.scenes.churn import pod, sampled
from tests.scenes.pod_worlds import Manifest, ProcessWorld, World, started
from tests.scenes.process_world import processes_of
from tests.scenes.waiting import wait_until

BURSTS = "while :; do sleep 12; timeout 1 sh -c 'while :; do :; done'; done"
"""Between two of them CPUs are lent for so long that the next pause is as short as the first."""

CALM = "while :; do sleep 1000; done"
BUSY = "while :; do :; done"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    skip_unless_an_agent_can_run()
    one = ProcessWorld(tmp_path)
    one.agent.config["pinfold"] |= {
        "observationPeriod": "200ms",
        # Whatever else goes on here: others may be on CPU 1, who are not the agent's.
        "lending": {
            "use": True,
            "idleFor": "1s",
            "pause": "1s",
            "maxWait": "90000ms",
            "maxPressure": "100%",
            "lendBelow": "20%",
            "siblingsBelow": "20%",
            "returnAbove": "30%",
        },
    }
    with started(one) as running:
        yield running


def owner(script: str) -> Manifest:
    # A whole core: no less is lent.
    siblings = Path("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list").read_text()
    mine: dict[str, Any] = dict(pod("owner", script, len(CPUSet.parse(siblings))))
    mine["metadata"] = {**mine["metadata"], "annotations": {"lend-cpus.pinfold.dev/pod": "true"}}
    return mine


class Sides:
    """The cpusets of the tree, as the kernel has them."""

    def __init__(self, world: World) -> None:
        self.root = world.root

    def cpus(self, side: str) -> CPUSet:
        try:
            return CPUSet.parse((self.root / side / "cpuset.cpus").read_text())
        except FileNotFoundError:
            return CPUSet()

    @property
    def lent(self) -> CPUSet:
        return self.cpus("idle") - self.cpus("shared")


def run(world: World, script: str) -> CPUSet:
    """An owner beside two who never sleep, one of which borrows; the owner's CPUs."""
    mine = world.run(world.dress(owner(script)))["main"]
    for name in ("one", "two"):
        world.run(world.dress(pod(name, BUSY)))
    return mine.allowed


def guardians(world: World) -> list[int]:
    return processes_of(str(world.agent.state / "guardian.log"))


def test_only_borrowers_are_on_a_cpu_that_is_lent(world: World) -> None:
    sides, own = Sides(world), run(world, BURSTS)
    with sampled(world) as found:
        for _ in range(2):
            wait_until(lambda: sides.lent == own, 60)
            wait_until(lambda: not sides.lent, 60)
    said = {key: value for key, value in found.items() if key not in ("owners", "findings")}
    print(said)  # noqa: T201 - for whoever runs it
    assert (found["strangers"], found["misplaced"]) == (0, 0), found["findings"]
    # That there were some makes zero strangers count.
    assert found["borrowers"] > 10
    assert found["borrowed"] > 0


def test_whoever_is_killed_or_stopped_while_cpus_are_lent(world: World) -> None:
    sides, own = Sides(world), run(world, CALM)

    def until_lent() -> None:
        wait_until(lambda: sides.lent == own, 60)

    with sampled(world) as found:
        until_lent()
        world.agent.kill()
        wait_until(lambda: not sides.lent)
        wait_until(lambda: not guardians(world))
        world.agent.start()
        until_lent()

        agent = world.agent.process
        assert agent is not None
        os.kill(agent.pid, signal.SIGSTOP)
        wait_until(lambda: not sides.lent)
        os.kill(agent.pid, signal.SIGCONT)
        until_lent()

        (guardian,) = guardians(world)
        os.kill(guardian, signal.SIGKILL)
        wait_until(lambda: guardians(world) not in ([guardian], []), 60)
        until_lent()

        def both_at_once() -> bool:
            until_lent()
            (guardian,) = guardians(world)
            os.kill(guardian, signal.SIGSTOP)
            world.agent.kill()
            left = sides.lent == own
            # The next agent puts it right, before it lends anything itself.
            world.agent.start()
            wait_until(lambda: guardian not in guardians(world))
            return left

        # Again only where all was taken back in between.
        wait_until(both_at_once)
        until_lent()
    assert (found["strangers"], found["misplaced"]) == (0, 0), found["findings"]
    assert found["borrowers"] > 10

    def told(*words: str) -> bool:
        history = world.agent.client.get("/v1/history")["entries"]
        whys = [entry["document"]["why"] for entry in history if entry["kind"] == "taken-back"]
        return any(word in why for why in whys for word in words)

    # It is written down while everything else goes on.
    wait_until(lambda: told("the agent has ended"))
    wait_until(lambda: told("and nothing is guarded"))
    # It may be the guardian who tells of the agent that was stopped, or the agent itself.
    wait_until(lambda: told("renewed for", "ended the lease"))
    world.agent.stop()
    assert not sides.lent
    assert not guardians(world)

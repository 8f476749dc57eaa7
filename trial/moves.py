"""Owners that move while they run: resizes and rebalancing without pause, and kills meanwhile."""

from __future__ import annotations

import time
from typing import Final

from trial.observed import present
from trial.patience import PATIENCE
from trial.scene import Scene, SkippedFault

LEAST_CPUS: Final = 6
"""With fewer there are no two owners and a CPU for one of them to go to."""

SECONDS: Final = 8.0 * PATIENCE
"""How long a fault goes on."""

KILLS: Final = 5

RESIZES: Final = ("resize", "kill in resizes")
REBALANCES: Final = ("rebalance", "kill in rebalances")
"""Their names among the faults."""


def can_be_made() -> bool:
    """Whether this machine has the CPUs for it."""
    return len(present()) >= LEAST_CPUS


def resize(scene: Scene) -> None:
    """Owners are resized without pause."""
    _undisturbed(scene, resizes=True, rebalances=False)


def rebalance(scene: Scene) -> None:
    """Owners are resized, and the node is rebalanced, without pause."""
    _undisturbed(scene, resizes=True, rebalances=True)


def kill_in_resizes(scene: Scene) -> None:
    """SIGKILL to the agent just after a resize was asked for, several times in a row."""
    _killed(scene, resizes=True, rebalances=False)


def kill_in_rebalances(scene: Scene) -> None:
    """SIGKILL to the agent just after it was asked to rebalance, or for a resize."""
    _killed(scene, resizes=True, rebalances=True)


def _undisturbed(scene: Scene, *, resizes: bool, rebalances: bool) -> None:
    _fill(scene)
    before = scene.crowd.resized
    with scene.crowd.moving(resize=resizes, rebalance=rebalances):
        time.sleep(SECONDS)
    scene.check(scene.crowd.resized > before, "nobody was resized")
    _look_at_undone(scene)


def _killed(scene: Scene, *, resizes: bool, rebalances: bool) -> None:
    _fill(scene)
    with scene.crowd.moving(resize=resizes, rebalance=rebalances):
        for _ in range(KILLS):
            scene.crowd.asked.clear()
            scene.crowd.asked.wait(SECONDS)
            time.sleep(scene.rng.choice([0, 0.05, 0.3]) * scene.rng.random() * PATIENCE)
            unanswered = scene.crowd.unanswered
            scene.node.kill()
            scene.start()
            scene.crowd.killed_in_moves += scene.crowd.unanswered > unanswered
    _look_at_undone(scene)


def _look_at_undone(scene: Scene) -> None:
    scene.check(not scene.crowd.undone, "; ".join(scene.crowd.undone))
    scene.crowd.undone.clear()


def _fill(scene: Scene) -> None:
    if not can_be_made():
        raise SkippedFault(f"owners need {LEAST_CPUS} CPUs to go from one to another")
    scene.crowd.fill_movers()

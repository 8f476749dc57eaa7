"""Owners that move while they run: resizes and rebalancing without pause, and kills meanwhile."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from trial.crowd import SETTLED
from trial.node import NoAnswerError, Refused
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
    _undisturbed(scene, rebalance=False)


def rebalance(scene: Scene) -> None:
    """Owners are resized, and the node is rebalanced, without pause."""
    _undisturbed(scene, rebalance=True)


def kill_in_resizes(scene: Scene) -> None:
    """SIGKILL to the agent while the moves of a resize are in flight, several times in a row."""
    _killed(scene, rebalance=False)


def kill_in_rebalances(scene: Scene) -> None:
    """SIGKILL to the agent while moves of a rebalance, or of a resize, are in flight."""
    _killed(scene, rebalance=True)


def _undisturbed(scene: Scene, *, rebalance: bool) -> None:
    _fill(scene)
    with scene.crowd.moving(rebalance=rebalance):
        began = _done(scene)
        time.sleep(SECONDS)
        _see_moves(scene, began, rebalance=rebalance)


def _killed(scene: Scene, *, rebalance: bool) -> None:
    _fill(scene)
    with scene.crowd.moving(rebalance=rebalance):
        for _ in range(KILLS):
            time.sleep(scene.rng.random() * PATIENCE)
            if step := _in_flight(scene):
                scene.node.kill()
                scene.crowd.kills[step] += 1
                print(step, end=" ", flush=True)
                scene.start()
            if scene.findings:
                return
        _see_moves(scene, _done(scene), rebalance=rebalance)


def _in_flight(scene: Scene) -> str:
    """Wait until a plan is in flight; the step that is on record last, "" where there is none."""
    deadline = time.monotonic() + SETTLED
    while time.monotonic() < deadline:
        with suppress(NoAnswerError, Refused):
            if move := scene.node.ask("GET", "/v1/status").get("move"):
                written = move.get("written", 0)
                return str(move["steps"][written - 1]["kind"]) if written else "no step"
        time.sleep(0.02 * PATIENCE)
    scene.findings.append(f"in {SETTLED:.0f} s no move was in flight")
    return ""


def _done(scene: Scene) -> tuple[int, int]:
    return scene.crowd.resized, scene.crowd.rebalanced


def _see_moves(scene: Scene, since: tuple[int, int], *, rebalance: bool) -> None:
    """Wait until owners were resized since then and, where that is asked for, rebalanced."""
    deadline = time.monotonic() + SETTLED
    while missing := [
        what
        for what, before, now in zip(("resized", "rebalanced"), since, _done(scene), strict=True)
        if now == before and (rebalance or what == "resized")
    ]:
        if time.monotonic() > deadline:
            scene.check(not missing, f"in {SETTLED:.0f} s nobody was {' nor '.join(missing)}")
            break
        time.sleep(0.1)
    scene.check(not scene.crowd.undone, "; ".join(scene.crowd.undone))
    scene.crowd.undone.clear()


def _fill(scene: Scene) -> None:
    if not can_be_made():
        raise SkippedFault(f"owners need {LEAST_CPUS} CPUs to go from one to another")
    scene.crowd.fill_movers()

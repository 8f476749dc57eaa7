"""Deciding by load and by time, where the configuration asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pinfold.agent.runnables import Runnable
from pinfold.core.controllers.load_driven import LoadDriven
from pinfold.core.controllers.proposals import Rank
from pinfold.core.controllers.rebalance import PeriodicRebalance
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.node.books import Books
from pinfold.node.control.looking import look
from pinfold.node.control.loop import Control, ControlLoop
from pinfold.node.control.telling import DecisionHistory, control_document
from pinfold.node.moves.load_driven import LoadDrivenMoves
from pinfold.node.moves.rebalancing import Rebalancing
from pinfold.node.observation.observer import Observation
from pinfold.ports.figures import Figure

OUTCOMES = ("done", "nothing", "failed", "refused")


def control_loop(
    books: Books,
    rebalancing: Rebalancing,
    observation: Observation | None,
    config: NodeConfig,
) -> ControlLoop | None:
    """The loop with all controllers that are configured; None where none is."""
    controls: list[Control[Any]] = []
    dynamic = config.dynamic
    if config.own is not None and config.load_driven:
        moves = LoadDrivenMoves(books, rebalancing.mover, rebalancing.rooms, rebalancing.budget)
        by_load = LoadDriven(config.own.load_driven)
        controls.append(Control(Rank.LOAD_DRIVEN.word, by_load, {}, moves.carry_out))
    if dynamic is not None and dynamic.period_seconds:
        controls.append(
            Control(
                Rank.REBALANCE.word,
                PeriodicRebalance(dynamic.rebalance_period),
                None,
                rebalancing.by_itself,
                period=dynamic.period_seconds,
            )
        )
    if not controls:
        return None
    return ControlLoop(
        partial(look, books, observation),
        rebalancing.budget,
        controls,
        observation,
        decided=DecisionHistory(books).decided,
    )


def controls_node(loop: ControlLoop | None, books: Books) -> list[Runnable]:
    """Goes on deciding, and tells the metrics how often."""
    if loop is None:
        return []
    return [
        Runnable(
            "control",
            loop.go_on,
            also={"quick looks": loop.go_on_quickly},
            figures=partial(figures, loop),
            about=partial(control_document, books, loop, {}),
        )
    ]


def figures(loop: ControlLoop) -> Iterator[Figure]:
    """What was proposed, by rank and outcome; what cannot be here is left out."""
    ranks = {one.name for one in loop.controls}
    for rank in Rank:
        for outcome in OUTCOMES:
            count = loop.counted.get((rank, outcome), 0)
            if count or rank.word in ranks:
                yield Figure(
                    "pinfold_control_proposals",
                    "What controllers proposed, by who comes first and what became of it.",
                    count,
                    {"rank": rank.word, "outcome": outcome},
                )
    yield Figure(
        "pinfold_control_quick_looks",
        "Looks whether anything that was given is to be taken back at once.",
        loop.quick_looks,
    )
    yield Figure(
        "pinfold_control_quick_look_cpu_seconds",
        "CPU time that they have taken.",
        loop.quick_seconds,
    )

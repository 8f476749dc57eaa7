"""Deciding by load and by time, where the configuration asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from pinfold.agent.loops.runnables import Runnable
from pinfold.core.controllers.lending import Lending, LendingMemory
from pinfold.core.controllers.load_driven import LoadDriven
from pinfold.core.controllers.parking import Parking
from pinfold.core.controllers.proposals import Rank
from pinfold.core.controllers.rebalance import PeriodicRebalance
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import OwnPolicies
from pinfold.documents import control as documents
from pinfold.linux.priority import at_least, nice_value
from pinfold.node.books import Books
from pinfold.node.control.lending import Lender
from pinfold.node.control.looking import look
from pinfold.node.control.loop import Control, ControlLoop
from pinfold.node.control.suppressing import suppression_control
from pinfold.node.control.telling import DecisionHistory, control_document
from pinfold.node.moves.load_driven import LoadDrivenMoves
from pinfold.node.moves.rebalancing import Rebalancing
from pinfold.node.observation.observer import Observation
from pinfold.ports.figures import Figure

LENDING: Final = Rank.LENDING.word
SUPPRESSION: Final = Rank.SUPPRESSION.word
NICE: Final = "agentNice"
OUTCOMES: Final = ("done", "nothing", "failed", "refused")

log = structlog.get_logger("pinfold")


class Controlling(Struct, frozen=True):
    """The loop with all controllers that are configured, and who of them cannot be had, and why."""

    loop: ControlLoop
    refused: dict[str, str]
    lender: Lender | None

    @property
    def has_to_be_quick(self) -> bool:
        """Whether something is given that has to be taken back at once."""
        return any(one.name in (LENDING, SUPPRESSION) for one in self.loop.controls)

    def document(self, books: Books) -> documents.Control:
        """What ``status`` says of it."""
        lender = self.lender
        lending = None if lender is None else lender.document(self.loop.memories[LENDING])
        document = control_document(books, self.loop, self.refused, lending)
        return replace(document, nice=nice_value())

    def problem(self) -> str:
        """What of it keeps the agent from being ready."""
        return "" if self.lender is None else self.lender.problem()


def controlled(
    books: Books, rebalancing: Rebalancing, observation: Observation | None, config: NodeConfig
) -> Controlling | None:
    """What the configuration asks for; None where that is nothing."""
    own, dynamic = config.own or OwnPolicies(), config.dynamic
    controls: list[Control[Any]] = []
    refused: dict[str, str] = {}
    lender = None
    if own.lending.use:
        lacks = "this kernel does not tell how long containers wait for a CPU"
        known = observation is not None and bool(observation.wait_source)
        if problem := _no_idle_side(books, lacks="" if known else lacks):
            refused[LENDING] = problem
            log.warning("not in force", feature=LENDING, problem=problem)
        elif observation is not None:
            controller = Lending(own.lending)
            lender = Lender(books, controller, observation)
            controls.append(
                Control(LENDING, controller, LendingMemory(), lender.carry_out, quick=lender)
            )
    if own.suppression.use:
        lacks = "" if observation is not None else "nobody knows what containers use: observe them"
        if problem := _no_idle_side(books, lacks=lacks):
            refused[SUPPRESSION] = problem
            log.warning("not in force", feature=SUPPRESSION, problem=problem)
        else:
            controls.append(suppression_control(books, own.suppression, config))
    if config.load_driven:
        moves = LoadDrivenMoves(books, rebalancing.mover, rebalancing.rooms, rebalancing.budget)
        by_load = LoadDriven(own.load_driven)
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
    if (parking := config.parking) is not None:
        park = partial(rebalancing.park, keep_requests=parking.keep_requests)
        controls.append(Control(Rank.PARKING.word, Parking(parking), None, park))
    if not controls and not refused:
        return None
    loop = ControlLoop(
        partial(look, books, observation),
        rebalancing.budget,
        controls,
        observation,
        lease=books.lease,
        decided=DecisionHistory(books).decided,
    )
    return Controlling(loop, refused, lender)


def _no_idle_side(books: Books, *, lacks: str) -> str:
    """Why nothing that needs the idle side, and figures, can be had; "" where it can.

    ``lacks`` is what of the figures is missing.
    """
    return books.containers.cgroups.no_idle_side or lacks


def controls_node(controlling: Controlling | None, books: Books, nice: int) -> list[Runnable]:
    """Goes on deciding, and tells the metrics how often.

    Meanwhile the agent has this nice value where it has to be quick, or a lower one that it has.
    """
    if controlling is None:
        return []
    loop = controlling.loop

    def refused(problem: str) -> None:
        controlling.refused[NICE] = problem
        log.warning("not in force", feature=NICE, problem=problem)

    async def go_on() -> None:
        if not controlling.has_to_be_quick:
            return await loop.go_on()
        # Whoever is to be quick has to get a CPU when it wants one; containers shed it.
        with at_least(nice, refused):
            return await loop.go_on()

    return [
        Runnable(
            "control",
            go_on,
            also={"quick looks": loop.go_on_quickly},
            problem=controlling.problem,
            figures=partial(figures, loop),
            about=partial(controlling.document, books),
        )
    ]


def figures(loop: ControlLoop) -> Iterator[Figure]:
    """What was proposed, by rank and outcome; what cannot be here is left out."""
    ranks = {one.name for one in loop.controls}
    ranks |= {Rank.RETURN.word} if LENDING in ranks else set()
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
        "pinfold_best_effort_cap_cpus",
        "CPUs' worth of time that best-effort containers have together, while they are capped.",
        loop.cap,
        kind="gauge",
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

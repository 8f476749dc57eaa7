"""The worst decisions of a simulation as text: what happened, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from pinfold.render.simulation.life import clock
from pinfold.render.terminal import Line, Style, clean, print_lines, wrap

_REASONS: Final = 3
"""So many of the reasons of a decision are told."""


class BadDecision(Struct, frozen=True):
    """A decision that somebody would want to look into.

    Attributes:
        at: seconds of the run.
        where: the node.
        whom: the pod, and what it asked for.
        outcome: the reason of a refusal; "" where the pod was let in.
        why: what is bad about it.
        reasons: as ``pinfold explain`` tells them, the first ones are shown.
    """

    at: float
    where: str
    whom: str
    outcome: str
    why: str
    reasons: tuple[str, ...]


class BadDecisions(Struct, frozen=True):
    """Those of one configuration; ``left_out`` more are not shown."""

    configuration: str
    decisions: tuple[BadDecision, ...]
    left_out: int = 0


def render_worst(every: Sequence[BadDecisions], left_out: int, style: Style) -> str:
    """The text, ending in a newline; nothing where nothing is bad.

    Args:
        every: by configuration.
        left_out: configurations that are not shown.
        style: how to print.
    """
    if not every:
        return ""
    lines: list[Line] = [[], [("Worst decisions", "bold")]]
    for one in every:
        lines += _of(one, style)
    rest = f"{left_out} more configuration{'s' * (left_out > 1)}: " if left_out else ""
    for text in wrap(f"{rest}all of them with -o json or --report", style.width):
        lines.append([(text, "dim")])
    return print_lines(lines, style)


def _of(every: BadDecisions, style: Style) -> Iterator[Line]:
    for text in wrap(clean(every.configuration), style.width):
        yield [(text, "key")]
    for one in every.decisions:
        outcome = f": {one.outcome}" if one.outcome else " is let in"
        head = f"{clock(one.at)}  {one.where}  {one.whom}{outcome}"
        yield from _indented(head, 2, "bad" if one.outcome else "warn", style)
        yield from _indented(one.why, 4, "", style)
        for reason in one.reasons[:_REASONS]:
            yield from _indented(reason, 4, "dim", style)
    if every.left_out:
        yield from _indented(f"and {every.left_out} more", 2, "dim", style)


def _indented(text: str, columns: int, kind: str, style: Style) -> Iterator[Line]:
    for part in wrap(clean(text), style.width - columns, after=",;/"):
        yield [(" " * columns, ""), (part, kind)]

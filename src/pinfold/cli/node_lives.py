"""``pinfold simulate --show-node``: the life of a node under each configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from pinfold.cli.output import F, InputError, input_errors, print_text, write_whole
from pinfold.cli.terminal import style
from pinfold.core.values.duration import DAY, DurationError, parse_duration
from pinfold.planning.simulation.experiment.specification import RunSpec
from pinfold.planning.simulation.observers.life import (
    NoMomentError,
    UnknownNodeError,
    life_of,
    node_number,
)
from pinfold.ports.arrivals import TraceError
from pinfold.render.simulation.life import LifeView
from pinfold.render.simulation.life_svg import render_life_svg
from pinfold.render.simulation.life_text import render_life
from pinfold.views.life import life_view

_DAYS: Final = re.compile(r"(?:([0-9]{1,6})d)?(.*)", re.ASCII | re.DOTALL)
_NAMED: Final = 12
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9.]+")
_LONGEST: Final = 60


def _moment(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> list[float]:
    return [_seconds(text) for text in texts]


def _seconds(text: str) -> float:
    """A time of a run: a duration with days, if need be."""
    found = _DAYS.fullmatch(text)
    days, rest = (found[1], found[2]) if found else (None, text)
    try:
        seconds = parse_duration(rest) if rest or not days else 0.0
    except DurationError as error:
        raise click.BadParameter(f"{error}; with days: 3d, 3d12h") from None
    if text.startswith(("+", "-")) or seconds < 0:
        raise click.BadParameter(f"{text}: write a time from the first arrival on, such as 3d12h")
    return int(days or 0) * DAY + seconds


def life_options(command: F) -> F:
    """``--show-node``, ``--at``, ``--configuration``."""
    command = click.option(
        "--configuration",
        "configurations",
        multiple=True,
        metavar="NAME",
        help="With --show-node: only under this configuration; may be given several times.",
    )(command)
    command = click.option(
        "--at",
        "moments",
        multiple=True,
        callback=_moment,
        metavar="TIME",
        help="With --show-node: the moments that are shown, from the first arrival on, such as "
        "90m or 3d12h; may be given several times. Without it: the first refusal, the first "
        "moves, the fullest, the most spread, and the end.",
    )(command)
    return click.option(
        "--show-node",
        metavar="NAME",
        help="Show the life of one node, such as node-3, in place of the figures of all: its map "
        "at some moments, and what happened between. Of the first seed; with --svg DIR also "
        "as pictures.",
    )(command)


def check_life_options(
    show_node: str | None,
    moments: Sequence[float],
    configurations: Sequence[str],
    report: str | None,
    output: str,
) -> None:
    """See that they fit together.

    Raises:
        click.UsageError: they do not.
    """
    for option, value in (("--at", moments), ("--configuration", configurations)):
        if value and show_node is None:
            raise click.UsageError(
                f"{option} is for the life of a node: give --show-node NAME, too"
            )
    if show_node is not None and output != "text":
        raise click.UsageError("--show-node prints pictures: leave -o away, or --show-node")
    if show_node is not None and report is not None:
        raise click.UsageError("--show-node is no part of a report: leave one of both away")


def show_lives(  # noqa: PLR0913 - what the options say
    specs: Sequence[RunSpec],
    name: str,
    *,
    moments: Sequence[float] = (),
    configurations: Sequence[str] = (),
    svg: str | None = None,
    color: bool | None = None,
) -> None:
    """Print the lives of a node, each as its run has been made.

    Args:
        specs: the runs of the experiment; the first one of each configuration is made.
        name: of the node.
        moments: see :func:`~pinfold.planning.simulation.observers.life.life_of`.
        configurations: of which there are lives; none: of all.
        svg: a folder for pictures.
        color: see :func:`~pinfold.cli.output.color_option`.

    Raises:
        InputError: no such node, moment or configuration; the arrivals cannot be read; the
            pictures cannot be written.
    """
    firsts: dict[str, RunSpec] = {}
    for spec in specs:
        firsts.setdefault(spec.configuration, spec)
    chosen = list(_chosen(firsts, configurations))
    # All that is wrong with the name is told before the first run.
    with input_errors(UnknownNodeError):
        for _, spec in chosen:
            node_number(spec.kinds, name)
    for number, (place, spec) in enumerate(chosen):
        of_moments = input_errors(NoMomentError, prefix=f"{spec.configuration}: ")
        with input_errors(TraceError), of_moments:
            view = life_view(life_of(spec, name, moments))
        print_text("\n" * (number > 0) + render_life(view, style(color)))
        if svg is not None:
            _write(Path(svg), f"life-{place}-{_slug(f'{name}-{spec.configuration}')}.svg", view)


def _chosen(firsts: Mapping[str, RunSpec], names: Sequence[str]) -> Iterator[tuple[int, RunSpec]]:
    """The runs, with the places of their configurations in the experiment, from 1 on."""
    for name in names:
        if name not in firsts:
            there = ", ".join([*firsts][:_NAMED])
            more = f" and {len(firsts) - _NAMED} more" if len(firsts) > _NAMED else ""
            raise InputError(
                f"--configuration: there is no {name[:_LONGEST]!r}; {there}{more} are there"
            )
    for place, (name, spec) in enumerate(firsts.items(), 1):
        if not names or name in names:
            yield place, spec


def _slug(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-.")[:_LONGEST]


def _write(folder: Path, name: str, view: LifeView) -> None:
    with input_errors(OSError, prefix=f"--svg {folder}: "):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, render_life_svg(view))

"""``pinfold simulate``: what a fleet would do under each configuration, on real arrivals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from pinfold.cli.forms import Output, output_option
from pinfold.cli.node_lives import check_life_options, life_options, show_lives
from pinfold.cli.options.execution import Execution, execution_options
from pinfold.cli.options.pods import filename_option
from pinfold.cli.output import color_option, input_errors, needs_extra, print_text
from pinfold.cli.terminal import style
from pinfold.config.values import ConfigError
from pinfold.planning.simulation.experiment.loading import load_experiment
from pinfold.render.simulation.side_by_side import render_side_by_side
from pinfold.render.simulation.worst import render_worst
from pinfold.render.terminal import clean
from pinfold.views.simulation import simulation_view
from pinfold.views.worst import worst_view

if TYPE_CHECKING:
    from pinfold.cli.report_files import ReportFiles


@click.command()
@click.argument("file", metavar="FILE", required=False)
@filename_option("FILE, as the argument is one.")
@click.option(
    "--traces",
    metavar="DIR",
    help="Where the files of a trace are, for experiments that do not say.",
)
@click.option(
    "--seed",
    "seeds",
    type=click.IntRange(0, 2**53 - 1),
    multiple=True,
    metavar="N",
    help="In place of the seeds of FILE; may be given several times.",
)
@click.option(
    "--report",
    metavar="FILE.html",
    help="Write a page with plots, too, which needs nothing else (extra report).",
)
@click.option(
    "--svg",
    metavar="DIR",
    help="Write the plots there, too, each as an SVG (extra report); with --show-node the pictures "
    "of the node.",
)
@life_options
@execution_options
@output_option("text", "json")
@color_option
def simulate(  # noqa: PLR0913 - the options, one each
    *,
    file: str | None,
    filenames: tuple[str, ...],
    traces: str | None,
    seeds: tuple[int, ...],
    report: str | None,
    svg: str | None,
    show_node: str | None,
    moments: list[float],
    configurations: tuple[str, ...],
    execution: Execution,
    output: Output,
    color: bool | None,
) -> None:
    """Simulate a fleet of nodes under several configurations.

    FILE is of kind Experiment: nodes, kubelet configurations to compare, and the pods that arrive.
    The results stand side by side. Every decision is the one that plan shows. Ctrl-C ends it, and
    prints the results that there are.
    """
    files_given = (*filenames, *(() if file is None else (file,)))
    if not files_given:
        raise click.UsageError("Missing argument 'FILE'.")
    if len(files_given) > 1:
        raise click.UsageError(f"one FILE is simulated at a time: {', '.join(files_given)}")
    check_life_options(show_node, moments, configurations, report, output)
    files = None if show_node is not None else _report_files(report, svg)
    with input_errors(ConfigError):
        loaded = load_experiment(files_given[0], traces=traces, seeds=tuple(dict.fromkeys(seeds)))
    for note in loaded.notes:
        # Whoever has misspelt a field is told before a long simulation of something else.
        click.echo(f"note: {clean(note)}", err=True)
    if show_node is not None:
        show_lives(
            loaded.specs,
            show_node,
            moments=moments,
            configurations=configurations,
            svg=svg,
            color=color,
        )
        return
    document, status = execution.carry_out(loaded)
    if output.is_document:
        output.tell(document)
    else:
        how = style(color)
        untold = replace(document, notes=document.notes[len(loaded.notes) :])
        text = render_side_by_side(simulation_view(untold), how)
        print_text(text + render_worst(*worst_view(document), how))
    if files is not None:
        # After the results are out: a disk that is full must not take these along.
        files.write(document)
    if status:
        raise SystemExit(status)


def _report_files(page: str | None, pictures: str | None) -> ReportFiles | None:
    if page is None and pictures is None:
        return None
    with needs_extra("a report", "report"):
        from pinfold.cli.report_files import ReportFiles  # noqa: PLC0415 - 170 ms

    return ReportFiles(page, pictures)

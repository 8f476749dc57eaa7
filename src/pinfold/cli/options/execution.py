"""Who carries the runs of a simulation out, and what is kept of them: options, and what they do."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import click
from msgspec import Struct

from pinfold.adapters.events.file import EventFile
from pinfold.adapters.executors.opening import Choice, open_pool, parse_option
from pinfold.adapters.executors.pool import ExecutorError
from pinfold.cli.output import InputError, Refused, input_errors
from pinfold.cli.simulation_progress import shown
from pinfold.documents.simulation.results import Simulation
from pinfold.linux.endings import BY_SIGNAL
from pinfold.planning.simulation.campaign.experiment_runs import run_experiment
from pinfold.planning.simulation.campaign.kept import KeptError, KeptRuns
from pinfold.planning.simulation.campaign.running import RunError, Stop
from pinfold.planning.simulation.campaign.tally import Tally
from pinfold.planning.simulation.experiment.loading import LoadedExperiment
from pinfold.ports.arrivals import TraceError
from pinfold.ports.events import EventsError


class Execution(Struct, frozen=True):
    """How the runs are carried out.

    ``folder``: where those are kept that have ended, ``events``: the file of all that happens.
    """

    choice: Choice
    folder: Path | None
    events: str | None = None

    def carry_out(self, loaded: LoadedExperiment) -> tuple[Simulation, int]:
        """Make all runs, and show how far they are; with the status that the command ends with.

        A signal has it end with what there is then; a second one at once, with nothing.

        Raises:
            InputError: there is no such executor, or the folder cannot be used.
            Refused: a run came to no result.
        """
        stop, tally = Stop(), Tally()
        told = input_errors(EventsError, ExecutorError, KeptError, TraceError)
        with ExitStack() as using, told:
            file = None if self.events is None else using.enter_context(EventFile(self.events))
            events = None if file is None else file.parts
            kept = None
            if self.folder is not None:
                kept = using.enter_context(KeptRuns(self.folder, _tell))
            got = using.enter_context(_signals(stop))
            try:
                pool = using.enter_context(open_pool(self.choice, len(loaded.specs)))
                using.enter_context(shown(tally))
                outcome = run_experiment(
                    loaded, pool, kept=kept, stop=stop, tally=tally, events=events
                )
                if file is not None:
                    file.put_together()
            except RunError as error:
                raise Refused(str(error)) from None
            except KeyboardInterrupt:
                raise SystemExit(BY_SIGNAL + max(got, default=signal.SIGINT)) from None
        return outcome.simulation, BY_SIGNAL + got[0] if outcome.interrupted and got else 0


def execution_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of who carries out; the command has them as ``execution``, an Execution."""

    @functools.wraps(command)
    def taken(  # noqa: PLR0913 - the options, one each
        *,
        workers: int | None,
        executor: str,
        executor_address: str | None,
        executor_option: tuple[str, ...],
        resume: Path | None,
        events: str | None,
        **others: object,
    ) -> None:
        try:
            options = dict(map(parse_option, executor_option))
        except ExecutorError as error:
            raise InputError(str(error)) from None
        choice = Choice(executor, workers, executor_address, options)
        command(execution=Execution(choice, resume, events), **others)

    for option in reversed(_OPTIONS):
        taken = option(taken)
    return taken


_OPTIONS = (
    click.option(
        "--workers",
        type=click.IntRange(1, 4096),
        metavar="N",
        help="How many runs at once; without it as many as there are CPUs for this process. "
        "The results are the same with any number.",
    ),
    click.option(
        "--executor",
        default="processes",
        show_default=True,
        metavar="NAME",
        help="Who carries the runs out: processes, dask, or package.module:callable that returns a "
        "concurrent.futures.Executor.",
    ),
    click.option(
        "--executor-option",
        multiple=True,
        metavar="NAME=VALUE",
        help="An argument of that callable, such as max_workers=4; may be given several times.",
    ),
    click.option(
        "--executor-address",
        metavar="ADDRESS",
        help="dask: its scheduler, such as tcp://host:8786; without it a cluster on this machine.",
    ),
    click.option(
        "--resume",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Keep each run that has ended in DIR, and take from there what a simulation that "
        "was interrupted has left.",
    ),
    click.option(
        "--events",
        metavar="FILE",
        help="Write each event of each run to FILE.csv or FILE.parquet; all runs are made for it.",
    ),
)


@contextmanager
def _signals(stop: Stop) -> Iterator[list[int]]:
    """Have SIGINT and SIGTERM ask to stop, a second one stop at once; those that came."""
    got: list[int] = []

    def asked(number: int, _: FrameType | None) -> None:
        if got:
            raise KeyboardInterrupt
        got.append(number)
        stop.ask()

    before = {one: signal.signal(one, asked) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield got
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _tell(text: str) -> None:
    click.echo(f"Warning: {text}", err=True)

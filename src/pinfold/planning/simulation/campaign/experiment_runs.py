"""All runs of an experiment, and the document that they make.

The document is the same whoever carried the runs out, beside how many others, and in which order
they ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator

from msgspec import UNSET, Struct
from msgspec.structs import replace

from pinfold.adapters.executors.pool import WorkerPool
from pinfold.core.values.notes import Note, said_once
from pinfold.documents.simulation.results import Needed, Run, Simulation
from pinfold.planning.simulation.campaign.cautions import cautions
from pinfold.planning.simulation.campaign.identity import Identities
from pinfold.planning.simulation.campaign.kept import KeptRuns
from pinfold.planning.simulation.campaign.running import MOST_AT_ONCE, Running, Stop, Task
from pinfold.planning.simulation.campaign.searching import Aim, Found, acceptance, search
from pinfold.planning.simulation.campaign.tally import Tally
from pinfold.planning.simulation.campaign.watch import Watch
from pinfold.planning.simulation.campaign.worker import EventsOf, read_run
from pinfold.planning.simulation.experiment.loading import LoadedExperiment
from pinfold.planning.simulation.experiment.specification import RunSpec, scaled
from pinfold.ports.events import EventParts

_Key = tuple[str, int]
"""Configuration and seed."""


class Outcome(Struct, frozen=True):
    """What came of an experiment; ``interrupted``: it was told to stop before all had ended."""

    simulation: Simulation
    interrupted: bool


class _Search(Struct):
    """A search that goes on: ``asks`` for a factor, and is told what it let in."""

    spec: RunSpec
    aim: Aim
    asks: Generator[float, float, Found]
    tried: int = 0

    @property
    def left(self) -> int:
        """About so many fleets are to be tried yet."""
        return max(1, self.aim.steps - self.tried)


def run_experiment(  # noqa: PLR0913 - who does it, and what else is made of it
    loaded: LoadedExperiment,
    pool: WorkerPool,
    *,
    kept: KeptRuns | None = None,
    stop: Stop | None = None,
    tally: Tally | None = None,
    events: EventParts | None = None,
) -> Outcome:
    """Make all runs of an experiment.

    Args:
        loaded: the experiment.
        pool: who carries them out.
        kept: takes runs from there, and keeps those that end; with ``events`` it only keeps them.
        stop: asks all to end before their time.
        tally: counts, for those who wait.
        events: where the events of each run go, but not those of a search for a smaller fleet.

    Raises:
        RunError: a run came to no result.
        TraceError: the files of the arrivals cannot be read.
    """
    campaign = _Campaign(loaded, kept, stop or Stop(), tally or Tally(), events)
    return campaign.outcome(pool)


class _Campaign:
    """The runs of one experiment, those of searches for the smallest fleet among them."""

    def __init__(
        self,
        loaded: LoadedExperiment,
        kept: KeptRuns | None,
        stop: Stop,
        tally: Tally,
        events: EventParts | None,
    ) -> None:
        self._events = events
        self._loaded, self._kept, self._stop, self._tally = loaded, kept, stop, tally
        self._identities = Identities()
        self._tasks: deque[Task] = deque()
        self._runs: dict[_Key, Run] = {}
        self._searches: dict[Task, _Search] = {}
        self._unsearched = [] if loaded.nodes_needed is None else list(loaded.specs)
        self._needed: dict[_Key, Needed] = {}
        self._notes: list[Note] = []

    def outcome(self, pool: WorkerPool) -> Outcome:
        """Have all of it carried out."""
        with Watch(min(pool.at_once, MOST_AT_ONCE)) as watch:
            running = Running(pool, watch, self._stop)
            self._stop.then(watch.stop)
            self._tally.begin(running, watch)
            try:
                self._add_all()
                for task, data in running.results(self._tasks):
                    run = read_run(data)
                    if self._kept is not None and run.complete:
                        self._kept.save(task.identity, data)
                    self._tally.ended(run)
                    self._ended(task, run)
            finally:
                self._tally.end()
                self._stop.forget(watch.stop)
        return Outcome(self._document(), self._stop.asked and not self._is_whole)

    def _add_all(self) -> None:
        places: dict[int, int] = {}
        for spec in self._loaded.specs:
            places.setdefault(spec.seed, len(places))
        # Those of one seed follow each other: a worker keeps the arrivals that it has read last.
        numbered = enumerate(self._loaded.specs)
        for number, spec in sorted(numbered, key=lambda one: places[one[1].seed]):
            if self._stop.asked:
                return
            task = self._task(spec)
            if self._events is not None:
                task = replace(task, events=EventsOf(self._events, number))
            self._add(task)

    def _task(self, spec: RunSpec, *, is_tried: bool = False) -> Task:
        identities = self._identities
        identity = "" if self._kept is None else identities.of_run(spec, is_tried)
        return Task(spec, identity, identities.of_arrivals(spec), is_tried)

    def _add(self, task: Task) -> None:
        """Have a task carried out, unless its result is there."""
        # The events of a run that is kept are not.
        kept = None if task.events is not None else self._kept
        data = None if kept is None else kept.load(task.identity)
        if data is None:
            self._tasks.append(task)
            self._expect()
        else:
            self._tally.kept += 1
            self._ended(task, read_run(data))

    def _expect(self) -> None:
        """Say how many runs there will be about."""
        runs, searches = len(self._loaded.specs) - len(self._runs), self._searches.values()
        more = sum(search.left for search in searches)
        if (needed := self._loaded.nodes_needed) is not None:
            more += len(self._unsearched) * Aim(0.0, needed.most, needed.precision).steps
        self._tally.expected = self._tally.runs + runs + more

    def _ended(self, task: Task, run: Run) -> None:
        search = self._searches.pop(task, None)
        if search is None:
            self._runs[run.configuration, run.seed] = run
            for search in self._startable():
                self._ask(search, acceptance(self._runs[_key(search.spec)]), first=True)
        elif run.complete:
            self._ask(search, acceptance(run), first=False)
        self._expect()

    def _startable(self) -> Iterator[_Search]:
        """Searches of which all is there that has to be known before; each once."""
        needed = self._loaded.nodes_needed
        for spec in self._unsearched.copy():
            own = self._runs.get(_key(spec))
            first = self._runs.get((self._loaded.configurations[0], spec.seed))
            if needed is None or not (own and own.complete and first and first.complete):
                continue
            self._unsearched.remove(spec)
            share = acceptance(first) if needed.acceptance is UNSET else needed.acceptance
            if share <= 0 or not first.fates.arrived:
                # Any fleet would do, the smallest first.
                self._notes.append(
                    Note(
                        f"no smallest fleet is looked for with seed {spec.seed}",
                        "there are no pods that it would have to let in",
                    )
                )
                continue
            aim = Aim(share, needed.most, needed.precision)
            yield _Search(spec, aim, search(spec.kinds, aim))

    def _ask(self, search: _Search, share: float, *, first: bool) -> None:
        """Go on with a search; at first it is told what is known of the experiment's own fleet."""
        try:
            factor = next(search.asks) if first else search.asks.send(share)
            if first and factor == 1.0:
                factor = search.asks.send(share)
        except StopIteration as end:
            self._needed[_key(search.spec)] = _needed(search, end.value)
            return
        search.tried += 1
        spec = replace(search.spec, kinds=scaled(search.spec.kinds, factor))
        task = self._task(spec, is_tried=True)
        self._searches[task] = search
        self._add(task)

    @property
    def _is_whole(self) -> bool:
        runs, specs = self._runs.values(), self._loaded.specs
        all_ended = len(runs) == len(specs) and all(run.complete for run in runs)
        return all_ended and not self._unsearched and not self._searches

    def _document(self) -> Simulation:
        loaded = self._loaded
        keys = [_key(spec) for spec in loaded.specs]
        needed = tuple(self._needed[key] for key in keys if key in self._needed)
        runs = tuple(self._runs[key] for key in keys if key in self._runs)
        return Simulation(
            name=loaded.name,
            experiment=loaded.document,
            configurations=loaded.configurations,
            runs=runs,
            missing=tuple(key for key in keys if key not in self._runs),
            needed=UNSET if loaded.nodes_needed is None else needed,
            notes=(*loaded.notes, *cautions(runs), *said_once(self._notes)),
        )


def _key(spec: RunSpec) -> _Key:
    return spec.configuration, spec.seed


def _needed(search: _Search, found: Found) -> Needed:
    spec, factor = search.spec, found.factor
    nodes = None
    if factor is not None:
        nodes = {kind.name: kind.count for kind in scaled(spec.kinds, factor)}
    return Needed(
        configuration=spec.configuration,
        seed=spec.seed,
        acceptance=search.aim.acceptance,
        nodes=nodes,
        factor=factor,
        tried=found.tried,
    )

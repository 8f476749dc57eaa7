"""All runs of an experiment: one document, whoever made the runs and in which order they ended."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinfold.adapters.events.file import EventFile
from pinfold.adapters.executors.local import InProcess, local_pool
from pinfold.adapters.executors.pool import WorkerPool
from pinfold.documents.simulation.results import Simulation
from pinfold.planning.simulation.campaign.experiment_runs import run_experiment
from pinfold.planning.simulation.campaign.kept import KeptRuns
from pinfold.planning.simulation.campaign.running import RunError, Stop
from pinfold.planning.simulation.campaign.searching import acceptance
from pinfold.planning.simulation.campaign.tally import Tally
from pinfold.planning.simulation.engine import simulate
from pinfold.planning.simulation.experiment.loading import LoadedExperiment
from pinfold.ports.arrivals import TraceError
from tests.scenes.small_experiment import small_experiment

_P = ParamSpec("_P")
_T = TypeVar("_T")


class AnyOrder(Executor):
    """Makes calls in an order by chance, once it has some; who ended last is told of first."""

    def __init__(self, seed: int, gathers: int) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - the same every time
        self._gathers = gathers
        self._waiting: list[tuple[Future[object], Callable[[], object]]] = []
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()
        with self._lock:
            self._waiting.append((future, lambda: fn(*args, **kwargs)))  # type: ignore[arg-type]  # results are told as they are
            is_enough = len(self._waiting) >= self._gathers
        if self._timer is not None:
            self._timer.cancel()
        if is_enough:
            self._make()
        else:
            self._timer = threading.Timer(0.05, self._make)
            self._timer.start()
        return future

    def _make(self) -> None:
        with self._lock:
            some, self._waiting = self._waiting, []
            self._chance.shuffle(some)
        for future, call in some:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Exception as error:  # noqa: BLE001 - whatever it is
                    future.set_exception(error)


def _bytes(loaded: LoadedExperiment, pool: WorkerPool) -> bytes:
    with pool:
        outcome = run_experiment(loaded, pool)
    assert not outcome.interrupted
    return msgspec.json.encode(outcome.simulation)


NEEDED = {"precision": 0.1, "most": 3}


def test_runs_are_in_the_order_of_the_experiment_and_as_alone(tmp_path: Path) -> None:
    loaded = small_experiment(tmp_path)
    with local_pool(1) as pool:
        found = run_experiment(loaded, pool).simulation
    assert [(run.configuration, run.seed) for run in found.runs] == [
        ("none", 1),
        ("none", 2),
        ("whole cores", 1),
        ("whole cores", 2),
    ]
    assert found.missing == ()
    for run, spec in zip(found.runs, loaded.specs, strict=True):
        alone = simulate(spec).run
        assert msgspec.json.encode(run) == msgspec.json.encode(
            msgspec.json.decode(msgspec.json.encode(alone), type=type(alone))
        )
        assert run.fates.arrived > 300


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), gathers=st.integers(1, 8), at_once=st.integers(1, 8))
def test_the_order_in_which_they_end_does_not_matter(
    seed: int, gathers: int, at_once: int, tmp_path: Path
) -> None:
    loaded = small_experiment(tmp_path, after="2h", nodesNeeded=NEEDED, seeds=[3, 1, 2])
    alone = _bytes(loaded, local_pool(1))
    assert _bytes(loaded, WorkerPool(AnyOrder(seed, gathers), at_once=at_once)) == alone


def test_processes_and_threads_give_the_same_bytes(tmp_path: Path) -> None:
    loaded = small_experiment(tmp_path, nodesNeeded=NEEDED)
    alone = _bytes(loaded, local_pool(1))
    assert _bytes(loaded, local_pool(2)) == alone
    assert _bytes(loaded, local_pool(3)) == alone
    assert _bytes(loaded, WorkerPool(ThreadPoolExecutor(3))) == alone


def test_the_smallest_fleet_lets_in_as_many_as_the_first_configuration(tmp_path: Path) -> None:
    loaded = small_experiment(tmp_path, nodesNeeded=NEEDED)
    with local_pool(1) as pool:
        found = run_experiment(loaded, pool).simulation
    assert isinstance(found.needed, tuple)
    assert [(one.configuration, one.seed) for one in found.needed] == [
        (run.configuration, run.seed) for run in found.runs
    ]
    first = {run.seed: acceptance(run) for run in found.runs if run.configuration == "none"}
    for one in found.needed:
        assert one.acceptance == first[one.seed]
        assert one.factor is not None
        assert one.nodes is not None
        shares = dict(one.tried)
        assert shares[one.factor] >= one.acceptance
        assert 1.0 in shares
        below = [share for factor, share in one.tried if factor < one.factor]
        assert all(share < one.acceptance for share in below)
    of_none, of_cores = ([n.factor or 0 for n in found.needed][at : at + 2] for at in (0, 2))
    assert min(of_cores) > max(of_none), "those that strand CPUs need more nodes"


def test_a_fleet_that_is_never_large_enough_is_said_so(tmp_path: Path) -> None:
    never = {"acceptance": 1.0, "most": 1.2, "precision": 0.1}
    sizes = [{"weight": 1, "cpu": "100", "memory": "1Gi"}]
    arrivals = {"perHour": 60, "sizes": sizes, "lifetimes": {"mean": "20m"}}
    loaded = small_experiment(tmp_path, nodesNeeded=never, arrivals={"synthetic": arrivals})
    with local_pool(1) as pool:
        found = run_experiment(loaded, pool).simulation
    assert isinstance(found.needed, tuple)
    for one in found.needed:
        assert (one.factor, one.nodes) == (None, None)
        assert one.tried == ((1.0, 0.0), (1.2, 0.0))


def test_all_are_told_to_end_and_the_rest_is_missing(tmp_path: Path) -> None:
    loaded = small_experiment(tmp_path, after="100d")
    stop, tally = Stop(), Tally()
    first_looks = threading.Event()

    def interrupt() -> None:
        while tally.far().done <= 0:
            first_looks.wait(0.01)
        stop.ask()

    threading.Thread(target=interrupt).start()
    with local_pool(1) as pool:
        outcome = run_experiment(loaded, pool, stop=stop, tally=tally)
    assert outcome.interrupted
    (run,) = outcome.simulation.runs
    assert not run.complete
    assert 0 < run.until < 100 * 86400
    fates = run.fates
    assert fates.arrived == fates.running + fates.ended + fates.rejected + fates.waiting
    assert len(outcome.simulation.missing) == 3


def test_who_is_asked_before_they_begin_begins_none(tmp_path: Path) -> None:
    stop = Stop()
    stop.ask()
    with WorkerPool(InProcess(), at_once=1) as pool:
        outcome = run_experiment(small_experiment(tmp_path), pool, stop=stop)
    assert outcome.interrupted
    assert outcome.simulation.runs == ()
    assert len(outcome.simulation.missing) == 4


def test_a_trace_that_cannot_be_read_is_told_and_not_as_a_fault_of_a_run(tmp_path: Path) -> None:
    table = tmp_path / "pods.csv"
    table.write_text("at,lifetime,cpu,memory\n0,10,1,1Gi\n0,torn\n")
    loaded = small_experiment(tmp_path, arrivals={"csv": {"file": "pods.csv"}}, stop={})
    with pytest.raises(TraceError, match=r"^/.*pods\.csv: line 3"), local_pool(1) as pool:
        run_experiment(loaded, pool)
    with pytest.raises(TraceError, match=r"^/.*pods\.csv: line 3"), local_pool(2) as pool:
        run_experiment(loaded, pool)


def test_nothing_but_zeros_has_a_note(tmp_path: Path) -> None:
    table = tmp_path / "pods.csv"
    table.write_text("at,lifetime,cpu,memory\n0,10,1,1Gi\n9,10,1,1Gi\n")
    csv = {"csv": {"file": "pods.csv"}}
    for warm_up, notes in (("5s", 0), ("10s", 1)):
        loaded = small_experiment(tmp_path, arrivals=csv, stop={}, warmUp=warm_up)
        with local_pool(1) as pool:
            found = run_experiment(loaded, pool).simulation.notes
        assert len([note for note in found if note.startswith("no pod was counted")]) == notes


def _crowd(folder: Path) -> object:
    """Twenty pods at one moment, at which the run ends; the fleet has no room for all."""
    (folder / "crowd.csv").write_text("at,lifetime,cpu,memory\n" + "0,100,4,1Gi\n" * 20)
    return {"csv": {"file": "crowd.csv"}}


def _noted(loaded: LoadedExperiment) -> Simulation:
    with local_pool(1) as pool:
        return run_experiment(loaded, pool).simulation


def test_where_no_pod_was_counted_no_smallest_fleet_is_looked_for(tmp_path: Path) -> None:
    crowd = _crowd(tmp_path)
    simulation = _noted(
        small_experiment(tmp_path, warmUp="2h", arrivals=crowd, stop={}, nodesNeeded=NEEDED)
    )
    assert simulation.notes[0].startswith("no pod was counted")
    assert simulation.needed == ()
    assert [note.startswith("no smallest fleet") for note in simulation.notes] == [
        False,
        True,
        True,
    ]


def test_a_fleet_as_good_as_one_that_lets_nobody_in_is_not_looked_for(tmp_path: Path) -> None:
    huge = {"sizes": [{"weight": 1, "cpu": "99", "memory": "1Gi"}], "lifetimes": {"mean": "20m"}}
    arrivals = {"synthetic": {"perHour": 60, **huge}}
    simulation = _noted(
        small_experiment(tmp_path, arrivals=arrivals, seeds=[3], nodesNeeded=NEEDED)
    )
    assert simulation.needed == ()
    assert simulation.notes[-1].startswith("no smallest fleet is looked for with seed 3")


def test_many_who_wait_at_the_end_are_told_of(tmp_path: Path) -> None:
    runs = _noted(small_experiment(tmp_path, seeds=[1], arrivals=_crowd(tmp_path), stop={}))
    (note,) = runs.notes
    most = max(runs.runs, key=lambda run: run.fates.waiting)
    assert note.startswith("in 2 of 2 runs more than 5% of the pods waited")
    assert f"(most: {most.configuration}, seed 1: {most.fates.waiting} of 20)" in note


class Refuses(Executor):
    """Takes nothing."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:  # noqa: ARG002 - as all executors
        raise OSError("too many open files")


class Cancels(Executor):
    """Takes all, and makes none of it."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:  # noqa: ARG002 - as all executors
        future: Future[_T] = Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future


@pytest.mark.parametrize(
    ("executor", "told"),
    [
        (Refuses(), "the executor did not take it: OSError: too many open files"),
        (Cancels(), "the executor gave no result of it"),
    ],
)
def test_an_executor_that_makes_no_run_is_told_with_the_run(
    executor: Executor, told: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=f"none, seed 1: {told}"), WorkerPool(executor) as pool:
        run_experiment(small_experiment(tmp_path), pool)


def test_all_events_are_the_same_file_whoever_made_the_runs(tmp_path: Path) -> None:
    loaded = small_experiment(tmp_path, after="2h", nodesNeeded=NEEDED)
    found = []
    for number, workers in enumerate((1, 2, 3)):
        path = tmp_path / f"{number}.csv"
        with EventFile(str(path)) as file, local_pool(workers) as pool:
            run_experiment(loaded, pool, events=file.parts)
            file.put_together()
        found.append(path.read_bytes())
    assert len(set(found)) == 1
    rows = [row.split(b",")[:2] for row in found[0].splitlines()[1:]]
    runs = [[spec.configuration.encode(), b"%d" % spec.seed] for spec in loaded.specs]
    assert [run for run, _ in groupby(rows)] == runs, "in their order, and none of a search"


def test_where_events_are_asked_for_nothing_is_taken_from_a_folder(tmp_path: Path) -> None:
    loaded = small_experiment(tmp_path, after="2h")
    path = tmp_path / "events.csv"
    sizes = []
    for _ in range(2):
        tally = Tally()
        with (
            KeptRuns(tmp_path / "kept", print) as kept,
            EventFile(str(path)) as file,
            local_pool(1) as pool,
        ):
            run_experiment(loaded, pool, kept=kept, events=file.parts, tally=tally)
            file.put_together()
        assert (tally.far().runs, tally.far().kept) == (4, 0)
        sizes.append(path.stat().st_size)
    assert sizes[0] == sizes[1] > 1000


def test_how_far_they_are_is_counted(tmp_path: Path) -> None:
    tally = Tally()
    with local_pool(1) as pool:
        found = run_experiment(small_experiment(tmp_path), pool, tally=tally).simulation
    far = tally.far()
    assert (far.runs, far.expected, far.done, far.kept) == (4, 4, 4.0, 0)
    assert far.placed == sum(run.series["placed"][-1] for run in found.runs)

"""Dask carries runs out: a cluster on this machine, and one that is there already."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    distributed = pytest.importorskip("distributed")

from pinfold.adapters.executors.local import local_pool
from pinfold.adapters.executors.opening import Choice, open_pool
from pinfold.adapters.executors.pool import ExecutorError
from pinfold.planning.simulation.campaign.experiment_runs import run_experiment
from pinfold.planning.simulation.campaign.tally import Tally
from pinfold.ports.arrivals import TraceError
from tests.scenes.small_experiment import small_experiment

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of the scheduler of a cluster with two workers."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster.scheduler_address


def test_the_bytes_are_those_of_one_worker(address: str, tmp_path: Path) -> None:
    loaded = small_experiment(tmp_path, after="3h", nodesNeeded={"precision": 0.2})
    with local_pool(1) as pool:
        alone = msgspec.json.encode(run_experiment(loaded, pool).simulation)
    tally = Tally()
    with open_pool(Choice("dask", address=address), len(loaded.specs)) as pool:
        assert pool.executor.submit(os.getpid).result() != os.getpid()
        found = run_experiment(loaded, pool, tally=tally).simulation
    assert msgspec.json.encode(found) == alone
    assert tally.far().runs > 4


def test_a_cluster_of_its_own_ends_with_the_pool() -> None:
    with open_pool(Choice("dask", workers=1), 1) as pool:
        worker = pool.executor.submit(os.getpid).result()
        assert worker != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_a_run_that_fails_there_is_told_as_here(address: str, tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_text("at,lifetime,cpu,memory\n0,torn\n")
    loaded = small_experiment(tmp_path, arrivals={"csv": {"file": "pods.csv"}}, stop={})
    with pytest.raises(TraceError, match=r"pods\.csv: line 2"):  # noqa: SIM117 - the pool is left first
        with open_pool(Choice("dask", address=address), 4) as pool:
            run_experiment(loaded, pool)


def test_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinfold.adapters.executors.dask_cluster.PATIENCE", 1)
    with pytest.raises(ExecutorError, match=r"no scheduler at tcp://127\.0\.0\.1:9"):
        open_pool(Choice("dask", address="tcp://127.0.0.1:9"), 4)
    with pytest.raises(ExecutorError, match="no scheduler at nonsense://"):
        open_pool(Choice("dask", address="nonsense://"), 4)

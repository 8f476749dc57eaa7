"""Runs that are kept: taken for what they are, and for nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.executors.local import local_pool
from pinfold.adapters.traces.openb import OpenB
from pinfold.planning.simulation.campaign.experiment_runs import run_experiment
from pinfold.planning.simulation.campaign.identity import Identities
from pinfold.planning.simulation.campaign.kept import KeptError, KeptRuns
from pinfold.planning.simulation.campaign.tally import Tally
from pinfold.planning.simulation.experiment.loading import LoadedExperiment
from pinfold.planning.simulation.experiment.specification import Retry, RunSpec, scaled
from tests.scenes.small_experiment import WHOLE_CORES, experiment_file, small_experiment
from tests.scenes.small_traces import PODS, openb

NEEDED = {"precision": 0.2}


def _kept(loaded: LoadedExperiment, folder: Path) -> tuple[bytes, Tally, list[str]]:
    """The document, how many were taken, and what was told."""
    told: list[str] = []
    tally = Tally()
    with KeptRuns(folder, told.append) as kept, local_pool(1) as pool:
        outcome = run_experiment(loaded, pool, kept=kept, tally=tally)
    return msgspec.json.encode(outcome.simulation), tally, told


def test_a_second_time_nothing_is_run(tmp_path: Path) -> None:
    loaded = small_experiment(tmp_path, nodesNeeded=NEEDED)
    first, made, told = _kept(loaded, tmp_path / "kept")
    again, taken, told_again = _kept(loaded, tmp_path / "kept")
    assert first == again
    assert made.kept == 0
    assert (taken.runs, taken.kept) == (0, made.runs)
    assert told == told_again == []
    assert len(list((tmp_path / "kept").iterdir())) == made.runs


def test_only_what_is_new_is_run(tmp_path: Path) -> None:
    _kept(small_experiment(tmp_path), tmp_path / "kept")
    more = small_experiment(tmp_path, seeds=[2, 1, 5])
    found, tally, _ = _kept(more, tmp_path / "kept")
    assert (tally.runs, tally.kept) == (2, 4)
    assert found == _kept(more, tmp_path / "other")[0]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_told_and_its_run_made_again(data: st.DataObject, tmp_path: Path) -> None:
    loaded = small_experiment(tmp_path, after="1h", seeds=[1])
    folder = tmp_path / "kept"
    first, _, _ = _kept(loaded, folder)
    path = sorted(folder.iterdir())[data.draw(st.integers(0, 1))]
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    torn = data.draw(
        st.sampled_from(
            [
                whole[:place],
                whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :],
                whole + b"x",
                b"",
                b"[" * 100_000,
                b"\xff\xfe",
                b'{"kind":"KeptRun"}',
            ]
        )
    )
    path.write_bytes(torn)
    again, tally, told = _kept(loaded, folder)
    assert again == first
    assert (tally.runs, tally.kept) == (1, 1)
    (line,) = told
    assert line.startswith(f"{path}: is ")
    assert line.endswith("this run is made again")
    assert path.read_bytes() == whole


def test_another_runs_file_under_this_name_is_not_taken(tmp_path: Path) -> None:
    loaded, folder = small_experiment(tmp_path, seeds=[1], after="1h"), tmp_path / "kept"
    first, _, _ = _kept(loaded, folder)
    one, other = sorted(folder.iterdir())
    one.write_bytes(other.read_bytes())
    again, tally, told = _kept(loaded, folder)
    assert again == first
    assert told == [f"{one}: is of another run; this run is made again"]
    assert tally.kept == 1


def test_what_is_not_ours_in_the_folder_stays(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / ".hidden").mkdir()
    _, tally, told = _kept(small_experiment(tmp_path, after="1h"), folder)
    assert (folder / "notes.txt").read_text() == "mine"
    assert told == []
    assert tally.runs == 4


def test_two_programs_never_have_one_folder(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from pinfold.planning.simulation.campaign.kept import KeptRuns\n"
        "with KeptRuns(Path(sys.argv[1]), print): print('mine', flush=True); input()\n"
    )
    folder = tmp_path / "kept"
    with subprocess.Popen(
        [sys.executable, "-c", code, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        with pytest.raises(KeptError, match=rf"another simulation has it \(process {other.pid}\)"):
            KeptRuns(folder, print)
        other.communicate("\n")
    with KeptRuns(folder, print):
        pass


def test_a_folder_that_cannot_be_had(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below", Path("/proc/nowhere")):
        with pytest.raises(KeptError, match="name a folder that you may write to"):
            KeptRuns(folder, print)


def test_what_cannot_be_written_is_told_and_stops_nothing(tmp_path: Path) -> None:
    folder, told = tmp_path / "kept", list[str]()
    loaded = small_experiment(tmp_path, after="1h", seeds=[1])
    with KeptRuns(folder, told.append) as kept, local_pool(1) as pool:
        folder.rmdir()
        outcome = run_experiment(loaded, pool, kept=kept)
    assert len(outcome.simulation.runs) == 2
    assert len(told) == 2
    assert all(line.endswith("(No such file or directory); it is not kept") for line in told)


def test_all_that_decides_a_run_is_in_its_identity(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    folder.mkdir()
    loaded = small_experiment(tmp_path)
    spec = replace(loaded.specs[2], arrivals=OpenB(openb(folder)))
    assert spec.configuration == "whole cores"
    (kind, _) = spec.kinds
    others: list[RunSpec] = [
        spec,
        replace(spec, configuration="other"),
        replace(spec, config=loaded.specs[0].config),
        replace(spec, config=replace(spec.config, max_pods=7)),
        replace(spec, kinds=scaled(spec.kinds, 2)),
        replace(spec, kinds=(replace(kind, name="other"),)),
        replace(spec, kinds=(replace(kind, machine=replace(kind.machine, memory_bytes=1)),)),
        replace(spec, arrivals=OpenB(str(folder), 0.5)),
        replace(spec, retry=Retry(1.0, 1)),
        replace(spec, seed=9),
        replace(spec, warm_up=1.0),
        replace(spec, stop_after=1.0),
        replace(spec, stop_arrivals=1),
        replace(spec, replay_every=7),
    ]
    found = [Identities().of_run(one, 20) for one in others]
    found.append(Identities().of_run(spec, 0))
    openb(folder, PODS.replace("p-0,4000", "p-0,5000"))
    found.append(Identities().of_run(spec, 20))
    assert len(set(found)) == len(found)


def test_runs_of_one_seed_share_arrivals_and_others_do_not(tmp_path: Path) -> None:
    identities = Identities()
    none, other_seed, cores, _ = small_experiment(tmp_path).specs
    assert identities.of_arrivals(none) == identities.of_arrivals(cores)
    assert identities.of_arrivals(none) != identities.of_arrivals(other_seed)
    shorter = replace(none, stop_after=1.0)
    assert identities.of_arrivals(none) != identities.of_arrivals(shorter)


def test_an_identity_is_the_same_in_every_process(tmp_path: Path) -> None:
    configuration = {"name": "x", "kubeletConfiguration": WHOLE_CORES, "kubeletVersion": "1.35"}
    path = experiment_file(tmp_path, configurations=[configuration])
    code = (
        "import sys\n"
        "from pinfold.planning.simulation.campaign.identity import Identities\n"
        "from pinfold.planning.simulation.experiment.loading import load_experiment\n"
        "print(*map(Identities().of_run, load_experiment(sys.argv[1]).specs))\n"
    )
    found = {
        subprocess.check_output(
            [sys.executable, "-c", code, path], env={**os.environ, "PYTHONHASHSEED": str(seed)}
        )
        for seed in range(3)
    }
    assert len(found) == 1

"""The observer of ``make trial``: it finds what must not be, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from trial.__main__ import main
from trial.faults import FAULTS
from trial.observed import Judge, Judgement, Process, Processes

from tests.roots import ROOT
from tests.scenes.waiting import wait_until

ONE, TWO = frozenset([1]), frozenset([1, 2])


def process(pid: int, pod: str, allowed: frozenset[int], owns: int = 0) -> Process:
    return Process(pid, 100, pod, owns, escapes=False, allowed=allowed, has_ended=False)


OWNER = process(1, "owner", ONE, owns=1)


def judged(*walks: list[Process]) -> Judgement:
    before, now, after = walks
    judge = Judge()
    judge.look((before, now, after))
    return judge.judgement


def test_a_stranger_on_an_owners_cpu_is_found() -> None:
    found = judged([OWNER], [OWNER, process(2, "shared", TWO)], [OWNER])
    assert (found.strangers, found.misplaced, found.judged) == (1, 0, 1)
    assert found.findings == [
        "strangers: shared (process 2) may run on 1,2; 1 belong to owner",
    ]


def test_two_owners_of_one_cpu_are_found() -> None:
    walk = [OWNER, process(2, "other", ONE, owns=1)]
    assert judged(walk, walk, walk).strangers == 2


def test_an_owner_elsewhere_is_found() -> None:
    walk = [process(1, "owner", TWO, owns=1)]
    assert judged(walk, walk, walk).misplaced == 1


def test_an_owner_whose_only_cpu_is_on_its_way_offline_is_not_elsewhere() -> None:
    walk = [process(1, "owner", frozenset(), owns=1)]
    assert judged(walk, walk, walk).findings == []


def test_who_was_no_owner_all_along_proves_nothing() -> None:
    stranger = process(2, "shared", ONE)
    for walks in (
        ([], [OWNER, stranger], [OWNER]),
        ([OWNER], [OWNER, stranger], []),
        ([process(1, "owner", TWO, owns=1)], [OWNER, stranger], [OWNER]),
        ([OWNER], [OWNER, stranger], [replace(OWNER, has_ended=True)]),
    ):
        assert judged(*walks).findings == []


def test_a_process_of_the_owners_own_is_no_stranger() -> None:
    walk = [OWNER, process(2, "owner", ONE, owns=1)]
    found = judged(walk, walk, walk)
    assert (found.findings, found.judged) == ([], 0)


def test_an_owner_keeps_what_is_online_of_its_cpus() -> None:
    owner = process(1, "owner", TWO, owns=2)
    judge = Judge()
    judge.look(([owner],) * 3)
    left = [replace(owner, allowed=ONE), process(2, "shared", ONE)]
    judge.look((left,) * 3, offline=frozenset([2]))
    assert (judge.judgement.strangers, judge.judgement.misplaced) == (1, 0)
    away = [replace(owner, allowed=frozenset([0, 1]))]
    judge.look((away,) * 3, offline=frozenset([2]))
    assert judge.judgement.misplaced == 1


def test_an_owner_without_cpus_may_be_where_nobody_owns() -> None:
    owner, other = process(1, "owner", ONE, owns=1), process(2, "other", frozenset([2]), owns=1)
    judge = Judge()
    judge.look(([owner, other],) * 3)
    shared = [replace(owner, allowed=frozenset([0])), other]
    judge.look((shared,) * 3, offline=ONE)
    assert judge.judgement.findings == []
    intruder = [replace(owner, allowed=frozenset([0, 2])), other]
    judge.look((intruder,) * 3, offline=ONE)
    assert judge.judgement.strangers == 1


@contextmanager
def marked(pod: str, cpu: int, owns: int = 0) -> Iterator[int]:
    """A real process with the marks of a trial, on one CPU."""
    env = {**os.environ, "TRIAL_POD": pod, **({"TRIAL_OWNS": str(owns)} if owns else {})}
    code = f"import os, time; os.sched_setaffinity(0, [{cpu}]); print(flush=True); time.sleep(99)"
    child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        child.stdout.readline()
        yield child.pid
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_real_processes_on_one_cpu(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    trial, result = f"seen-{os.getpid()}", tmp_path / "result"
    with marked(f"{trial}/owner", cpu, owns=1) as owner, marked(f"{trial}/shared", cpu) as shared:
        seen = {one.pid: one for one in Processes(trial).walk()}
        assert seen.keys() == {owner, shared}
        assert seen[owner].owns == 1
        assert seen[owner].allowed == {cpu}
        sampler = subprocess.Popen(
            [sys.executable, "-m", "trial.sampler", trial, str(result)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert sampler.stdin is not None
        assert sampler.stdout is not None
        sampler.stdout.readline()
        # It does not judge in the first seconds after a CPU went or came, or before three walks.
        wait_until(lambda: _has_slept(sampler.pid, 20))
        sampler.stdin.close()
        sampler.stdout.close()
        assert sampler.wait(30) == 0
    found = json.loads(result.read_text())
    assert found["walks"] >= 3
    if found["unjudged"] == found["walks"]:
        pytest.skip("a CPU of this machine is offline")
    assert found["strangers"] > 0


def _has_slept(pid: int, times: int) -> bool:
    """Whether a process has gone to sleep so often: the sampler does so once for each walk."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "voluntary_ctxt_switches":
            return int(value) >= times
    return False


def test_nothing_of_the_product_is_in_the_observer() -> None:
    code = (
        "import sys, trial.__main__, trial.sampler;"
        "print([name for name in sys.modules if name.startswith('pinfold')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == list(FAULTS)
    with pytest.raises(SystemExit) as end:
        main(["--only", "no such thing"])
    assert end.value.code == 2
    assert "no such fault: no such thing" in capsys.readouterr().err

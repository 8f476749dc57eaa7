"""The observer of ``make trial``: it finds what must not be, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from trial.__main__ import Trial, main
from trial.crowd import Wanted
from trial.faults import FAULTS
from trial.judge import Judge, Judgement
from trial.node import Refused
from trial.observed import Process, Processes, Thread, Told
from trial.switches import Switch, Switches
from trial.switches import Told as Traced

from tests.roots import ROOT
from tests.scenes.waiting import PATIENCE, wait_until

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


def mover(allowed: set[int], generation: int, current: set[int], coming: set[int]) -> Process:
    told = Told(generation, frozenset(current), frozenset(coming))
    return replace(OWNER, allowed=frozenset(allowed), moves=True, told=told)


STAYS = mover({1, 2}, 4, {1, 2}, {1, 2})
GROWS = mover({1, 2, 3}, 5, {1, 2, 3}, {1, 2, 3})
LEAVES = mover({1, 2}, 5, {1, 2}, {2})
HAS_LEFT = mover({2}, 6, {2}, {2})


def beside(cpu: int, *, owner: Process = STAYS) -> list[Process]:
    return [owner, process(2, "shared", frozenset([cpu]))]


@pytest.mark.parametrize(
    ("first", "last", "theirs"),
    [
        (STAYS, STAYS, {1, 2}),
        (STAYS, GROWS, {1, 2}),
        (LEAVES, LEAVES, {1, 2}),
        (STAYS, LEAVES, {2}),
        (LEAVES, HAS_LEFT, {2}),
        (mover({2}, 6, {1, 2}, {2}), HAS_LEFT, {2}),  # it is told after it was done
        (GROWS, mover({1, 2, 3}, 6, {3}, {3}), {3}),
    ],
)
def test_an_owner_that_moves_has_what_it_keeps(
    first: Process, last: Process, theirs: set[int]
) -> None:
    """Between two walks it may lose what it was told, and have gained what it is told then."""
    middle = first
    for cpu in (1, 2, 3):
        found = judged([first], beside(cpu, owner=middle), [last])
        assert found.strangers == (cpu in theirs), cpu
        assert (found.misplaced, found.unsure) == (0, 0)


def test_an_owner_with_much_news_between_proves_nothing() -> None:
    back = mover({1, 2}, 7, {1, 2}, {1, 2})
    found = judged([STAYS], beside(1), [back])
    assert (found.findings, found.unsure) == ([], 1)
    found = judged([STAYS], beside(1), [replace(back, told=None)])
    assert (found.findings, found.unsure) == ([], 1)


def test_an_owner_that_has_not_what_it_was_told_to_keep_is_found() -> None:
    lost = replace(STAYS, allowed=frozenset([2]))
    found = judged([STAYS], [lost], [STAYS])
    assert found.findings == [
        "misplaced: owner (process 1) was told that it keeps 1,2, and may run on 2"
    ]
    # What it was told is its own, also where it is not.
    assert judged([STAYS], beside(1, owner=lost), [STAYS]).strangers == 1
    assert judged([LEAVES], [lost], [LEAVES]).findings == []


def test_an_owner_that_moves_and_whose_cpus_are_offline_is_where_others_are() -> None:
    away = mover({0}, 4, set(), set())
    judge = Judge()
    judge.look(([away], beside(0, owner=away), [away]), offline=TWO)
    assert judge.judgement.findings == []
    half = replace(STAYS, allowed=ONE)
    judge.look(([half], beside(1, owner=half), [half]), offline=frozenset([2]))
    assert judge.judgement.strangers == 1


def ran(cpu: int, turns: int) -> Process:
    return replace(process(2, "shared", frozenset([0])), threads=(Thread(9, cpu, turns),))


@pytest.mark.parametrize(
    ("first", "then", "found"),
    [
        (ran(1, 5), ran(1, 5), 0),  # it sleeps since before the owner came
        (ran(1, 5), ran(1, 6), 1),
        (ran(1, 5), ran(0, 9), 0),
        (ran(0, 5), ran(2, 6), 1),
    ],
)
@pytest.mark.parametrize("owner", [STAYS, replace(OWNER, owns=2, allowed=TWO)])
def test_a_stranger_that_ran_on_an_owners_cpu_is_found(
    first: Process, then: Process, found: int, owner: Process
) -> None:
    judge = Judge()
    for stranger in (first, then):
        judge.look(([owner], [owner, stranger], [owner]))
    assert judge.judgement.strangers == found
    # What is not judged is not held against what came before.
    judge.skip()
    judge.look(([owner], [owner, ran(1, 99)], [owner]))
    assert judge.judgement.strangers == found


def test_what_a_real_process_is_told(tmp_path: Path) -> None:
    trial = f"told-{os.getpid()}"
    code = "import time; print(flush=True); time.sleep(99)"
    env = os.environ | {
        "TRIAL_POD": f"{trial}/mover",
        "TRIAL_OWNS": "2",
        "TRIAL_MOVES": "1",
        "PINFOLD_CPUS": "1",
        "PINFOLD_WHERE": str(tmp_path),
    }
    news = {"generation": 3, "current": {"cpus": "1-2,5"}, "coming": {"cpus": ""}}
    (tmp_path / "assignment.json").write_text(json.dumps(news))
    child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        try:
            child.stdout.readline()
            processes = Processes(trial)
            (seen,) = processes.walk()
            assert seen.moves
            assert seen.told == Told(3, frozenset([1, 2, 5]), frozenset())
            assert [one.tid for one in seen.threads] == [child.pid]
            assert seen.threads[0].turns > 0
            (tmp_path / "assignment.json").write_text("{")
            assert processes.walk()[0].told is None
        finally:
            child.kill()
            child.wait()


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
        assert sampler.wait(30 * PATIENCE) == 0
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


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """A trial of one fault that was done, and looked on; without an agent."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trial = Trial(1, ["resize"], each=True)
    for row in trial.rows.values():
        row.times = 1
    trial.crowd.resized = 3
    trial.sampled = {"judged": 7, "moving": 2}
    assert trial.findings() == []
    return trial


def test_a_fault_that_was_asked_for_and_not_done_is_a_finding(trial: Trial) -> None:
    trial.rows["resize"].times = 0
    assert trial.findings() == ["resize: was not done"]
    assert "not done: its turn did not come" in trial.table()


def test_an_observer_who_saw_nothing_is_a_finding(trial: Trial) -> None:
    trial.sampled["moving"] = 0
    assert trial.findings() == ["the observer saw no owner while it moved"]
    trial.sampled["judged"] = 0
    assert "the observer saw nobody beside an owner" in trial.findings()


def test_nobody_is_asked_to_move_before_the_agent_is_ready(trial: Trial) -> None:
    trial.crowd.wanted["mover-1"] = Wanted(1, moves=True)
    with trial.crowd.moving(rebalance=True):
        time.sleep(0.2)
    assert trial.crowd.requests == 0
    with trial.crowd.moving(rebalance=True):
        trial.node.is_ready = True
        wait_until(lambda: trial.crowd.requests > 0)


def test_nobody_is_asked_for_anything_when_a_rebalance_is_not_answered(trial: Trial) -> None:
    trial.crowd.wanted["mover-1"] = mover = Wanted(2, moves=True, maybe=frozenset([1, 2]))
    trial.crowd.rebalance()
    assert (trial.crowd.requests, trial.crowd.wanted) == (1, {"mover-1": mover})
    trial.crowd.drop("mover-1")
    assert trial.crowd.unsure["mover-1"].maybe == {1, 2}


@pytest.mark.parametrize(
    ("status", "text", "maybe"),
    [
        (503, "it has taken more than 40 s; it goes on", frozenset([1, 2])),
        (503, "the resize was undone: no", frozenset()),
        (409, "another resize has taken its place", frozenset()),
    ],
)
def test_a_resize_that_goes_on_after_its_answer_may_be_done(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, status: int, text: str, maybe: frozenset[int]
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise Refused(status, text)

    monkeypatch.setattr(trial.node, "ask", refuses)
    trial.crowd.wanted["mover-1"] = mover = Wanted(1, moves=True)
    trial.crowd.resize("mover-1", 2)
    assert (mover.owns, mover.maybe) == (1, maybe)


def test_nothing_is_settled_while_moves_are_in_flight(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = {"why": "resize", "written": 1}
    monkeypatch.setattr(trial.node, "ask", lambda _, path: {"move": move, "path": path})
    assert trial.crowd._problems() == [  # noqa: SLF001 - what it waits for
        'a plan of moves is in flight: {"why": "resize", "written": 1}'
    ]


def test_the_scheduler_tells_when_a_thread_is_itself() -> None:
    """Before its program is executed a process is of whoever forked it; dying, it is nobody's."""
    found = wait_until(_switches_of_a_child)
    assert found is not None
    switches, seen = found
    assert not switches.was_itself(seen[0])
    assert any(switches.was_itself(one) for one in seen)
    assert not switches.was_itself(replace(seen[-1], at=time.monotonic()))


def _switches_of_a_child() -> tuple[Switches, list[Switch]] | None:
    """From its fork to its end; None where a busy machine has filled the kernel's buffer."""
    switches = Switches.open(f"itself-{os.getpid()}")
    if switches is None:
        pytest.skip("no tracing here")
    read: list[Switch] = []

    def has_ended() -> bool:
        read.extend(switches.read())
        return child.poll() is not None

    try:
        code = "import time; time.sleep(0.2)"
        child = subprocess.Popen([sys.executable, "-c", code], preexec_fn=lambda: time.sleep(0.1))  # noqa: PLW1509 - it sleeps
        wait_until(has_ended)
        read.extend(switches.read())
    finally:
        switches.close()
    lost = switches.told.certain_since > 0
    return None if lost else (switches, [one for one in read if one.tid == child.pid])


def test_what_came_before_lost_events_proves_nothing() -> None:
    """What a thread executed may be among them."""
    switch = b"  <idle>-0  [000] d..2.  %s: sched_switch: prev_comm=swapper/0 ==> next_pid=7 x"
    traced = Traced()
    early, none, late = (
        traced.take(line) for line in (switch % b"1.5", b"CPU:1 [LOST 42 EVENTS]", switch % b"2.5")
    )
    assert none is None
    assert early == Switch(1.5, 0, 7)
    assert late is not None
    assert (traced.was_itself(early), traced.was_itself(late)) == (False, True)
    assert Traced().was_itself(early)

"""When a lease is over, on clocks that jump; and what is undone then, on folders for cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.guardian import program
from pinfold.adapters.guardian.program import SECOND, Done, Order, Watch, narrow, parse, undo
from pinfold.core.values.cpuset import CPUSet

LEASE = 2 * SECOND
times = st.integers(min_value=0, max_value=200 * SECOND)
cpusets = st.frozensets(st.integers(min_value=0, max_value=40), max_size=8)


@given(st.lists(st.tuples(times, times, st.booleans()), max_size=12))
def test_once_over_a_lease_is_over_whatever_the_clocks_say(
    looks: list[tuple[int, int, bool]],
) -> None:
    watch, over = Watch(LEASE), False
    for now, renewed, closed in looks:
        was, why = over, watch.why
        over = watch.look(now, renewed, closed=closed)
        assert over == (was or closed or abs(now - renewed) > LEASE)
        assert bool(watch.why) == over
        if was:
            assert watch.why == why


@given(st.lists(st.integers(min_value=0, max_value=LEASE), max_size=20))
def test_a_lease_that_is_renewed_in_time_holds(pauses: list[int]) -> None:
    watch, renewed = Watch(LEASE), 5 * SECOND
    for pause in pauses:
        # A guardian that looks late sees what was renewed meanwhile.
        assert not watch.look(renewed + pause, renewed, closed=False)
        renewed += pause


@given(cpusets)
def test_the_kernels_lists_are_read(cpus: frozenset[int]) -> None:
    assert parse(f"{CPUSet(cpus)}\n") == cpus
    assert parse(",".join(map(str, cpus))) == cpus


def order(root: Path, caps: dict[str, str] | None = None) -> Order:
    pairs = [text for pair in (caps or {}).items() for text in pair]
    place = [str(root / one) for one in ("shared", "idle")]
    return Order([str(root / "log"), "2", "0.5", *place, "tasks", str(len(pairs) // 2), *pairs])


def put(folder: Path, cpus: frozenset[int] | set[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpuset.cpus").write_text(f"{CPUSet(cpus)}\n")
    (folder / "tasks").write_text("")


def has(folder: Path) -> set[int]:
    return parse((folder / "cpuset.cpus").read_text())


@given(pool=cpusets.filter(bool), idle=cpusets, inner=cpusets)
def test_the_idle_side_is_narrowed_and_never_given_a_cpu_that_it_had_not(
    tmp_path_factory: pytest.TempPathFactory,
    pool: frozenset[int],
    idle: frozenset[int],
    inner: frozenset[int],
) -> None:
    root = tmp_path_factory.mktemp("tree")
    put(root / "shared", pool)
    put(root / "idle", idle)
    put(root / "idle/pod/main", inner & idle)
    done = Done()
    narrow(order(root), done)
    assert has(root / "idle") == (idle & pool or pool)
    assert has(root / "idle/pod/main") <= pool
    assert done.cpus == idle - pool
    again = Done()
    narrow(order(root), again)
    assert not again.cpus


def test_every_write_is_one_that_cgroup_v1_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cpuset is always within the one above it, and has all CPUs of those below."""
    put(tmp_path / "shared", {0})
    for folder in ("idle", "idle/pod", "idle/pod/main"):
        put(tmp_path / folder, {1, 2})
    put(tmp_path / "idle/pod/other", {2})
    write, writes = program.write, 0

    def checked(path: str, text: str) -> None:
        nonlocal writes
        write(path, text)
        writes += 1
        for folder in (tmp_path / "idle").rglob("*/"):
            assert has(folder) <= has(folder.parent)

    monkeypatch.setattr(program, "write", checked)
    narrow(order(tmp_path), Done())
    assert has(tmp_path / "idle") == has(tmp_path / "idle/pod/main") == {0}
    assert writes > 4


def test_a_cap_is_taken_away_and_counted_once(tmp_path: Path) -> None:
    put(tmp_path / "shared", {0})
    put(tmp_path / "idle", {0})
    cap, gone = tmp_path / "cpu.max", tmp_path / "no/cpu.max"
    cap.write_text("50000 100000\n")
    caps = order(tmp_path, {str(cap): "max", str(gone): "max"})
    done = Done()
    undo(caps, done)
    assert cap.read_text().split()[0] == "max"
    assert (done.cpus, done.uncapped) == (set(), True)
    done = Done()
    undo(caps, done)
    assert not done.uncapped


def test_without_an_idle_side_there_is_nothing_to_undo(tmp_path: Path) -> None:
    done = Done()
    undo(order(tmp_path), done)
    assert (done.cpus, done.uncapped) == (set(), False)


def test_without_a_pool_nobody_knows_where_to(tmp_path: Path) -> None:
    put(tmp_path / "idle", {0})
    with pytest.raises(OSError, match="No such file"):
        undo(order(tmp_path), Done())
    put(tmp_path / "shared", set())
    with pytest.raises(OSError, match="has no CPU"):
        undo(order(tmp_path), Done())


def test_one_who_writes_all_the_time_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "shared", {0})
    put(tmp_path / "idle", {0, 1})
    monkeypatch.setattr(program, "write", lambda _path, _text: None)
    with pytest.raises(OSError, match="does not stay as it is written"):
        undo(order(tmp_path), Done())


def test_threads_of_the_idle_side_are_let_run_on_all_of_it(tmp_path: Path) -> None:
    cpus = os.sched_getaffinity(0)
    put(tmp_path / "shared", cpus)
    put(tmp_path / "idle", cpus)
    (tmp_path / "idle/tasks").write_text(f"{os.getpid()}\n{2**22 + 1}\n")
    undo(order(tmp_path), Done())
    assert os.sched_getaffinity(0) == cpus
    if len(cpus) > 1:
        # What cannot be reached by a mask is never taken for done.
        put(tmp_path / "shared", {min(cpus)})
        with pytest.raises(OSError, match="threads may still run"):
            undo(order(tmp_path), Done())

"""Executors by name: real ones carry calls out, and what cannot be had is told in one line."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import BrokenExecutor
from typing import Any

import pytest

from pinfold.adapters.executors.local import local_pool, usable_cpus
from pinfold.adapters.executors.opening import Choice, open_pool, parse_option
from pinfold.adapters.executors.pool import ExecutorError

THREADS = "concurrent.futures:ThreadPoolExecutor"


def _squares(choice: Choice) -> list[int]:
    with open_pool(choice, 8) as pool:
        return [one.result() for one in [pool.executor.submit(pow, n, 2) for n in range(20)]]


@pytest.mark.parametrize(
    "choice",
    [
        Choice(),
        Choice(workers=1),
        Choice(workers=2),
        Choice(THREADS, options={"max_workers": 3}),
        Choice("concurrent.futures.process:ProcessPoolExecutor", options={"max_workers": 1}),
    ],
    ids=str,
)
def test_calls_are_made(choice: Choice) -> None:
    assert _squares(choice) == [n * n for n in range(20)]


def test_one_worker_is_this_process() -> None:
    with open_pool(Choice(workers=1), 8) as pool:
        assert pool.executor.submit(os.getpid).result() == os.getpid()
    with open_pool(Choice(), 1) as pool:
        assert pool.executor.submit(os.getpid).result() == os.getpid(), "for one call, too"
    with open_pool(Choice(workers=2), 8) as pool:
        assert pool.executor.submit(os.getpid).result() != os.getpid()


def test_by_themselves_there_are_as_many_workers_as_cpus() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert usable_cpus() == len(before)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Choice("nobody"), "'nobody' is no executor; there are processes, dask, and package"),
        (Choice("no.such.module:It"), "no.such.module:It: ModuleNotFoundError"),
        (Choice("concurrent.futures:NoSuch"), "NoSuch: AttributeError"),
        (Choice(THREADS, options={"max_workers": 0}), "ValueError: max_workers"),
        (Choice(THREADS, options={"nobody": 1}), "TypeError"),
        (Choice("collections:OrderedDict"), "gives OrderedDict, which is no concurrent.futures"),
        (Choice(THREADS, workers=2), "one of its own options"),
        (Choice(options={"max_workers": 2}), "has no options"),
        (Choice(address="tcp://somewhere:8786"), "of the executor dask only"),
    ],
    ids=str,
)
def test_what_cannot_be_had(choice: Choice, message: str) -> None:
    with pytest.raises(ExecutorError, match=message):
        open_pool(choice, 8)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("max_workers=4", ("max_workers", 4)),
        ("name=four", ("name", "four")),
        ("name=a=b", ("name", "a=b")),
        ('names=["a"]', ("names", ["a"])),
        ("name=", ("name", "")),
    ],
)
def test_an_option_is_json_or_text(text: str, found: tuple[str, Any]) -> None:
    assert parse_option(text) == found


@pytest.mark.parametrize("text", ["", "=4", "max workers=4", "max_workers"])
def test_no_option(text: str) -> None:
    with pytest.raises(ExecutorError, match="an option is NAME=VALUE"):
        parse_option(text)


def test_a_worker_that_died_is_known() -> None:
    with local_pool(2) as pool:
        pid = pool.executor.submit(os.getpid).result()
        doomed = pool.executor.submit(time.sleep, 60)
        other = pool.executor.submit(time.sleep, 60)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(BrokenExecutor):
            doomed.result(timeout=30)
        with pytest.raises(BrokenExecutor):
            other.result(timeout=30)
        assert pool.deaths() == {pid: "got SIGKILL"}


def test_a_key_of_the_terminal_ends_no_worker() -> None:
    with local_pool(2) as pool:
        pid = pool.executor.submit(os.getpid).result()
        os.kill(pid, signal.SIGINT)
        assert {pool.executor.submit(os.getpid).result() for _ in range(20)} >= {pid}


def test_workers_are_given_up_with_what_they_do() -> None:
    pool = local_pool(2)
    pid = pool.executor.submit(os.getpid).result()
    slow = pool.executor.submit(time.sleep, 600)
    pool.give_up()
    assert slow.done()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

"""How long what failed is left alone."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import pytest

from pinfold.ports.errors import PortError
from pinfold.retry.backoff import Backoff
from tests.scenes.manager_harness import run_virtually

P = ParamSpec("P")


def virtually(scene: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test in an event loop whose time passes at once."""

    @functools.wraps(scene)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtually(scene(*args, **kwargs))

    return test


async def longer(backoff: Backoff, times: int) -> list[float]:
    return [backoff.failed() for _ in range(times)]


@virtually
async def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    assert await longer(Backoff(1.0, 6.0), 5) == [1.0, 2.0, 4.0, 6.0, 6.0]


@virtually
async def test_after_it_went_well_the_first_pause_is_the_first() -> None:
    backoff = Backoff(1.0, 60.0)
    await longer(backoff, 3)
    backoff.well()
    assert (backoff.problem, backoff.due, backoff.pause) == ("", 0.0, 1.0)
    assert backoff.failed() == 1.0


@virtually
async def test_it_is_due_after_the_pause() -> None:
    backoff = Backoff(5.0, 60.0)
    backoff.failed()
    assert backoff.due == asyncio.get_running_loop().time() + 5.0


@virtually
async def test_a_problem_is_told_when_it_begins_and_when_it_becomes_another() -> None:
    told: list[str] = []
    backoff = Backoff(1.0, 60.0, report=told.append)
    for problem in ("no route", "no route", "refused", "refused"):
        backoff.failed(problem)
    backoff.well()
    backoff.failed("refused")
    assert told == ["no route", "refused", "refused"]


@virtually
async def test_a_try_that_fails_is_waited_for_and_told() -> None:
    told: list[str] = []
    backoff = Backoff(7.0, 60.0, PortError, report=told.append)
    began = asyncio.get_running_loop().time()
    async with backoff:
        raise PortError("the disk is full")
    assert backoff.problem == "the disk is full"
    assert asyncio.get_running_loop().time() == began + 7.0 == backoff.due
    assert told == ["the disk is full"]
    async with backoff:
        pass
    assert backoff.problem == ""


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
@virtually
async def test_what_it_does_not_wait_for_is_passed_on(kind: type[BaseException]) -> None:
    backoff = Backoff(60.0, 60.0, PortError)
    with pytest.raises(kind):
        async with backoff:
            raise kind
    assert backoff.problem == ""


@virtually
async def test_what_must_be_done_is_tried_until_it_is() -> None:
    failures = [PortError("a"), PortError("a"), PortError("b")]
    told: list[tuple[str, float]] = []

    async def work() -> str:
        if failures:
            raise failures.pop(0)
        return "done"

    backoff = Backoff(1.0, 60.0, PortError)
    result = await backoff.insist(work, lambda error, pause: told.append((str(error), pause)))
    assert result == "done"
    assert told == [("a", 1.0), ("a", 2.0), ("b", 4.0)]
    assert backoff.problem == ""


@virtually
async def test_what_is_no_failure_ends_the_tries() -> None:
    async def work() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await Backoff(60.0, 60.0, PortError).insist(work, lambda *_: None)

"""Background work that fails goes on, and is seen to fail."""

from __future__ import annotations

import asyncio

import pytest

from pinfold.ports.errors import PortError
from pinfold.retry.loops import LONGEST_PAUSE, Loops
from tests.scenes.manager_harness import run_virtually

NO_FILES = OSError(24, "Too many open files")


class Work:
    """Fails so often, then does not."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.done: list[float] = []
        self.calls = 0

    async def once(self) -> None:
        self.calls += 1
        if self.faults:
            raise self.faults.pop(0)
        self.done.append(asyncio.get_running_loop().time())

    async def for_ever(self) -> None:
        await self.once()
        await asyncio.get_running_loop().create_future()


def test_a_step_that_fails_is_told_once_and_tried_less_and_less_often() -> None:
    told: list[tuple[str, str]] = []

    async def work() -> None:
        loops = Loops(lambda name, problem: told.append((name, problem)))
        step = Work(*[NO_FILES] * 20)
        other = Work()
        while not step.done:
            await loops.attempt("look", step.once)
            assert await loops.attempt("other", other.once)
            if not step.done:
                assert loops.problems() == ["look: OSError: [Errno 24] Too many open files"]
            await asyncio.sleep(0.25)
        assert step.calls == 21
        assert other.calls > 500, "one that fails holds up nobody"
        assert loops.problems() == []
        assert told == [("look", "OSError: [Errno 24] Too many open files"), ("look", "")]
        (named, counted) = loops.figures()
        assert (named.value, counted.value, counted.labels) == (None, 20, {"work": "look"})
        assert await loops.attempt("look", step.once), "it is tried at once again"

    run_virtually(work())


def test_what_ends_with_an_error_is_begun_again() -> None:
    told: list[str] = []

    async def work() -> None:
        loops = Loops(lambda _, problem: told.append(problem.splitlines()[0] if problem else ""))
        one = Work(PortError("no room", "make some"), ValueError("what?"), ZeroDivisionError())
        task = asyncio.create_task(loops.keep("one", one.for_ever))
        await asyncio.sleep(10)
        assert len(one.done) == 1
        assert loops.problems() == ["one: ZeroDivisionError:"], "until it has gone on for a while"
        await asyncio.sleep(60)
        assert loops.problems() == []
        assert told == ["no room (make some)", "ValueError: what?", "ZeroDivisionError:", ""]
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    run_virtually(work())


def test_the_pause_has_a_bound() -> None:
    async def work() -> None:
        loops = Loops()
        one = Work(*[NO_FILES] * 1000)
        task = asyncio.create_task(loops.keep("one", one.for_ever))
        await asyncio.sleep(1000)
        before = one.calls
        await asyncio.sleep(10 * LONGEST_PAUSE)
        assert 9 <= one.calls - before <= 11
        task.cancel()

    run_virtually(work())


def test_what_ends_by_itself_has_ended() -> None:
    async def work() -> None:
        loops = Loops()
        one = Work(NO_FILES)
        await loops.keep("one", one.once)
        assert (one.calls, loops.problems()) == (2, [])

    run_virtually(work())


def test_an_error_of_the_configuration_is_one_in_the_first_attempt_only() -> None:
    async def work() -> None:
        loops = Loops()
        refused = PortError("somebody listens there")
        with pytest.raises(PortError, match="somebody listens"):
            await loops.keep("socket", Work(refused).once, fatal=(PortError,))
        later = Work(NO_FILES, refused)
        await loops.keep("socket", later.once, fatal=(PortError,))
        assert later.calls == 3

    run_virtually(work())


def test_what_nobody_waits_for_is_a_problem_for_a_while() -> None:
    told: list[str] = []

    async def work() -> None:
        loops = Loops(lambda _, problem: told.append(problem))
        for _ in range(5):
            loops.note("event loop", NO_FILES, doing="accepting\n<socket>")
            await asyncio.sleep(30)
        assert told == ["accepting: OSError: [Errno 24] Too many open files"]
        assert loops.problems() == [f"event loop: {told[0]}"]
        await asyncio.sleep(31)
        assert (loops.problems(), told[1:]) == ([], [""])

    run_virtually(work())


def test_the_first_of_a_group_is_told_with_its_place() -> None:
    told: list[str] = []

    async def failing() -> None:
        async def inner() -> None:
            raise ValueError("deep\ndown")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(inner())

    async def work() -> None:
        loops = Loops(lambda _, problem: told.append(problem))
        await loops.attempt("group", failing)
        assert loops.problems() == ["group: ValueError: deep down"]

    run_virtually(work())
    assert told[0].startswith("ValueError: deep down\n")
    assert "in inner" in told[0]

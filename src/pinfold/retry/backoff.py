"""How long to wait before what failed is tried again: twice as long each time, until it goes well.

There is one of these for each thing that may fail::

    backoff = Backoff(1.0, 60.0, KubernetesError, report=log.warning)
    while True:
        async with backoff:
            await publish()
        if not backoff.problem:
            await asyncio.sleep(PERIOD)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


def pause_after(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(first * 2.0 ** min(failures - 1, 30), longest)


class Backoff:
    """The tries of one thing; as a context manager around one of them, see below.

    What is raised in an ``async with`` of it and is among ``errors`` is kept, told and waited for;
    whatever else is raised is passed on, and with nothing raised all is well.

    Args:
        first: seconds to wait after the first failure.
        longest: seconds at which it becomes no longer.
        errors: what counts as a failure.
        report: told a problem when it begins or becomes another one.

    Attributes:
        problem: why the last try failed; "" while all is well.
        due: when it may be tried again, by the event loop's clock.
    """

    __slots__ = ("_errors", "_failures", "_first", "_longest", "_report", "due", "problem")

    def __init__(
        self,
        first: float,
        longest: float,
        *errors: type[Exception],
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._first = first
        self._longest = longest
        self._errors = errors
        self._report = report
        self.problem = ""
        self.due = 0.0
        self._failures = 0

    @property
    def pause(self) -> float:
        """Seconds to wait if it fails now."""
        return pause_after(self._failures + 1, self._first, self._longest)

    def failed(self, problem: str = "") -> float:
        """It has failed; the seconds to wait."""
        if problem != self.problem:
            self.problem = problem
            if problem and self._report is not None:
                self._report(problem)
        pause = self.pause
        self._failures += 1
        self.due = asyncio.get_running_loop().time() + pause
        return pause

    def well(self) -> None:
        """It went well: the next failure is the first again."""
        self.problem, self.due, self._failures = "", 0.0, 0

    async def insist(
        self, work: Callable[[], Awaitable[T]], failed: Callable[[Exception, float], None]
    ) -> T:
        """Try until it goes well; what the work gives.

        ``failed`` is told each error of ``errors``, and the seconds until the next try.
        """
        while True:
            try:
                result = await work()
            except self._errors as error:
                pause = self.failed(str(error))
                failed(error, pause)
                await asyncio.sleep(pause)
            else:
                self.well()
                return result

    async def __aenter__(self) -> None:
        """Begin a try."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Wait where it has failed."""
        if error is None:
            self.well()
            return False
        if not isinstance(error, self._errors):
            return False
        await asyncio.sleep(self.failed(str(error)))
        return True

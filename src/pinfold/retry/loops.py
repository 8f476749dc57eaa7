"""Work that goes on in the background: whatever fails in it is said, counted, and tried again.

Nothing that happens outside (no file descriptor left, a disk that errs, a peer that talks nonsense)
may end the agent, or end a part of it unseen.  So every loop goes through here.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator
from typing import Any, Final

from pinfold.ports.errors import PortError
from pinfold.ports.figures import Figure
from pinfold.retry.backoff import Backoff

FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 10.0
"""Seconds before work that failed is tried again, twice as many each time up to these."""

CALM: Final = 60.0
"""Seconds after which something that went on all the time counts as well again."""

MOST_TEXT: Final = 500

Report = Callable[[str, str], None]
"""Told the name of some work and its problem; "" when it is well again."""


def _nobody(_name: str, _problem: str) -> None: ...


class Loops:
    """The background work of one agent, in one event loop.

    Args:
        report: told each problem when it begins, changes or ends.
    """

    def __init__(self, report: Report = _nobody) -> None:
        self._report = report
        self._troubles: dict[str, Backoff] = {}
        self._failures: Counter[str] = Counter()
        self._calming: dict[str, asyncio.TimerHandle] = {}

    async def attempt(self, name: str, work: Callable[..., Awaitable[object]], *args: Any) -> bool:  # noqa: ANN401 - the work's own
        """Do some work once, unless it has just failed; whether it was done.

        What it raises is no error of the caller; ``name`` is for problems and metrics.
        """
        trouble = self._troubles.get(name)
        if trouble is not None and asyncio.get_running_loop().time() < trouble.due:
            return False
        try:
            await work(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, the agent goes on
            self._failed(name, error)
            return False
        self._well(name)
        return True

    async def keep(
        self,
        name: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        *,
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        """Keep something going that is to go on for ever; returns when it says that it has ended.

        Args:
            name: what it is called, in problems and metrics.
            work: begins it, each time anew.
            fatal: what, raised by the first attempt, is an error of who configured it.
        """
        loop = asyncio.get_running_loop()
        first = True
        while True:
            calm = loop.call_later(CALM, self._well, name)
            try:
                await work()
            except Exception as error:
                if first and isinstance(error, fatal):
                    raise
                self._failed(name, error)
            else:
                self._well(name)
                return
            finally:
                calm.cancel()
            first = False
            await asyncio.sleep(self._troubles[name].due - loop.time())

    def note(self, name: str, error: BaseException, *, doing: str) -> None:
        """Take note of a failure that nobody waits for; it counts as a problem for a while."""
        self._failed(name, error, doing)
        if (before := self._calming.pop(name, None)) is not None:
            before.cancel()
        loop = asyncio.get_running_loop()
        self._calming[name] = loop.call_later(CALM, self._well, name)

    def fails(self, name: str) -> bool:
        """Whether the last try of what is called so has failed."""
        return name in self._troubles

    def problems(self, *, besides: Container[str] = ()) -> list[str]:
        """What fails now, but for what is called so."""
        return [f"{n}: {t.problem}" for n, t in self._troubles.items() if n not in besides]

    def figures(self) -> Iterator[Figure]:
        """How often what has failed."""
        name, meaning = "pinfold_background_failures", "Failures of work that was tried again."
        yield Figure(name, meaning, None, {"work": ""})
        for work, count in sorted(self._failures.items()):
            yield Figure(name, meaning, count, {"work": work})

    def _failed(self, name: str, error: BaseException, doing: str = "") -> None:
        trouble = self._troubles.setdefault(name, Backoff(FIRST_PAUSE, LONGEST_PAUSE))
        problem = ": ".join(filter(None, (doing.partition("\n")[0], _words(error))))
        if problem != trouble.problem:
            self._report(name, _told(problem, error))
        trouble.failed(problem)
        self._failures[name] += 1

    def _well(self, name: str) -> None:
        if self._troubles.pop(name, None) is not None:
            self._report(name, "")


def _words(error: BaseException) -> str:
    """What went wrong, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = str(error) if isinstance(error, PortError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:MOST_TEXT]


def _told(problem: str, error: BaseException) -> str:
    """The problem; where nobody has foreseen it, with the place in the code."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, PortError | OSError):
        return problem
    # Not the exception itself: some renderers print the values of variables, too.
    return f"{problem}\n{''.join(traceback.format_tb(error.__traceback__))}"

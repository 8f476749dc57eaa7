"""Waiting for CPUs that others have: when it is tried again, and when no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import click

from pinfold.cli.output import Refused

_T = TypeVar("_T")

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
_ANYWAY: Final = 30.0
"""Seconds after which it is tried again, also where nothing seems to have changed."""


class CPUsTakenError(Refused):
    """What is asked for cannot be had now; ``ever`` says whether it could be, if others left."""

    def __init__(self, problem: str, *, ever: bool = True) -> None:
        super().__init__(problem)
        self.ever = ever


class Waiting:
    """How long somebody waits for what others have.

    Args:
        wait: whether he does at all.
        timeout: seconds, after which he gives up; None: never.
    """

    def __init__(self, *, wait: bool, timeout: float | None) -> None:
        self._wait = wait
        self._timeout = timeout

    def insist(
        self,
        attempt: Callable[[], _T],
        state: Callable[[], object],
        sleep: Callable[[float], None] = time.sleep,
    ) -> _T:
        """What an attempt gives, made again whenever another state is seen.

        Raises:
            CPUsTakenError: from ``attempt``, where nobody waits, or it could never be had.
            Refused: it could not be had in time.
        """
        began, told = time.monotonic(), False
        while True:
            # Before the attempt: what is freed while that is made is a change as well.
            seen = state() if self._wait else None
            try:
                return attempt()
            except CPUsTakenError as error:
                if not (self._wait and error.ever):
                    raise
                if not told:
                    told = True
                    problem = f"pinfold: waiting until CPUs are free: {error.message}"
                    click.echo(problem, err=True)
                self._pause(began, state, seen, sleep, error)

    def _pause(
        self,
        began: float,
        state: Callable[[], object],
        seen: object,
        sleep: Callable[[float], None],
        error: CPUsTakenError,
    ) -> None:
        pause, again = _FIRST_PAUSE, time.monotonic() + _ANYWAY
        while True:
            if self._timeout is not None:
                left = began + self._timeout - time.monotonic()
                if left <= 0:
                    problem = f"{error.message}; nothing was run within {self._timeout:g} s"
                    raise Refused(problem)
                pause = min(pause, left)
            sleep(pause)
            if state() != seen or time.monotonic() >= again:
                return
            pause = min(2 * pause, _LONGEST_PAUSE)

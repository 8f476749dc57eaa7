"""Since when a watch has told nothing good: who decides by what it told has to know its age.

A watch that works may be silent for a minute, until a bookmark comes, and for several where nothing
has changed since the server was started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 10.0
"""Seconds for which what a watch has told is taken for what is."""


class Hearing:
    """What is heard of one watch.

    Args:
        what: of what it tells.
        report: told its problems; "" when they are over.
        patience: seconds for which what it has told is fresh.
    """

    def __init__(
        self, what: str, report: Callable[[str], None], patience: float = PATIENCE
    ) -> None:
        self._what = what
        self._report = report
        self._patience = patience
        self._heard = float("-inf")
        self._problem = ""
        self._since = 0.0

    def heard(self) -> None:
        """Something came: all that was before it is known."""
        self._heard = _now()

    def told(self, problem: str) -> None:
        """It fails, or with "" no longer; to be given to who watches as ``report``."""
        if problem and not self._problem:
            self._since = _now()
        self._problem = problem
        self._report(problem)

    def is_fresh(self, also: float = float("-inf")) -> bool:
        """Whether what is known was so a moment ago; ``also`` is when somebody looked himself."""
        return _now() - max(self._heard, also) < self._patience

    def problems(self) -> tuple[str, ...]:
        """What to tell of one that fails for longer than that."""
        if not self._problem or (lasts := _now() - self._since) < self._patience:
            return ()
        return (f"{self._what} are not followed for {lasts:.0f} s: {self._problem}",)


def _now() -> float:
    return asyncio.get_running_loop().time()

"""Which lines of the package an input reaches that none before it did.

With ``sys.monitoring`` (Python 3.12) each line reports once and is then switched off, so the cost
vanishes; before that ``sys.settrace`` is used for a part of the inputs.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, Protocol

TRACED_SHARE: Final = 0.25


class Coverage(Protocol):
    """Runs a call and tells whether it reached something new."""

    def reaches_new(self, call: Callable[[], None]) -> bool:
        """Run the call; whatever it raises passes through."""


def best_coverage(package: str, rng: random.Random) -> Coverage:
    """The cheapest kind that this Python has."""
    if sys.version_info >= (3, 12):
        return _Monitoring(package)
    return _Tracing(package, rng)


class _Tracing:
    def __init__(self, package: str, rng: random.Random) -> None:
        self._inside = f"/{package}/"
        self._rng = rng
        self._seen: set[tuple[CodeType, int]] = set()
        self._wanted: dict[CodeType, bool] = {}

    def reaches_new(self, call: Callable[[], None]) -> bool:
        if self._rng.random() > TRACED_SHARE:
            call()
            return False
        before = len(self._seen)
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(None)
        return len(self._seen) > before

    def _enter(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        del event, arg
        code = frame.f_code
        wanted = self._wanted.get(code)
        if wanted is None:
            wanted = self._wanted[code] = self._inside in code.co_filename
        return self._line if wanted else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        del arg
        if event == "line":
            self._seen.add((frame.f_code, frame.f_lineno))
        return self._line


if sys.version_info >= (3, 12):

    class _Monitoring:
        def __init__(self, package: str) -> None:
            self._inside = f"/{package}/"
            self._new = False
            monitoring = sys.monitoring
            tool = monitoring.COVERAGE_ID
            monitoring.use_tool_id(tool, "pinfold-fuzz")
            monitoring.register_callback(tool, monitoring.events.LINE, self._line)
            monitoring.set_events(tool, monitoring.events.LINE)

        def reaches_new(self, call: Callable[[], None]) -> bool:
            self._new = False
            call()
            return self._new

        def _line(self, code: CodeType, line: int) -> object:
            del line
            if self._inside in code.co_filename:
                self._new = True
            return sys.monitoring.DISABLE

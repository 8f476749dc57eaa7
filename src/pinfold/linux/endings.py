"""How a program ends that is told to, by SIGINT or SIGTERM: with 128 + the signal, in silence."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

BY_SIGNAL: Final = 128
"""Added to the number of the signal that ended a program, as shells do."""

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


def exit_status(code: int) -> int:
    """How to end as a process did that ended with ``code``, below 0 where a signal ended it."""
    return BY_SIGNAL - code if code < 0 else code


def end_at_once() -> None:
    """From now on SIGINT and SIGTERM end the program where it is: there is nothing to clear up.

    So it is while modules are loaded, where an exception would be lost or be a traceback. A signal
    that the caller has the program ignore stays ignored.
    """
    _have(_at_once, _at_once)


def end_with_cleanup() -> None:
    """From now on they raise KeyboardInterrupt and SystemExit, so that what was begun is undone."""
    # asyncio looks for just this handler, and has a better one of its own then.
    _have(signal.default_int_handler, ended_by)
    sys.unraisablehook = _unless_interrupted


def _have(interrupted: Callable[..., Any], terminated: Callable[..., Any]) -> None:
    for number, handler in zip(_ENDING, (interrupted, terminated), strict=True):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _at_once(number: int, _: FrameType | None) -> None:
    os._exit(BY_SIGNAL + number)


def ended_by(number: int, _: FrameType | None) -> None:
    """A handler of a signal that ends the program, with cleanup."""
    raise SystemExit(BY_SIGNAL + number)


def _unless_interrupted(told: UnraisableHookArgs, /) -> None:
    """Where an interrupt comes upon a finalizer, Python would print it and go on."""
    if issubclass(told.exc_type, KeyboardInterrupt):
        os._exit(BY_SIGNAL + signal.SIGINT)
    sys.__unraisablehook__(told)

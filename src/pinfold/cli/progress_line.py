"""What a command is at, on the terminal of who waits for longer than a second."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TextIO, TypeVar

_T = TypeVar("_T")

_SILENCE: Final = 1.0
"""Seconds in which nobody asks what a command is at."""
_BLINK: Final = 0.25
"""Seconds between two looks."""
_WIDTH: Final = 80
_CLEAR: Final = "\r\N{ESCAPE}[K"


class Progress:
    """The line, and how many of something are done; for the ``with`` that it is shown in."""

    def __init__(self, total: int | None = None) -> None:
        self._total = total
        self._done = 0
        self._turn = threading.Lock()
        self._on: TextIO | None = None

    def each(self, things: Iterable[_T]) -> Iterator[_T]:
        """The things, counted as they are asked for."""
        for thing in things:
            yield thing
            self._done += 1

    @property
    def text(self) -> str:
        """`` 12,000 of 60,000``; "" where nothing is counted."""
        return "" if self._total is None else f" {self._done:,} of {self._total:,}"

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Where something else is printed: the line is not there meanwhile."""
        with self._turn:
            self._take_back()
            yield

    def show(self, stream: TextIO, text: str) -> None:
        """Have the line there, with this text.

        Raises:
            OSError, ValueError: the terminal has gone.
        """
        with self._turn:
            self._on = stream
            stream.write(f"{_CLEAR}{text}")
            stream.flush()

    def end(self) -> None:
        """Take it back, for good."""
        with self._turn:
            self._take_back()

    def _take_back(self) -> None:
        stream, self._on = self._on, None
        if stream is not None:
            # A terminal that has gone needs nothing.
            with suppress(OSError, ValueError):
                stream.write(_CLEAR)
                stream.flush()


@contextmanager
def progress_line(what: str, total: int | None = None) -> Iterator[Progress]:
    """Say on standard error what is being done, once it has taken a second.

    One line, which is gone at the end of the ``with``; nothing where standard error is no terminal
    that can take a line back, wherever standard output goes, and nothing of a thread beside.

    Args:
        what: such as ``placing pods``.
        total: how many there are, where the ``with`` counts them.
    """
    progress, stream = Progress(total), sys.stderr or None
    shows = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    # A terminal has one line to be at: what several do at once is told by who waits for them.
    if stream is None or not shows or threading.current_thread() is not threading.main_thread():
        yield progress
        return
    over = threading.Event()
    thread = threading.Thread(target=_show, args=(what, progress, stream, over), daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        over.set()
        thread.join()
        progress.end()


def _show(what: str, progress: Progress, stream: TextIO, over: threading.Event) -> None:
    began = time.monotonic()
    if over.wait(_SILENCE):
        return
    # A terminal that has gone is nobody who waits.
    with suppress(OSError, ValueError):
        while True:
            seconds = time.monotonic() - began
            # A terminal that nobody has told its size says 0.
            width = os.get_terminal_size(stream.fileno()).columns or _WIDTH
            # A line that is folded could not be taken back.
            text = f"{what}{progress.text} ... {seconds:.0f} s"[: max(width - 1, 1)]
            progress.show(stream, text)
            if over.wait(_BLINK):
                return

"""How far something is, on the terminal of who waits: a bar, or a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from pinfold.planning.simulation.campaign.tally import Far, Tally

_BLINK: Final = 0.25
"""Seconds between two looks where there is a bar."""
_LINE: Final = 60.0
"""Seconds between two lines where standard error is no terminal."""
_WINDOW: Final = 40
"""Looks over which the rate is the mean."""
_PARTS: Final = 1000
_WIDTH: Final = 16


@contextmanager
def shown(tally: Tally) -> Iterator[None]:
    """Show how far the runs are, from another thread, until the end of the ``with``."""
    over = threading.Event()
    show = _bar if sys.stderr.isatty() else _lines
    thread = threading.Thread(target=show, args=(tally, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Rate:
    """Pods placed by the second, lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    def of(self, far: Far, now: float) -> float:
        """The rate at a time; 0 where it is not known yet."""
        self._seen.append((now, far.placed))
        began, before = self._seen[0]
        return max(0.0, (far.placed - before) / (now - began)) if now > began else 0.0


def summary(far: Far, rate: float) -> str:
    """How far it is, in a few words."""
    runs = f"{far.runs + far.kept}/{far.expected + far.kept} runs"
    return f"{runs}, {rate:,.0f} placements/s"


def time_left(far: Far, passed: float) -> str:
    """About how long it takes yet, in words; "" where nobody knows."""
    if far.done <= 0:
        return ""
    left = passed / far.done * max(0.0, far.expected - far.done)
    minutes = round(left / 60)
    if minutes < 1:
        return ", less than a minute left"
    hours, minutes = divmod(minutes, 60)
    return f", about {hours} h {minutes} min left" if hours else f", about {minutes} min left"


def _bar(tally: Tally, over: threading.Event) -> None:
    rate, shown_parts = Rate(), 0
    with click.progressbar(
        length=_PARTS,
        file=sys.stderr,
        width=_WIDTH,
        item_show_func=lambda text: text,
        update_min_steps=0,
    ) as bar:
        bar.update(0, "")
        while not over.wait(_BLINK):
            far = tally.far()
            parts = int(_PARTS * far.done / far.expected) if far.expected else 0
            # More runs may become necessary, but a bar goes forward only.
            more = max(0, min(parts, _PARTS - 1) - shown_parts)
            shown_parts += more
            bar.update(more, summary(far, rate.of(far, time.monotonic())))
        far = tally.far()
        if far.expected and far.runs >= far.expected:
            bar.update(_PARTS - shown_parts, summary(far, rate.of(far, time.monotonic())))


def _lines(tally: Tally, over: threading.Event) -> None:
    rate, began = Rate(), time.monotonic()
    rate.of(tally.far(), began)
    while not over.wait(_LINE):
        now, far = time.monotonic(), tally.far()
        click.echo(summary(far, rate.of(far, now)) + time_left(far, now - began), err=True)

"""The page of a node in a real browser: until it is there, what a change takes, what it costs.

The node is that of :mod:`benchmarks.events`, and ``pinfold serve`` a process beside it.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from tests.scenes.served_page import ServedPage, served_page

from benchmarks.agent_measuring import detailed, used_seconds
from benchmarks.agent_scene import NotHereError
from benchmarks.events import READERS, SECONDS, TURNS, node, share
from benchmarks.measure import Result

VISITS: Final = 11
CHANGES: Final = 40
CHURN: Final = 2
"""Pods a second that come and go."""

_TOLD: Final = """() => performance.getEntriesByName('pinfold-event')
    .map(one => [one.detail, one.startTime + one.duration, one.duration])"""


@contextmanager
def _page(churn: int) -> Iterator[ServedPage]:
    """The page of such a node."""
    with node(churn) as (_, path), served_page(path) as page:
        yield page


@contextmanager
def _opened(page: ServedPage) -> Iterator[Any]:
    """A tab of a browser, which was let in."""
    try:
        from tests.scenes.chromium import CHROMIUM, chromium  # noqa: PLC0415 - only where there is one
    except ModuleNotFoundError as error:
        raise NotHereError(f"{error.name} is not installed") from None
    if CHROMIUM is None:
        raise NotHereError("no chromium on this machine")
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 1920, "height": 1080})
        tab.goto(f"http://127.0.0.1:{page.port}/?token={page.token}")
        _first(tab)
        yield tab


def _first(tab: Any) -> tuple[float, float]:  # noqa: ANN401 - playwright's, where it is installed
    """When the first scene was drawn, from the navigation on, and how long that took: in ms."""
    tab.locator(".cell").first.wait_for()
    _, at, took = tab.evaluate(_TOLD)[0]
    return at, took


def _ready() -> Result:
    """From the navigation to the first scene that is drawn; not the first visit of the browser."""
    times, script = [], []
    with _page(0) as page, _opened(page) as tab:
        for _ in range(VISITS):
            tab.reload()
            at, took = _first(tab)
            times.append(1e6 * at)
            script.append(took)
    return detailed(times, slowest_ms=max(times) / 1e6, of_it_drawing_ms=statistics.median(script))


def _change() -> Result:
    """The script's time for a change, while pods come and go."""
    with _page(CHURN) as page, _opened(page) as tab:
        found: list[float] = []
        while len(found) < CHANGES:
            time.sleep(1.0)
            found = [took for kind, _, took in tab.evaluate(_TOLD) if kind == "changed"]
    return detailed([1e6 * one for one in found], slowest_ms=max(found))


def _reader(page: ServedPage) -> socket.socket:
    reader = socket.create_connection(("127.0.0.1", page.port))
    head = (
        f"GET /v1/events HTTP/1.1\r\nHost: localhost:{page.port}\r\nCookie: {page.cookie}\r\n\r\n"
    )
    reader.sendall(head.encode())
    return reader


def _open(churn: int) -> Result:
    """Nanoseconds of the agent's CPU time in a second for ten open pages, beside none."""
    turns, serving = [], []
    with node(churn) as (pid, path):
        for _ in range(TURNS):
            # A new one each time: the agent is read for a minute after the last page has gone.
            with served_page(path) as page:
                connect = partial(_reader, page)
                before = used_seconds([page.process.pid])
                alone, read = share(pid, connect, 0), share(pid, connect, READERS)
                turns.append((alone[0], read[0]))
                serving.append(used_seconds([page.process.pid]) - before)
    return detailed(
        [1e9 * max(read - alone, 0.0) for alone, read in turns],
        percent_of_a_cpu_alone=100 * min(alone for alone, _ in turns),
        percent_with_pages=100 * min(read for _, read in turns),
        percent_of_the_page_itself=100 * min(serving) / SECONDS,
    )


MEASURED: Final[dict[str, Callable[[], Result]]] = {
    "page.ready": _ready,
    "page.change": _change,
    "page.open": partial(_open, 0),
    "page.open.churn": partial(_open, CHURN),
}

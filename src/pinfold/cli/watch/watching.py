"""Watches an agent: on the whole screen of a terminal, or a text for each change."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias, TypeVar

import click
import msgspec
from msgspec.structs import replace

from pinfold.cli.client import Client, RefusedError
from pinfold.cli.forms import Output
from pinfold.cli.output import print_text
from pinfold.cli.start.exit_statuses import INTERRUPTED
from pinfold.cli.terminal import style
from pinfold.cli.watch.feed import follow
from pinfold.cli.watch.pager import Pager, last_line
from pinfold.cli.watch.screen import Screen
from pinfold.documents.live.event import Changed, Event, Whole
from pinfold.documents.live.following import apply
from pinfold.documents.machine import Machine
from pinfold.documents.node import Node
from pinfold.documents.status import Status
from pinfold.render.terminal import MIN_WIDTH, Style
from pinfold.views.status import Hardware

Draw: TypeAlias = Callable[[Status, Hardware, Node, Style, str], str]
"""Makes the text of a node, all of it or one part."""

_Told = TypeVar("_Told", Status, Changed)

_KEYS: Final = "q quit  ↑↓ space scroll  p pods  m map"
_FEWER: Final = "q quit"

_ROOMY: Final = 60
"""From this width on the last line names the agent; below it the place in the text counts more."""

_CALM: Final = 4.0
"""So many times as long as drawing took, nothing is drawn."""


class Watching:
    """Shows a node until somebody has seen enough; ``color`` as the option says."""

    def __init__(self, client: Client, draw: Draw, color: bool | None) -> None:  # noqa: FBT001 - the option's value
        self._client = client
        self._draw = draw
        self._style = style(color)
        self._machine: tuple[Machine, Hardware] | None = None

    @property
    def has_screen(self) -> bool:
        """Whether standard output is a terminal with a cursor that can be moved."""
        return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")

    def on_screen(self) -> None:
        """Show it on the screen, until somebody quits; the agent may come and go.

        Raises:
            RefusedError, NoAgentError: it was not there at the beginning.
            SystemExit: 130 at SIGINT, 143 at SIGTERM, 129 at SIGHUP, 131 at SIGQUIT.
        """
        events = follow(self._client)
        first = next(events)
        try:
            with Screen() as screen:
                _View(screen, self.text, self._style).go_on(first, events)
        except (KeyboardInterrupt, EOFError):
            # The screen is as it was: no line is to be ended on it.
            raise SystemExit(INTERRUPTED.code) from None

    def as_text(self, output: Output, namespace: str | None) -> None:
        """Print it whenever it is another; with ``json`` each event, in a line.

        Raises:
            RefusedError, NoAgentError: the agent is not there, or goes.
        """
        text, last, whole = "", "", None
        for event in follow(self._client):
            if event.kind == "away":
                raise RefusedError(0, event.problem or "the agent has stopped")
            if (whole := _learnt(whole, event)) is None:
                continue
            if output == "json":
                click.echo(msgspec.json.encode(_of_namespace(event, namespace)))
            elif output.is_document:
                text = output.told(msgspec.to_builtins(_within(whole.status, namespace)))
            else:
                text = self.text(whole, self._style)
            if text != last:
                print_text(text)
                last = text
            sys.stdout.flush()

    def text(self, whole: Whole, on: Style, part: str = "") -> str:
        """What is known, as text."""
        machine = whole.machine
        if self._machine is None or self._machine[0] is not machine:
            self._machine = machine, Hardware.told(msgspec.to_builtins(machine))
        return self._draw(whole.status, self._machine[1], whole.node, on, part)


def _learnt(whole: Whole | None, event: Event) -> Whole | None:
    if event.whole:
        return event.whole
    return None if whole is None else apply(whole, event)


def _of_namespace(event: Event, namespace: str | None) -> Event:
    """The event with the pods of a namespace and what these did; all are gone that are."""
    if namespace is None:
        return event
    if event.whole:
        whole = replace(event.whole, status=_within(event.whole.status, namespace))
        return replace(event, whole=whole)
    if event.changed:
        return replace(event, changed=_within(event.changed, namespace))
    if event.observed:
        containers = [
            one for one in event.observed.containers if one.pod.startswith(f"{namespace}/")
        ]
        return replace(event, observed=replace(event.observed, containers=containers))
    return event


def _within(told: _Told, namespace: str | None) -> _Told:
    if namespace is None:
        return told
    return replace(told, pods=[pod for pod in told.pods if pod.namespace == namespace])


class _View:
    """What is on the screen."""

    def __init__(
        self, screen: Screen, draw: Callable[[Whole, Style, str], str], plain: Style
    ) -> None:
        self._screen = screen
        self._draw = draw
        self._style = plain
        self._pager = Pager()
        self._whole: Whole | None = None
        self._away: Event | None = None
        self._drawn: tuple[object, ...] = ()
        self._lines: list[str] = []
        self._may_draw_at = 0.0

    def go_on(self, first: Event, events: Iterator[Event]) -> None:
        """Show what comes, until somebody quits."""
        came: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        came.put(first)

        def listen() -> None:
            try:
                for event in events:
                    came.put(event)
                    self._screen.wake()
            except BaseException as error:  # noqa: BLE001 - it is raised where it is seen
                came.put(error)
                self._screen.wake()

        threading.Thread(target=listen, daemon=True, name="events").start()
        while not self._pager.quits:
            while not came.empty():
                self._take(came.get())
            self._show()
            # The clock of the last line goes on, and a picture that had to wait is drawn.
            within = 1.0 - time.time() % 1.0
            if not self._is_drawn():
                within = min(within, max(self._may_draw_at - time.monotonic(), 0.01))
            for key in self._screen.keys(within):
                self._pager.press(key, self._room)

    def _take(self, event: Event | BaseException) -> None:
        if isinstance(event, BaseException):
            raise event
        # Of several that say that it is away the first knows since when.
        self._away = (self._away or event) if event.kind == "away" else None
        self._whole = _learnt(self._whole, event)

    @property
    def _room(self) -> int:
        return max(self._screen.size.lines - 1, 1)

    def _wanted(self) -> tuple[object, ...]:
        return self._whole, self._screen.size.columns, self._pager.part

    def _is_drawn(self) -> bool:
        wanted = self._wanted()
        return len(self._drawn) == len(wanted) and all(
            a is b or (not isinstance(a, Whole) and a == b)
            for a, b in zip(wanted, self._drawn, strict=True)
        )

    def _show(self) -> None:
        began = time.monotonic()
        wide = replace(self._style, width=max(self._screen.size.columns, MIN_WIDTH))
        if self._whole is not None and not self._is_drawn() and began >= self._may_draw_at:
            self._drawn = self._wanted()
            text = self._draw(self._whole, wide, self._pager.part)
            self._lines = text.removesuffix("\n").split("\n")
            now = time.monotonic()
            self._may_draw_at = now + _CALM * (now - began)
        room = self._room
        shown = self._pager.window(self._lines, room)
        self._screen.show([*shown, self._last_line(wide, room)])

    def _last_line(self, wide: Style, room: int) -> str:
        clock = time.strftime("%H:%M:%S")
        place = self._pager.place(self._lines, room)
        keys = (_KEYS, _FEWER, "") if self._screen.has_keys else ("",)
        right = ["  ".join(filter(None, (place, some))) + " " for some in keys]
        if self._away is not None:
            since = time.strftime("%H:%M:%S", time.localtime(self._away.at))
            told = f" {clock}  the agent is away since {since}: {self._away.problem or 'no answer'}"
            return last_line(told, right, wide, alarm=True)
        agent = self._whole.status.agent if self._whole else None
        who = f"pinfold {agent.version}, pid {agent.pid}" if agent else ""
        left = f" {clock}  {who}" if wide.width >= _ROOMY else f" {clock}"
        return last_line(left, right, wide)

"""``pinfold serve`` as a process of its own, and a browser that asks it over HTTP."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pinfold.documents.live.event import Event
from pinfold.formats.event_stream import EventStream
from tests.scenes.waiting import PATIENCE, wait_until
from tests.scenes.web_world import Answer


class ServedPage:
    """The process; ``token`` is what lets in, ``cookie`` what a browser has after that."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.token = self.cookie = ""
        self.port = 0

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    @property
    def text(self) -> str:
        """What it has said."""
        return "".join(self.lines)

    def begin(self) -> None:
        """Return when it says where it is."""
        found = wait_until(lambda: re.search(r"http://\S+:(\d+)/", self.text) or self._over())
        assert isinstance(found, re.Match), self.text
        self.port = int(found[1])

    def _over(self) -> bool:
        return self.process.poll() is not None and not self._reading.is_alive()

    def enter(self, token: str) -> None:
        """As a browser does with the address that was printed."""
        answer = self.ask("GET", f"/?token={token}", {"Cookie": ""})
        assert answer.status == 303, answer
        self.token, self.cookie = token, answer.headers["set-cookie"].partition(";")[0]

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20 * PATIENCE)

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
    ) -> Answer:
        """One request, with the cookie where no other is given."""
        connection = self.connection()
        try:
            has = {"Cookie": self.cookie} if self.cookie else {}
            given = {name: value for name, value in {**has, **(headers or {})}.items() if value}
            connection.request(method, target, body, given)
            answer = connection.getresponse()
            return Answer(answer.status, _by_name(answer), answer.read().decode())
        finally:
            connection.close()

    def get(self, target: str) -> Any:
        """A document."""
        answer = self.ask("GET", target)
        assert answer.status == 200, answer
        return answer.json

    @contextmanager
    def events(self, last_id: str = "") -> Iterator[Iterator[Event]]:
        """What a page hears; whoever asks for one more waits for it."""
        connection = self.connection()
        headers = {"Cookie": self.cookie}
        if last_id:
            headers["Last-Event-ID"] = last_id
        try:
            connection.request("GET", "/v1/events", headers=headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield read_events(answer)
        finally:
            connection.close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit status when it is told to stop."""
        self.process.send_signal(number)
        return self.process.wait(20 * PATIENCE)

    def end(self) -> None:
        """Have it gone."""
        self.process.kill()
        self.process.wait()
        self._reading.join(20)
        if self.process.stdout is not None:
            self.process.stdout.close()


def _by_name(answer: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.getheaders()}


def read_events(answer: http.client.HTTPResponse) -> Iterator[Event]:
    """What a stream tells, until it ends."""
    stream = EventStream()
    while piece := answer.read1(1 << 16):
        for message in stream.feed(piece):
            event = msgspec.json.decode(message.data, type=Event)
            assert (event.id, event.kind) == (message.id, message.event)
            yield event


@contextmanager
def begun(
    *words: str, env: Mapping[str, str] | None = None, user: int | None = None
) -> Iterator[ServedPage]:
    """The command, which may end at once; of another user where one is named."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pinfold", "serve", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(env or {})},
        user=user,
        extra_groups=None if user is None else [],
    )
    page = ServedPage(process)
    try:
        yield page
    finally:
        page.end()


@contextmanager
def served_page(socket: Path, *words: str) -> Iterator[ServedPage]:
    """The page of the agent at a socket, with a browser that was let in."""
    with begun("--socket", str(socket), "--listen", "127.0.0.1:0", *words) as page:
        page.begin()
        page.enter((socket.parent / "page-token").read_text().strip())
        yield page

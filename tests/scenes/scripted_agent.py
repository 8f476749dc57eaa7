"""An agent's socket, behind which is nobody but a test: any answer, whole or not."""

from __future__ import annotations

import socketserver
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

from tests.scenes.waiting import eventually

Send = Callable[[bytes], None]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nConnection: close\r\n\r\n"


class ScriptedAgent(socketserver.ThreadingUnixStreamServer):
    """``asked`` are the targets as they came, ``open`` those whose answers are being sent."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: Path, answer: Callable[[str, Send], None]) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.open: list[str] = []
        super().__init__(str(path), _Connection)

    def has_hung_up(self) -> None:
        """Return when nobody waits for an answer."""
        eventually(lambda: self.open, [])


class _Connection(socketserver.StreamRequestHandler):
    server: ScriptedAgent

    def handle(self) -> None:
        """One request."""
        target = self.rfile.readline().decode().split(" ")[1]
        while self.rfile.readline().strip():
            pass
        self.server.asked.append(target)
        self.server.open.append(target)
        # The other side hangs up when it has enough.
        with suppress(OSError):
            self.server.answer(target, self._send)
        self.server.open.remove(target)

    def _send(self, piece: bytes) -> None:
        self.wfile.write(piece)


@contextmanager
def scripted_agent(path: Path, answer: Callable[[str, Send], None]) -> Iterator[ScriptedAgent]:
    """An agent that sends what ``answer`` does, head and all, for each request's target."""
    with ScriptedAgent(path, answer) as agent:
        thread = Thread(target=agent.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield agent
        finally:
            agent.shutdown()
            thread.join()

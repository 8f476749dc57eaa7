"""What ``pinfold serve`` answers to a page in a browser, said by a test."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from pinfold.documents.live.scene import Scene
from pinfold.page.files_of_page import page_files
from pinfold.page.serving.answers import POLICY

KINDS = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript"}


class PageServer:
    """Serves the page on 127.0.0.1; what it tells is what it was told to.

    Attributes:
        past: a scene for each moment, in seconds since the epoch.
        every: a scene for all other moments; without it they are not remembered.
        entries: of the history, the newest first.
        why: the lines about every pod.
        asked: each path with its query.
        holds: moments of the past are answered while it is set.
    """

    def __init__(self) -> None:
        self.past: dict[float, Scene] = {}
        self.every: Scene | None = None
        self.entries: list[Mapping[str, Any]] = []
        self.why = ["admitted  Guaranteed", "  CPUs  6-13"]
        self.asked: list[str] = []
        self.refuses = False
        self.holds = threading.Event()
        self.holds.set()
        self._streams: list[queue.Queue[bytes | None]] = []
        self._newest: bytes | None = None
        self._number = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """The page."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def tell(self, kind: str, scene: Scene | None = None, **more: object) -> None:
        """An event to all that listen; a whole one is told to those who come later, too."""
        with self._lock:
            self._number += 1
            event = {"id": str(self._number), "at": 0.0, "kind": kind, **more}
            if scene is not None:
                event["scene"] = msgspec.to_builtins(scene)
            text = json.dumps(event)
            message = f"id: {self._number}\nevent: {kind}\ndata: {text}\n\n".encode()
            if kind == "whole":
                self._newest = message
            for stream in self._streams:
                stream.put(message)

    def hang_up(self) -> None:
        """End all streams."""
        with self._lock:
            for stream in self._streams:
                stream.put(None)
            self._streams.clear()

    @contextlib.contextmanager
    def running(self) -> Iterator[PageServer]:
        """It serves meanwhile."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.hang_up()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                where = urlsplit(self.path)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    if where.path == "/v1/events":
                        server.stream(self)
                    else:
                        self.answer(*server.answer(where.path, parse_qs(where.query)))

            def answer(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                for name, value in POLICY.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        return Handler

    def answer(self, path: str, query: Mapping[str, list[str]]) -> tuple[int, str, bytes]:
        """Status, kind and body of what is no stream."""
        name = path.removeprefix("/files/") if path != "/" else "index.html"
        if name in page_files():
            return 200, KINDS[name.rpartition(".")[2]], page_files()[name]
        told: object = {"error": {"message": "no such page"}}
        status = 404
        if self.refuses:
            status, told = 401, {"error": {"message": "not let in"}}
        elif path == "/v1/scene" and "at" in query:
            self.holds.wait(20)
            found = self.past.get(float(query["at"][0]), self.every)
            if found is None:
                status, told = 404, {"error": {"message": "nobody remembers that"}}
            else:
                status, told = 200, msgspec.to_builtins(found)
        elif path == "/v1/history":
            status, told = 200, {"entries": self.entries[: int(query["limit"][0])]}
        elif path.startswith("/v1/explain/"):
            status, told = 200, {"lines": self.why}
        return status, "application/json", json.dumps(told).encode()

    def stream(self, handler: BaseHTTPRequestHandler) -> None:
        """Tell one browser for as long as it listens."""
        if self.refuses:
            handler.send_error(401)
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        mine: queue.Queue[bytes | None] = queue.Queue()
        with self._lock:
            if self._newest:
                mine.put(self._newest)
            self._streams.append(mine)
        handler.wfile.write(b"retry: 100\n\n")
        while (message := mine.get()) is not None:
            handler.wfile.write(message)
            handler.wfile.flush()
        handler.close_connection = True

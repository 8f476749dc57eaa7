"""Programs whose load is recorded: each works at times and rests at others, as real ones do.

``python -m benchmarks.recorded_programs serve PORT`` answers requests that take some milliseconds
of CPU time; ``ask PORT`` sends them at the times of an open loop, whether they are answered or not.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from msgspec import Struct

_TEXT: Final = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(8000))
_CALM: Final = 5.0
_BURST: Final = 60.0
"""Requests in a second."""


class Program(Struct, frozen=True):
    """What is run, as a shell has it, and what runs beside it to give it work."""

    about: str
    command: str
    beside: str = ""


def programs(port: int) -> dict[str, Program]:
    """Those of the sample in ``tests/data/loads``; they run from the root of the repository."""
    this = f"{sys.executable} -m {__spec__.name if __spec__ else 'benchmarks.recorded_programs'}"
    return {
        "compiler": Program(
            "gcc -O3 on two C sources, again and again for a minute, then a pause of 40 s",
            "while :; do e=$(($(date +%s)+60)); while [ $(date +%s) -lt $e ]; do "
            "gcc -O3 -c -o /dev/null benchmarks/effect_server.c; "
            "gcc -O3 -c -o /dev/null benchmarks/effect_probe.c; done; sleep 40; done",
        ),
        "server": Program(
            "an HTTP server (Python, threads) that compresses for each request, under open-loop "
            "load: 5 requests in a second, at times 60",
            f"exec {this} serve {port}",
            f"exec {this} ask {port}",
        ),
        "tests": Program(
            "a run of pytest, then a pause of 25 s",
            f"while :; do {sys.executable} -m pytest -q -n 0 -p no:cacheprovider tests/core/cpu "
            "tests/core/machine >/dev/null 2>&1; sleep 25; done",
        ),
        "archive": Program(
            "tar and xz -6 of a source tree, then a pause of 90 s",
            "while :; do tar c src tests docs | xz -6 >/dev/null; sleep 90; done",
        ),
        "poller": Program(
            "a shell that looks at files each second",
            "while :; do ls /proc >/dev/null; sleep 1; done",
        ),
    }


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = zlib.compress(_TEXT, 6)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


async def _ask_once(port: int) -> None:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        await reader.read()
        writer.close()
    except OSError:
        return


async def _ask(port: int) -> None:
    chance = random.Random(1)  # noqa: S311 - times of requests
    loop = asyncio.get_running_loop()
    began = loop.time()
    waiting: set[asyncio.Task[None]] = set()
    while True:
        # Two bursts in five minutes, a long one and a short one.
        phase = (loop.time() - began) % 300
        is_burst = 60 <= phase < 140 or 200 <= phase < 215
        await asyncio.sleep(chance.expovariate(_BURST if is_burst else _CALM))
        task = asyncio.create_task(_ask_once(port))
        waiting.add(task)
        task.add_done_callback(waiting.discard)


def _main(what: str, port: int) -> None:
    if what == "serve":
        ThreadingHTTPServer(("127.0.0.1", port), _Answer).serve_forever()
    else:
        asyncio.run(_ask(port))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))

"""How quick a webhook is over a socket: what the benchmarks of webhooks have in common.

An open-loop client: requests leave by the clock, whether or not earlier ones were answered, and
each is measured from the moment at which it was due.  The server is a process of its own on one
CPU, with TLS, HTTP and JSON as they are served.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tests.scenes.webhook_world import NAME, Served, review

from pinfold.web.webhook.app import Decide

WARM_UP: Final = 100


def parser(of: str, description: str | None) -> argparse.ArgumentParser:
    """The options that all have."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{of}", description=description)
    made.add_argument("--rate", type=float, default=200.0, help="requests a second (200)")
    made.add_argument("--seconds", type=float, default=20.0, help="for how long (20)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    return made


def measure(
    decides: Callable[[], Decide],
    asked: Callable[[int], dict[str, Any]],
    given: argparse.Namespace,
    **also: float,
) -> None:
    """Measure, print, and write the figures.

    Args:
        decides: makes what decides, in the process that serves: has to be picklable.
        asked: the pod of each request, by its number.
        given: the options.
        also: figures that say of what these are.
    """
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(Path(folder), decides, theirs)
        )
        server.start()
        theirs.close()
        try:
            port, authority = ours.recv()
            _use_cpus(server=False)
            count = int(given.rate * given.seconds)
            bodies = [_request(number, asked(number)) for number in range(WARM_UP + count)]
            took = asyncio.run(_ask(port, authority, given.rate, bodies))
            ours.send("end")
            used, memory = ours.recv()
        finally:
            ours.close()
            server.join(20)
    figures = {
        "rate": given.rate,
        "requests": count,
        **also,
        "p50_ms": _part(took, 50),
        "p99_ms": _part(took, 99),
        "most_ms": max(took) * 1000,
        "mean_ms": statistics.fmean(took) * 1000,
        "server_cpu_ms_per_request": used / (count + WARM_UP) * 1000,
        "server_memory_mib": memory,
    }
    for name, value in figures.items():
        print(f"{name:<26} {value:.2f}")
    if given.json:
        given.json.write_text(json.dumps(figures))


def _part(took: Sequence[float], percent: int) -> float:
    return statistics.quantiles(took, n=100)[percent - 1] * 1000


def _use_cpus(*, server: bool) -> None:
    """The server has the last CPU for itself, the client the others, where there are several."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > 1:
        os.sched_setaffinity(0, cpus[-1:] if server else cpus[:-1])


def _serve(folder: Path, decides: Callable[[], Decide], told: Connection) -> None:
    _use_cpus(server=True)
    world = Served(folder, decides())
    world.start()
    before = time.process_time()
    told.send((world.port, world.authority.certificate))
    told.recv()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told.send((time.process_time() - before, most))
    world.end()


async def _ask(port: int, authority: bytes, rate: float, bodies: Sequence[bytes]) -> list[float]:
    """Ask so many times; how long each took from when it was due."""
    tls = ssl.create_default_context(cadata=authority.decode())
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    loop = asyncio.get_running_loop()
    refused: list[Any] = []
    count = len(bodies) - WARM_UP

    async def one(number: int, due: float) -> float:
        if free:
            reader, writer = free.pop()
        else:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=tls, server_hostname=NAME
            )
        writer.write(bodies[number])
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(size))
        took = loop.time() - due
        free.append((reader, writer))
        if not answer.get("response", {}).get("allowed"):
            refused.append(answer)
        return took

    for number in range(WARM_UP):
        await one(number, loop.time())
    begun, asked = loop.time() + 0.1, []
    for number in range(count):
        due = begun + number / rate
        await asyncio.sleep(due - loop.time())
        asked.append(asyncio.create_task(one(WARM_UP + number, due)))
    took = await asyncio.gather(*asked)
    for _, writer in free:
        writer.transport.abort()
    await asyncio.sleep(0)
    if refused:
        raise SystemExit(f"{len(refused)} of {count} were not allowed, the first: {refused[0]}")
    return took


def _request(number: int, asked: dict[str, Any]) -> bytes:
    body = json.dumps(review(asked, uid=str(number))).encode()
    head = (
        f"POST /validate?timeout=5s HTTP/1.1\r\nHost: {NAME}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body

"""How quick the webhook is: ``python -m benchmarks.quota_webhook [--rate 200] [--seconds 20]``.

An open-loop client: requests leave by the clock, whether or not earlier ones were answered, and
each is measured from the moment at which it was due.  The server is a process of its own on one
CPU; all is real (TLS, HTTP, JSON, what a pod is charged) but for the API server's write of the
charge, which is made in memory, and takes ``--write`` milliseconds.
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
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tests.scenes.webhook_world import NAME, Served, pod, review

from pinfold.cluster.quota.admission import Admission
from pinfold.core.quota.charge import Charged, Refused, Request, charge, charge_claim
from pinfold.core.quota.claims import ClaimedCPUs, ClaimRules
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.values.quantity import Quantity

_WARM_UP: Final = 100


class InMemory:
    """Charges a quota that is never full; each write takes as long as it is told to."""

    def __init__(self, write: float) -> None:
        hard = {EXCLUSIVE_CPUS: Quantity(10**9)}
        used = {EXCLUSIVE_CPUS: Quantity(0)}
        self._quotas: tuple[ResourceQuota, ...] = (
            ResourceQuota("team", "cpus", hard, used=used, status_hard=hard),
        )
        self._write = write
        self._rules = ClaimRules()

    async def charge(self, namespace: str, request: Request, *, dry_run: bool) -> Charged | Refused:
        """Charge a pod."""
        del namespace, dry_run
        return await self._written(charge(self._quotas, request, time.time()))

    async def charge_claim(
        self, namespace: str, uid: str, name: str, claimed: ClaimedCPUs, *, dry_run: bool
    ) -> Charged | Refused:
        """Charge a claim."""
        del namespace, uid, dry_run
        return await self._written(charge_claim(self._quotas, name, claimed, self._rules.capacity))

    def problems(self) -> Sequence[str]:
        """None."""
        return ()

    async def _written(self, found: Charged | Refused) -> Charged | Refused:
        if isinstance(found, Charged):
            self._quotas = found.quotas
        if self._write:
            await asyncio.sleep(self._write)
        return found


def typical_pod(number: int) -> dict[str, Any]:
    """A pod of a Deployment, with what API server and controllers add to it: 5 KiB."""
    fields: dict[str, Any] = {f"f:{name}": {} for name in ("image", "name", "resources", "env")}
    owned = {f'k:{{"name":"c{i}"}}': fields for i in range(6)}
    managed = {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:containers": owned}},
    }
    found = pod(f"web-{number}", cpus="2", uid=f"u-{number}", managedFields=[managed])
    main = found["spec"]["containers"][0]
    env = [{"name": f"VARIABLE_{i}", "value": "x" * 40} for i in range(20)]
    found["spec"]["containers"] = [{**main, "name": f"c{i}", "env": env} for i in range(2)]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quota_webhook", description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second (200)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for how long (20)")
    parser.add_argument("--write", type=float, default=0.0, help="ms of a write of the charge (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(Path(folder), given.write / 1000, theirs)
        )
        server.start()
        theirs.close()
        try:
            port, authority = ours.recv()
            _use_cpus(server=False)
            count = int(given.rate * given.seconds)
            took = asyncio.run(_ask(port, authority, given.rate, count))
            ours.send("end")
            used, memory = ours.recv()
        finally:
            ours.close()
            server.join(20)
    figures = {
        "rate": given.rate,
        "requests": count,
        "write_ms": given.write,
        "p50_ms": _part(took, 50),
        "p99_ms": _part(took, 99),
        "most_ms": max(took) * 1000,
        "mean_ms": statistics.fmean(took) * 1000,
        "server_cpu_ms_per_request": used / (count + _WARM_UP) * 1000,
        "server_memory_mib": memory,
    }
    for name, value in figures.items():
        print(f"{name:<26} {value:.2f}")
    if given.json:
        given.json.write_text(json.dumps(figures))
    return 0


def _part(took: Sequence[float], percent: int) -> float:
    return statistics.quantiles(took, n=100)[percent - 1] * 1000


def _use_cpus(*, server: bool) -> None:
    """The server has the last CPU for itself, the client the others, where there are several."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > 1:
        os.sched_setaffinity(0, cpus[-1:] if server else cpus[:-1])


def _serve(folder: Path, write: float, told: Connection) -> None:
    _use_cpus(server=True)
    world = Served(folder, Admission(InMemory(write), ClaimRules()).decide)
    world.start()
    before = time.process_time()
    told.send((world.port, world.authority.certificate))
    told.recv()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told.send((time.process_time() - before, most))
    world.end()


async def _ask(port: int, authority: bytes, rate: float, count: int) -> list[float]:
    """Ask so many times; how long each took from when it was due."""
    tls = ssl.create_default_context(cadata=authority.decode())
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    loop = asyncio.get_running_loop()
    refused: list[Any] = []
    bodies = [_request(number) for number in range(_WARM_UP + count)]

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

    for number in range(_WARM_UP):
        await one(number, loop.time())
    begun, asked = loop.time() + 0.1, []
    for number in range(count):
        due = begun + number / rate
        await asyncio.sleep(due - loop.time())
        asked.append(asyncio.create_task(one(_WARM_UP + number, due)))
    took = await asyncio.gather(*asked)
    for _, writer in free:
        writer.transport.abort()
    await asyncio.sleep(0)
    if refused:
        raise SystemExit(f"{len(refused)} of {count} were not allowed, the first: {refused[0]}")
    return took


def _request(number: int) -> bytes:
    body = json.dumps(review(typical_pod(number), uid=str(number))).encode()
    head = (
        f"POST /validate?timeout=5s HTTP/1.1\r\nHost: {NAME}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


if __name__ == "__main__":
    raise SystemExit(main())

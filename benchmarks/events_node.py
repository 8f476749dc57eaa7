"""A node of 512 CPUs and 250 pods on fakes, served in a process of its own.

``python -m benchmarks.events_node SOCKET PODS_EACH_SECOND``: it observes each second, and so many
pods come and go meanwhile.  It says ``ready`` when all pods run, and ends with its standard input.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from tests.scenes.manager_harness import STATIC, manifest
from tests.scenes.web_world import Served, served

from pinfold.admission.node_status import node_status, node_status_document
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.observation.rates import Counters
from pinfold.documents.node import Node
from pinfold.planning.machine_document import machine_document

MACHINE: Final = "4s64c2t"
PODS: Final = 250
_SHAPES: Final = ("2", "", "500m", "", "1")


def main(socket: str, churn: int) -> None:
    """Serve until standard input ends."""
    config = replace(STATIC, max_pods=2 * PODS)
    with served(Path(socket), observes=True, machine=MACHINE, config=config, explains=False) as api:
        _know_the_machine(api)
        for number in range(PODS):
            shape = _SHAPES[number % len(_SHAPES)]
            api.ask("POST", "/v1/pods", manifest(f"web-{number}", shape))
        while any(pod["phase"] != "Running" for pod in api.ask("GET", "/v1/status").json["pods"]):
            time.sleep(0.1)
        print("ready", flush=True)
        over = threading.Event()
        threading.Thread(target=_until_the_end, args=(over,), daemon=True).start()
        number = 0
        while not over.wait(1.0):
            _second(api)
            for _ in range(churn):
                number += 1
                name = f"job-{number}"
                api.ask("POST", "/v1/pods", manifest(name, "1"))
                api.ask("DELETE", f"/v1/pods/default/{name}?grace=0")


def _until_the_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def _know_the_machine(api: Served) -> None:
    """As an agent does; the fakes read it anew each time."""
    machine = parse_short_form(MACHINE)
    view, backend = kubelet_view(machine), api.backend

    def node() -> Node:
        books = backend.books.view
        found = node_status(machine, view, backend.config, books.node, books.state)
        return node_status_document(found)

    known = machine_document(machine, view)
    backend.node = node  # type: ignore[method-assign] # as it says
    backend.machine = lambda: known  # type: ignore[method-assign] # as it says


def _second(api: Served) -> None:
    """A second has passed: every container has used some CPU time."""
    backend = api.backend
    if backend.observation is None:
        raise RuntimeError("it does not observe")
    backend.clock += 1.0
    counted = backend.meters.counted
    for number, key in enumerate(list(backend.books.statuses)):
        had = counted.get(key, Counters(1, 0, 0, 0, 0, 0))
        used = (had.usage or 0) + 10_000 + 7 * number + int(1000 * backend.clock) % 977
        counted[key] = replace(had, usage=used)
    for cpu in backend.cpu_meter.counted:
        backend.cpu_meter.counted[cpu] += 900_000
    api.call(backend.observation.observe())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""Pods that come and go: owners one after the other beside many who share, and some who change."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pinfold.core.values.cpuset import CPUSet
from tests.roots import ROOT
from tests.scenes.agent_process import (
    allowed,
)
from tests.scenes.pod_worlds import (
    CriWorld,
    Manifest,
    NriWorld,
    RefusedPodError,
    Running,
    World,
)
from tests.scenes.waiting import PATIENCE, eventually

SECONDS: Final = float(os.environ.get("PINFOLD_TEST_CHURN_SECONDS", "20"))
"""How long each churn goes on; minutes show what seconds do not."""
SHARED: Final = 20
BUSY: Final = 3
"""How many of the shared ones never sleep; the others start a process five times a second."""

_BUSY: Final = "while :; do :; done"
_FORKING: Final = "while :; do usleep 200000; done"
_OWNER: Final = "while :; do usleep 5000; done"


def pod(name: str, script: str, cpus: int = 0) -> Manifest:
    """A pod with one container, ``main``, which says in its arguments whom it belongs to."""
    uid = f"uid-{name}"
    role = f"owner:{uid}/main" if cpus else f"shared:{uid}"
    amounts = {"cpu": str(cpus), "memory": "64Mi"} if cpus else {}
    container = {
        "name": "main",
        "command": ["sh", "-c", f"trap 'exit 0' TERM; {script}", role],
        "resources": {"limits": amounts, "requests": amounts},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": uid},
        "spec": {"containers": [container]},
    }


def shared_pod(number: int) -> Manifest:
    """One of those who share."""
    return pod(f"shared-{number}", _BUSY if number < BUSY else _FORKING)


def owner_pod(number: int, cpus: int = 1) -> Manifest:
    """One that owns CPUs."""
    return pod(f"owner-{number}", _OWNER, cpus)


@dataclass
class Churn:
    """Two threads: owners that come and go, and shared pods that are replaced by others.

    ``lost`` are the pods of which it is not known whether they run: the runtime or the agent was
    ended while they were asked for.
    """

    world: World
    seed: int = 7
    live: dict[str, Running] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    owners: int = 0
    replaced: int = 0
    refused: int = 0
    troubles: list[str] = field(default_factory=list)
    _next: int = SHARED
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def fill(self) -> None:
        """Start those who share."""
        for number in range(SHARED):
            self._run(shared_pod(number))

    def begin(self) -> None:
        """Let pods come and go."""
        self._over.clear()
        self._threads = [
            threading.Thread(target=self._guarded, args=(each,))
            for each in (self._own, self._replace)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let it be; everybody who runs goes on running."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, step: Any) -> None:
        chance = random.Random(self.seed)  # noqa: S311 - moments, not secrets
        while not self._over.is_set():
            try:
                step(chance)
            except Exception as error:  # noqa: BLE001 - a killed peer fails in its own way
                self.troubles.append(f"{type(error).__name__}: {error}"[:300])
                time.sleep(0.2)

    def _own(self, chance: random.Random) -> None:
        self.owners += 1
        mine = owner_pod(self.owners)
        self._run(mine)
        time.sleep(chance.uniform(0.1, 0.7))
        if chance.random() < 0.2:
            # Nobody gets what is owned.
            try:
                self._run(owner_pod(100_000 + self.owners, len(os.sched_getaffinity(0))))
            except RefusedPodError:
                self.refused += 1
            # Let in while nobody answered, it would stay, and each round have more of them.
            self._end(f"owner-{100_000 + self.owners}")
        self._end(mine["metadata"]["name"])

    def _replace(self, chance: random.Random) -> None:
        time.sleep(chance.uniform(0.1, 0.5))
        with self._lock:
            names = [name for name in self.live if name.startswith("shared-")]
        self._end(chance.choice(names))
        self._next += 1
        self._run(shared_pod(self._next))
        self.replaced += 1

    def _run(self, manifest: Manifest) -> None:
        name = manifest["metadata"]["name"]
        with self._lock:
            self.lost.add(name)
        running = self.world.run(self.world.dress(manifest))["main"]
        with self._lock:
            self.lost.discard(name)
            self.live[name] = running

    def _end(self, name: str) -> None:
        with self._lock:
            self.live.pop(name, None)
            self.lost.add(name)
        self.world.end(name)
        with self._lock:
            self.lost.discard(name)


@contextmanager
def sampled(world: World) -> Iterator[dict[str, Any]]:
    """What a sampler in a process of its own has seen of a world; filled in at the end."""
    result = world.agent.folder / "sampled.json"
    sampler = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.scenes.kernel_sampler", str(world.root)),
            *(str(world.agent.state / "cpu_manager_state"), str(result)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    found: dict[str, Any] = {}
    assert sampler.stdout is not None
    try:
        assert sampler.stdout.readline() == b"ready\n"
        yield found
    finally:
        assert sampler.stdin is not None
        sampler.stdin.close()
        sampler.stdout.close()
        assert sampler.wait(30 * PATIENCE) == 0
        found |= json.loads(result.read_text())


# ------------------------------------------------------------------------------------- invariants


def check(world: World) -> None:
    """No CPU has two owners, none is lost; kernel and runtime have what the record says."""
    eventually(lambda: problems(world), [], seconds=20)


def problems(world: World) -> list[str]:
    """Where the record, the kernel and the runtime do not agree now."""
    status = world.agent.client.get("/v1/status")
    shared, pool = CPUSet.parse(status["shared"]), CPUSet.parse(status["pool"])
    owned, found = CPUSet(), []
    ids = _ids(world)
    idle = world.kubelet.never_started() if isinstance(world, NriWorld) else {}
    for one in status["pods"]:
        if one["phase"] != "Running":
            continue
        for container in one["containers"]:
            cpus = CPUSet.parse(container["cpus"])
            name = f"{one['name']}/{container['name']}"
            if container["exclusive"]:
                if not owned.isdisjoint(cpus):
                    found.append(f"{name}: {cpus} has two owners")
                owned |= cpus
            if (key := (one["uid"], container["name"])) in idle and key not in ids:
                continue  # its start failed with the one that was killed; a kubelet tries again
            wanted = cpus if container["exclusive"] else pool
            found += _kernel(name, container["pid"], wanted)
            found += _recorded(world, name, ids.get((one["uid"], container["name"])), wanted)
    if owned | shared != CPUSet(os.sched_getaffinity(0)) or not owned.isdisjoint(shared):
        found.append(f"{owned} is owned, {shared} shared")
    return found


def _kernel(name: str, pid: int | None, wanted: CPUSet) -> list[str]:
    if not pid:
        return [f"{name}: no process"]
    with suppress(ProcessLookupError):
        now = allowed(pid)
        return [] if now == wanted else [f"{name}: the kernel has {now}, the record {wanted}"]
    return [f"{name}: process {pid} is gone"]


def _recorded(world: World, name: str, container: str | None, wanted: CPUSet) -> list[str]:
    if not isinstance(world, CriWorld | NriWorld):
        return []
    if container is None:
        return [f"{name}: the runtime does not have it"]
    now = CPUSet.parse(world.kubelet.recorded(container))
    return [] if now == wanted else [f"{name}: the runtime has {now}, the record {wanted}"]


def _ids(world: World) -> dict[tuple[str, str], str]:
    """The ids of the containers that the runtime says run, by pod uid and name."""
    return world.kubelet.running() if isinstance(world, CriWorld | NriWorld) else {}


def running_below(world: World) -> set[str]:
    """The roles of all processes below the world's cgroup, as the kernel shows them."""
    roles = set()
    for file in world.root.rglob("cgroup.procs"):
        with suppress(OSError):
            for pid in file.read_text().split():
                with suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                    roles |= {word for word in words if word.startswith(("owner:", "shared:"))}
    return roles


def end_all(world: World, names: set[str]) -> None:
    """End pods; when all are gone, so are their CPUs' owners."""
    for name in sorted(names):
        world.end(name)

"""The extender of 5,000 nodes: what its questions take, its bindings, and all pods of a cluster.

An API server that answers from memory is in the same process: its part is in what bindings take.
"""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from tests.scenes.class_cluster import GPU, compute_resource, pod, resource_class
from tests.scenes.served_extender import asking

from benchmarks.agent_measuring import Detailed, detailed
from benchmarks.measure import Result
from pinfold.cluster.classes.extending import Extender
from pinfold.cluster.classes.holdings import Holdings, SeenPod
from pinfold.cluster.classes.known import Known
from pinfold.cluster.feed import Feed
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.kubernetes import COMPUTE_RESOURCES, PODS, RESOURCE_CLASSES, Listed
from pinfold.web.extender.app import VERBS, make_extender
from pinfold.web.replica.figures import Figures, Requests

NODES: Final = 5_000
HOLDING: Final = 100_000
_DEVICES: Final = 8
_ROUNDS: Final = 20
_BINDINGS: Final = 400
_CHUNK: Final = 500


class _Scene:
    """Two classes, each on half of the nodes; of the first, half of these have nothing left."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        for name, kind in (("gold", "a"), ("silver", "b")):
            self.cluster.create(RESOURCE_CLASSES, resource_class(name, kind))
        self.nodes = [f"node-{number}.example.com" for number in range(NODES)]
        for number, node in enumerate(self.nodes):
            one = compute_resource(f"r{number}", node, "ab"[number % 2], _DEVICES)
            self.cluster.create(COMPUTE_RESOURCES, one)
            if number % 4 == 0:
                self.cluster.create(PODS, pod(f"p{number}", node=node, gold=_DEVICES))
        self.free = self.nodes[2::4]
        self.client = FakeKubernetes(self.cluster, chunk=100_000)
        self.known = Known(self.client)
        holdings = Holdings(self.client)
        self.extender = Extender(self.client, self.known, holdings, leads=lambda: True)
        self.pod = self.cluster.create(PODS, pod("asks", gold=1))
        self.body = json.dumps({"Pod": self.pod, "Nodes": None, "NodeNames": self.nodes}).encode()


@asynccontextmanager
async def _scene() -> AsyncIterator[_Scene]:
    scene = _Scene()
    tasks = [asyncio.create_task(one) for one in (scene.known.follow(), scene.extender.lead())]
    try:
        while scene.extender.problems():  # noqa: ASYNC110 - there is no event of both
            await asyncio.sleep(0.01)
        yield scene
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _of(measure: Callable[[_Scene], Awaitable[Detailed]]) -> Callable[[], Result]:
    async def run() -> Detailed:
        async with _scene() as scene:
            return await measure(scene)

    return lambda: asyncio.run(run())


def _timed(call: Callable[[], object], before: Callable[[], object] = lambda: None) -> list[float]:
    took = []
    for _ in range(_ROUNDS):
        before()
        began = time.perf_counter_ns()
        call()
        took.append(float(time.perf_counter_ns() - began))
    return took


async def _filter(scene: _Scene) -> Detailed:
    scene.extender.fitting(scene.pod, scene.nodes)
    took = _timed(lambda: scene.extender.fitting(scene.pod, scene.nodes))
    return detailed(took, most_ms=max(took) / 1e6)


async def _after_a_change(scene: _Scene) -> Detailed:
    took: list[float] = []
    for number in range(_ROUNDS // 2):
        name = f"other-{number}"
        scene.cluster.create(RESOURCE_CLASSES, resource_class(name, "c"))
        began = time.perf_counter_ns()
        while name not in scene.known.classes:  # noqa: ASYNC110 - the next turn
            await asyncio.sleep(0)
        scene.extender.fitting(scene.pod, scene.nodes)
        took.append(float(time.perf_counter_ns() - began))
    return detailed(took, most_ms=max(took) / 1e6)


def _app(scene: _Scene) -> Any:  # noqa: ANN401 - Starlette's
    requests = Requests(Figures(), "extender", "Questions", VERBS, "verb")
    return make_extender(scene.extender, requests)


async def _over_http(scene: _Scene) -> Detailed:
    took = []
    async with asking(_app(scene)) as http:
        for _ in range(_ROUNDS):
            began = time.perf_counter_ns()
            answer = await http.post("/filter", content=scene.body)
            took.append(float(time.perf_counter_ns() - began))
            answer.raise_for_status()
        fit = len(answer.json()["NodeNames"])
    return detailed(took, most_ms=max(took) / 1e6, kb=len(answer.content) / 1e3, fit=float(fit))


async def _bindings(scene: _Scene) -> Detailed:
    took = []
    async with asking(_app(scene)) as http:
        for number in range(_BINDINGS):
            made = scene.cluster.create(PODS, pod(f"b{number}", gold=1))["metadata"]
            asked = {
                "PodName": made["name"],
                "PodNamespace": made["namespace"],
                "PodUID": made["uid"],
                "Node": scene.free[number % len(scene.free)],
            }
            began = time.perf_counter_ns()
            answer = await http.post("/bind", json=asked)
            took.append(float(time.perf_counter_ns() - began))
            if answer.json() != {}:
                raise RuntimeError(answer.text)
    return detailed(took, per_second=_BINDINGS / (sum(took) / 1e9))


def _holdings() -> Result:
    """All pods of a cluster, each with devices; JSON is decoded, too."""
    chunks = [
        json.dumps([_held(number) for number in range(begin, begin + _CHUNK)]).encode()
        for begin in range(0, HOLDING, _CHUNK)
    ]
    used = [_loaded(chunks) for _ in range(3)]
    tracemalloc.start()
    _loaded(chunks)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return detailed(used, peak_mb=peak / 1e6)


def _held(number: int) -> dict[str, Any]:
    one = pod(f"p{number}", node=f"node-{number % NODES}", gold=number % _DEVICES + 1)
    one["metadata"]["uid"] = f"{number:08x}-0000-4000-8000-000000000000"
    return one


def _loaded(chunks: Sequence[bytes]) -> float:
    decoder = msgspec.json.Decoder(list[SeenPod])
    holdings = Holdings(FakeKubernetes(FakeCluster()))
    held: dict[str, None] = {}
    feed = Feed[SeenPod, str](lambda seen: seen.metadata.uid, lambda: held)
    began = time.process_time_ns()
    for at, chunk in enumerate(chunks):
        objects = decoder.decode(chunk)
        holdings.saw(feed, Listed(objects, "1", at == 0, at == len(chunks) - 1))
    took = float(time.process_time_ns() - began)
    if len(holdings.taken(GPU)) != NODES:
        raise RuntimeError("not all pods were counted")
    return took


MEASURED: Final[Mapping[str, Callable[[], Result]]] = {
    f"extender.filter.{NODES}": _of(_filter),
    f"extender.changed.{NODES}": _of(_after_a_change),
    f"extender.http.{NODES}": _of(_over_http),
    f"extender.bind.{NODES}": _of(_bindings),
    f"extender.pods.{HOLDING}": _holdings,
}

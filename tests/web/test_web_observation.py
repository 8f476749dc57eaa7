"""What is observed, as the API, the status and the metrics tell it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pinfold.agent.loops.observing import figures
from pinfold.core.observation.rates import Counters, Stalls
from pinfold.documents.node import Node
from pinfold.documents.status import Status
from pinfold.ports.errors import ContainerKey
from pinfold.render.plan_view import PlanView
from pinfold.views.status import Hardware, status_view
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, phase, served

KEY = ContainerKey("uid-one", "c0")
SECOND = 1_000_000


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    """One container that uses 1.5 CPUs, waits and is throttled; CPU 1 is idle."""
    with served(tmp_path / "s", observes=True) as server:
        assert server.ask("POST", "/v1/pods", manifest("one", "2")).status == 201
        wait_until(lambda: phase(server, "one") == "Running")
        server.backend.meters.counted[KEY] = Counters(
            incarnation=1,
            usage=0,
            wait=0,
            periods=0,
            throttled_periods=0,
            throttled=0,
            pressure={"cpu": Stalls(0, 0)},
        )
        yield server


def pass_seconds(api: Served, count: int) -> None:
    backend = api.backend
    for _ in range(count):
        had = backend.meters.counted[KEY]
        backend.meters.counted[KEY] = replace(
            had,
            usage=(had.usage or 0) + 3 * SECOND // 2,
            wait=(had.wait or 0) + SECOND // 4,
            periods=(had.periods or 0) + 10,
            throttled_periods=(had.throttled_periods or 0) + 2,
            throttled=(had.throttled or 0) + SECOND // 10,
            pressure={"cpu": Stalls(had.pressure["cpu"].some + SECOND // 4, 0)},
        )
        backend.cpu_meter.counted[1] += SECOND
        backend.clock += 1.0
        assert backend.observation is not None
        api.call(backend.observation.observe())


def status(api: Served) -> dict[str, Any]:
    found: dict[str, Any] = api.ask("GET", "/v1/status").json
    return found


def test_nothing_is_told_where_nothing_is_watched(tmp_path: Path) -> None:
    with served(tmp_path / "s") as server:
        answer = server.ask("GET", "/v1/observation")
        assert answer.status == 503
        assert "observationPeriod" in answer.error["remedy"]
        assert "observation" not in status(server)


def test_before_the_second_reading_there_are_no_rates(api: Served) -> None:
    for _ in range(2):
        told = api.ask("GET", "/v1/observation").json
        assert (told["containers"], told["cpus"], told["idle"]) == ([], [], {})
        assert told["cost"]["share"] is None
        assert "load" not in status(api)["pods"][0]["containers"][0]
        pass_seconds(api, 1)
    assert api.ask("GET", "/v1/observation").json["containers"] != []


def test_rates_and_history(api: Served) -> None:
    pass_seconds(api, 71)
    told = api.ask("GET", "/v1/observation").json
    assert (told["period"], told["wait_source"], told["lacks"]) == (1.0, "cpu.pressure", [])
    assert told["cpus"] == [
        {"cpu": 0, "last": 0.0, "ten_seconds": 0.0, "minute": 0.0},
        {"cpu": 1, "last": 1.0, "ten_seconds": 1.0, "minute": 1.0},
    ]
    (container,) = told["containers"]
    assert (container["pod"], container["container"]) == ("default/one", "c0")
    assert [container[one]["seconds"] for one in ("last", "ten_seconds", "minute")] == [1, 10, 60]
    load = container["minute"]
    assert (load["usage"], load["wait"], load["throttled"]) == (1.5, 0.25, 0.1)
    assert load["throttled_periods"] == 0.2
    assert load["pressure"] == {"cpu": {"some": 0.25, "full": 0.0}}
    assert "history" not in container
    (container,) = api.ask("GET", "/v1/observation?history=true").json["containers"]
    assert [step["ago"] for step in container["history"]] == [float(n) for n in range(59, -1, -1)]
    assert all(step["load"]["usage"] == 1.5 for step in container["history"])
    assert api.ask("GET", "/v1/observation?history=maybe").status == 400


def view(api: Served) -> PlanView:
    node = msgspec.convert(api.ask("GET", "/v1/node").json, Node)
    machine = Hardware.told(api.ask("GET", "/v1/machine").json)
    return status_view(msgspec.convert(status(api), Status), machine, node)


def test_the_status_has_it_in_short(api: Served) -> None:
    pass_seconds(api, 3)
    told = status(api)
    assert told["observation"]["idle"] == {"0": 0.0, "1": 1.0}
    assert told["pods"][0]["containers"][0]["load"]["usage"] == 1.5
    shown = view(api)
    (row,) = shown.pods[0].containers
    for text in ("uses 1.50 CPUs", "waits 0.25 s a second", "throttled in 20% of its periods"):
        assert text in row.extras
    assert "1.0 of 2 CPUs are busy; idle: 1" in shown.notes


def test_the_metrics_are_cadvisors(api: Served) -> None:
    pass_seconds(api, 2)
    backend = api.backend
    backend.cpu_meter.stalls = {"io": Stalls(SECOND, None)}
    pass_seconds(api, 1)
    assert backend.observation is not None
    told = [f for f in figures(backend.observation, backend.books) if f.value is not None]
    labels = {"namespace": "default", "pod": "one", "container": "c0"}
    found = {figure.name: figure.value for figure in told if figure.labels == labels}
    assert found == {
        "pinfold_container_cpu_usage_seconds": 4.5,
        "pinfold_container_cpu_cfs_throttled_seconds": pytest.approx(0.3),
        "pinfold_container_cpu_cfs_periods": 30,
        "pinfold_container_cpu_cfs_throttled_periods": 6,
        "pinfold_container_pressure_cpu_waiting_seconds": 0.75,
        "pinfold_container_pressure_cpu_stalled_seconds": 0,
    }
    of_node = {(f.name, *f.labels.values()): f.value for f in told if f.labels != labels}
    assert of_node[("pinfold_cpu_idle_seconds", "1")] == 3.0
    assert of_node[("pinfold_node_pressure_io_waiting_seconds",)] == 1.0
    assert ("pinfold_node_pressure_io_stalled_seconds",) not in of_node
    assert of_node[("pinfold_observations",)] == 3

"""Resizes over the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenes.manager_harness import manifest
from tests.scenes.web_world import Served, served


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "s") as server:
        server.ask("POST", "/v1/pods", manifest("db", "2"))
        yield server


def resize(api: Served, cpus: object, pod: str = "db", query: str = "", **more: Any) -> Any:
    amount = {"cpu": cpus}
    one = {"resources": {"requests": amount, "limits": amount}, **more}
    path = f"/v1/pods/default/{pod}{query}"
    return api.ask("PATCH", path, {"spec": {"containers": [one]}})


def test_a_container_grows_and_shrinks(api: Served) -> None:
    answer = resize(api, "4")
    assert answer.status == 200
    told = answer.json
    assert (told["pod"], told["container"], told["cpus"]) == ("default/db", "c0", 4)
    assert (told["feasible"], told["before"], told["after"]) == (True, "2-3", "2-5")
    assert told["moves"]["why"] == "resize"
    assert api.ask("GET", "/v1/pods/default/db").json["containers"][0]["cpus"] == "2-5"
    assert resize(api, 2, name="c0").json["after"] == "2-3"
    status = api.ask("GET", "/v1/status").json
    assert (status["move"], status["shared"]) == (None, "0-1,4-7")
    kinds = [e["kind"] for e in api.ask("GET", "/v1/history").json["entries"]]
    assert kinds == ["moved", "resized", "moved", "resized", "admitted"]
    metrics = api.ask("GET", "/metrics").text
    assert 'pinfold_move_duration_seconds_count{outcome="done",why="resize"} 2.0' in metrics


def test_what_is_infeasible_changes_nothing(api: Served) -> None:
    told = resize(api, 1).json
    assert (told["feasible"], told["reason"]) == (False, "prohibitedCPUAllocationError")
    assert (told["before"], told["after"]) == ("2-3", "2-3")
    assert resize(api, 20).json["reason"] == "resizeAllocateCPUsError"
    told = resize(api, "1500m").json
    assert (told["reason"], told["cpus"]) == ("inconsistentCPUAllocationError", 1.5)
    newest = api.ask("GET", "/v1/history").json["entries"][0]
    assert (newest["kind"], newest["document"]["reason"]) == (
        "infeasible",
        "inconsistentCPUAllocationError",
    )


def test_what_is_no_resize_is_refused(api: Served) -> None:
    for body, words in (
        ({}, "spec"),
        ({"spec": {"containers": []}}, "spec.containers"),
        ({"spec": {"containers": [{"resources": {}}]}}, "no number of CPUs"),
        ({"spec": {"containers": [{"resources": {"limits": {"memory": "1"}}}]}}, "only cpu"),
        *(
            ({"spec": {"containers": [{"resources": {"limits": {"cpu": cpu}}}]}}, "limits.cpu: ")
            for cpu in ("x", "-3", 0, "1000000", "9999999999999999999E", "-9e50")
        ),
        (
            {
                "spec": {
                    "containers": [{"resources": {"limits": {"cpu": 1}, "requests": {"cpu": 2}}}]
                }
            },
            "two numbers",
        ),
    ):
        answer = api.ask("PATCH", "/v1/pods/default/db", body)
        assert (answer.status, answer.error["code"]) == (400, "BadRequest")
        assert words in answer.error["message"]
    assert resize(api, 4, pod="other").status == 404
    answer = resize(api, 4, name="other")
    assert answer.status == 404
    assert "no container 'other'" in answer.error["message"]
    assert resize(api, 4, query="?wait=maybe").status == 400


def test_the_remedy_names_the_fields_of_the_place(api: Served) -> None:
    for spec, words, remedy in (
        ({"containers": [{"name": "c", "image": "x"}]}, "containers[0]: ", "there are name, "),
        ({"pods": []}, "spec: ", "there are containers"),
        ({"containers": []}, "spec.containers: Expected 'array' of length", ""),
    ):
        error = api.ask("PATCH", "/v1/pods/default/db", {"spec": spec}).error
        assert words in error["message"]
        assert (error.get("remedy") or "").startswith(remedy)
        assert bool(error.get("remedy")) == bool(remedy)


def test_who_was_rejected_has_not_ended(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("big", "20"))
    answer = resize(api, 4, pod="big")
    assert (answer.status, answer.error["message"]) == (
        404,
        "pod default/big was rejected (UnexpectedAdmissionError)",
    )


def test_a_resize_that_nobody_waits_for(api: Served) -> None:
    assert resize(api, 4, query="?wait=false").status == 200

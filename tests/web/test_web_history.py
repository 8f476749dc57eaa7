"""The history and the newest decision about a pod, by the local API and by the commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from pinfold.cli import main
from tests.scenes.manager_harness import manifest
from tests.scenes.web_world import Served, served


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "agent.sock", adopts=True) as server:
        yield server


def test_history_and_explanation(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("a", "1"))
    api.ask("POST", "/v1/pods", manifest("big", "20"))
    api.ask("DELETE", "/v1/pods/default/a")
    entries = api.ask("GET", "/v1/history").json["entries"]
    kinds = [(entry["kind"], entry["pod"]) for entry in entries]
    assert kinds == [
        ("released", "default/a"),
        ("rejected", "default/big"),
        ("admitted", "default/a"),
    ]
    newest = api.ask("GET", "/v1/history?limit=1").json["entries"]
    assert [entry["number"] for entry in newest] == [3]
    for name in ("a", "default/a", "default%2Fa", "uid-a"):
        found = api.ask("GET", f"/v1/history?pod={name}").json["entries"]
        assert [entry["kind"] for entry in found] == ["released", "admitted"], name
    found = api.ask("GET", "/v1/history?kind=rejected,released&limit=9").json["entries"]
    assert [entry["kind"] for entry in found] == ["released", "rejected"]
    asked = ["history", "pod/a", "--kind", "admitted", "--socket", str(api.path)]
    done = CliRunner().invoke(main, asked)
    assert (done.exit_code, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert "admitted  default/a  " in line
    assert "CPUs " in line
    done = CliRunner().invoke(main, [*asked, "-o", "json"])
    assert [one["kind"] for one in json.loads(done.stdout)["entries"]] == ["admitted"]
    nothing = CliRunner().invoke(main, ["history", "nobody", "--socket", str(api.path)])
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert api.ask("GET", f"/v1/history?kind={'a,' * 101}").status == 400
    assert api.ask("GET", "/v1/history?pod=nobody").json["entries"] == []
    gone = api.ask("GET", "/v1/explain/default/a").json
    assert (gone["name"], gone["admitted"]) == ("a", True), "of a pod that is gone"
    refused = api.ask("GET", "/v1/explain/default/big").json
    assert (refused["name"], refused["admitted"]) == ("big", False)
    answer = api.ask("GET", "/v1/explain/default/nobody")
    assert (answer.status, answer.error["code"]) == (404, "NotFound")


def test_the_decision_is_found_behind_a_long_history(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("a", "1"))
    decision = api.node.store.entries[-1]

    def bury() -> None:
        noise = replace(decision, kind="repaired", document="not JSON at all")
        api.node.store.entries += [replace(noise, number=n) for n in range(2, 800)]

    api.do(bury)
    found = api.ask("GET", "/v1/explain/default/a").json
    assert found == json.loads(decision.document)
    entries = api.ask("GET", "/v1/history?limit=1000").json["entries"]
    assert len(entries) == 799
    assert entries[0]["document"] is None
    assert entries[-1]["document"] == found

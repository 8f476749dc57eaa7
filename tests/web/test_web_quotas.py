"""Quotas by way of the local API, and by the commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pinfold.cli import main
from tests.scenes.manager_harness import manifest
from tests.scenes.web_world import Served, served

OURS = "pinfold.dev/exclusive-cpus"
QUOTA: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "cpus"},
    "spec": {"hard": {OURS: "2"}},
}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "agent.sock", adopts=True) as server:
        yield server


@pytest.fixture
def pinfold(tmp_path: Path) -> Any:
    def run(*words: str) -> Result:
        return CliRunner().invoke(main, [*words, "--socket", str(tmp_path / "agent.sock")])

    return run


def test_a_quota_comes_is_shown_and_goes(api: Served) -> None:
    assert "quotas" not in api.ask("GET", "/v1/status").json
    kept = api.ask("POST", "/v1/objects", QUOTA)
    name = {"kind": "ResourceQuota", "namespace": "default", "name": "cpus"}
    assert (kept.status, kept.json) == (200, {"version": kept.json["version"], **name})
    assert api.ask("POST", "/v1/pods", manifest("a", "2")).status == 201
    refused = api.ask("POST", "/v1/pods", manifest("b", "1"))
    assert (refused.status, refused.json["reason"]) == (200, "Forbidden")
    assert "exceeded quota: cpus" in refused.json["message"]
    [shown] = api.ask("GET", "/v1/status").json["quotas"]
    assert (shown["hard"], shown["used"]) == ({OURS: "2"}, {OURS: "2"})
    assert api.ask("DELETE", "/v1/objects/ResourceQuota/default/cpus").status == 204
    assert api.ask("DELETE", "/v1/objects/ResourceQuota/default/cpus").status == 404
    assert api.ask("POST", "/v1/pods", manifest("b", "1")).status == 201


def test_a_resize_beyond_it_is_answered(api: Served) -> None:
    api.ask("POST", "/v1/objects", QUOTA)
    api.ask("POST", "/v1/pods", manifest("a", "2"))
    resources = {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}
    patch = {"spec": {"containers": [{"resources": resources}]}}
    answer = api.ask("PATCH", "/v1/pods/default/a", patch).json
    assert (answer["feasible"], answer["reason"]) == (False, "Forbidden")


def test_what_is_no_quota_is_refused(api: Served) -> None:
    wrong = api.ask("POST", "/v1/objects", {"kind": "Secret"})
    assert (wrong.status, "Unsupported value: 'Secret'" in wrong.error["message"]) == (400, True)
    bad = {**QUOTA, "spec": {"hard": {OURS: "1500m"}}}
    assert "must be an integer" in api.ask("POST", "/v1/objects", bad).error["message"]


def test_the_commands_know_quotas(api: Served, pinfold: Any, tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    # The quota is in force before the pods, wherever it stands.
    namespace = {"kind": "Namespace", "metadata": {"name": "default"}}
    items = [manifest("a", "2"), manifest("b", "1"), QUOTA, namespace]
    file.write_text(json.dumps({"kind": "List", "items": items}))
    done = pinfold("apply", str(file))
    assert done.exit_code == 1
    first, admitted, rejected = done.output.splitlines()
    assert (first, admitted[:14]) == ("quota/cpus applied", "pod/a admitted")
    assert rejected.startswith('pod/b rejected: Forbidden: pods "b" is forbidden')
    status = pinfold("status")
    assert f"default/cpus: {OURS} 2 of 2" in status.output
    gone = pinfold("delete", "quota/cpus")
    assert (gone.exit_code, gone.output) == (0, "quota/cpus deleted\n")
    again = pinfold("delete", "quota/cpus")
    assert (again.exit_code, "there is no ResourceQuota default/cpus" in again.output) == (1, True)
    both = pinfold("delete", "quota/cpus", "pod/a")
    assert (both.exit_code, "pod/a deleted\n" in both.output) == (1, True)
    assert both.output.endswith("Error: 1 of 2 were not deleted\n")
    assert pinfold("apply", str(file), "-o", "json").exit_code == 1
    assert api.ask("GET", "/v1/status").json["quotas"]


def test_no_pod_comes_in_without_the_quota_that_is_refused(
    api: Served, pinfold: Any, tmp_path: Path
) -> None:
    file = tmp_path / "all.json"
    bad = {**QUOTA, "spec": {"hard": {"nonsense": "1"}}}
    file.write_text(json.dumps({"kind": "List", "items": [manifest("a", "2"), bad]}))
    done = pinfold("apply", str(file))
    assert done.exit_code == 1
    assert "nothing more is applied" in done.output
    assert api.ask("GET", "/v1/pods").json["pods"] == []

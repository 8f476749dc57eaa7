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


def changes(api: Served) -> list[tuple[str, str, dict[str, str], list[str]]]:
    entries = reversed(api.ask("GET", "/v1/history?kind=quota").json["entries"])
    told = [one["document"] for one in entries]
    return [(one["change"], one["source"], one["hard"], one["exceeded"]) for one in told]


def test_what_becomes_of_it_is_in_the_history_and_metrics(api: Served) -> None:
    def of_quota() -> list[str]:
        lines = api.ask("GET", "/metrics").text.splitlines()
        return [line for line in lines if line.startswith("pinfold_quota_")]

    assert of_quota() == []
    api.ask("POST", "/v1/objects", QUOTA)
    api.ask("POST", "/v1/objects", QUOTA)
    api.ask("POST", "/v1/pods", manifest("a", "2"))
    api.ask("POST", "/v1/pods", manifest("b", "1"))
    resources = {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}
    patch = {"spec": {"containers": [{"resources": resources}]}}
    api.ask("PATCH", "/v1/pods/default/a", patch)
    less = {**QUOTA, "spec": {"hard": {OURS: "1"}}}
    kept = api.ask("POST", "/v1/objects", less).json
    assert kept["warnings"] == [
        f"more is in use already of {OURS}: nobody is ended, nobody else let in"
    ]
    labels = 'namespace="default",resourcequota="cpus"'
    of_ours = f'namespace="default",resource="{OURS}",resourcequota="cpus"'
    assert of_quota() == [
        f"pinfold_quota_hard{{{of_ours}}} 1.0",
        f"pinfold_quota_used{{{of_ours}}} 2.0",
        f"pinfold_quota_refusals_total{{{labels}}} 2.0",
    ]
    api.ask("DELETE", "/v1/objects/ResourceQuota/default/cpus")
    assert changes(api) == [
        ("applied", "api", {OURS: "2"}, []),
        ("changed", "api", {OURS: "1"}, [OURS]),
        ("deleted", "api", {}, []),
    ]
    assert of_quota() == []


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
    made, first, admitted, rejected = done.output.splitlines()
    assert made == "namespace/default needs no making"
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


@pytest.mark.usefixtures("api")
def test_what_may_not_be_meant_is_told(pinfold: Any, tmp_path: Path) -> None:
    file = tmp_path / "q.json"
    file.write_text(json.dumps({**QUOTA, "spec": {"hard": {"requests.pinfold.dev/cpus": "1"}}}))
    done = pinfold("apply", str(file))
    assert done.exit_code == 0
    assert "Warning: quota/cpus: spec.hard[requests.pinfold.dev/cpus]: nobody" in done.output
    status = " ".join(pinfold("status").output.split())
    assert "ResourceQuota default/cpus: spec.hard[requests.pinfold.dev/cpus]" in status


def test_a_namespace_is_checked_and_not_kept(api: Served) -> None:
    namespace = {"kind": "Namespace", "metadata": {"name": "team"}}
    answer = api.ask("POST", "/v1/objects", namespace)
    assert (answer.status, answer.json["name"]) == (200, "team")
    assert api.ask("DELETE", "/v1/objects/Namespace//team").status == 404
    wrong = api.ask("POST", "/v1/objects", {**namespace, "metadata": {"name": "A_B"}})
    assert (wrong.status, "metadata.name" in wrong.error["message"]) == (400, True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"kind": "Namespace", "metadata": {"name": "A_B"}}, "namespace/A_B: metadata.name"),
        ({"kind": "ResourceClass", "metadata": {"name": "gold"}}, "setting resourceClasses"),
        ({"kind": "List", "items": [QUOTA, QUOTA]}, "quota/cpus is there already"),
    ],
)
def test_what_cannot_be_applied_is_named_with_its_place(
    api: Served, pinfold: Any, tmp_path: Path, content: dict[str, Any], words: str
) -> None:
    file = tmp_path / "q.json"
    file.write_text(json.dumps(content))
    done = pinfold("apply", str(file))
    assert done.exit_code == 2
    assert f"{file}: document 1 (line 1)" in done.output
    assert words in done.output
    assert api.ask("GET", "/v1/status").json.get("quotas") is None


@pytest.mark.usefixtures("api")
def test_a_list_of_quotas_says_their_kind(pinfold: Any, tmp_path: Path) -> None:
    file = tmp_path / "q.json"
    one = {key: value for key, value in QUOTA.items() if key != "kind"}
    file.write_text(json.dumps({"kind": "ResourceQuotaList", "items": [one]}))
    assert pinfold("apply", str(file)).output == "quota/cpus applied\n"
    for wrong in ("quota/a/b/c", "namespace/team"):
        assert pinfold("delete", wrong).exit_code == 2
    other = pinfold("delete", "quota/elsewhere/cpus")
    assert "there is no ResourceQuota elsewhere/cpus; there is default/cpus" in other.output


def test_no_pod_comes_in_without_the_quota_that_is_refused(
    api: Served, pinfold: Any, tmp_path: Path
) -> None:
    file = tmp_path / "all.json"
    bad = {**QUOTA, "spec": {"hard": {"nonsense": "1"}}}
    file.write_text(json.dumps({"kind": "List", "items": [manifest("a", "2"), bad]}))
    done = pinfold("apply", str(file))
    assert done.exit_code == 1
    assert "nothing more is applied" in done.output
    assert f"{file}: document 1 (line 1): items[1]: quota/cpus: spec.hard[nonsense]" in done.output
    assert api.ask("GET", "/v1/pods").json["pods"] == []

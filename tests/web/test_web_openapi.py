"""The OpenAPI document as a client gets it: whole, sound, and true.

That real answers are what it says is checked by every request of the other tests, too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.documents.schemas import DOCUMENTS, json_schema
from pinfold.ports.records import PodPhase
from pinfold.web.answers import CODES
from tests.roots import ROOT
from tests.scenes.manager_harness import manifest
from tests.scenes.published_schemas import check_document
from tests.scenes.web_world import Served, served

PAGE = ROOT / "docs" / "reference" / "api.md"
PROMISED = {
    ("DELETE", "/v1/objects/{kind}/{namespace}/{name}"),
    ("DELETE", "/v1/pods/{namespace}/{name}"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/readyz"),
    ("GET", "/v1/events"),
    ("GET", "/v1/explain/{namespace}/{name}"),
    ("GET", "/v1/history"),
    ("GET", "/v1/machine"),
    ("GET", "/v1/node"),
    ("GET", "/v1/observation"),
    ("GET", "/v1/pods"),
    ("GET", "/v1/pods/{namespace}/{name}"),
    ("GET", "/v1/pods/{namespace}/{name}/log"),
    ("GET", "/v1/rebalance"),
    ("GET", "/v1/status"),
    ("PATCH", "/v1/pods/{namespace}/{name}"),
    ("POST", "/v1/objects"),
    ("POST", "/v1/pods"),
    ("POST", "/v1/rebalance"),
    ("POST", "/v1/reconcile"),
    ("POST", "/v1/run"),
    ("POST", "/v1/run/{uid}/exit"),
}
"""What clients rely on; it changes with a version only."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("api") / "s", adopts=True) as server:
        yield server


def described(api: Served) -> dict[str, dict[str, Any]]:
    """The operations by path and method, as the server tells them."""
    paths: dict[str, dict[str, Any]] = api.contract.document["paths"]
    return paths


def test_what_is_promised_is_in_it_and_nothing_else(api: Served) -> None:
    told = {(method.upper(), path) for path, found in described(api).items() for method in found}
    assert told == PROMISED


@pytest.mark.parametrize("path", sorted({path for _, path in PROMISED}))
def test_the_server_has_the_promised_methods_and_no_other(api: Served, path: str) -> None:
    """Whatever it answers to a promised method, it is not that there is none."""
    target = path.format(kind="none", namespace="default", name="none", uid="none")
    methods = {"DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT"}
    # With these it is the path of a pod: an older agent's may have a slash in its name.
    for method in sorted(methods - ({"DELETE", "PATCH"} if path.endswith("/log") else set())):
        answer = api.ask(method, target)
        has = answer.status != 405 and f"there is nothing at {target}" not in answer.text
        assert has == ((method, path) in PROMISED), f"{method}: {answer.text}"
        if not has:
            promised = {method for method, there in PROMISED if there == path}
            assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == promised


def test_what_it_does_not_tell_is_not_there(api: Served) -> None:
    for path in (
        "/",
        "/v1",
        "/v1/",
        "/v1/status/",
        "/v1/pods/a",
        "/v2/status",
        "/docs",
        "/v1/run/a",
    ):
        answer = api.ask("GET", path)
        assert answer.status == 404, path
        assert "there is nothing at" in answer.error["message"]


def test_every_good_answer_that_it_tells_is_given(tmp_path: Path) -> None:
    """Each operation once with success; the answers are checked as they come."""
    with served(tmp_path / "s", adopts=True, observes=True, dynamic=DynamicOptions()) as api:
        for path in (
            "/v1/observation",
            "/v1/status",
            "/v1/machine",
            "/v1/node",
            "/v1/pods",
            "/v1/history",
            "/v1/events",
        ):
            assert api.ask("GET", path).status == 200
        assert api.ask("POST", "/v1/pods", manifest("db", "2")).status == 201
        assert api.ask("POST", "/v1/pods", manifest("large", "99")).status == 200
        for path in ("/v1/pods/default/db", "/v1/explain/default/db", "/v1/history?limit=2"):
            assert api.ask("GET", path).status == 200
        limits = {"limits": {"cpu": "4"}}
        patch = {"spec": {"containers": [{"resources": limits}]}}
        assert api.ask("PATCH", "/v1/pods/default/db", patch).status == 200
        assert api.ask("DELETE", "/v1/pods/default/db?grace=0").status == 204
        spec = {"hard": {"pods": "9"}}
        quota = {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": spec}
        assert api.ask("POST", "/v1/objects", quota).status == 200
        assert api.ask("DELETE", "/v1/objects/ResourceQuota/default/q").status == 204
        held = manifest("held", "1", restartPolicy="Never")
        assert api.ask("POST", "/v1/run", {"manifest": held, "pid": os.getppid()}).status == 200
        assert api.ask("POST", "/v1/run/uid-held/exit", {"code": 0}).status == 204
        assert api.ask("POST", "/v1/reconcile").status == 200
        for method in ("GET", "POST"):
            assert api.ask(method, "/v1/rebalance").status == 200
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
            assert api.ask("GET", path).status == 200
        promised = {
            (template, method, int(status))
            for template, operations in described(api).items()
            for method, operation in operations.items()
            for status in operation["responses"]
            if int(status) < 400
        }
        # Logs need a runtime that writes some; see test_web_logs.
        assert promised - api.contract.seen == {("/v1/pods/{namespace}/{name}/log", "get", 200)}


def test_every_operation_is_on_the_page() -> None:
    documented = re.findall(
        r"^\| `(GET|POST|PATCH|DELETE) (/\S*?)(?:\?\S*)?` \|", PAGE.read_text(), re.MULTILINE
    )
    assert sorted(documented) == sorted(PROMISED)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].removeprefix("#/components/schemas/")
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_reference_leads_somewhere_and_every_schema_is_used(api: Served) -> None:
    document = api.contract.document
    assert set(references(document)) == set(document["components"]["schemas"])


def test_every_parameter_is_described_and_taken(api: Served) -> None:
    for path, operations in described(api).items():
        for method, operation in operations.items():
            parameters = operation.get("parameters", ())
            named = {p["name"] for p in parameters if p["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            target = re.sub(r"{\w+}", "nobody", path)
            for parameter in parameters:
                if parameter["in"] == "query":
                    assert parameter["description"]
                    answer = api.ask(method.upper(), f"{target}?{parameter['name']}=1")
                    assert "unknown parameter" not in answer.text
            assert api.ask(method.upper(), f"{target}?nonsense=1").status == 400


def test_the_names_of_operations_are_unique(api: Served) -> None:
    names = [
        o["operationId"] for operations in described(api).values() for o in operations.values()
    ]
    assert len(set(names)) == len(names)


def test_the_words_of_the_schemas_are_those_of_the_agent(api: Served) -> None:
    schemas = api.contract.document["components"]["schemas"]
    phases = schemas["Pod"]["properties"]["phase"]["enum"]
    assert phases == [phase.value for phase in PodPhase]
    assert schemas["PodDocument"]["properties"]["phase"]["enum"] == phases
    assert schemas["Fault"]["properties"]["code"]["enum"] == sorted(set(CODES.values()))


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({"code": 256}, "Exit"),
        ({"code": True}, "Exit"),
        ({}, "Exit"),
        ({"version": 2, "pods": []}, "PodList"),
        ({"version": 1, "pods": [{}]}, "PodList"),
        ({"version": 1, "pods": [], "more": 1}, "PodList"),
        ({"pods": []}, "PodList"),
        ({"error": {"code": "Nonsense", "message": "", "remedy": ""}}, "Error"),
        ([], "Manifest"),
    ],
)
def test_the_checker_of_the_tests_can_fail(api: Served, value: object, schema: str) -> None:
    with pytest.raises(ValidationError):
        api.contract.check(value, {"$ref": f"#/components/schemas/{schema}"})


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_field_is_required_or_may_be_left_out_and_has_a_form(name: str) -> None:
    schema = json_schema(name)
    with pytest.raises(ValidationError):
        check_document(name, {})
    for form in (schema, *schema.get("$defs", {}).values()):
        assert form["description"]
        assert set(form.get("required", ())) <= form["properties"].keys()


@given(st.sampled_from(sorted(DOCUMENTS)), st.data())
def test_a_document_without_one_of_its_fields_is_none(name: str, data: st.DataObject) -> None:
    schema = json_schema(name)
    gone = data.draw(st.sampled_from(schema["required"]))
    rest = {field: None for field in schema["required"] if field != gone}
    problems = Draft202012Validator(schema).iter_errors(rest)
    assert f"'{gone}' is a required property" in [problem.message for problem in problems]

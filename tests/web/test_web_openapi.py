"""The OpenAPI document: whole, sound, and true.

That real answers are what it says is checked by every request of the other tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from pinfold.web.openapi import PARAMETERS, SCHEMAS, openapi_document
from pinfold.web.operations import OPERATIONS
from tests.roots import ROOT
from tests.scenes.web_world import Served, check_schema, served

PAGE = ROOT / "docs" / "reference" / "api.md"
PROMISED = {
    ("DELETE", "/v1/pods/{namespace}/{name}"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/readyz"),
    ("GET", "/v1/explain/{namespace}/{name}"),
    ("GET", "/v1/history"),
    ("GET", "/v1/machine"),
    ("GET", "/v1/node"),
    ("GET", "/v1/pods"),
    ("GET", "/v1/pods/{namespace}/{name}"),
    ("GET", "/v1/pods/{namespace}/{name}/log"),
    ("GET", "/v1/status"),
    ("POST", "/v1/pods"),
    ("POST", "/v1/reconcile"),
    ("POST", "/v1/run"),
    ("POST", "/v1/run/{uid}/exit"),
}
"""What clients rely on; it changes with a version only."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("api") / "s") as server:
        yield server


def test_it_is_served(api: Served) -> None:
    assert api.ask("GET", "/openapi.json").json == openapi_document()


def test_what_is_promised_is_in_it_and_nothing_else() -> None:
    paths = openapi_document()["paths"]
    assert {(method.upper(), path) for path in paths for method in paths[path]} == PROMISED


@pytest.mark.parametrize("path", sorted({path for _, path in PROMISED}))
def test_the_server_has_the_promised_methods_and_no_other(api: Served, path: str) -> None:
    """Whatever it answers to a promised method, it is not that there is none."""
    target = path.format(namespace="default", name="none", uid="none")
    methods = {"DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT"}
    # With DELETE it is the path of a pod: an older agent's may have a slash in its name.
    for method in sorted(methods - ({"DELETE"} if path.endswith("/log") else set())):
        answer = api.ask(method, target)
        has = answer.status != 405 and f"there is nothing at {target}" not in answer.text
        assert has == ((method, path) in PROMISED), f"{method}: {answer.text}"


def test_every_operation_is_on_the_page() -> None:
    documented = re.findall(
        r"^\| `(GET|POST|DELETE) (/\S*?)(?:\?\S*)?` \|", PAGE.read_text(), re.MULTILINE
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


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    assert set(references(openapi_document())) == set(SCHEMAS)


def test_every_parameter_is_described() -> None:
    used = {name for operation in OPERATIONS for name in operation.query}
    assert used == set(PARAMETERS)
    for path, operations in openapi_document()["paths"].items():
        for operation in operations.values():
            named = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))


def test_the_names_of_operations_are_unique() -> None:
    names = [operation.handler for operation in OPERATIONS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ({"code": 256}, "Exit"),
        ({"code": True}, "Exit"),
        ({}, "Exit"),
        ({"version": 2, "pods": []}, "PodList"),
        ({"version": 1, "pods": [{}]}, "PodList"),
        ({"error": {"code": "Nonsense", "message": "", "remedy": ""}}, "Error"),
        ([], "Manifest"),
    ],
)
def test_the_checker_of_the_tests_can_fail(value: object, schema: str) -> None:
    with pytest.raises(AssertionError):
        check_schema(value, {"$ref": f"#/components/schemas/{schema}"})

"""The OpenAPI document: whole, sound, and true.

That real answers are what it says is checked by every request of the other tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import Route

from pinfold.web.app import make_app
from pinfold.web.openapi import PARAMETERS, SCHEMAS, openapi_document
from pinfold.web.operations import OPERATIONS
from tests.roots import ROOT
from tests.scenes.web_world import Served, check_schema, served

PAGE = ROOT / "docs" / "reference" / "api.md"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("api") / "s") as server:
        yield server


def test_it_is_served(api: Served) -> None:
    assert api.ask("GET", "/openapi.json").json == openapi_document()


def test_every_route_is_in_it_and_no_other(api: Served) -> None:
    routes = {
        (route.path_format, method.lower())
        for route in make_app(api.desk).routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    described = {
        (path, method)
        for path, operations in openapi_document()["paths"].items()
        for method in operations
    }
    assert routes == described
    assert len(routes) == len(OPERATIONS) == 17


def test_every_operation_is_on_the_page() -> None:
    documented = re.findall(
        r"^\| `(GET|POST|DELETE) (/\S*?)(?:\?\S*)?` \|", PAGE.read_text(), re.MULTILINE
    )
    assert sorted(documented) == sorted((o.method, o.path) for o in OPERATIONS)


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

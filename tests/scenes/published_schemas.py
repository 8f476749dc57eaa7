"""Documents as an independent validator sees them, by the schemas that Pinfold publishes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, ParamSpec

import msgspec
from jsonschema import Draft202012Validator

from pinfold.admission import node_status
from pinfold.audit import audit
from pinfold.documents.records import Record
from pinfold.documents.schemas import DOCUMENTS, json_schema
from pinfold.planning import compare
from pinfold.planning import machine_document as made_of_machine
from pinfold.planning import plan_document as made_of_plan
from pinfold.planning.explaining.document import explain_document as told_document
from pinfold.web import documents


def closed(schema: Any) -> Any:
    """The same schema where nothing may be in an object that is not described."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if found.get("type") == "object" and found.get("properties"):
        found.setdefault("additionalProperties", False)
    return found


def validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(closed(schema))


@cache
def _of_document(name: str) -> Draft202012Validator:
    return validator(json_schema(name))


def check_document(name: str, document: object) -> None:
    """See that a document is what ``pinfold schema NAME`` says, and has nothing else.

    Raises:
        ValidationError: it is not.
    """
    _of_document(name).validate(document)


class APIContract:
    """An OpenAPI document as a client has it, and answers held against it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self._paths = [
            (template, re.compile(re.sub(r"{\w+}", "[^/]+", template)), operations)
            for template, operations in document["paths"].items()
        ]
        self._validators: dict[str, Draft202012Validator] = {}
        self.seen: set[tuple[str, str, int]] = set()
        """The template, the method and the status of every answer that was checked."""

    def check(self, value: object, schema: Mapping[str, Any]) -> None:
        """Hold a value against a schema of the document.

        Raises:
            ValidationError: it is something else.
        """
        whole = {**schema, "components": self.document["components"]}
        key = str(schema)
        if key not in self._validators:
            self._validators[key] = validator(whole)
        self._validators[key].validate(value)

    def check_answer(
        self, method: str, path: str, *, status: int, media_type: str, text: str, value: Any
    ) -> None:
        """See that an answer is one that the document tells.

        Args:
            method: of the request.
            path: of the request, without its query.
            status: of the answer.
            media_type: of the answer.
            text: its body.
            value: its body, where it is JSON.
        """
        found = next((f for f in self._paths if f[1].fullmatch(path)), None)
        if found is None or method.lower() not in found[2]:
            # A name may have a slash in it, so some paths below a pod are pods that are not there.
            assert status == 404 or (found is not None and status == 405)
            self.check(value, {"$ref": "#/components/schemas/Error"})
            return
        template, _, operations = found
        response = operations[method.lower()]["responses"].get(str(status))
        assert response is not None, f"{method} {path} must not answer {status}: {text}"
        self.seen.add((template, method.lower(), status))
        if "content" not in response:
            assert text == ""
            return
        ((wanted, content),) = response["content"].items()
        assert media_type == wanted
        self.check(value if media_type == "application/json" else text, content["schema"])


_NAMES = {published.form: name for name, published in DOCUMENTS.items()}

P = ParamSpec("P")


def told(document: Record) -> dict[str, Any]:
    """A document as whoever asked gets it: JSON, which is what its schema says."""
    content: dict[str, Any] = json.loads(msgspec.json.encode(document))
    check_document(_NAMES[type(document)], content)
    return content


def _told(make: Callable[P, Record]) -> Callable[P, dict[str, Any]]:
    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        return told(make(*args, **kwargs))

    return made


audit_document = _told(audit.audit_document)
compare_document = _told(compare.compare_document)
drifts_document = _told(documents.drifts_document)
explain_document = _told(told_document)
history_document = _told(documents.history_document)
machine_document = _told(made_of_machine.machine_document)
node_status_document = _told(node_status.node_status_document)
plan_document = _told(made_of_plan.plan_document)

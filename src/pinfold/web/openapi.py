"""The OpenAPI document (3.1) of the local API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pinfold.documents.api import Error, OpenAPI
from pinfold.documents.records import VERSION, Record
from pinfold.documents.schemas import component_schemas
from pinfold.web.operations import (
    BODY_LIMIT,
    HISTORY_DEFAULT,
    HISTORY_LIMIT,
    JSON,
    OPERATIONS,
    Answer,
    Operation,
)

_TEXT: Final = {"type": "string"}

PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "grace": {
        "description": "seconds from SIGTERM to SIGKILL; without it the pod's own",
        "schema": {"type": "number", "minimum": 0},
    },
    "wait": {
        "description": "answer when it is done, and not as soon as it is begun",
        "schema": {"type": "boolean", "default": True},
    },
    "pod": {
        "description": "NAMESPACE/NAME, NAME (in namespace default) or uid",
        "schema": _TEXT,
    },
    "container": {
        "description": "the container; needed where the pod has several",
        "schema": _TEXT,
    },
    "follow": {
        "description": "go on until the container has ended",
        "schema": {"type": "boolean", "default": False},
    },
    "previous": {
        "description": "the attempt before the last restart",
        "schema": {"type": "boolean", "default": False},
    },
    "tailLines": {
        "description": "only so many of the last lines",
        "schema": {"type": "integer", "minimum": 0},
    },
    "sinceSeconds": {
        "description": "only what was written in so many seconds",
        "schema": {"type": "number", "minimum": 0},
    },
    "timestamps": {
        "description": "with each line's time before it",
        "schema": {"type": "boolean", "default": False},
    },
    "history": {
        "description": "with each container's intervals, 60 at most",
        "schema": {"type": "boolean", "default": False},
    },
    "lastEventId": {
        "description": "the id of the last event that is known, from which the stream goes on; "
        "the header Last-Event-ID says the same, and counts more",
        "schema": _TEXT,
    },
    "namespace": {
        "description": "only entries about pods of this namespace",
        "schema": {"type": "string"},
    },
    "kind": {
        "description": "only entries of these kinds, separated by commas",
        "schema": {"type": "string"},
    },
    "limit": {
        "description": "how many entries at most",
        "schema": {
            "type": "integer",
            "minimum": 1,
            "maximum": HISTORY_LIMIT,
            "default": HISTORY_DEFAULT,
        },
    },
}

_MEANINGS: Final = {
    400: "the request is at fault",
    403: "the process is somebody else's",
    404: "there is no such pod",
    409: "there is a pod of that name",
    413: f"the body has more than {BODY_LIMIT} bytes",
    500: "the agent is at fault",
    503: "the kernel, the runtime or the disk refused, or the agent is stopping",
}


def openapi_document() -> OpenAPI:
    """The document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return OpenAPI(
        openapi="3.1.0",
        info={
            "title": "Pinfold's local API",
            "version": str(VERSION),
            "description": "HTTP on the agent's unix socket, for its own user and root.",
        },
        paths=paths,
        components={"schemas": component_schemas(_forms())},
    )


def _forms() -> Iterator[type[Record]]:
    yield Error
    for operation in OPERATIONS:
        if operation.body is not None:
            yield operation.body
        yield from (answer.form for answer in operation.answers if answer.form is not None)


def _text(answer: Answer) -> dict[str, Any]:
    """Text, each message of which is a document where there is one."""
    if answer.form is None:
        return _TEXT
    return {**_TEXT, "contentMediaType": JSON, "contentSchema": _schema(answer.form)}


def _schema(form: type[Record]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{form.__name__}"}


def _operation(operation: Operation) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for answer in operation.answers:
        answers[str(answer.status)] = {"description": answer.meaning}
        if answer.text:
            answers[str(answer.status)]["content"] = {answer.text: {"schema": _text(answer)}}
        elif answer.form is not None:
            answers[str(answer.status)]["content"] = {JSON: {"schema": _schema(answer.form)}}
    for status in sorted({400, 500, 503, *operation.errors}):
        answers[str(status)] = {
            "description": _MEANINGS[status],
            "content": {JSON: {"schema": _schema(Error)}},
        }
    document: dict[str, Any] = {
        "operationId": operation.handler,
        "summary": operation.summary,
        "responses": answers,
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    parameters += [{"name": name, "in": "query", **PARAMETERS[name]} for name in operation.query]
    if parameters:
        document["parameters"] = parameters
    if operation.body is not None:
        content = {JSON: {"schema": _schema(operation.body)}}
        document["requestBody"] = {"required": True, "content": content}
    return document

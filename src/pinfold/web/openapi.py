"""The OpenAPI document (3.1) of the local API."""

from __future__ import annotations

import re
from typing import Any, Final

from pinfold.web.answers import CODES
from pinfold.web.documents import VERSION
from pinfold.web.operations import JSON, OPERATIONS, Operation
from pinfold.web.requests import BODY_LIMIT, HISTORY_LIMIT

_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_NUMBER: Final = {"type": "number"}
_INTEGER: Final = {"type": "integer"}
_FLAG: Final = {"type": "boolean"}
_CPUS: Final = {
    "type": "string",
    "pattern": r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?$",
    "description": "a set of CPUs in the kernel's list format, empty when there is none",
}
_VERSION: Final = {"type": "integer", "const": VERSION}
_QUANTITY: Final = {"type": "string", "description": "as the Kubernetes API writes it: 14500m, 2Gi"}
_AMOUNTS: Final = {"type": "object", "additionalProperties": _QUANTITY}
_ANYTHING: Final[dict[str, Any]] = {"type": "object"}


def _object(**properties: Any) -> dict[str, Any]:  # noqa: ANN401 - schemas
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(name: str) -> dict[str, Any]:
    return {"type": "array", "items": _schema(name)}


def _schema(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _described(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {**schema, "description": description}


_POD: Final = {
    "namespace": _TEXT,
    "name": _TEXT,
    "uid": _TEXT,
    "qos": _described(_TEXT, "Guaranteed, Burstable, BestEffort; empty for an unreadable record"),
    "phase": {"enum": ["Admitted", "Running", "Terminating", "Succeeded", "Failed"]},
    "reason": _described(_TEXT_OR_NULL, "why it was rejected or ended, the kubelet's word"),
    "message": _TEXT_OR_NULL,
    "source": _described(_TEXT, "who asked: api, run, or the folder of its manifest"),
    "admitted_at": _described(_NUMBER, "seconds since the epoch"),
    "containers": _list("Container"),
}

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "Status": _object(
        version=_VERSION,
        pods=_list("Pod"),
        shared=_described(_CPUS, "the shared pool, the kubelet's default CPU set"),
        pool=_described(_CPUS, "where the containers of the shared pool really run"),
        reserved=_described(_CPUS, "CPUs that are never given exclusively"),
        allocatable=_described(_CPUS, "CPUs that may be given exclusively"),
        offline=_described(_CPUS, "CPUs of the machine that are offline"),
        counters=_described(_ANYTHING, "totals since the agent started; times are seconds"),
    ),
    "Machine": _object(version=_VERSION),
    "Node": _object(
        version=_VERSION,
        capacity=_described(_AMOUNTS, "what there is"),
        allocatable=_described(_AMOUNTS, "what pods may request, less reservations and thresholds"),
        requested=_described(_AMOUNTS, "the sum of the active pods' requests"),
        cpuManagerPolicy=_TEXT,
        memoryManagerPolicy=_TEXT,
        topologyManagerPolicy=_TEXT,
        topologyManagerScope=_TEXT,
        zones=_list("Zone"),
    ),
    "Zone": _object(
        id=_described(_INTEGER, "the NUMA node"),
        cpus=_CPUS,
        memory_bytes=_INTEGER,
        distances=_described(_ANYTHING, "by NUMA node, as the firmware has them"),
        group=_described(
            {"type": "array", "items": _INTEGER},
            "the NUMA nodes of which containers have memory together with this one's",
        ),
        resources=_described(
            {"type": "object", "additionalProperties": _schema("ZoneResource")},
            "what containers may own here: CPUs, memory and huge pages only where their manager "
            "gives them out by NUMA node, and devices whose plugin told their node",
        ),
    ),
    "ZoneResource": _object(
        capacity=_QUANTITY,
        allocatable=_described(_QUANTITY, "without what is reserved or offline"),
        available=_described(_QUANTITY, "what no container owns yet"),
    ),
    "PodList": _object(version=_VERSION, pods=_list("Pod")),
    "Pod": _object(**_POD),
    "PodDocument": _object(version=_VERSION, **_POD),
    "DecidedPod": _object(
        version=_VERSION,
        **_POD,
        warnings=_described(
            {"type": "array", "items": _TEXT},
            "fields of the manifest that are not in force here, each with its path and why",
        ),
    ),
    "Container": _object(
        name=_TEXT,
        kind={"enum": ["container", "init", "sidecar"]},
        cpus=_described(_CPUS, "the CPUs that it may run on"),
        exclusive=_described(_FLAG, "whether they are its own"),
        offline=_described(_CPUS, "those of its own that are offline"),
        place={
            "enum": ["own", "shared", "frozen"],
            "description": "whether it runs on its own CPUs, in the shared pool, or not at all",
        },
        numa_nodes=_described(
            {"type": "array", "items": _INTEGER},
            "where its memory comes from (cpuset.mems); empty: from anywhere",
        ),
        memory=_described(_list("MemoryBlock"), "memory of NUMA nodes that it was given"),
        devices=_described(
            {"type": "object", "additionalProperties": {"type": "array", "items": _TEXT}},
            "ids by resource",
        ),
        state={
            "enum": ["Waiting", "CREATED", "RUNNING", "EXITED"],
            "description": "Waiting: not created yet, or between two attempts",
        },
        pid=_described({"type": ["integer", "null"]}, "the main process, while there is one"),
        restarts=_INTEGER,
        exit_code=_described(
            {"type": ["integer", "null"]},
            "of the last attempt, 128 + the signal where one ended it; null while it runs",
        ),
        ran_shared_seconds=_described(
            {"type": ["number", "null"]},
            "how long an owner of CPUs, created while no agent was there, ran before it had them "
            "to itself; null where it never did",
        ),
    ),
    "MemoryBlock": _object(
        type=_described(_TEXT, "memory, or the resource name of huge pages"),
        size=_described(_INTEGER, "bytes"),
        numa_nodes={"type": "array", "items": _INTEGER},
    ),
    "Manifest": _described(
        _ANYTHING, "a Pod as the Kubernetes API has it, whose containers have a command"
    ),
    "Run": _object(
        manifest=_described(
            _schema("Manifest"), "a Pod with one container and restartPolicy Never"
        ),
        pid=_described(_INTEGER, "the process, which waits before its first instruction"),
    ),
    "Exit": _object(code={"type": "integer", "minimum": 0, "maximum": 255}),
    "History": _object(version=_VERSION, entries=_list("HistoryEntry")),
    "HistoryEntry": _object(
        number=_described(_INTEGER, "grows with each entry"),
        at=_described(_NUMBER, "seconds since the epoch"),
        kind=_described(_TEXT, "admitted, rejected, released, ended, drifted, repaired"),
        pod_uid=_TEXT_OR_NULL,
        pod=_described(_TEXT_OR_NULL, "namespace/name; null for what concerns the node"),
        document=_described(
            {"type": ["object", "null"]}, "for a decision what /v1/explain answers"
        ),
    ),
    "Explanation": _described(_ANYTHING, "the document of pinfold explain -o json"),
    "Drifts": _object(version=_VERSION, drifts=_list("Drift")),
    "Drift": _object(
        pod_uid=_described(_TEXT_OR_NULL, "null for the shared pool"),
        container=_TEXT_OR_NULL,
        expected=_TEXT,
        found=_TEXT,
        repaired=_FLAG,
        problem=_described(_TEXT, "why it was not repaired"),
    ),
    "Text": _TEXT,
    "OpenAPI": _object(openapi=_TEXT, info=_ANYTHING, paths=_ANYTHING, components=_ANYTHING),
    "Error": _object(
        error=_object(
            code={"enum": sorted(set(CODES.values()))},
            message=_described(_TEXT, "what is wrong, and where"),
            remedy=_described(_TEXT, "what to do about it; may be empty"),
        )
    ),
}

PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "grace": {
        "description": "seconds from SIGTERM to SIGKILL; without it the pod's own",
        "schema": {"type": "number", "minimum": 0},
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
    "limit": {
        "description": "how many entries at most",
        "schema": {"type": "integer", "minimum": 1, "maximum": HISTORY_LIMIT, "default": 100},
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


def openapi_document() -> dict[str, Any]:
    """The document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pinfold's local API",
            "version": str(VERSION),
            "description": "HTTP on the agent's unix socket, for its own user and root.",
        },
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for answer in operation.answers:
        answers[str(answer.status)] = {"description": answer.meaning}
        if answer.schema is not None:
            content = {answer.media_type: {"schema": _schema(answer.schema)}}
            answers[str(answer.status)]["content"] = content
    for status in sorted({400, 500, 503, *operation.errors}):
        answers[str(status)] = {
            "description": _MEANINGS[status],
            "content": {JSON: {"schema": _schema("Error")}},
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

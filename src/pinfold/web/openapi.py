"""The API's description (OpenAPI 3.1), beside the routes that it describes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

_CPUS: Final = {"type": "string", "description": "CPUs in the kernel's list format"}
_TEXT: Final = {"type": ["string", "null"]}
_NUMBER: Final = {"type": ["number", "null"]}
_STRING: Final = {"type": "string"}

SCHEMAS: Final[dict[str, Any]] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message", "remedy"],
                "properties": {"code": _STRING, "message": _STRING, "remedy": _STRING},
            }
        },
    },
    "Container": {
        "type": "object",
        "required": ["name", "kind", "cpus", "exclusive", "state", "pid", "restarts", "exit_code"],
        "properties": {
            "name": _STRING,
            "kind": {"enum": ["container", "init", "sidecar"]},
            "cpus": _CPUS,
            "exclusive": {"type": "boolean"},
            "state": {"enum": ["Waiting", "CREATED", "RUNNING", "EXITED"]},
            "pid": _NUMBER,
            "restarts": {"type": "number"},
            "exit_code": _NUMBER,
            "started_at": _NUMBER,
        },
    },
    "Pod": {
        "type": "object",
        "required": ["version", "namespace", "name", "uid", "phase", "containers"],
        "properties": {
            "version": {"const": 1},
            "namespace": _STRING,
            "name": _STRING,
            "uid": _STRING,
            "qos": _TEXT,
            "phase": {"enum": ["Admitted", "Running", "Terminating", "Succeeded", "Failed"]},
            "reason": _TEXT,
            "message": _TEXT,
            "source": _STRING,
            "admitted_at": {"type": "number"},
            "containers": {"type": "array", "items": {"$ref": "#/components/schemas/Container"}},
            "exit_codes": {"type": "object"},
        },
    },
    "Pods": {
        "type": "object",
        "required": ["version", "pods"],
        "properties": {
            "version": {"const": 1},
            "pods": {"type": "array", "items": {"$ref": "#/components/schemas/Pod"}},
        },
    },
    "Status": {
        "type": "object",
        "required": [
            *("version", "agent", "config", "pods", "shared", "pool", "reserved"),
            *("allocatable", "offline", "counters"),
        ],
        "properties": {
            "version": {"const": 1},
            "agent": {"type": "object"},
            "config": {"type": "object"},
            "pods": {"type": "array", "items": {"$ref": "#/components/schemas/Pod"}},
            "shared": _CPUS,
            "pool": _CPUS,
            "reserved": _CPUS,
            "allocatable": _CPUS,
            "offline": _CPUS,
            "counters": {"type": "object"},
        },
    },
    "History": {
        "type": "object",
        "required": ["version", "history"],
        "properties": {"version": {"const": 1}, "history": {"type": "array"}},
    },
    "Drifts": {
        "type": "object",
        "required": ["version", "drifts"],
        "properties": {"version": {"const": 1}, "drifts": {"type": "array"}},
    },
    "Document": {"type": "object"},
}

_ROWS: Final = (
    ("get", "/v1/status", "Pods, CPUs and counters", 200, "Status"),
    ("get", "/v1/machine", "The machine, as pinfold topology -o json", 200, "Document"),
    ("get", "/v1/pods", "All pods", 200, "Pods"),
    ("post", "/v1/pods", "Admit and start a Pod; 200 when it was rejected", 201, "Pod"),
    ("get", "/v1/pods/{namespace}/{name}", "One pod", 200, "Pod"),
    ("delete", "/v1/pods/{namespace}/{name}", "End a pod; ?grace=SECONDS", 204, None),
    ("post", "/v1/run", "Admit a Pod for a process that waits: manifest, pid", 200, "Pod"),
    ("post", "/v1/run/{uid}/exit", "Tell how that process ended: code", 204, None),
    ("get", "/v1/history", "What happened, newest first; ?pod=NAME&limit=N", 200, "History"),
    ("get", "/v1/explain/{namespace}/{name}", "Why a pod got its CPUs or none", 200, "Document"),
    ("post", "/v1/reconcile", "Compare the kernel with the record, and repair", 200, "Drifts"),
    ("get", "/healthz", "Whether the agent lives (text)", 200, None),
    ("get", "/readyz", "Whether it serves (text)", 200, None),
    ("get", "/metrics", "For Prometheus (text)", 200, None),
    ("get", "/openapi.json", "This description", 200, "Document"),
)


def openapi_document() -> dict[str, Any]:
    """The whole description."""
    paths: dict[str, Any] = {}
    for method, path, summary, status, schema in _ROWS:
        answer: dict[str, Any] = {"description": summary}
        if schema is not None:
            reference = {"$ref": f"#/components/schemas/{schema}"}
            answer["content"] = {"application/json": {"schema": reference}}
        error = {"$ref": "#/components/schemas/Error"}
        paths.setdefault(path, {})[method] = {
            "summary": summary,
            "parameters": [
                {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
                for part in path.split("/")
                if part.startswith("{")
            ],
            "responses": {
                str(status): answer,
                "default": {
                    "description": "What went wrong, and what to do",
                    "content": {"application/json": {"schema": error}},
                },
            },
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "The local API of the Pinfold agent", "version": version("pinfold")},
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }

"""What clients ask first: the groups, the resources, and the schemas of what is served."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tests.cluster.api_server.kinds import Served

VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def api_versions() -> dict[str, Any]:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups(served: Iterable[Served]) -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    for one in served:
        if one.resource.group:
            versions = found.setdefault(one.resource.group, [])
            if one.resource.version not in versions:
                versions.append(one.resource.version)
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [group(name, versions) for name, versions in found.items()],
    }


def group(name: str, versions: Iterable[str]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{name}/{one}", "version": one} for one in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resources(group_version: str, served: Iterable[Served]) -> dict[str, Any]:
    listed: list[dict[str, Any]] = []
    for one in served:
        if one.group_version != group_version:
            continue
        common = {"namespaced": one.resource.is_namespaced, "kind": one.resource.kind}
        listed.append(
            {
                "name": one.resource.plural,
                "singularName": one.resource.kind.lower(),
                "verbs": VERBS,
                "shortNames": list(one.short_names),
                **common,
            }
        )
        subresources = [*one.subresources, *(["status"] if one.has_status else [])]
        listed += [
            {
                "name": f"{one.resource.plural}/{name}",
                "singularName": "",
                "verbs": ["get", "patch", "update"],
                **common,
            }
            for name in subresources
        ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": listed,
    }


def open_api_index(served: Iterable[Served]) -> dict[str, Any]:
    paths = dict.fromkeys(_root(one) for one in served)
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash=0"} for path in paths}}


def open_api(root: str, served: Iterable[Served]) -> dict[str, Any]:
    """The operations by kind, with the parameters that a client looks for, and their schemas."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for one in served:
        if _root(one) != root:
            continue
        resource = one.resource
        kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
        schema = dict(one.schema) or OPEN
        name = f"{resource.group or 'core'}.{resource.version}.{resource.kind}"
        schemas[name] = {**schema, "x-kubernetes-group-version-kind": [kind]}
        reference = {"$ref": f"#/components/schemas/{name}"}
        answer = {"200": {"content": {"application/json": {"schema": reference}}}}
        place = "/namespaces/{namespace}" if resource.is_namespaced else ""
        path = f"/{root}{place}/{resource.plural}/{{name}}"
        common = {"responses": answer, "x-kubernetes-group-version-kind": kind}
        parameters = [
            {"name": query, "in": "query", "schema": {"type": "string"}}
            for query in ("dryRun", "fieldManager", "fieldValidation")
        ]
        paths[path] = {
            "get": {**common, "x-kubernetes-action": "get"},
            "patch": {
                **common,
                "x-kubernetes-action": "patch",
                "parameters": parameters,
                "requestBody": {"content": {"application/apply-patch+yaml": {}}},
            },
        }
        paths[path.removesuffix("/{name}")] = {
            "post": {**common, "x-kubernetes-action": "post", "parameters": parameters}
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.34.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def table(served: Served, objects: Iterable[Mapping[str, Any]], version: str) -> dict[str, Any]:
    """What ``kubectl get`` prints."""
    columns = [("Name", "string", ".metadata.name"), *served.columns]
    rows = [
        {
            "cells": [_cell(one, path) for _, _, path in columns],
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": one["metadata"],
            },
        }
        for one in objects
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": [
            {"name": name, "type": kind, "format": "", "description": "", "priority": 0}
            for name, kind, _ in columns
        ],
        "rows": rows,
    }


def _cell(found: Mapping[str, Any], path: str) -> Any:
    value: Any = found
    for name, kind in re.findall(r"\.(\w+)(?:\[\?\(@\.type==\"(\w+)\"\)\])?", path):
        value = value.get(name) if isinstance(value, Mapping) else None
        if kind:
            value = next((one for one in value or () if one["type"] == kind), None)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {one}" for key, one in value.items())
    return value


def _root(served: Served) -> str:
    resource = served.resource
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"

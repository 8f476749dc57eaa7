"""Label and field selectors, as texts of a query and as they stand in objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pinfold.ports.kubernetes import Object, refusal
from tests.cluster.api_server.kinds import Served


def matches(found: Object, labels: str, fields: str) -> bool:
    """Whether an object is meant by the ``labelSelector`` and the ``fieldSelector`` of a query."""
    had = found["metadata"].get("labels") or {}
    return all(_label(had, one) for one in re.split(r",(?![^(]*\))", labels) if one) and all(
        _field(found, one) for one in fields.split(",") if one
    )


def check_fields(served: Served, fields: str) -> None:
    """Refuse to select by what a server does not select by."""
    supported = {"metadata.name", "metadata.namespace", *served.selectable}
    for one in fields.split(","):
        name = re.split(r"!?==?", one)[0]
        if name and name not in supported:
            raise refusal(400, "BadRequest", f"field label not supported: {name}")


def selected(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether labels are meant by a ``LabelSelector``; nothing means all."""
    selector = selector or {}
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_expression(one, labels) for one in selector.get("matchExpressions") or ())


def _expression(one: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(one["key"]), one.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[one["operator"]]


def _label(had: Mapping[str, str], wanted: str) -> bool:
    if found := re.fullmatch(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)", wanted.strip()):
        values = [one.strip() for one in found[3].split(",")]
        return (had.get(found[1]) in values) is (found[2] == "in")
    if found := re.fullmatch(r"([^=!]+)(!=|==|=)(.*)", wanted):
        return (had.get(found[1]) == found[3]) is (found[2] != "!=")
    return (wanted.lstrip("!") in had) is not wanted.startswith("!")


def _field(found: Object, wanted: str) -> bool:
    parts = re.fullmatch(r"([^=!]+)(!=|==|=)(.*)", wanted)
    if parts is None:
        raise refusal(400, "BadRequest", f"unable to parse field selector {wanted!r}")
    value: Any = found
    for name in parts[1].split("."):
        value = value.get(name, "") if isinstance(value, Mapping) else ""
    return (str(value) == parts[3]) is (parts[2] != "!=")

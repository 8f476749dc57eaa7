"""The patches that clients send: JSON patch, merge patch, strategic merge and server-side apply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from pinfold.planning.fake_kubernetes import merged
from pinfold.ports.kubernetes import Object, refusal

_KEYS = ("name", "containerPort", "mountPath", "key", "type", "uid", "ip", "topologyKey")


def patched(before: Object, content_type: str, raw: bytes) -> Object:
    """The object after a patch; an apply of what is not there starts with nothing."""
    kind = content_type.partition(";")[0]
    if kind == "application/json-patch+json":
        return _json_patch(before, json.loads(raw))
    if kind == "application/merge-patch+json":
        return merged(before, json.loads(raw))
    if kind == "application/strategic-merge-patch+json":
        return dict(_strategic(before, json.loads(raw)))
    if kind in {"application/apply-patch+yaml", "application/apply-patch+cbor"}:
        # Without the managers of fields nothing is ever removed by an apply.
        return dict(_strategic(before, yaml.safe_load(raw)))
    raise refusal(415, "UnsupportedMediaType", f"the body of the request was {kind}")


def _strategic(before: Any, patch: Any) -> Any:
    """Lists of mappings are merged by their key; other lists are replaced."""
    if isinstance(before, Mapping) and isinstance(patch, Mapping):
        if patch.get("$patch") == "replace":
            return {name: one for name, one in patch.items() if name != "$patch"}
        result = dict(before)
        for name, value in patch.items():
            if name.startswith("$"):
                continue
            if value is None:
                result.pop(name, None)
            else:
                result[name] = _strategic(result.get(name), value)
        return result
    if isinstance(before, list) and isinstance(patch, list):
        key = next((key for key in _KEYS if _all_have(key, before + patch)), "")
        if key:
            by_key = {one[key]: one for one in before}
            for one in patch:
                if one.get("$patch") == "delete":
                    by_key.pop(one[key], None)
                else:
                    by_key[one[key]] = _strategic(by_key.get(one[key]), one)
            return list(by_key.values())
    if isinstance(patch, Mapping):
        return _strategic({}, patch)
    return patch


def _all_have(key: str, items: list[Any]) -> bool:
    return bool(items) and all(isinstance(one, Mapping) and key in one for one in items)


def _json_patch(before: Object, steps: list[dict[str, Any]]) -> Object:
    after: Any = json.loads(json.dumps(before))
    for step in steps:
        parts = [one.replace("~1", "/").replace("~0", "~") for one in step["path"].split("/")[1:]]
        holder = after
        for part in parts[:-1]:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        last: Any = parts[-1]
        if isinstance(holder, list):
            last = len(holder) if last == "-" else int(last)
        try:
            _step(holder, last, step)
        except (KeyError, IndexError):
            raise refusal(422, "Invalid", f"the path {step['path']} does not exist") from None
    return dict(after)


def _step(holder: Any, last: Any, step: Mapping[str, Any]) -> None:
    if step["op"] == "test" and holder[last] != step["value"]:
        raise refusal(422, "Invalid", f"testing path {step['path']} value failed")
    if step["op"] == "remove":
        del holder[last]
    if step["op"] == "replace":
        holder[last] = step["value"]
    if step["op"] == "add":
        if isinstance(holder, list):
            holder.insert(last, step["value"])
        else:
            holder[last] = step["value"]

"""What a pod runs, read from the Kubernetes API's JSON form.

Errors name the field by its path, as the API server does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pinfold.core.pod import apply_defaults
from pinfold.core.pod_api import PodError, pod_from_api
from pinfold.core.pod_validation import validate_pod
from pinfold.core.workload import DEFAULT_GRACE_PERIOD, Process, RestartPolicy, Workload

_REFERENCE: Final = re.compile(r"\$(\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")
_VARIABLE: Final = re.compile(r"[^=\0]+")
_FIELDS: Final = {
    "metadata.name": "name",
    "metadata.namespace": "namespace",
    "metadata.uid": "uid",
}


def workload_from_api(manifest: Mapping[str, Any]) -> Workload:
    """Read a Pod object with what its containers execute; the pod is defaulted and validated.

    Raises:
        PodError: a field of the wrong type, a malformed quantity, or what the API server refuses.
    """
    pod = apply_defaults(pod_from_api(manifest))
    validate_pod(pod)
    spec = manifest.get("spec") or {}
    metadata = {name: getattr(pod, attribute) for name, attribute in _FIELDS.items()}
    processes = {
        item["name"]: _process(item, path, metadata)
        for key in ("initContainers", "containers")
        for item, path in _items(spec, key)
    }
    return Workload(pod, processes, _restart_policy(spec), _grace_period(spec))


def _items(spec: Mapping[str, Any], key: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    for index, item in enumerate(spec.get(key) or ()):
        yield item, f"spec.{key}[{index}]"


def _process(item: Mapping[str, Any], path: str, metadata: Mapping[str, str]) -> Process:
    env = _environment(item.get("env"), f"{path}.env", metadata)
    argv = (
        *_words(item.get("command"), f"{path}.command"),
        *_words(item.get("args"), f"{path}.args"),
    )
    return Process(
        argv=tuple(_expanded(word, env) for word in argv),
        env=env,
        working_dir=_text(item.get("workingDir"), f"{path}.workingDir"),
        image=_text(item.get("image"), f"{path}.image"),
    )


def _words(value: object, path: str) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, list):
        raise PodError(path, "must be a list of strings")
    for index, word in enumerate(value):
        text = _text(word, f"{path}[{index}]")
        if text is None or "\0" in text:
            raise PodError(f"{path}[{index}]", "must be a string without NUL")
        yield text


def _environment(value: object, path: str, metadata: Mapping[str, str]) -> dict[str, str]:
    env: dict[str, str] = {}
    if value is None:
        return env
    if not isinstance(value, list):
        raise PodError(path, "must be a list of names with values")
    for index, item in enumerate(value):
        here = f"{path}[{index}]"
        if not isinstance(item, Mapping):
            raise PodError(here, "must be a mapping with name and value")
        name = _text(item.get("name"), f"{here}.name")
        if not name or not _VARIABLE.fullmatch(name):
            raise PodError(f"{here}.name", "must be a name without '='")
        if item.get("valueFrom") is not None:
            env[name] = _field(item["valueFrom"], f"{here}.valueFrom", metadata)
            continue
        text = _text(item.get("value"), f"{here}.value") or ""
        if "\0" in text:
            raise PodError(f"{here}.value", "must be a string without NUL")
        env[name] = _expanded(text, env)
    return env


def _field(value: object, path: str, metadata: Mapping[str, str]) -> str:
    reference = value.get("fieldRef") if isinstance(value, Mapping) else None
    name = reference.get("fieldPath") if isinstance(reference, Mapping) else None
    if not isinstance(name, str) or name not in metadata:
        raise PodError(path, f"only fieldRef of {', '.join(metadata)} is known here; write a value")
    return metadata[name]


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """Put in what ``$(NAME)`` stands for; ``$$`` is one dollar, unknown names stay as they are."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def _restart_policy(spec: Mapping[str, Any]) -> RestartPolicy:
    value = spec.get("restartPolicy")
    if value is None:
        return RestartPolicy.ALWAYS
    try:
        return RestartPolicy(value)
    except ValueError:
        names = ", ".join(policy.value for policy in RestartPolicy)
        raise PodError(
            "spec.restartPolicy", f"Unsupported value: {str(value)[:80]!r}: {names}"
        ) from None


def _grace_period(spec: Mapping[str, Any]) -> int:
    value = spec.get("terminationGracePeriodSeconds")
    if value is None:
        return DEFAULT_GRACE_PERIOD
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise PodError(
            "spec.terminationGracePeriodSeconds", "must be a number of seconds, 0 or more"
        )
    return value


def _text(value: object, path: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise PodError(path, f"must be a string, not {value!r} (quote it)"[:200])

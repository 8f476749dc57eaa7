"""What a pod runs, read from the Kubernetes API's JSON form.

Errors name the field by its path, as the API server does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pinfold.core.pod.api import PodError, metadata_of, pod_from_api
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.manifest.assigned_fields import mark_of
from pinfold.core.pod.manifest.fields import MOST_CONTAINERS, Room, flag, text_of
from pinfold.core.pod.manifest.names import CONTAINER_LISTS, reference_problems
from pinfold.core.pod.manifest.security import fs_group, security_of
from pinfold.core.pod.manifest.validation import validate_manifest, validate_pod
from pinfold.core.pod.manifest.workload_volumes import mounts_of, volumes_of
from pinfold.core.pod.security import Security
from pinfold.core.pod.workload import (
    DEFAULT_GRACE_PERIOD,
    Process,
    PullPolicy,
    RestartPolicy,
    SandboxOptions,
    Source,
    Workload,
)

_REFERENCE: Final = re.compile(r"\$(\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")
_VARIABLE: Final = re.compile(r"[^=\0]+")


class _Known(NamedTuple):
    """What variables of a container may be taken from."""

    metadata: Mapping[str, str]
    container: str
    containers: tuple[str, ...]


def workload_from_api(manifest: Mapping[str, Any], *, admitted: bool = False) -> Workload:
    """Read a Pod object with what its containers execute; the pod is defaulted and validated.

    Args:
        manifest: the Pod.
        admitted: it is on record, and was validated when it came; no later rule ends what runs.

    Raises:
        PodError: a field of the wrong type, a malformed quantity, or what the API server refuses.
    """
    if not admitted:
        _check_count(manifest)
    pod = apply_defaults(pod_from_api(manifest))
    if not admitted:
        validate_pod(pod)
        validate_manifest(manifest)
    spec = manifest.get("spec") or {}
    names = tuple(container.name for container in pod.all_containers)
    metadata = metadata_of(pod)
    containers = [
        (item, path, security_of(spec, item, path))
        for key in CONTAINER_LISTS
        for item, path in _items(spec, key)
    ]
    users = any(security.run_as_user for _, _, security in containers)
    volumes = volumes_of(spec.get("volumes"), pod, group=fs_group(spec), for_users=users)
    room = Room()
    processes = {
        item["name"]: _process(
            item, path, _Known(metadata, item["name"], names), volumes, security=security, room=room
        )
        for item, path, security in containers
    }
    if not admitted:
        for problem in reference_problems(manifest):
            raise problem
    sandbox = SandboxOptions(
        host_network=flag(spec.get("hostNetwork"), "spec.hostNetwork"),
        host_pid=flag(spec.get("hostPID"), "spec.hostPID"),
        host_ipc=flag(spec.get("hostIPC"), "spec.hostIPC"),
        runtime_class=text_of(spec.get("runtimeClassName"), "spec.runtimeClassName") or None,
        privileged=any(process.security.privileged for process in processes.values()),
    )
    return Workload(pod, processes, _restart_policy(spec), _grace_period(spec), sandbox)


def _items(spec: Mapping[str, Any], key: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    for index, item in enumerate(spec.get(key) or ()):
        yield item, f"spec.{key}[{index}]"


def _check_count(manifest: Mapping[str, Any]) -> None:
    """Look before all of them are read: a short manifest may have very many containers."""
    spec = manifest.get("spec")
    lists = [spec.get(key) for key in CONTAINER_LISTS] if isinstance(spec, Mapping) else []
    count = sum(len(items) for items in lists if isinstance(items, list))
    if count > MOST_CONTAINERS:
        raise PodError("spec.containers", f"Too many: {count}: a pod has {MOST_CONTAINERS} at most")


def _process(  # noqa: PLR0913 - what it is of, and what it is made with
    item: Mapping[str, Any],
    path: str,
    known: _Known,
    volumes: Mapping[str, Source],
    *,
    security: Security,
    room: Room,
) -> Process:
    env = _environment(item.get("env"), f"{path}.env", known, room)
    command, args = (
        tuple(_expanded(word, env, room) for word in _words(item.get(key), f"{path}.{key}"))
        for key in ("command", "args")
    )
    return Process(
        argv=(*command, *args),
        env=env,
        working_dir=text_of(item.get("workingDir"), f"{path}.workingDir"),
        image=text_of(item.get("image"), f"{path}.image"),
        command=command,
        args=args,
        image_pull_policy=_pull_policy(item.get("imagePullPolicy"), f"{path}.imagePullPolicy"),
        volume_mounts=tuple(mounts_of(item.get("volumeMounts"), f"{path}.volumeMounts", volumes)),
        security=security,
    )


def _pull_policy(value: object, path: str) -> PullPolicy | None:
    text = text_of(value, path)
    if not text:
        return None
    try:
        return PullPolicy(text)
    except ValueError:
        names = ", ".join(policy.value for policy in PullPolicy)
        raise PodError(path, f"Unsupported value: {text[:80]!r}: {names}") from None


def _words(value: object, path: str) -> Iterator[str]:
    if value is None:
        return
    if not isinstance(value, list):
        raise PodError(path, "must be a list of strings")
    for index, word in enumerate(value):
        text = text_of(word, f"{path}[{index}]")
        if text is None or "\0" in text:
            raise PodError(f"{path}[{index}]", "must be a string without NUL")
        yield text


def _environment(value: object, path: str, known: _Known, room: Room) -> dict[str, str]:
    env: dict[str, str] = {}
    if value is None:
        return env
    if not isinstance(value, list):
        raise PodError(path, "must be a list of names with values")
    for index, item in enumerate(value):
        here = f"{path}[{index}]"
        if not isinstance(item, Mapping):
            raise PodError(here, "must be a mapping with name and value")
        name = text_of(item.get("name"), f"{here}.name")
        if not name or not _VARIABLE.fullmatch(name):
            raise PodError(f"{here}.name", "must be a name without '='")
        if item.get("valueFrom") is not None:
            env[name] = _field(item["valueFrom"], f"{here}.valueFrom", known)
            continue
        text = text_of(item.get("value"), f"{here}.value") or ""
        if "\0" in text:
            raise PodError(f"{here}.value", "must be a string without NUL")
        env[name] = _expanded(text, env, room)
    return env


def _field(value: object, path: str, known: _Known) -> str:
    metadata = known.metadata
    resource = value.get("resourceFieldRef") if isinstance(value, Mapping) else None
    if isinstance(resource, Mapping):
        return mark_of(resource, f"{path}.resourceFieldRef", known.container, known.containers)
    reference = value.get("fieldRef") if isinstance(value, Mapping) else None
    name = reference.get("fieldPath") if isinstance(reference, Mapping) else None
    if not isinstance(name, str) or name not in metadata:
        raise PodError(path, f"only fieldRef of {', '.join(metadata)} is known here; write a value")
    return metadata[name]


def _expanded(text: str, env: Mapping[str, str], room: Room) -> str:
    """Put in what ``$(NAME)`` stands for; ``$$`` is one dollar, unknown names stay as they are."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return room.take(env.get(match[2], match[0]))

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

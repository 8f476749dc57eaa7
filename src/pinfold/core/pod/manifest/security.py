"""``securityContext`` of a manifest: the pod's and the container's, read together.

Source: the Kubernetes API (``core/v1`` ``PodSecurityContext``, ``SecurityContext``); upstream
``pkg/securitycontext`` and ``ValidateSecurityContext``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.fields import flag, mapping, number, text_of
from pinfold.core.pod.security import ALL, CAPABILITIES, Security

_PREFIX: Final = "CAP_"


def fs_group(spec: Mapping[str, Any]) -> int | None:
    """The group of a pod's volumes, from its ``spec``; raises PodError."""
    pod = mapping(spec.get("securityContext"), "spec.securityContext")
    return number(pod.get("fsGroup"), "spec.securityContext.fsGroup")


def security_of(spec: Mapping[str, Any], item: Mapping[str, Any], path: str) -> Security:
    """Merge what a pod and one of its containers say; the container's word counts more.

    ``spec`` is the pod's; ``path`` is where the container is, such as ``spec.containers[0]``.

    Raises:
        PodError: a field of the wrong type, or what the API server refuses.
    """
    outer, outer_path = spec.get("securityContext"), "spec.securityContext"
    inner_path = f"{path}.securityContext"
    pod = mapping(outer, outer_path)
    own = mapping(item.get("securityContext"), inner_path)

    def said(key: str) -> tuple[object, str]:
        if own.get(key) is None:
            return pod.get(key), f"{outer_path}.{key}"
        return own[key], f"{inner_path}.{key}"

    capabilities = mapping(own.get("capabilities"), f"{inner_path}.capabilities")
    add, drop = (
        tuple(_capabilities(capabilities.get(key), f"{inner_path}.capabilities.{key}"))
        for key in ("add", "drop")
    )
    group = fs_group(spec)
    found = Security(
        privileged=flag(own.get("privileged"), f"{inner_path}.privileged"),
        run_as_user=number(*said("runAsUser")),
        run_as_group=number(*said("runAsGroup")),
        run_as_non_root=flag(*said("runAsNonRoot")),
        supplemental_groups=(
            *_groups(pod.get("supplementalGroups"), f"{outer_path}.supplementalGroups"),
            *(() if group is None else (group,)),
        ),
        strict_groups=_choice(
            pod.get("supplementalGroupsPolicy"),
            f"{outer_path}.supplementalGroupsPolicy",
            ("Merge", "Strict"),
        )
        == "Strict",
        add_capabilities=add,
        drop_capabilities=drop,
        no_new_privileges=_is_false(own, "allowPrivilegeEscalation", inner_path),
        read_only_root=flag(
            own.get("readOnlyRootFilesystem"), f"{inner_path}.readOnlyRootFilesystem"
        ),
        seccomp=_profile(*said("seccompProfile")),
        apparmor=_profile(*said("appArmorProfile")),
    )
    if found.no_new_privileges and found.privileged:
        raise PodError(
            inner_path, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        )
    if found.no_new_privileges and "SYS_ADMIN" in add:
        raise PodError(
            inner_path,
            "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
        )
    return found


def _is_false(fields: Mapping[str, Any], key: str, path: str) -> bool:
    return fields.get(key) is not None and not flag(fields[key], f"{path}.{key}")


def _groups(value: object, path: str) -> Iterator[int]:
    for index, item in enumerate(_list(value, path)):
        group = number(item, f"{path}[{index}]")
        if group is None:
            raise PodError(f"{path}[{index}]", "must be a number from 0 to 2147483647")
        yield group


def _capabilities(value: object, path: str) -> Iterator[str]:
    for index, item in enumerate(_list(value, path)):
        text = text_of(item, f"{path}[{index}]") or ""
        name = text.upper().removeprefix(_PREFIX)
        if name != ALL and name not in CAPABILITIES:
            raise PodError(
                f"{path}[{index}]",
                f"Unsupported value: {text[:80]!r}: one of capabilities(7), such as NET_ADMIN, or "
                "ALL",
            )
        yield name


def _list(value: object, path: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise PodError(path, "must be a list")
    return value


def _profile(value: object, path: str) -> str:
    profile = mapping(value, path)
    kinds = ("RuntimeDefault", "Unconfined", "Localhost")
    return _choice(profile.get("type"), f"{path}.type", kinds) if profile else ""


def _choice(value: object, path: str, known: tuple[str, ...]) -> str:
    text = text_of(value, path) or ""
    if text and text not in known:
        names = ", ".join(f'"{name}"' for name in known)
        raise PodError(path, f'Unsupported value: "{text[:80]}": supported values: {names}')
    return text

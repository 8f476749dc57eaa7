"""What stops a kubelet besides the settings that decide placements.

Fields that belong together and contradict each other: reservations and their cgroups, and what of
node allocatable is enforced.  Source: upstream ``apis/config/validation`` (1.34); the texts are the
kubelet's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pinfold.config.values import SettingError, boolean, show, text
from pinfold.core.values.quantity import Quantity, QuantityError

DEFAULT_LOG_SIZE: Final = 10 * 1024 * 1024
DEFAULT_LOG_FILES: Final = 5
_PODS: Final = "pods"
_NONE: Final = "none"
_SYSTEM: Final = ("system-reserved", "system-reserved-compressible")
_KUBE: Final = ("kube-reserved", "kube-reserved-compressible")
_ENFORCEMENTS: Final = (_PODS, *_SYSTEM, *_KUBE, _NONE)
_FIELD: Final = "enforceNodeAllocatable (--enforce-node-allocatable)"
_PER_QOS: Final = "cgroupsPerQOS (--cgroups-per-qos)"


def check_startup(fields: Mapping[Any, Any]) -> None:
    """Check the fields of a KubeletConfiguration against each other; raises SettingError."""
    _check_enforcement(fields)
    if fields.get("reservedSystemCPUs") and (
        fields.get("systemReservedCgroup") or fields.get("kubeReservedCgroup")
    ):
        raise SettingError(
            "invalid configuration: can't use reservedSystemCPUs (--reserved-cpus) with "
            "systemReservedCgroup (--system-reserved-cgroup) or kubeReservedCgroup "
            "(--kube-reserved-cgroup); drop one of them"
        )
    log_limits(fields)


def log_limits(fields: Mapping[Any, Any]) -> tuple[int, int]:
    """``containerLogMaxSize`` in bytes (negative: no bound) and ``containerLogMaxFiles``.

    Raises:
        SettingError: a kubelet would not start with them (upstream ``kubelet/logs``).
    """
    size, files = fields.get("containerLogMaxSize"), fields.get("containerLogMaxFiles")
    if files is None:
        files = DEFAULT_LOG_FILES
    if isinstance(files, bool) or not isinstance(files, int):
        raise SettingError(f"containerLogMaxFiles: must be a whole number, not {show(files)}")
    if files <= 1:
        raise SettingError(f"containerLogMaxFiles: invalid MaxFiles {files}, must be > 1")
    if size in (None, ""):
        return DEFAULT_LOG_SIZE, files
    try:
        parsed = Quantity.parse(text(size)).as_int64()
    except (QuantityError, SettingError) as error:
        problem = str(error)
    else:
        if parsed is not None:
            return parsed, files
        problem = "invalid max log size"
    raise SettingError(
        f"containerLogMaxSize: failed to parse container log max size {show(size)}: {problem}"
    )


def _check_enforcement(fields: Mapping[Any, Any]) -> None:
    enforced = _enforced(fields.get("enforceNodeAllocatable"))
    per_qos = fields.get("cgroupsPerQOS")
    if per_qos is not None and not _read("cgroupsPerQOS", per_qos) and enforced:
        raise SettingError(
            f"invalid configuration: {_FIELD} is not supported unless {_PER_QOS} is set to true; "
            "or set enforceNodeAllocatable: []"
        )
    for one, other in (_SYSTEM, _KUBE):
        if one in enforced and other in enforced:
            first, second = (one, other) if _last(enforced, one, other) == one else (other, one)
            raise SettingError(
                f'invalid configuration: both "{first}" and "{second}" cannot be specified '
                f"together in {_FIELD}"
            )
    for name in enforced:
        for kind, cgroup, flag in (
            (_SYSTEM, "systemReservedCgroup", "--system-reserved-cgroup"),
            (_KUBE, "kubeReservedCgroup", "--kube-reserved-cgroup"),
        ):
            if name in kind and not fields.get(cgroup):
                raise SettingError(
                    f'invalid configuration: {cgroup} ({flag}) must be specified when "{kind[0]}" '
                    f'or "{kind[1]}" contained in {_FIELD}'
                )
        if name == _NONE and len(enforced) > 1:
            raise SettingError(
                f"invalid configuration: {_FIELD} may not contain additional enforcements when "
                f'"{_NONE}" is specified'
            )
        if name not in _ENFORCEMENTS:
            *others, last = (f'"{valid}"' for valid in _ENFORCEMENTS)
            raise SettingError(
                f'invalid configuration: option "{name}" specified for {_FIELD}. '
                f"Valid options are {', '.join(others)} or {last}"
            )


def _enforced(value: object) -> Sequence[str]:
    if value is None:
        return (_PODS,)
    if not isinstance(value, list):
        raise SettingError(f"enforceNodeAllocatable: must be a list, not {show(value)}")
    try:
        return [text(name) for name in value]
    except SettingError as error:
        raise SettingError(f"enforceNodeAllocatable: {error}") from None


def _last(names: Sequence[str], *among: str) -> str:
    return next(name for name in reversed(names) if name in among)


def _read(field: str, value: object) -> bool:
    try:
        return boolean(value)
    except SettingError as error:
        raise SettingError(f"{field}: {error}") from None

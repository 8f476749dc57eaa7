"""What is to be said of a quota that is valid and may not be what its author means.

An API server takes any name with a domain, and any misspelt field that nobody validates strictly;
it counts neither.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pinfold.core.pod.manifest.api_fields import POD, Field, Fields, Standing
from pinfold.core.pod.manifest.workload_fields import Finding, fields_without_meaning
from pinfold.core.quota.names import EXCLUSIVE_CPUS, LIMITS, REQUESTS, is_of_pods
from pinfold.core.quota.quota import ResourceQuota

API_VERSION: Final = "v1"
_OUR_DOMAIN: Final = "pinfold.dev"
_CLASSES: Final = f"class.{_OUR_DOMAIN}/"
_KUBERNETES: Final = ("k8s.io", "kubernetes.io")
_CLOSE: Final = 0.85
_COUNT: Final = "count/"


def _fields(*plain: str, **below: Fields) -> Fields:
    known = Standing.IN_FORCE
    rows = {name: Field(known, known) for name in plain}
    return {**rows, **{name: Field(known, known, below=one) for name, one in below.items()}}


_REQUIREMENTS: Final = _fields("scopeName", "operator", "values")
_OBJECT: Final[Fields] = {name: POD[name] for name in ("apiVersion", "kind", "metadata", "status")}
_QUOTA: Final[Fields] = {
    **_OBJECT,
    **_fields(
        spec=_fields("hard", "scopes", scopeSelector=_fields(matchExpressions=_REQUIREMENTS))
    ),
}
_NAMESPACE: Final[Fields] = {**_OBJECT, **_fields(spec=_fields("finalizers"))}


def quota_findings(manifest: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the fields of a ResourceQuota that the API does not have, and an unknown version."""
    yield from _version(manifest)
    yield from fields_without_meaning(manifest, _QUOTA)


def namespace_findings(manifest: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the same of a Namespace."""
    yield from _version(manifest)
    yield from fields_without_meaning(manifest, _NAMESPACE)


def uncounted(quota: ResourceQuota) -> Iterator[str]:
    """Yield one line for each name in ``spec.hard`` that is not counted, or always as nothing."""
    for name in quota.hard:
        path = f"spec.hard[{name}]"
        meant = _meant(name)
        if meant:
            yield f"{path}: nobody counts it; did you mean {meant}?"
        elif _is_ours(name) and not _is_counted(name):
            yield f"{path}: nobody counts it; of {_OUR_DOMAIN} there is {EXCLUSIVE_CPUS}"
        elif not is_of_pods(name):
            counts = "an API server counts it" if _by_others(name) else "nobody counts it"
            yield f"{path}: not counted here, as it is not about pods; {counts}"


def _version(manifest: Mapping[str, Any]) -> Iterator[Finding]:
    version = manifest.get("apiVersion")
    if version not in (None, API_VERSION):
        yield Finding("apiVersion", None, f'unknown version "{version}"; it is {API_VERSION}'[:200])


def _is_counted(name: str) -> bool:
    return name == EXCLUSIVE_CPUS or name.startswith(f"{REQUESTS}{_CLASSES}")


def _is_ours(name: str) -> bool:
    domain = name.removeprefix(REQUESTS).removeprefix(LIMITS).rpartition("/")[0]
    return domain == _OUR_DOMAIN or domain.endswith(f".{_OUR_DOMAIN}")


def _by_others(name: str) -> bool:
    """Whether an API server counts it, though no pods: objects, storage, devices of DRA."""
    domain, slash, _ = name.rpartition("/")
    return not slash or name.startswith(_COUNT) or domain.endswith(_KUBERNETES)


def _meant(name: str) -> str | None:
    """The name that is counted, of one that is not."""
    if _is_counted(name) or _by_others(name):
        return None
    bare = name.removeprefix(REQUESTS).removeprefix(LIMITS)
    if bare.startswith(_CLASSES):
        return f"{REQUESTS}{bare}"
    if difflib.SequenceMatcher(None, bare.lower(), EXCLUSIVE_CPUS).ratio() >= _CLOSE:
        return EXCLUSIVE_CPUS
    # Of other extended resources only requests are counted.
    return None if _is_ours(name) or name.startswith(REQUESTS) else f"{REQUESTS}{bare}"

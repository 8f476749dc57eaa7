"""Names in a manifest that no :class:`pinfold.core.pod.pod.Pod` holds: what is refused of them.

Source: upstream ``pkg/apis/core/validation`` and ``apimachinery/pkg/api/validation``; texts and
paths are the API server's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pinfold.core.pod.api import PodError, as_yaml
from pinfold.core.values.names import (
    invalid,
    label_problems,
    label_value_problems,
    prefix_problems,
    qualified_name_problems,
    variable_problems,
)

CONTAINER_LISTS: Final = ("initContainers", "containers")


def name_problems(manifest: Mapping[str, Any], path: str = "") -> Iterator[PodError]:
    """Yield what the API server would refuse in the names of a Pod's or a template's manifest.

    What is of another type than it has to be is left to whoever reads it.
    """
    metadata = manifest.get("metadata")
    if isinstance(metadata, Mapping):
        prefix = metadata.get("generateName")
        if isinstance(prefix, str) and prefix:
            yield from refused(prefix, prefix_problems, f"{path}metadata.generateName")
        yield from _metadata_problems(metadata, f"{path}metadata")
    spec = manifest.get("spec")
    if not isinstance(spec, Mapping):
        return
    seen: set[str] = set()
    for volume, here in items(spec, "volumes", f"{path}spec"):
        name = volume.get("name")
        if isinstance(name, str) and name:
            yield from refused(name, label_problems, f"{here}.name")
            if name in seen:
                yield PodError(f"{here}.name", f'Duplicate value: "{name}"')
            seen.add(name)
    for key in CONTAINER_LISTS:
        for container, outer in items(spec, key, f"{path}spec"):
            for variable, here in items(container, "env", outer):
                name = variable.get("name")
                if isinstance(name, str) and name:
                    yield from refused(name, variable_problems, f"{here}.name")


def reference_problems(manifest: Mapping[str, Any]) -> Iterator[PodError]:
    """Yield what is wrong with a pod's uid, and with the volumes that its containers name.

    A uid becomes the name of folders and cgroups and the value of a label: of those the last is
    the narrowest.  The API server makes its uids itself, and so refuses none.
    """
    metadata, spec = manifest.get("metadata"), manifest.get("spec")
    uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
    if isinstance(uid, str):
        yield from refused(uid, label_value_problems, "metadata.uid")
    if not isinstance(spec, Mapping):
        return
    volumes = {str(volume.get("name")) for volume, _ in items(spec, "volumes", "spec")}
    for key in CONTAINER_LISTS:
        for container, outer in items(spec, key, "spec"):
            for mount, here in items(container, "volumeMounts", outer):
                name = mount.get("name")
                if not name:
                    yield PodError(f"{here}.name", "Required value")
                elif isinstance(name, str) and name not in volumes:
                    yield PodError(f"{here}.name", f'Not found: "{name}"')


def refused(name: str, problems: Callable[[str], Iterator[str]], path: str) -> Iterator[PodError]:
    """The problems of a name, each as the error of a field."""
    for problem in problems(name):
        yield PodError(path, invalid(name, problem))


def items(
    fields: Mapping[str, Any], key: str, path: str
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The mappings of a list with their paths; what is no list, or no mapping, is passed over."""
    found = fields.get(key)
    for index, item in enumerate(found if isinstance(found, list) else ()):
        if isinstance(item, Mapping):
            yield item, f"{path}.{key}[{index}]"


def _metadata_problems(metadata: Mapping[str, Any], path: str) -> Iterator[PodError]:
    for field in ("labels", "annotations"):
        pairs = metadata.get(field)
        for key, value in (pairs if isinstance(pairs, Mapping) else {}).items():
            here = f"{path}.{field}"
            # A YAML key may be a number, which the API server would take as a text.
            name = str(key)
            checked = name if field == "labels" else name.lower()
            for problem in qualified_name_problems(checked):
                yield PodError(here, invalid(name, problem))
            if not isinstance(value, str | None):
                what = f"must be a string, not {as_yaml(value)} (quote it)"
                yield PodError(f"{here}.{name}", what[:200])
            elif field == "labels":
                yield from refused(value or "", label_value_problems, here)

"""The volumes of a pod, read from the Kubernetes API's JSON form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from pinfold.core.pod.api import PodError, metadata_of, quantity_from_api
from pinfold.core.pod.cgroup_values import pod_cgroup
from pinfold.core.pod.hugepages import (
    MEDIUM_MEMORY,
    HugePagesError,
    is_hugepage_medium,
    volume_page_quantity,
)
from pinfold.core.pod.manifest.assigned_fields import mark_of
from pinfold.core.pod.manifest.fields import absolute, flag, mapping, mappings, number, text_of
from pinfold.core.pod.pod import Pod
from pinfold.core.pod.workload import (
    DownwardAPI,
    DownwardFile,
    EmptyDir,
    HostPath,
    Source,
    VolumeMount,
)
from pinfold.core.values.names import label_problems

_HOST_PATH_TYPES: Final = frozenset(
    {"", "DirectoryOrCreate", "Directory", "FileOrCreate", "File"}
    | {"Socket", "CharDevice", "BlockDevice"}
)


def volumes_of(
    value: object, pod: Pod, *, group: int | None = None, for_users: bool = False
) -> dict[str, Source]:
    """The volumes of a pod that can be mounted, by name; others are not honoured.

    ``value`` is ``spec.volumes``, ``group`` the pod's ``fsGroup``; ``for_users``: one of its
    containers does not run as root.

    Raises:
        PodError: a field of the wrong type, or a path or name that cannot be.
    """
    volumes: dict[str, Source] = {}
    for item, path in mappings(value, "spec.volumes"):
        name = text_of(item.get("name"), f"{path}.name")
        if not name:
            raise PodError(f"{path}.name", "Required value")
        if item.get("hostPath") is not None:
            source = mapping(item["hostPath"], f"{path}.hostPath")
            folder = absolute(source.get("path"), f"{path}.hostPath.path")
            kind = text_of(source.get("type"), f"{path}.hostPath.type") or ""
            if kind not in _HOST_PATH_TYPES:
                names = ", ".join(sorted(_HOST_PATH_TYPES - {""}))
                raise PodError(f"{path}.hostPath.type", f"Unsupported value: {kind!r}: {names}")
            volumes[name] = HostPath(folder, kind)
        elif "emptyDir" in item:
            source = mapping(item["emptyDir"], f"{path}.emptyDir")
            # The name becomes a folder.
            if any(label_problems(name)):
                raise PodError(f"{path}.name", "must be a lower-case DNS label")
            found = _empty_dir(source, f"{path}.emptyDir", pod)
            volumes[name] = replace(found, group=group, for_users=for_users)
        elif "downwardAPI" in item:
            source = mapping(item["downwardAPI"], f"{path}.downwardAPI")
            files = tuple(_files(source, f"{path}.downwardAPI", pod))
            volumes[name] = DownwardAPI(files, group, for_users)
    return volumes


def _files(source: Mapping[str, Any], path: str, pod: Pod) -> Iterator[DownwardFile]:
    default = number(source.get("defaultMode"), f"{path}.defaultMode")
    names = tuple(container.name for container in pod.all_containers)
    known = metadata_of(pod)
    for item, here in mappings(source.get("items"), f"{path}.items"):
        mode = number(item.get("mode"), f"{here}.mode")
        if item.get("fieldRef") is not None:
            field = mapping(item["fieldRef"], f"{here}.fieldRef")
            text = known.get(str(field.get("fieldPath")))
            if text is None:
                raise PodError(
                    f"{here}.fieldRef.fieldPath",
                    f"only {', '.join(known)} are known here; write a value",
                )
        else:
            field = mapping(item.get("resourceFieldRef"), f"{here}.resourceFieldRef")
            text = mark_of(field, f"{here}.resourceFieldRef", "", names)
        name = text_of(item.get("path"), f"{here}.path") or ""
        chosen = next((one for one in (mode, default) if one is not None), 0o644)
        yield DownwardFile(name, text, chosen)


def _empty_dir(source: Mapping[str, Any], path: str, pod: Pod) -> EmptyDir:
    medium = text_of(source.get("medium"), f"{path}.medium") or ""
    limit = source.get("sizeLimit")
    size = None if limit is None else quantity_from_api(limit, f"{path}.sizeLimit").value() or None
    if is_hugepage_medium(medium):
        # As under a kubelet, the pod is admitted, and the containers that mount it do not start.
        try:
            return EmptyDir(medium, size, volume_page_quantity(medium, pod).value())
        except HugePagesError as error:
            return EmptyDir(medium, size, problem=str(error))
    if medium == MEDIUM_MEMORY:
        sizes = [most for most in (size, pod_cgroup(pod).memory) if most]
        return EmptyDir(medium, min(sizes, default=None))
    problem = f'unknown storage medium "{medium[:80]}"' if medium else ""
    return EmptyDir(medium, size, problem=problem)


def mounts_of(value: object, path: str, volumes: Mapping[str, Source]) -> Iterator[VolumeMount]:
    """Yield the mounts of a container, of the volumes that can be mounted.

    Raises:
        PodError: a field of the wrong type.
    """
    for item, here in mappings(value, path):
        name = text_of(item.get("name"), f"{here}.name") or ""
        target = absolute(item.get("mountPath"), f"{here}.mountPath")
        read_only = flag(item.get("readOnly"), f"{here}.readOnly")
        if name in volumes:
            source = volumes[name]
            if isinstance(source, HostPath):
                yield VolumeMount(name, target, source, read_only)
            elif isinstance(source, DownwardAPI):
                # As under a kubelet, nobody writes there.
                yield VolumeMount(name, target, read_only=True, downward=source)
            else:
                yield VolumeMount(name, target, None, read_only, source)

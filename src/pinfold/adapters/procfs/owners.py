"""Which cgroup is whose: the kubelet's naming and pinfold's own.

The kubelet names a pod's cgroup ``kubepods/burstable/podUID`` (driver cgroupfs) or
``kubepods-burstable-podUID.slice`` with ``_`` for ``-`` (driver systemd); a container's is its id
or ``cri-containerd-ID.scope``, ``crio-ID.scope``, ``docker-ID.scope``.  The name of a container is
not in it: that is asked from what the runtime and the kubelet leave on the disk, and when that is
silent, from the CPUs themselves.  Sources: the kubelet's ``cgroup_manager_linux.go`` for the names,
the OCI runtime specification for ``config.json``, the CRI annotations of containerd and CRI-O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pinfold.adapters.procfs.files import KernelFiles
from pinfold.core.audit_record import Owner
from pinfold.core.audit_snapshot import KernelSnapshot, is_within
from pinfold.core.cpuset import CPUSet

Assignments = Mapping[str, Mapping[str, CPUSet]]
"""Pod uid -> container name -> its CPUs; the name "" stands for the whole pod."""

_POD: Final = re.compile(r"(?:.*kubepods.*-)?pod([0-9a-zA-Z][0-9a-zA-Z_-]*)(?:\.slice)?")
_CONTAINER_ID: Final = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")
_ESCAPE: Final = re.compile(rb"=([0-9a-f]{2})")
_MONITOR: Final = "crio-conmon-"
_SANDBOX: Final = "pause"
_CONFIGS: Final = (
    "/run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json",
    "/run/containers/storage/overlay-containers/{id}/userdata/config.json",
)
_NAMES: Final = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
_TYPES: Final = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
_LOGS: Final = "/var/log/containers"


@dataclass(frozen=True, slots=True)
class Located:
    """The owners with their cgroups, and the cgroups of the shared pool."""

    owners: tuple[Owner, ...]
    shared: tuple[str, ...]


@dataclass(slots=True)
class _Container:
    """A container's cgroup; ``name`` is None where nothing tells it."""

    path: str
    id: str
    name: str | None = None
    is_sandbox: bool = False


def locate_kubelet(
    snapshot: KernelSnapshot, assignments: Assignments, root: Path | str = "/"
) -> Located:
    """The cgroups of the containers that a kubelet has written down.

    In the oldest layout of its state file, the "pod" and the "container" are both the container's
    id.
    """
    pods = _pods(snapshot)
    containers = {uid: _containers(snapshot, path) for uid, path in pods.items()}
    _name(KernelFiles(root), [c for found in containers.values() for c in found])
    _mark_sandboxes(snapshot, [c for found in containers.values() for c in found])
    owners = []
    taken: set[str] = set()
    by_id = {c.id: c.path for found in containers.values() for c in found}
    for uid, sets in assignments.items():
        matched = _match(snapshot, containers.get(uid, []), sets)
        for name, cpus in sets.items():
            path = pods.get(uid) if not name else matched.get(name, by_id.get(name))
            paths = () if path is None else (path,)
            taken.update(paths)
            owners.append(Owner(uid, name, cpus, paths, paths, is_pod=not name))
    pinned = {path for owner in owners if owner.is_pod for path in owner.cgroups}
    shared = tuple(
        container.path
        for found in containers.values()
        for container in found
        if container.path not in taken
        and not container.is_sandbox
        and not any(is_within(container.path, pod) for pod in pinned)
    )
    return Located(tuple(owners), shared)


def locate_own(
    snapshot: KernelSnapshot, assignments: Assignments, tree: str = "pinfold"
) -> Located:
    """The cgroups ``TREE/exclusive/pod-UID/NAME`` and ``TREE/shared``, wherever they are.

    The folder of a container may have the prefix ``ctr-``; what a folder cannot be called is
    written ``=xx``.
    """
    places: dict[tuple[str, str], list[str]] = {}
    shared = []
    for path in snapshot.cpusets:
        words = path.split("/")
        if words[-2:] == [tree, "shared"]:
            shared.append(path)
        if len(words) > 4 and words[-4] == tree and words[-3] in ("exclusive", "shared"):
            key = (_plain(words[-2], "pod-"), _plain(words[-1], "ctr-"))
            places.setdefault(key, []).append(path)
    owners = []
    for uid, sets in assignments.items():
        for name, cpus in sets.items():
            paths = tuple(places.get((uid, name), ()))
            capped = tuple(_of_pod(snapshot.quotas, uid, name, tree))
            owners.append(Owner(uid, name, cpus, paths, (*paths, *capped)))
    owned = {path for owner in owners for path in owner.cgroups}
    shared += [path for found in places.values() for path in found if f"/{tree}/shared/" in path]
    return Located(tuple(owners), tuple(path for path in shared if path not in owned))


def locate_given(snapshot: KernelSnapshot, place: str, cpus: CPUSet) -> Owner:
    """An owner that somebody names: ``place`` is a folder, or a path in the hierarchy."""
    top = snapshot.cpusets.get("/")
    path = f"/{place.strip('/')}"
    if top is not None and is_within(path, top.folder):
        path = path[len(top.folder) :] or "/"
    paths = (path,) if path in snapshot.cpusets else ()
    return Owner(path, "", cpus, paths, paths)


def _of_pod(paths: Iterable[str], uid: str, name: str, tree: str) -> Iterator[str]:
    """The paths of a pod, or of a container in it, below the tree in another hierarchy."""
    for path in paths:
        words = path.split("/")
        if tree not in words:
            continue
        below = words[words.index(tree) + 1 :]
        pods = [at for at, word in enumerate(below) if word.startswith("pod-")]
        if pods and _plain(below[pods[0]], "pod-") == uid:
            inside = below[pods[0] + 1 :]
            if not inside or (len(inside) == 1 and _plain(inside[0], "ctr-") == name):
                yield path


def _plain(folder: str, prefix: str) -> str:
    """The uid or name that a folder stands for: without its prefix, ``=xx`` being one byte."""
    text = folder.removeprefix(prefix)
    raw = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), text.encode())
    return raw.decode("utf-8", "replace")


def _pods(snapshot: KernelSnapshot) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in snapshot.cpusets:
        match = _POD.fullmatch(path.rpartition("/")[2])
        if match is not None and "kubepods" in path:
            uid = match[1].replace("_", "-") if path.endswith(".slice") else match[1]
            found.setdefault(uid, path)
    return found


def _containers(snapshot: KernelSnapshot, pod: str) -> list[_Container]:
    found = []
    for path in snapshot.cpusets:
        parent, _, name = path.rpartition("/")
        if parent == pod and not name.startswith(_MONITOR):
            match = _CONTAINER_ID.fullmatch(name)
            found.append(_Container(path, match[1] if match else name))
    return found


def _name(files: KernelFiles, containers: list[_Container]) -> None:
    """Give the containers their names, as far as something on the disk tells them."""
    logs = {
        stem[-64:]: stem[:-65].rpartition("_")[2]
        for name in files.names(_LOGS)
        if len(stem := name.removesuffix(".log")) > 65
    }
    for container in containers:
        container.name = logs.get(container.id)
        if not _CONTAINER_ID.fullmatch(container.id):
            continue
        for form in _CONFIGS:
            annotations = _annotations(files.text(form.format(id=container.id)))
            kind = next((annotations[key] for key in _TYPES if key in annotations), None)
            name = next((annotations[key] for key in _NAMES if key in annotations), None)
            container.is_sandbox = container.is_sandbox or kind == "sandbox"
            container.name = name if name is not None and kind != "sandbox" else container.name


def _annotations(text: str | None) -> dict[str, str]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}  # written this moment, or by something else: the other ways remain
    annotations = found.get("annotations") if isinstance(found, dict) else None
    if not isinstance(annotations, dict):
        return {}
    return {key: value for key, value in annotations.items() if isinstance(value, str)}


def _mark_sandboxes(snapshot: KernelSnapshot, containers: list[_Container]) -> None:
    """A container whose only process is ``pause`` keeps a pod's namespaces."""
    names: dict[str, set[str]] = {}
    for task in snapshot.tasks:
        names.setdefault(task.cgroup, set()).add(task.comm)
    for container in containers:
        if container.name is None and names.get(container.path) == {_SANDBOX}:
            container.is_sandbox = True


def _match(
    snapshot: KernelSnapshot, containers: list[_Container], sets: Mapping[str, CPUSet]
) -> dict[str, str]:
    """Container name -> path.  By name; then by an equal set; then what alone is left."""
    found = {c.name: c.path for c in containers if c.name is not None and c.name in sets}
    nameless = [c.path for c in containers if c.name is None and not c.is_sandbox]
    for name in [name for name in sets if name and name not in found]:
        equal = [path for path in nameless if snapshot.cpusets[path].effective == sets[name]]
        rivals = [other for other in sets if other not in found and sets[other] == sets[name]]
        if len(equal) == 1 and len(rivals) == 1:
            found[name] = equal[0]
            nameless.remove(equal[0])
    left = [name for name in sets if name and name not in found]
    if len(left) == len(nameless) == 1:
        found[left[0]] = nameless[0]
    return found

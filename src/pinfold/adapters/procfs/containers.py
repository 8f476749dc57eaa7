"""Which cgroups are containers, and what they are called.

The kubelet names a pod's cgroup ``kubepods/burstable/podUID`` (driver cgroupfs) or
``kubepods-burstable-podUID.slice`` with ``_`` for ``-`` (driver systemd), and pinfold, where it
tells a runtime what to run, likewise below its own name; a container's is its id or
``cri-containerd-ID.scope``, ``crio-ID.scope``, ``docker-ID.scope``.  The names are not in it: those
are asked from a runtime or an agent, and where none tells, from what the runtime and the kubelet
leave on the disk.  Sources: the kubelet's ``cgroup_manager_linux.go`` for the names, the OCI
runtime specification for ``config.json``, the CRI annotations of containerd and CRI-O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from pinfold.adapters.procfs.files import KernelFiles
from pinfold.audit.located import pods_of, same_uid
from pinfold.audit.record import KnownContainer
from pinfold.audit.snapshot import KernelSnapshot, lineage

_CONTAINER_ID: Final = re.compile(r"(?:[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")
_MONITOR: Final = "crio-conmon-"
_SANDBOX: Final = "pause"
_CONFIGS: Final = (
    "/run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json",
    "/run/containers/storage/overlay-containers/{id}/userdata/config.json",
)
_TYPES: Final = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
_NAMES: Final = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
_PODS: Final = ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")
_NAMESPACES: Final = ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")
_LOGS: Final = "/var/log/containers"


def find_containers(
    snapshot: KernelSnapshot, files: KernelFiles, told: Iterable[KnownContainer] = ()
) -> dict[str, KnownContainer]:
    """The containers by their cgroups' paths.

    Args:
        snapshot: the cgroups and processes.
        files: where the runtime's and the kubelet's files are.
        told: what a runtime or an agent says; by id, or else by main process.
    """
    told = tuple(told)
    known = {one.id: one for one in told if one.id}
    found: dict[str, KnownContainer] = {}
    inside: set[str] = set()
    pods = pods_of(snapshot)
    for path in snapshot.cpusets:
        parent, _, name = path.rpartition("/")
        if parent in inside:
            # What a container makes in its own cgroup is its own, containers included.
            inside.add(path)
            continue
        match = _CONTAINER_ID.fullmatch(name)
        uid = pods.get(parent, "")
        if name.startswith(_MONITOR) or not (match or (uid and "kubepods" in parent)):
            continue
        inside.add(path)
        one = KnownContainer(id=match[1] if match else name, pod_uid=uid)
        found[path] = replace(known.get(one.id, one), cgroup=path)
    _by_process(snapshot, found, [one for one in told if one.pid is not None and not one.has_ended])
    _name(files, found)
    _mark_sandboxes(snapshot, found, told)
    return found


def _by_process(
    snapshot: KernelSnapshot, found: dict[str, KnownContainer], told: list[KnownContainer]
) -> None:
    """Take over what is told of a main process: of one that has no id, or whose cgroup has none."""
    ids = {one.id for one in found.values()}
    by_pid = {one.pid: one for one in told if not one.id or one.id not in ids}
    if not by_pid:
        return
    for task in snapshot.tasks:
        if task.pid != task.tid or (one := by_pid.get(task.pid)) is None:
            continue
        path = next((step for step in lineage(task.cgroup) if step in found), "")
        if path and not one.id and not found[path].name:
            found[path] = replace(one, id=found[path].id, cgroup=path)
        elif not path and one.id and task.cgroup != "/":
            found[task.cgroup] = replace(one, cgroup=task.cgroup)


def _name(files: KernelFiles, found: dict[str, KnownContainer]) -> None:
    """Give names to those that have none, as far as something on the disk tells them."""
    nameless = [
        (path, one) for path, one in found.items() if not one.name and not one.is_sandbox and one.id
    ]
    if not nameless:
        return
    logs = {
        stem[-64:]: stem[:-65].split("_")
        for name in files.names(_LOGS)
        if len(stem := name.removesuffix(".log")) > 65
    }
    for path, one in nameless:
        named = one
        if len(words := logs.get(one.id, [])) == 3:
            named = replace(one, pod=one.pod or f"{words[1]}/{words[0]}", name=words[2])
        if _CONTAINER_ID.fullmatch(one.id):
            for form in _CONFIGS:
                named = _annotated(named, _annotations(files.text(form.format(id=one.id))))
        found[path] = named


def _annotated(one: KnownContainer, annotations: Mapping[str, str]) -> KnownContainer:
    def first(names: Iterable[str]) -> str:
        return next((annotations[name] for name in names if name in annotations), "")

    name, pod, namespace = first(_NAMES), first(_PODS), first(_NAMESPACES)
    is_sandbox = one.is_sandbox or first(_TYPES) == "sandbox"
    return replace(
        one,
        name="" if is_sandbox else name or one.name,
        pod=f"{namespace}/{pod}" if pod and namespace else one.pod,
        is_sandbox=is_sandbox,
    )


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


def _mark_sandboxes(
    snapshot: KernelSnapshot, found: dict[str, KnownContainer], told: Iterable[KnownContainer]
) -> None:
    """What keeps a pod's namespaces: one process that is called ``pause``.

    Or any process, in a pod of which an agent has told every container but this.
    """
    if all(one.name or one.is_sandbox for one in found.values()):
        return
    pods = {same_uid(one.pod_uid): one.pod for one in told if one.pod_uid and one.name and one.pid}
    tasks: dict[str, set[int]] = {}
    comms: dict[str, str] = {}
    for task in snapshot.tasks:
        tasks.setdefault(task.cgroup, set()).add(task.pid)
        comms[task.cgroup] = task.comm
    for path, one in found.items():
        if one.name or one.is_sandbox:
            continue
        pod = one.pod or pods.get(same_uid(one.pod_uid), "")
        is_alone = len(tasks.get(path, ())) == 1
        is_left = same_uid(one.pod_uid) in pods or comms.get(path) == _SANDBOX
        found[path] = replace(one, pod=pod, is_sandbox=is_alone and is_left)

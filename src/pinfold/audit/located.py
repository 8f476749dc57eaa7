"""Which cgroup is whose: those of a runtime's containers, and pinfold's own.

A record has a pod's uid and a container's name.  Where nothing tells a container's name, it is told
by its CPUs; one that cannot be told from the others of its pod is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from pinfold.audit.record import KnownContainer, Owner
from pinfold.audit.snapshot import KernelSnapshot, is_within
from pinfold.core.values.cpuset import CPUSet

Assignments = Mapping[str, Mapping[str, CPUSet]]
"""Pod uid -> container name -> its CPUs; the name "" stands for the whole pod."""

Containers = Mapping[str, KnownContainer]
"""Containers by their cgroups' paths."""

_SLICE: Final = re.compile(r".*-pod([^-]+)\.slice")
_FOLDER: Final = re.compile(r"pod([0-9a-zA-Z][0-9a-zA-Z_.-]*)")
_ESCAPE: Final = re.compile(rb"=([0-9a-f]{2})")


class Located(Struct, frozen=True):
    """The owners with their cgroups, those of the shared pool, and those of who borrows."""

    owners: tuple[Owner, ...]
    shared: tuple[str, ...]
    idle: tuple[str, ...] = ()


class Names(Struct, frozen=True):
    """What is known of pods beside their cgroups: names, and which containers have ended."""

    pods: Mapping[str, str]
    pids: Mapping[tuple[str, str], int]
    ended: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, told: Iterable[KnownContainer], containers: Containers) -> Names:
        """Of what a runtime or an agent says, and of the containers that were found."""
        everybody = [*told, *containers.values()]
        running = {_key(one) for one in everybody if not one.has_ended}
        return cls(
            {same_uid(one.pod_uid): one.pod for one in everybody if one.pod_uid and one.pod},
            {_key(one): one.pid for one in everybody if one.pid is not None and one.name},
            frozenset(_key(one) for one in everybody if one.has_ended and one.name) - running,
        )

    def pod(self, uid: str) -> str:
        """A pod as ``namespace/name``; "" where nobody tells."""
        return self.pods.get(same_uid(uid), "")


def _key(one: KnownContainer) -> tuple[str, str]:
    return same_uid(one.pod_uid), one.name


def pods_of(snapshot: KernelSnapshot) -> dict[str, str]:
    """Uid by path, of every cgroup that is named as a pod's."""
    found = {}
    for path in snapshot.cpusets:
        name = path.rpartition("/")[2]
        if name.endswith(".slice"):
            # A dash in a slice's name means "below", so that those of a uid are written "_".
            if (match := _SLICE.fullmatch(name)) is not None:
                found[path] = match[1].replace("_", "-")
        elif (match := _FOLDER.fullmatch(name)) is not None:
            found[path] = match[1]
    return found


def same_uid(uid: str) -> str:
    """A uid in a form in which that of a record and that of a folder's name are the same."""
    return uid.replace("/", "_").replace("-", "_")


def is_of_a_kubelet(container: KnownContainer) -> bool:
    """Whether a container is below the cgroup of a kubelet's pods."""
    return "kubepods" in container.cgroup


def is_of_a_pod(container: KnownContainer) -> bool:
    """Whether a container is a pod's, whoever runs the pod."""
    return bool(container.pod_uid)


def is_below(tree: str) -> Callable[[KnownContainer], bool]:
    """Whether a container is one that pinfold has told a runtime to run."""
    stem = tree.replace("-", "_")

    def below(container: KnownContainer) -> bool:
        top = container.cgroup.lstrip("/").partition("/")[0]
        return bool(container.pod_uid) and top in (tree, f"{stem}.slice")

    return below


def has_own_cgroups(snapshot: KernelSnapshot, tree: str = "pinfold") -> bool:
    """Whether there is the cgroup tree of an agent whose containers are its own processes."""
    return any(
        path.endswith((f"/{tree}/shared", f"/{tree}/exclusive")) for path in snapshot.cpusets
    )


def locate_containers(
    snapshot: KernelSnapshot,
    assignments: Assignments,
    containers: Containers,
    *,
    is_ours: Callable[[KnownContainer], bool] = is_of_a_kubelet,
    told: Iterable[KnownContainer] = (),
) -> Located:
    """The cgroups of containers that a runtime runs, for a kubelet or for pinfold.

    In the oldest layout of a kubelet's state file, the "pod" and the "container" are both the
    container's id.

    Args:
        snapshot: the cgroups.
        assignments: who owns what.
        containers: what was found; see :func:`pinfold.adapters.procfs.containers.find_containers`.
        is_ours: which containers the record is about: those of them that own nothing share.
        told: what a runtime or an agent says.
    """
    names = Names.of(told, containers)
    ours = [one for one in containers.values() if is_ours(one)]
    by_pod: dict[str, list[KnownContainer]] = {}
    for one in ours:
        by_pod.setdefault(same_uid(one.pod_uid), []).append(one)
    pods: dict[str, str] = {}
    for pod, uid in pods_of(snapshot).items():
        pods.setdefault(same_uid(uid), pod)
    by_id = {one.id: one.cgroup for one in ours}
    owners = []
    taken: set[str] = set()
    for uid, sets in assignments.items():
        matched = _match(snapshot, by_pod.get(same_uid(uid), []), sets)
        for name, cpus in sets.items():
            path = pods.get(same_uid(uid)) if not name else matched.get(name, by_id.get(name))
            paths = () if path is None else (path,)
            taken.update(paths)
            one = containers.get(path or "", KnownContainer())
            owners.append(
                Owner(
                    uid,
                    name,
                    cpus,
                    paths,
                    paths,
                    is_pod=not name,
                    pod_name=one.pod or names.pod(uid),
                    container_id=one.id,
                    pid=one.pid or names.pids.get((same_uid(uid), name)),
                    has_ended=not paths and (same_uid(uid), name) in names.ended,
                )
            )
    pinned = {path for owner in owners if owner.is_pod for path in owner.cgroups}
    shared = tuple(
        one.cgroup
        for one in ours
        if one.cgroup not in taken
        and not one.is_sandbox
        and not any(is_within(one.cgroup, pod) for pod in pinned)
    )
    return Located(tuple(owners), shared)


def locate_own(
    snapshot: KernelSnapshot,
    assignments: Assignments,
    tree: str = "pinfold",
    told: Iterable[KnownContainer] = (),
) -> Located:
    """The cgroups ``TREE/exclusive/pod-UID/NAME`` and ``TREE/shared``, wherever they are.

    The folder of a container may have the prefix ``ctr-``; what a folder cannot be called is
    written ``=xx``.
    """
    names = Names.of(told, {})
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
            owners.append(
                Owner(
                    uid,
                    name,
                    cpus,
                    paths,
                    (*paths, *capped),
                    is_pod=not name,
                    pod_name=names.pod(uid),
                    has_ended=not paths and (same_uid(uid), name) in names.ended,
                )
            )
    owned = {path for owner in owners for path in owner.cgroups}
    shared += [path for found in places.values() for path in found if f"/{tree}/shared/" in path]
    idle = tuple(path for path in snapshot.cpusets if path.split("/")[-2:] == [tree, "idle"])
    return Located(tuple(owners), tuple(path for path in shared if path not in owned), idle)


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


def _match(
    snapshot: KernelSnapshot, containers: list[KnownContainer], sets: Mapping[str, CPUSet]
) -> dict[str, str]:
    """Container name -> path.  By name; then by an equal set; then what alone is left.

    Of a set there have to be as many as are recorded.  One without CPUs of its own is known by its
    name only.
    """
    in_force = {
        one.cgroup: group.effective
        for one in containers
        if (group := snapshot.cpuset_of(one.cgroup)) is not None
    }
    found = {one.name: one.cgroup for one in containers if one.name and one.name in sets}
    nameless = [one.cgroup for one in containers if not one.name and not one.is_sandbox]
    for name in sets:
        if not name or name in found:
            continue
        equal = [path for path in nameless if in_force.get(path) == sets[name]]
        rivals = [
            other for other in sets if other and other not in found and sets[other] == sets[name]
        ]
        # Those that share what is left of their pod's CPUs differ in nothing that is compared.
        if len(equal) == len(rivals):
            found |= zip(rivals, equal, strict=True)
            nameless = [path for path in nameless if path not in equal]
    left = [name for name in sets if name and sets[name] and name not in found]
    if len(left) == len(nameless) == 1:
        found[left[0]] = nameless[0]
    return found

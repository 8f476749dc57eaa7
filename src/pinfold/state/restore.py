"""Restoring the CPU manager's state from its file, as the kubelet does at start.

Upstream: ``stateCheckpoint.restoreState`` (``cpumanager/state/state_checkpoint.go``).  A kubelet
tries one layout after the other; what it prints is the error of the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.state.cpu_manager_state import (
    CheckpointError,
    CPUManagerCheckpoint,
    Layout,
    parse_kubelet_cpuset,
)
from pinfold.state.go_json import quote
from pinfold.state.ledger import Ledger

ContainerIDs = Mapping[str, tuple[str, str]]
"""Container id -> (pod uid, container name), as the runtime has them."""


class Reader(Struct, frozen=True):
    """How a line of kubelets reads the file: the layouts in turn, and its words for a migration."""

    layouts: tuple[Layout, ...]
    migration: str


KUBELET_1_34: Final = Reader(
    (Layout.V1, Layout.V2), "error migrating v1 checkpoint state to v2 checkpoint state"
)
"""1.34 and 1.35."""

KUBELET_1_36: Final = Reader((Layout.V2, Layout.V1), "failed to migrate checkpoint from v1 to v2")
"""1.36 with its default feature gates (PodLevelResourceManagers off)."""


class UnknownContainerError(CheckpointError):
    """A container, or a container id, of which the other is not known."""


class RestoreError(ValueError):
    """A file with which the kubelet exits at start; the message is what it prints."""


def restore(
    file: bytes | None,
    policy_name: str,
    container_ids: ContainerIDs | None = None,
    *,
    path: str = "/var/lib/kubelet/cpu_manager_state",
    reader: Reader = KUBELET_1_34,
) -> Ledger:
    """The ledger that a kubelet with ``policy_name`` takes from ``file``.

    Args:
        file: the file's content, ``None`` where there is none (the ledger is empty then).
        policy_name: ``cpuManagerPolicy``.
        container_ids: the running containers, which a v1 file needs.
        path: where the file lies, for the message.
        reader: the kubelet's line.

    Raises:
        RestoreError: the kubelet exits; the message is the kubelet's, with ``path``.
    """
    if file is None:
        return Ledger(policy_name, CPUSet())
    try:
        known = {} if container_ids is None else container_ids
        return _restore(file, policy_name, known, reader)
    except CheckpointError as error:
        raise RestoreError(
            f"could not restore state from checkpoint: {error}, please drain this node and delete "
            f"the CPU manager checkpoint file {quote(path)} before restarting Kubelet"
        ) from None


def _restore(file: bytes, policy_name: str, container_ids: ContainerIDs, reader: Reader) -> Ledger:
    checkpoint = load(file, container_ids, reader)
    if checkpoint.policy_name != policy_name:
        raise CheckpointError(
            f"configured policy {quote(policy_name)} differs from state checkpoint policy "
            f"{quote(checkpoint.policy_name)}"
        )
    return to_ledger(checkpoint)


def load(
    file: bytes, container_ids: ContainerIDs, reader: Reader = KUBELET_1_34
) -> CPUManagerCheckpoint:
    """Read and verify a v1 or v2 file as a kubelet does; the result has the v2 layout.

    Raises:
        CheckpointError: in the kubelet's words.
    """
    checkpoint = _first_that_fits(file, reader.layouts)
    if checkpoint.layout is not Layout.V1:
        return checkpoint
    try:
        return migrate_v1(checkpoint, container_ids)
    except CheckpointError as error:
        raise CheckpointError(f"{reader.migration}: {error}") from None


def _first_that_fits(file: bytes, layouts: tuple[Layout, ...]) -> CPUManagerCheckpoint:
    for layout in layouts:
        try:
            checkpoint = CPUManagerCheckpoint.parse(file, layout)
            checkpoint.verify()
        except CheckpointError:
            if layout is layouts[-1]:
                raise
        else:
            return checkpoint
    raise AssertionError("a reader without layouts")


def migrate_v1(old: CPUManagerCheckpoint, container_ids: ContainerIDs) -> CPUManagerCheckpoint:
    """A v1 checkpoint in the v2 layout; its checksum is still to be computed.

    Raises:
        UnknownContainerError: a container id that ``container_ids`` lacks, in the kubelet's words.
    """
    entries: dict[str, dict[str, str]] = {}
    for container_id, cpus in sorted((old.container_ids or {}).items()):
        if container_id not in container_ids:
            raise UnknownContainerError(
                f"containerID '{container_id}' not found in initial containers list"
            )
        pod_uid, name = container_ids[container_id]
        entries.setdefault(pod_uid, {})[name] = cpus
    return CPUManagerCheckpoint(Layout.V2, old.policy_name, old.default_cpu_set, entries)


def to_ledger(checkpoint: CPUManagerCheckpoint) -> Ledger:
    """The sets of a v2, v3 or v4 checkpoint.

    Raises:
        CheckpointError: a text that is no CPU list, in the kubelet's words.
    """
    try:
        default = parse_kubelet_cpuset(checkpoint.default_cpu_set)
    except CheckpointError as error:
        raise CheckpointError(
            f"could not parse default cpu set {quote(checkpoint.default_cpu_set)}: {error}"
        ) from None
    assignments: dict[str, Mapping[str, CPUSet]] = {}
    for uid, containers in sorted((checkpoint.entries or {}).items()):
        sets: dict[str, CPUSet] = {}
        for name, cpus in sorted((containers or {}).items()):
            try:
                sets[name] = parse_kubelet_cpuset(cpus)
            except CheckpointError as error:
                raise CheckpointError(
                    f"could not parse cpuset {quote(cpus)} for container {quote(name)} "
                    f"in pod {quote(uid)}: {error}"
                ) from None
        assignments[uid] = MappingProxyType(sets)
    return Ledger(checkpoint.policy_name, default, MappingProxyType(assignments))


def to_checkpoint(
    ledger: Ledger,
    layout: Layout = Layout.V2,
    *,
    pod_entries: Mapping[str, CPUSet] | None = None,
) -> CPUManagerCheckpoint:
    """The checkpoint that a kubelet writes for ``ledger``, checksum included.

    ``layout`` is v2 or later (v1 needs container ids: :func:`to_v1`); ``pod_entries`` are the
    pods' own sets of v3 and v4.
    """
    has_pods = layout in (Layout.V3, Layout.V4)
    return CPUManagerCheckpoint(
        layout=layout,
        policy_name=ledger.policy_name,
        default_cpu_set=str(ledger.default),
        entries={
            uid: {name: str(cpus) for name, cpus in containers.items()}
            for uid, containers in ledger.assignments.items()
        },
        pod_entries={uid: str(cpus) for uid, cpus in (pod_entries or {}).items()}
        if has_pods
        else None,
    ).sealed()


def to_v1(
    ledger: Ledger, container_ids: Iterable[tuple[str, tuple[str, str]]]
) -> CPUManagerCheckpoint:
    """The v1 checkpoint of ``ledger``.

    Raises:
        UnknownContainerError: a container whose id ``container_ids`` lacks.
    """
    ids = {reference: container_id for container_id, reference in container_ids}
    entries: dict[str, str] = {}
    for uid, containers in ledger.assignments.items():
        for name, cpus in containers.items():
            if (uid, name) not in ids:
                raise UnknownContainerError(
                    f"the v1 layout names containers by id, and the id of container {quote(name)} "
                    f"of pod {quote(uid)} is not known"
                )
            entries[ids[uid, name]] = str(cpus)
    return CPUManagerCheckpoint(
        Layout.V1, ledger.policy_name, str(ledger.default), container_ids=entries
    ).sealed()

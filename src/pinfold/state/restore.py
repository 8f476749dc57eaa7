"""Restoring the CPU manager's state from its file, as the kubelet does at start.

Upstream: ``stateCheckpoint.restoreState`` (``cpumanager/state/state_checkpoint.go``).  A kubelet
tries one layout after the other; what it prints is the error of the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.state.cpu_manager_state import (
    CheckpointError,
    CPUManagerCheckpoint,
    parse_kubelet_cpuset,
)
from pinfold.state.go_json import quote
from pinfold.state.layouts import CPU_STATE, Layout, StateForm
from pinfold.state.ledger import Ledger
from pinfold.state.reading import read_in_turn

ContainerIDs = Mapping[str, tuple[str, str]]
"""Container id -> (pod uid, container name), as the runtime has them."""


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
    form: StateForm | None = None,
) -> Ledger:
    """The ledger that a kubelet with ``policy_name`` takes from ``file``.

    Args:
        file: the file's content, ``None`` where there is none (the ledger is empty then).
        policy_name: ``cpuManagerPolicy``.
        container_ids: the running containers, which a v1 file needs.
        path: where the file lies, for the message.
        form: how the kubelet reads and writes, else as the default version.

    Raises:
        RestoreError: the kubelet exits; the message is the kubelet's, with ``path``.
    """
    if file is None:
        return Ledger(policy_name, CPUSet())
    known = {} if container_ids is None else container_ids
    try:
        return to_ledger(load(file, policy_name, known, form or CPU_STATE.at()))
    except CheckpointError as error:
        raise RestoreError(
            f"could not restore state from checkpoint: {error}, please drain this node and delete "
            f"the CPU manager checkpoint file {quote(path)} before restarting Kubelet"
        ) from None


def load(
    file: bytes, policy_name: str, container_ids: ContainerIDs, form: StateForm
) -> CPUManagerCheckpoint:
    """Read and verify a file as a kubelet does; the result has the layout in which it writes.

    Raises:
        CheckpointError: in the kubelet's words.
    """
    accepted = read_in_turn(file, form, CPUManagerCheckpoint.attempt)
    checkpoint = accepted.checkpoint
    if checkpoint.layout is Layout.V1:
        try:
            checkpoint = migrate_v1(checkpoint, container_ids)
        except CheckpointError as error:
            raise CheckpointError(f"{form.migration}: {error}") from None
    if checkpoint.policy_name != policy_name:
        raise CheckpointError(
            f"configured policy {quote(policy_name)} differs from state checkpoint policy "
            f"{quote(checkpoint.policy_name)}"
        )
    pods = (accepted.first if form.keeps_half_read else checkpoint).pod_entries
    return replace(
        checkpoint,
        layout=form.writes,
        pod_entries=pods if form.has_pods else None,
        data="",
        data_checksum=0,
    )


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
    return Ledger(
        checkpoint.policy_name,
        default,
        MappingProxyType(assignments),
        bubbles=MappingProxyType(pod_sets(checkpoint)),
    )


def pod_sets(checkpoint: CPUManagerCheckpoint) -> dict[str, CPUSet]:
    """The pods' own sets (v3 and v4), empty in older layouts."""
    entries = checkpoint.pod_entries or {}
    return {uid: CPUSet.parse(text) for uid, text in sorted(entries.items())}


def to_checkpoint(ledger: Ledger, layout: Layout = Layout.V2) -> CPUManagerCheckpoint:
    """The checkpoint that a kubelet writes for ``ledger``, checksum included.

    ``layout`` is v2 or later (v1 needs container ids: :func:`to_v1`); v2 has no place for the pods'
    own sets.
    """
    has_pods = layout in CPU_STATE.with_pods
    return CPUManagerCheckpoint(
        layout=layout,
        policy_name=ledger.policy_name,
        default_cpu_set=str(ledger.default),
        entries={
            uid: {name: str(cpus) for name, cpus in containers.items()}
            for uid, containers in ledger.assignments.items()
        },
        pod_entries={uid: str(cpus) for uid, cpus in ledger.bubbles.items()} if has_pods else None,
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

"""Repairs of a state file: pure functions from a file and what is known to a new file."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.state.cpu_manager_state import CPUManagerCheckpoint
from pinfold.state.device_checkpoint import DeviceManagerCheckpoint
from pinfold.state.go_json import quote
from pinfold.state.layouts import Layout
from pinfold.state.ledger import Bounds, Ledger
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.memory_startup import (
    MemoryStartError,
    cleared_machine_state,
    expected_machine_state,
)
from pinfold.state.restore import (
    to_checkpoint,
    to_v1,
)
from pinfold.state.state_file import StateFile, ledger_of


class RepairError(ValueError):
    """A repair that cannot be made from what is known; the message says what is missing."""


class RepairRequest(Struct, frozen=True):
    """What to change.

    ``drop_pods`` are the uids of vanished pods, or ``keep_pods`` those that are still there.
    ``machine`` are the CPUs that the kubelet sees now, ``reserved`` the reserved ones.
    ``policy`` replaces the policy name; to ``none`` (memory: ``None``) it empties the state, as
    a kubelet with that policy leaves it.
    """

    drop_pods: frozenset[str] = frozenset()
    keep_pods: frozenset[str] | None = None
    machine: CPUSet | None = None
    reserved: CPUSet = CPUSet()
    strict_cpu_reservation: bool = False
    policy: str | None = None

    def drops(self, pod_uid: str) -> bool:
        """Whether the pod's entries are to go."""
        gone = self.keep_pods is not None and pod_uid not in self.keep_pods
        return gone or pod_uid in self.drop_pods


class Repair(Struct, frozen=True):
    """The new file, and what is different, a line each (empty: nothing)."""

    file: bytes
    changes: tuple[str, ...]


def repair(state: StateFile, request: RepairRequest) -> Repair:
    """Make the file one with which a kubelet starts, as far as ``request`` says how.

    Raises:
        RepairError: what is asked for cannot be done.
        CheckpointError: a CPU list in the file cannot be read.
    """
    document = state.document
    if isinstance(document, CPUManagerCheckpoint):
        file, changes = _repair_cpu(document, request)
    elif isinstance(document, MemoryManagerCheckpoint):
        file, changes = _repair_memory(document, request)
    else:
        file, changes = _repair_devices(document, request)
    if not changes and file != state.file:
        if not state.checksum_fits or state.checksum == 0:
            new = StateFile.read(file).checksum
            changes = [f"checksum: {state.checksum} -> {new}"]
        else:
            changes = ["the same content, written as a kubelet writes it"]
    return Repair(file, tuple(changes))


def _repair_cpu(
    checkpoint: CPUManagerCheckpoint, request: RepairRequest
) -> tuple[bytes, list[str]]:
    if checkpoint.layout is Layout.V1 and (request.drop_pods or request.keep_pods is not None):
        raise RepairError(
            "the v1 layout names containers, not pods: convert it first "
            "(pinfold state convert FILE --to v2 --containers crictl-ps.json)"
        )
    ledger = ledger_of(checkpoint)
    before = ledger.default
    changes: list[str] = []
    if request.policy is not None and request.policy != ledger.policy_name:
        changes.append(f"policy: {quote(ledger.policy_name)} -> {quote(request.policy)}")
        changes += [_gone(uid, cpus_of_pod(ledger, uid)) for uid in _pods_of(ledger)]
        # What the old policy gave is not what the new one would give; an empty default set makes
        # the static policy start afresh, and it is what the none policy writes.
        return _encode(checkpoint, Ledger(request.policy, CPUSet())), changes
    for uid in _pods_of(ledger):
        if request.drops(uid):
            freed = cpus_of_pod(ledger, uid)
            ledger = ledger.without(uid)
            ledger = replace(ledger, default=ledger.default | freed)
            changes.append(f"pod {uid}: dropped, CPUs {freed} go back to the shared pool")
    fitted = _fit(ledger, request, changes)
    lost = ledger.exclusive - fitted.exclusive
    ledger = replace(fitted, default=fitted.default | lost)
    if request.strict_cpu_reservation:
        ledger = replace(ledger, default=ledger.default - request.reserved)
    default = ledger.default - ledger.exclusive
    if request.machine is not None and (ledger.default or _pods_of(ledger)):
        bounds = Bounds(request.machine, request.reserved, request.strict_cpu_reservation)
        default = bounds.pool - ledger.exclusive
    if default != before:
        changes.append(f"shared pool: {before} -> {default}")
    return _encode(checkpoint, replace(ledger, default=default)), changes


def _pods_of(ledger: Ledger) -> list[str]:
    return sorted(ledger.assignments.keys() | ledger.bubbles.keys())


def cpus_of_pod(ledger: Ledger, uid: str) -> CPUSet:
    """What a pod and its containers own."""
    return ledger.cpus_of_pod(uid) | ledger.bubbles.get(uid, CPUSet())


def _fit(ledger: Ledger, request: RepairRequest, changes: list[str]) -> Ledger:
    """Take CPUs that are gone or reserved away from containers."""
    assignments: dict[str, Mapping[str, CPUSet]] = {}
    for uid, containers in ledger.assignments.items():
        left: dict[str, CPUSet] = {}
        for name, cpus in containers.items():
            kept = _within(cpus, request)
            if kept:
                left[name] = kept
            if kept != cpus or not kept:
                lost = cpus - kept
                end = f"{len(kept)} of {len(cpus)} left" if kept else "none left, entry dropped"
                changes.append(f"pod {uid}, container {name}: lost CPUs {lost}, {end}")
        if left:
            assignments[uid] = left
    fitted = Ledger(ledger.policy_name, ledger.default, assignments)
    bubbles: dict[str, CPUSet] = {}
    for uid, own in ledger.bubbles.items():
        parts = fitted.cpus_of_pod(uid)
        bubble = _within(own, request) | parts
        if bubble:
            bubbles[uid] = bubble
        if bubble != own:
            end = f"now {bubble}" if bubble else "none left, entry dropped"
            before = f"lost CPUs {own - bubble}, " if own - bubble else ""
            changes.append(f"pod {uid}, its own set {own}: {before}{end}")
    return replace(fitted, bubbles=bubbles)


def _within(cpus: CPUSet, request: RepairRequest) -> CPUSet:
    kept = cpus if request.machine is None else cpus & request.machine
    return kept - request.reserved


def _encode(checkpoint: CPUManagerCheckpoint, ledger: Ledger) -> bytes:
    if checkpoint.layout is Layout.V1:
        # Without known containers, pod uid and container name are both the container's id.
        ids = [(uid, (uid, name)) for uid, names in ledger.assignments.items() for name in names]
        return to_v1(ledger, ids).encode()
    return to_checkpoint(ledger, checkpoint.layout).encode()


def _repair_memory(
    checkpoint: MemoryManagerCheckpoint, request: RepairRequest
) -> tuple[bytes, list[str]]:
    entries = dict(checkpoint.entries or {})
    changes: list[str] = []
    if request.policy is not None and request.policy != checkpoint.policy_name:
        changes.append(f"policy: {quote(checkpoint.policy_name)} -> {quote(request.policy)}")
        changes += [f"pod {uid}: dropped" for uid in sorted(entries)]
        emptied = replace(checkpoint, policy_name=request.policy, machine_state={}, entries={})
        if checkpoint.pod_entries is not None:
            emptied = replace(emptied, pod_entries={})
        return emptied.sealed().encode(), changes
    for uid in sorted(entries.keys() | (checkpoint.pod_entries or {}).keys()):
        if request.drops(uid):
            entries.pop(uid, None)
            changes.append(f"pod {uid}: dropped, its memory is free again")
    pods = checkpoint.pod_entries
    if pods is not None:
        pods = {uid: blocks for uid, blocks in pods.items() if not request.drops(uid)}
    kept = replace(checkpoint, entries=entries, pod_entries=pods)
    if checkpoint.policy_name == "Static" and checkpoint.machine_state:
        try:
            machine = expected_machine_state(kept, cleared_machine_state(kept))
        except MemoryStartError as error:
            raise RepairError(
                f"{error}: drop that pod (--drop-missing-pods UID) and restart it"
            ) from None
        if machine != checkpoint.machine_state:
            changes.append("machine state: computed anew from the assignments")
        kept = replace(kept, machine_state=machine)
    elif checkpoint.policy_name == "Static" and entries:
        raise RepairError(
            "the machine state is empty while pods have memory: drop these pods "
            f"(--drop-missing-pods {','.join(sorted(entries))}) and restart them"
        )
    return kept.sealed().encode(), changes


def _repair_devices(
    checkpoint: DeviceManagerCheckpoint, request: RepairRequest
) -> tuple[bytes, list[str]]:
    entries = checkpoint.pod_device_entries
    if entries is None:
        return checkpoint.sealed().encode(), []
    gone = sorted({entry.pod_uid for entry in entries if request.drops(entry.pod_uid)})
    kept = tuple(entry for entry in entries if not request.drops(entry.pod_uid))
    changes = [f"pod {uid}: dropped, its devices are free again" for uid in gone]
    return replace(checkpoint, pod_device_entries=kept or None).sealed().encode(), changes


def _gone(uid: str, cpus: CPUSet) -> str:
    return f"pod {uid}: dropped, its CPUs {cpus} are not exclusive any more"

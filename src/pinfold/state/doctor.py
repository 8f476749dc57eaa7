"""The doctor: what is wrong with a state file, why it matters, and what mends it.

A kubelet that does not like its state file exits and asks to drain the node and delete the file.
That is hardly ever needed: most of these files can be repaired in place, and the pods stay.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from msgspec import Struct

from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS, gate_enabled
from pinfold.core.kubelet.node_config import NO_OPTIONS, STATIC
from pinfold.core.kubelet.versions import DEFAULT_VERSION, KubeletVersion
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.cpu_manager_state import CORRUPT, CheckpointError, CPUManagerCheckpoint
from pinfold.state.device_checkpoint import DeviceManagerCheckpoint
from pinfold.state.go_json import quote
from pinfold.state.layouts import CPU_STATE, MEMORY_STATE, Layout, StateForm, StateForms
from pinfold.state.ledger import Bounds, Ledger
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.memory_restore import restore_memory
from pinfold.state.memory_startup import (
    MemoryStartError,
    cleared_machine_state,
    expected_machine_state,
    machine_state_difference,
)
from pinfold.state.restore import RestoreError, pod_sets, restore
from pinfold.state.startup import StartError, validate_static_state
from pinfold.state.state_file import (
    UNKNOWN_CONTAINERS,
    StateFile,
    UnusableFileError,
    ledger_of,
)


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"
    """A kubelet does not start on this file."""
    WARNING = "warning"
    """It starts, and something is lost or shared."""
    NOTE = "note"
    """Worth knowing."""


class Finding(Struct, frozen=True):
    """One thing that is wrong: ``what`` and ``where``, ``why`` it matters, and what mends it.

    ``fix`` is a command, or a sentence where no command can help.
    """

    severity: Severity
    what: str
    where: str
    why: str
    fix: str


class Circumstances(Struct, frozen=True):
    """What is known about the node that the file belongs to; ``None`` where nothing is.

    ``machine`` is the spelling of the machine for the commands that findings name.
    """

    path: str = "cpu_manager_state"
    topology: CPUTopology | None = None
    machine: str | None = None
    reserved: CPUSet | None = None
    strict_cpu_reservation: bool = False
    policy: str | None = None
    pods: frozenset[str] | None = None
    version: KubeletVersion = DEFAULT_VERSION
    gates: Mapping[str, bool] = NO_OPTIONS

    def form(self, table: StateForms) -> StateForm:
        """How the node's kubelet reads and writes the files of ``table``."""
        pod_level = gate_enabled(POD_LEVEL_RESOURCE_MANAGERS, self.gates, self.version)
        return table.at(self.version, pod_level=pod_level)

    def repair(self, *extra: str) -> str:
        """The repair command for this file, with what is known about the node."""
        words = ["pinfold state repair", shlex.quote(self.path), *extra]
        if self.topology is not None:
            named = self.machine and f"--machine {shlex.quote(self.machine)}"
            words.append(named or "--this-machine")
        if self.reserved is not None:
            words.append(f"--reserved-cpus {shlex.quote(str(self.reserved))}")
        if self.strict_cpu_reservation:
            words.append("--policy-option strict-cpu-reservation=true")
        return " ".join(words)


def examine(state: StateFile, circumstances: Circumstances) -> list[Finding]:
    """Everything that is wrong with a state file, the worst first."""
    document = state.document
    if isinstance(document, CPUManagerCheckpoint):
        findings = list(_examine_cpu(state, document, circumstances))
    elif isinstance(document, MemoryManagerCheckpoint):
        findings = list(_examine_memory(state, document, circumstances))
    else:
        findings = list(_examine_devices(state, document, circumstances))
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def unusable(error: UnusableFileError, circumstances: Circumstances) -> Finding:
    """The finding for a file that cannot be read at all."""
    return Finding(
        Severity.ERROR,
        f"could not restore state from checkpoint: {error}",
        circumstances.path,
        "the kubelet exits at start; nothing in the file can be trusted, so that it is not known "
        "which CPUs the running containers have",
        "put a backup back (FILE.bak-N), or move the file away: the kubelet then starts with an "
        "empty state, and only pods with exclusive CPUs must be restarted, the node not drained",
    )


def _examine_cpu(
    state: StateFile, checkpoint: CPUManagerCheckpoint, node: Circumstances
) -> Iterable[Finding]:
    policy = node.policy if node.policy is not None else checkpoint.policy_name
    try:
        form = node.form(CPU_STATE)
        restored = restore(state.file, policy, UNKNOWN_CONTAINERS, path=node.path, form=form)
    except RestoreError as error:
        yield _restore_finding(str(error), state, checkpoint, policy, node)
        starts = False
    else:
        starts = True
        yield from _start_findings(restored, node)
    if checkpoint.layout is Layout.V1:
        yield Finding(
            Severity.NOTE,
            "the file has the v1 layout (container ids instead of pods)",
            node.path,
            "a kubelet migrates it only if it knows every container in it, and newer ones cannot",
            f"pinfold state convert {shlex.quote(node.path)} --to v2 --containers crictl-ps.json",
        )
    if state.checksum == 0 and checkpoint.layout in (Layout.V1, Layout.V2):
        yield Finding(
            Severity.WARNING,
            "the file has no checksum",
            node.path,
            "the kubelet lets that pass, and would not notice a changed file",
            node.repair(),
        )
    try:
        ledger = ledger_of(checkpoint)
    except CheckpointError:
        return  # restoring has said so already
    yield from _ledger_findings(ledger, node, starts=starts)
    yield from _pod_findings(
        ledger.assignments.keys() | pod_sets(checkpoint).keys()
        if checkpoint.layout is not Layout.V1
        else (),
        node,
        lambda uid: f"CPUs {ledger.cpus_of_pod(uid) or pod_sets(checkpoint).get(uid)}",
    )


def _restore_finding(
    message: str,
    state: StateFile,
    checkpoint: CPUManagerCheckpoint,
    policy: str,
    node: Circumstances,
) -> Finding:
    fix = node.repair()
    why = "the kubelet exits at start and asks to drain the node; a repair keeps the pods"
    if checkpoint.layout in (Layout.V3, Layout.V4) and state.checksum_fits:
        why = "a newer kubelet wrote it; kubelets of the 1.34 line know the layouts v1 and v2"
        fix = f"pinfold state convert {shlex.quote(node.path)} --to v2"
    elif not state.checksum_fits:
        why = (
            f"the checksum in the file is {state.checksum}, its content makes "
            f"{checkpoint.computed_checksum()}: it was changed by something else than a kubelet. "
            "Look at it (pinfold state show) before trusting it"
        )
    elif policy != checkpoint.policy_name:
        why = (
            f"cpuManagerPolicy was changed from {quote(checkpoint.policy_name)} to "
            f"{quote(policy)} under a file that names the old one"
        )
        fix = node.repair(f"--policy {shlex.quote(policy)}")
    return Finding(Severity.ERROR, message, node.path, why, fix)


def _start_findings(ledger: Ledger, node: Circumstances) -> Iterable[Finding]:
    if ledger.policy_name != STATIC:
        return
    # Where the machine is not known, the file's own CPUs stand for it.
    machine = ledger.known if node.topology is None else node.topology.cpus
    reserved = node.reserved if node.reserved is not None else CPUSet()
    bounds = Bounds(machine, reserved, node.strict_cpu_reservation)
    try:
        validate_static_state(ledger, bounds)
    except StartError as error:
        why = "the kubelet exits at start (Policy start error)"
        if not ledger.default & ledger.exclusive:
            why += ": the machine or the reservation is another than when the file was written"
        yield Finding(Severity.ERROR, str(error), node.path, why, node.repair())


def _ledger_findings(ledger: Ledger, node: Circumstances, *, starts: bool) -> Iterable[Finding]:
    """What breaks the invariants; ``starts`` where the start of the policy was looked at."""
    for what in ledger.violations():
        in_pool = "shared pool too" in what
        if in_pool and starts and ledger.policy_name == STATIC:
            continue  # said by the start of the policy
        why = "the kubelet does not look at this; two owners of a CPU slow each other down"
        if in_pool:
            why = "the static policy does not start with this, others do not look at it"
        fix = node.repair() if in_pool else node.repair("--drop-missing-pods UID")
        yield Finding(Severity.WARNING, what, node.path, why, fix)
    if node.reserved is not None and ledger.exclusive & node.reserved:
        for uid, containers in sorted(ledger.assignments.items()):
            for name, cpus in sorted(containers.items()):
                if cpus & node.reserved:
                    yield Finding(
                        Severity.WARNING,
                        f"reserved CPUs {cpus & node.reserved} are assigned",
                        f"pod {uid}, container {name}",
                        "the reservation grew into CPUs that a container owns",
                        node.repair(),
                    )


def _pod_findings(
    uids: Iterable[str], node: Circumstances, held: Callable[[str], str]
) -> Iterable[Finding]:
    if node.pods is None:
        return
    for uid in sorted(set(uids) - node.pods):
        yield Finding(
            Severity.WARNING,
            f"pod {uid} is gone and still holds {held(uid)}",
            f"pod {uid}",
            "until a running kubelet's next reconcile nobody else can have them",
            node.repair(f"--drop-missing-pods {shlex.quote(uid)}"),
        )


def _checksum_finding(state: StateFile, who: str, node: Circumstances) -> Iterable[Finding]:
    if not state.checksum_fits:
        yield Finding(
            Severity.ERROR,
            f"could not restore state from checkpoint: {CORRUPT}",
            node.path,
            f"the checksum in the file is {state.checksum}, its content makes "
            f"{state.document.computed_checksum()}; the {who} manager does not start",
            node.repair(),
        )


def _examine_memory(
    state: StateFile, checkpoint: MemoryManagerCheckpoint, node: Circumstances
) -> Iterable[Finding]:
    policy = node.policy if node.policy is not None else checkpoint.policy_name
    try:
        restore_memory(state.file, policy, path=node.path, form=node.form(MEMORY_STATE))
    except CheckpointError as error:
        fix = node.repair()
        why = "the kubelet exits at start and asks to drain the node; a repair keeps the pods"
        if state.checksum_fits:
            why = f"memoryManagerPolicy was changed from {quote(checkpoint.policy_name)}"
            fix = node.repair(f"--policy {shlex.quote(policy)}")
        yield Finding(Severity.ERROR, str(error), node.path, why, fix)
    if checkpoint.policy_name == "Static":
        yield from _machine_state_findings(checkpoint, node)
    yield from _pod_findings(
        (checkpoint.entries or {}).keys(),
        node,
        lambda uid: f"{memory_of_pod(checkpoint, uid)} bytes of memory",
    )


def memory_of_pod(checkpoint: MemoryManagerCheckpoint, uid: str) -> int:
    """The bytes of all kinds of memory that a pod's containers have."""
    containers = (checkpoint.entries or {}).get(uid) or {}
    return sum(block.size for blocks in containers.values() for block in blocks or ())


def _machine_state_findings(
    checkpoint: MemoryManagerCheckpoint, node: Circumstances
) -> Iterable[Finding]:
    what, why = "", "the kubelet computes the machine state anew at start and compares"
    if not checkpoint.machine_state:
        if checkpoint.entries:
            what = "[memorymanager] machine state can not be empty when it has memory assignments"
            why = "the kubelet exits at start: what the machine has cannot be told from the file"
    else:
        try:
            expected = expected_machine_state(checkpoint, cleared_machine_state(checkpoint))
        except MemoryStartError as error:
            what = str(error)
        else:
            difference = machine_state_difference(checkpoint.machine_state, expected)
            if difference is not None:
                what = "[memorymanager] the expected machine state is different from the real one"
                why = f"{why}: {difference}"
    if what:
        yield Finding(Severity.ERROR, what, node.path, why, node.repair())


def _examine_devices(
    state: StateFile, checkpoint: DeviceManagerCheckpoint, node: Circumstances
) -> Iterable[Finding]:
    yield from _checksum_finding(state, "device", node)
    owners: dict[tuple[str, str], str] = {}
    for entry in checkpoint.pod_device_entries or ():
        for ids in (entry.device_ids or {}).values():
            for device in ids or ():
                owner = owners.setdefault((entry.resource_name, device), entry.pod_uid)
                if owner != entry.pod_uid:
                    yield Finding(
                        Severity.WARNING,
                        f"device {device} of {entry.resource_name} belongs to two pods",
                        f"pods {owner} and {entry.pod_uid}",
                        "the kubelet does not look at this, and counts the device once",
                        node.repair("--drop-missing-pods UID"),
                    )
    yield from _pod_findings(
        {entry.pod_uid for entry in checkpoint.pod_device_entries or ()},
        node,
        lambda uid: f"devices {devices_of_pod(checkpoint, uid)}",
    )


def devices_of_pod(checkpoint: DeviceManagerCheckpoint, uid: str) -> str:
    """The devices of a pod, as ``RESOURCE=ID,ID; ...``."""
    found: dict[str, list[str]] = {}
    for entry in checkpoint.pod_device_entries or ():
        if entry.pod_uid == uid:
            for ids in (entry.device_ids or {}).values():
                found.setdefault(entry.resource_name, []).extend(ids or ())
    return "; ".join(f"{name}={','.join(sorted(ids))}" for name, ids in sorted(found.items()))

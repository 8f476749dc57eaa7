"""The doctor: what is wrong with a state file, why it matters, and what mends it.

A kubelet that does not like its state file exits and asks to drain the node and delete the file.
That is hardly ever needed: most of these files can be repaired in place, and the pods stay.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable

from pinfold.core.kubelet.node_config import STATIC
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.conversion import command_for
from pinfold.state.cpu_manager_state import CORRUPT, CheckpointError, CPUManagerCheckpoint
from pinfold.state.cpus_by_pod import union
from pinfold.state.device_checkpoint import DeviceManagerCheckpoint
from pinfold.state.doctor_pods import (
    older_part_findings,
    pod_cpu_findings,
    pod_memory_findings,
)
from pinfold.state.findings import Circumstances, Finding, Severity
from pinfold.state.go_json import quote
from pinfold.state.layouts import CPU_STATE, MEMORY_STATE, Layout
from pinfold.state.ledger import Bounds, Ledger
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.memory_restore import restore_memory
from pinfold.state.memory_startup import (
    MemoryStartError,
    cleared_machine_state,
    expected_machine_state,
    machine_state_difference,
)
from pinfold.state.repair import cpus_of_pod
from pinfold.state.restore import RestoreError, restore
from pinfold.state.startup import StartError, validate_static_state
from pinfold.state.state_file import (
    UNKNOWN_CONTAINERS,
    StateFile,
    UnusableFileError,
    ledger_of,
)


def examine(state: StateFile, circumstances: Circumstances) -> list[Finding]:
    """Everything that is wrong with a state file, the worst first."""
    document = state.document
    if isinstance(document, CPUManagerCheckpoint):
        findings = list(_examine_cpu(state, document, circumstances))
    elif isinstance(document, MemoryManagerCheckpoint):
        findings = list(_examine_memory(state, document, circumstances))
    else:
        findings = list(_examine_devices(state, document, circumstances))
    if state.checksum_fits:
        findings += older_part_findings(state, circumstances)
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
        form = node.form(CPU_STATE, checkpoint.layout)
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
    yield from pod_cpu_findings(ledger, node)
    yield from _pod_findings(
        ledger.assignments.keys() | ledger.bubbles.keys()
        if checkpoint.layout is not Layout.V1
        else (),
        node,
        lambda uid: f"CPUs {cpus_of_pod(ledger, uid)}",
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
    form = node.form(CPU_STATE, checkpoint.layout)
    if checkpoint.layout not in form.layouts and state.checksum_fits:
        why = (
            f"a kubelet of another version or with other feature gates wrote it; this one writes "
            f"{form.writes.value}, and reads {', '.join(one.value for one in form.layouts)}"
        )
        fix = command_for(state, node.path, form)
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


def bounds_of(ledger: Ledger, node: Circumstances) -> Bounds:
    """The node's bounds; where the machine is not known, the file's own CPUs stand for it."""
    reserved = node.reserved if node.reserved is not None else CPUSet()
    machine = ledger.known if node.topology is None else node.topology.cpus
    return Bounds(machine, reserved, node.strict_cpu_reservation)


def _start_findings(ledger: Ledger, node: Circumstances) -> Iterable[Finding]:
    if ledger.policy_name != STATIC:
        return
    try:
        validate_static_state(ledger, bounds_of(ledger, node))
    except StartError as error:
        why = "the kubelet exits at start (Policy start error)"
        if not ledger.default & ledger.exclusive:
            why += ": the machine or the reservation is another than when the file was written"
        yield Finding(Severity.ERROR, str(error), node.path, why, node.repair())


def _ledger_findings(ledger: Ledger, node: Circumstances, *, starts: bool) -> Iterable[Finding]:
    """What breaks the invariants; ``starts`` where the start of the policy was looked at."""
    overlaps = not ledger.default.isdisjoint(CPUSet.from_mask(union(ledger.assignments.values())))
    for what in ledger.violations():
        in_pool = "shared pool too" in what
        if in_pool and overlaps and starts and ledger.policy_name == STATIC:
            continue  # said by the start of the policy
        why = "the kubelet does not look at this; two owners of a CPU slow each other down"
        if in_pool and overlaps:
            why = "the static policy does not start with this, others do not look at it"
        is_mended = in_pool or "are not in the pod's" in what
        fix = node.repair() if is_mended else node.repair("--drop-missing-pods UID")
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
        form = node.form(MEMORY_STATE, checkpoint.layout)
        restore_memory(state.file, policy, path=node.path, form=form)
    except CheckpointError as error:
        fix = node.repair()
        why = "the kubelet exits at start and asks to drain the node; a repair keeps the pods"
        if state.checksum_fits:
            why = f"memoryManagerPolicy was changed from {quote(checkpoint.policy_name)}"
            fix = node.repair(f"--policy {shlex.quote(policy)}")
        yield Finding(Severity.ERROR, str(error), node.path, why, fix)
    if checkpoint.policy_name == "Static":
        yield from _machine_state_findings(checkpoint, node)
    yield from pod_memory_findings(checkpoint, node)
    yield from _pod_findings(
        (checkpoint.entries or {}).keys() | (checkpoint.pod_entries or {}).keys(),
        node,
        lambda uid: f"{memory_of_pod(checkpoint, uid)} bytes of memory",
    )


def memory_of_pod(checkpoint: MemoryManagerCheckpoint, uid: str) -> int:
    """The bytes of all kinds of memory that a pod has, as a whole or in its containers."""
    whole = checkpoint.pod_entries or {}
    if uid in whole:
        return sum(block.size for block in whole[uid] or ())
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

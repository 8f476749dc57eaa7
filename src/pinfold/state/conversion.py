"""A state file in another layout, with the same content or not at all."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from msgspec.structs import replace

from pinfold.core.memory.memory import Block
from pinfold.state.cpu_manager_state import CPUManagerCheckpoint
from pinfold.state.device_checkpoint import DeviceManagerCheckpoint
from pinfold.state.layouts import CPU_STATE, MEMORY_STATE, Layout, StateForm
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.memory_startup import (
    MemoryStartError,
    cleared_machine_state,
    expected_machine_state,
)
from pinfold.state.repair import Repair, RepairError, cpus_of_pod
from pinfold.state.restore import ContainerIDs, UnknownContainerError, to_checkpoint, to_v1
from pinfold.state.state_file import StateFile, ledger_of

_DROP = "--drop-pod-entries drops these pods from the file; drain or restart them"


def convert(
    state: StateFile,
    layout: Layout,
    container_ids: ContainerIDs,
    *,
    drop_pod_entries: bool = False,
) -> Repair:
    """The file in another layout of ``cpu_manager_state`` or ``memory_manager_state``.

    v1 of CPUs to and from the others needs ``container_ids`` (container id -> pod uid, container
    name).  What pods have as a whole has a place in some layouts only; with ``drop_pod_entries``
    pods that have something of the kind are dropped where there is none, with all that their
    containers have.  The checksum of the new file fits, whatever that of the old one was; a
    file that has the layout, and fits, stays as it is.

    Raises:
        RepairError: the layout does not hold what the file does, or is none of this kind; a
            container whose id is not known, or an id whose container is not known.
        CheckpointError: a CPU list in the file cannot be read.
    """
    document = state.document
    if isinstance(document, DeviceManagerCheckpoint):
        raise RepairError(f"{state.kind.value} has one layout only")
    if state.layout == layout.value and state.checksum_fits:
        return Repair(state.file, ())
    changes = [f"layout: {state.layout} -> {layout.value}"]
    if not state.checksum_fits:
        changes.append(f"checksum: {state.checksum} did not fit the content, the new one does")
    if isinstance(document, CPUManagerCheckpoint):
        _check_layout(state, layout, CPU_STATE.anything.layouts)
        file = _convert_cpu(document, layout, container_ids, changes, drop=drop_pod_entries)
    else:
        _check_layout(state, layout, MEMORY_STATE.anything.layouts)
        file = _convert_memory(document, layout, changes, drop=drop_pod_entries)
    return Repair(file, tuple(changes))


def command_for(state: StateFile, path: str, form: StateForm) -> str:
    """What makes a file of ``state`` that a kubelet of ``form`` takes."""
    document, name = state.document, shlex.quote(path)
    if isinstance(document, DeviceManagerCheckpoint) or not state.checksum_fits:
        return f"pinfold state repair {name}"
    table = CPU_STATE if isinstance(document, CPUManagerCheckpoint) else MEMORY_STATE
    target, flag = form.writes, ""
    if document.pod_entries and not form.has_pods:
        target = max(set(form.layouts) - table.with_pods, key=lambda layout: layout.value)
        flag = " --drop-pod-entries"
    if target.value == state.layout:
        return f"pinfold state repair {name}"
    return f"pinfold state convert {name} --to {target.value}{flag}"


def _check_layout(state: StateFile, layout: Layout, known: Iterable[Layout]) -> None:
    if layout not in known:
        names = ", ".join(one.value for one in known)
        raise RepairError(f"{state.kind.value} has the layouts {names}, and no {layout.value}")


def _convert_cpu(
    checkpoint: CPUManagerCheckpoint,
    layout: Layout,
    container_ids: ContainerIDs,
    changes: list[str],
    *,
    drop: bool,
) -> bytes:
    try:
        ledger = ledger_of(checkpoint, container_ids)
        if layout not in CPU_STATE.with_pods and ledger.bubbles:
            lost = [f"pod {uid}: its own set {cpus}" for uid, cpus in ledger.bubbles.items()]
            if not drop:
                raise _no_place(layout, lost)
            for uid in ledger.bubbles:
                freed = cpus_of_pod(ledger, uid)
                ledger = ledger.without(uid)
                ledger = replace(ledger, default=ledger.default | (freed - ledger.exclusive))
                changes.append(f"pod {uid}: dropped, CPUs {freed} go back to the shared pool")
        if layout is Layout.V1:
            return to_v1(ledger, container_ids.items()).encode()
    except UnknownContainerError as error:
        raise RepairError(
            f"{error}: --containers FILE says which is which "
            "(crictl ps -a -o json > FILE, on the node)"
        ) from None
    return to_checkpoint(ledger, layout).encode()


def _convert_memory(
    checkpoint: MemoryManagerCheckpoint, layout: Layout, changes: list[str], *, drop: bool
) -> bytes:
    pods = checkpoint.pod_entries or {}
    if layout not in MEMORY_STATE.with_pods and pods:
        lost = [
            f"pod {uid}: its own {_sizes(blocks or ())}" for uid, blocks in sorted(pods.items())
        ]
        if not drop:
            raise _no_place(layout, lost)
        changes += [f"pod {uid}: dropped, its memory is free again" for uid in sorted(pods)]
        entries = {uid: c for uid, c in (checkpoint.entries or {}).items() if uid not in pods}
        checkpoint = replace(checkpoint, entries=entries, pod_entries={})
        if checkpoint.policy_name == "Static" and checkpoint.machine_state:
            try:
                machine = expected_machine_state(checkpoint, cleared_machine_state(checkpoint))
            except MemoryStartError as error:
                raise RepairError(f"{error}: repair the file first") from None
            checkpoint = replace(checkpoint, machine_state=machine)
        pods = {}
    converted = replace(
        checkpoint,
        layout=layout,
        pod_entries=pods if layout in MEMORY_STATE.with_pods else None,
        data="",
        data_checksum=0,
    )
    return converted.sealed().encode()


def _no_place(layout: Layout, lost: list[str]) -> RepairError:
    return RepairError(
        f"layout {layout.value} has no place for what pods have as a whole, this would be lost: "
        f"{'; '.join(lost)} ({_DROP})"
    )


def _sizes(blocks: Iterable[Block]) -> str:
    return ", ".join(
        f"{block.size} bytes of {block.type} on NUMA nodes "
        f"{','.join(map(str, block.numa_affinity or ())) or 'none'}"
        for block in blocks
    )

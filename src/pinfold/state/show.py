"""A state file described: as a document, and as text for people."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import UNSET

from pinfold.core.memory.memory import Block
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents import state as form
from pinfold.state.cpu_manager_state import CPUManagerCheckpoint
from pinfold.state.device_checkpoint import DeviceManagerCheckpoint
from pinfold.state.layouts import Layout
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.restore import pod_sets
from pinfold.state.state_file import StateFile, ledger_of

_WHOLE_POD = "(whole pod)"
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def describe(state: StateFile, file: str) -> form.StateFile:
    """The document of a state file that was read from ``file``.

    Raises:
        CheckpointError: a CPU list in the file cannot be read.
    """
    checkpoint = state.document
    described = form.StateFile(
        file=file,
        kind=state.kind.value,
        layout=state.layout,
        checksum=form.Checksum(
            stored=state.checksum,
            computed=checkpoint.computed_checksum(),
            ok=state.checksum_fits,
        ),
    )
    if isinstance(checkpoint, CPUManagerCheckpoint):
        return _cpu(described, checkpoint)
    if isinstance(checkpoint, MemoryManagerCheckpoint):
        return _memory(described, checkpoint)
    return _devices(described, checkpoint)


def _cpu(described: form.StateFile, checkpoint: CPUManagerCheckpoint) -> form.StateFile:
    ledger = ledger_of(checkpoint)
    own = pod_sets(checkpoint)
    described = msgspec.structs.replace(
        described,
        policy=ledger.policy_name,
        shared=_cpus(ledger.default),
        exclusive=_cpus(ledger.exclusive),
    )
    if checkpoint.layout is Layout.V1:
        containers = [
            form.StateContainer(id=uid, cpus=str(cpus), count=len(cpus))
            for uid, containers in ledger.assignments.items()
            for cpus in containers.values()
        ]
        return msgspec.structs.replace(described, containers=containers)
    pods = [
        form.StatePod(
            uid=uid,
            pod=_cpus(own[uid]) if uid in own else UNSET,
            containers=[
                form.StateContainer(name=name, cpus=str(cpus), count=len(cpus))
                for name, cpus in ledger.assignments.get(uid, {}).items()
            ],
        )
        for uid in sorted(ledger.assignments.keys() | own.keys())
    ]
    return msgspec.structs.replace(described, pods=pods)


def _cpus(cpus: CPUSet) -> form.CPUCount:
    return form.CPUCount(cpus=str(cpus), count=len(cpus))


def _memory(described: form.StateFile, checkpoint: MemoryManagerCheckpoint) -> form.StateFile:
    nodes = [
        form.StateNUMANode(
            id=node_id,
            assignments=node.number_of_assignments,
            group=list(node.cells or ()),
            memory={
                name: form.StateMemory(
                    total=table.total,
                    system_reserved=table.system_reserved,
                    allocatable=table.allocatable,
                    reserved=table.reserved,
                    free=table.free,
                )
                for name, table in sorted((node.memory_map or {}).items())
                if table is not None
            },
        )
        for node_id, node in sorted((checkpoint.machine_state or {}).items())
        if node is not None
    ]
    own, entries = checkpoint.pod_entries or {}, checkpoint.entries or {}
    pods = [
        form.StatePod(
            uid=uid,
            blocks=[_block(block) for block in own[uid] or ()] if uid in own else UNSET,
            containers=[
                form.StateContainer(name=name, blocks=[_block(block) for block in blocks or ()])
                for name, blocks in sorted((entries.get(uid) or {}).items())
            ],
        )
        for uid in sorted(entries.keys() | own.keys())
    ]
    return msgspec.structs.replace(
        described, policy=checkpoint.policy_name, numa_nodes=nodes, pods=pods
    )


def _block(block: Block) -> form.StateBlock:
    return form.StateBlock(numa=list(block.numa_affinity or ()), type=block.type, size=block.size)


def _devices(described: form.StateFile, checkpoint: DeviceManagerCheckpoint) -> form.StateFile:
    pods: dict[str, list[form.StateContainer]] = {}
    for entry in checkpoint.pod_device_entries or ():
        pods.setdefault(entry.pod_uid, []).append(
            form.StateContainer(
                name=entry.container_name,
                resource=entry.resource_name,
                devices={
                    str(numa): list(ids or ())
                    for numa, ids in sorted((entry.device_ids or {}).items())
                },
            )
        )
    return msgspec.structs.replace(
        described,
        registered={
            name: list(ids or ())
            for name, ids in sorted((checkpoint.registered_devices or {}).items())
        },
        pods=[form.StatePod(uid=uid, containers=held) for uid, held in sorted(pods.items())],
    )


def describe_text(state: StateFile) -> str:
    """The content as text: a head, and a table of what each container holds.

    Raises:
        CheckpointError: a CPU list in the file cannot be read.
    """
    document = state.document
    computed = document.computed_checksum()
    verdict = "ok" if state.checksum_fits else f"WRONG, the content makes {computed}"
    if state.checksum == 0 and state.checksum_fits:
        verdict = "missing, which a kubelet lets pass"
    head = [
        ("kind", f"{state.kind.value}, layout {state.layout}"),
        ("checksum", f"{state.checksum} ({verdict})"),
    ]
    if isinstance(document, CPUManagerCheckpoint):
        more, table = _cpu_text(document)
    elif isinstance(document, MemoryManagerCheckpoint):
        more, table = _memory_text(document)
    else:
        more, table = _devices_text(document)
    head[1:1] = more
    width = max(10, *(len(name) + 1 for name, _ in head))
    lines = [f"{name + ':':<{width}} {value}" for name, value in head]
    return "\n".join([*lines, "", *_table(table)] if len(table) > 1 else lines)


_Text = tuple[list[tuple[str, str]], list[tuple[str, ...]]]


def _cpu_text(checkpoint: CPUManagerCheckpoint) -> _Text:
    ledger, own = ledger_of(checkpoint), pod_sets(checkpoint)
    v1 = checkpoint.layout is Layout.V1
    rows: list[tuple[str, ...]] = [
        ("CONTAINER ID", "CPUS", "COUNT") if v1 else ("POD", "CONTAINER", "CPUS", "COUNT")
    ]
    for uid in sorted(ledger.assignments.keys() | own.keys()):
        if uid in own:
            rows.append((uid, _WHOLE_POD, str(own[uid]), str(len(own[uid]))))
        for name, cpus in ledger.assignments.get(uid, {}).items():
            row = (uid, name, str(cpus), str(len(cpus)))
            rows.append(row[:1] + row[2:] if v1 else row)
    head = [
        ("policy", ledger.policy_name or "(none named)"),
        ("shared", _counted(ledger.default)),
        ("exclusive", _counted(ledger.exclusive)),
    ]
    return head, rows


def _counted(cpus: CPUSet) -> str:
    return f"{cpus}  ({len(cpus)} CPUs)" if cpus else "no CPUs"


def _memory_text(checkpoint: MemoryManagerCheckpoint) -> _Text:
    rows: list[tuple[str, ...]] = [("POD", "CONTAINER", "TYPE", "SIZE", "NUMA")]
    own, entries = checkpoint.pod_entries or {}, checkpoint.entries or {}
    for uid in sorted(entries.keys() | own.keys()):
        held = [(_WHOLE_POD, own[uid])] if uid in own else []
        for name, blocks in [*held, *sorted((entries.get(uid) or {}).items())]:
            for block in blocks or ():
                numa = ",".join(map(str, block.numa_affinity or ()))
                rows.append((uid, name, block.type, _size(block.size), numa))
    head = [("policy", checkpoint.policy_name or "(none named)")]
    for node_id, node in sorted((checkpoint.machine_state or {}).items()):
        tables = (node.memory_map or {}) if node is not None else {}
        free = ", ".join(
            f"{name} {_size(table.free)} free of {_size(table.allocatable)}"
            for name, table in sorted(tables.items())
            if table is not None
        )
        head.append((f"NUMA {node_id}", free or "nothing"))
    return head, rows


def _size(size: int) -> str:
    unit = 0
    while size and size % 1024 == 0 and unit < len(_UNITS) - 1:
        size //= 1024
        unit += 1
    return f"{size} {_UNITS[unit]}"


def _devices_text(checkpoint: DeviceManagerCheckpoint) -> _Text:
    rows: list[tuple[str, ...]] = [("POD", "CONTAINER", "RESOURCE", "NUMA", "DEVICES")]
    for entry in checkpoint.pod_device_entries or ():
        for numa, ids in sorted((entry.device_ids or {}).items()):
            where = "-" if numa < 0 else str(numa)
            held = ",".join(sorted(ids or ()))
            rows.append((entry.pod_uid, entry.container_name, entry.resource_name, where, held))
    head = [
        ("registered", f"{name}: {len(ids or ())} devices")
        for name, ids in sorted((checkpoint.registered_devices or {}).items())
    ]
    return head, rows


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    cells = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def visible(text: str) -> str:
    """A text from a file, of which no escape sequence reaches the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

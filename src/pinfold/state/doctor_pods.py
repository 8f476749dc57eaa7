"""The doctor on what no kubelet looks at: what pods have as a whole (``podEntries``).

And, in the newest layouts, on the part of the file that older kubelets read.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from msgspec.structs import replace

from pinfold.core.memory.memory import Block
from pinfold.state.cpu_manager_state import CPUManagerCheckpoint
from pinfold.state.device_checkpoint import DeviceManagerCheckpoint
from pinfold.state.findings import Circumstances, Finding, Severity
from pinfold.state.layouts import Layout
from pinfold.state.ledger import Ledger
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.state_file import StateFile

_LEAK = (
    "a kubelet frees what a pod has as a whole with the pod's last container, and none is left "
    "that it could wait for: nobody else ever gets it, not even after a restart"
)


def pod_cpu_findings(ledger: Ledger, node: Circumstances) -> Iterable[Finding]:
    """Pods' own sets that nothing frees; what the invariants say is not said again."""
    for uid, cpus in sorted(ledger.bubbles.items()):
        if not ledger.assignments.get(uid):
            what = f"CPUs {cpus} are the pod's as a whole, and none of its containers has any"
            yield _leak(what, uid, node)


def pod_memory_findings(
    checkpoint: MemoryManagerCheckpoint, node: Circumstances
) -> Iterable[Finding]:
    """Pods' own blocks that nothing frees, or that their containers are not within."""
    for uid, blocks in sorted((checkpoint.pod_entries or {}).items()):
        containers = (checkpoint.entries or {}).get(uid) or {}
        whole = _sizes(blocks)
        if not containers:
            held = ", ".join(f"{size} bytes of {kind}" for kind, size in sorted(whole.items()))
            what = (
                f"{held or 'nothing'} is the pod's as a whole, and none of its containers has any"
            )
            yield _leak(what, uid, node)
        nodes = _nodes(blocks)
        for name, own in sorted(containers.items()):
            outside = _nodes(own) - nodes
            if outside:
                yield _misfit(
                    f"memory of NUMA nodes {_text(outside)} is not in what the pod has on "
                    f"{_text(nodes)}",
                    f"pod {uid}, container {name}",
                    "the machine is charged for the pod only: others may have that memory, too",
                    uid,
                    node,
                )
            for kind, size in sorted(_sizes(own).items()):
                if size > whole.get(kind, 0):
                    yield _misfit(
                        f"{size} bytes of {kind}, and the pod as a whole has {whole.get(kind, 0)}",
                        f"pod {uid}, container {name}",
                        "more was asked for than the pod-level request has, and what is left over "
                        "wraps around as an unsigned number; only the pod's is charged",
                        uid,
                        node,
                    )


def older_part_findings(state: StateFile, node: Circumstances) -> Iterable[Finding]:
    """Whether older kubelets read the same from a file of the newest layout, but for the pods."""
    document = state.document
    if isinstance(document, DeviceManagerCheckpoint) or not document.is_newest:
        return
    if isinstance(document, CPUManagerCheckpoint):
        cpus = CPUManagerCheckpoint.attempt(state.file, Layout.V2)
        is_same = not cpus.error and cpus.checkpoint == replace(
            document, layout=Layout.V2, pod_entries=None, data="", data_checksum=0
        )
        fits = cpus.checkpoint.checksum == cpus.checkpoint.computed_checksum()
    else:
        memory = MemoryManagerCheckpoint.attempt(state.file, Layout.V1)
        is_same = not memory.error and memory.checkpoint == replace(
            document, layout=Layout.V1, pod_entries=None, data="", data_checksum=0
        )
        fits = memory.checkpoint.checksum == memory.checkpoint.computed_checksum()
    if not is_same or not fits:
        yield Finding(
            Severity.WARNING,
            "the part for older kubelets "
            + ("has a checksum that does not fit" if is_same else "says something else than data"),
            node.path,
            "who knows the layout reads data only; after a downgrade, that part is what counts",
            node.repair(),
        )


def _leak(what: str, uid: str, node: Circumstances) -> Finding:
    return _misfit(what, f"pod {uid}", _LEAK, uid, node)


def _misfit(what: str, where: str, why: str, uid: str, node: Circumstances) -> Finding:
    fix = node.repair(f"--drop-missing-pods {shlex.quote(uid)}")
    return Finding(Severity.WARNING, what, where, why, fix)


def _sizes(blocks: Iterable[Block] | None) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for block in blocks or ():
        sizes[block.type] = sizes.get(block.type, 0) + block.size
    return sizes


def _nodes(blocks: Iterable[Block] | None) -> set[int]:
    return {node for block in blocks or () for node in block.numa_affinity or ()}


def _text(nodes: Iterable[int]) -> str:
    return ",".join(map(str, sorted(nodes))) or "none"

"""The doctor on what pods have as a whole (``podEntries``), which no kubelet looks at."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from pinfold.core.memory.memory import Block
from pinfold.state.findings import Circumstances, Finding, Severity
from pinfold.state.ledger import Ledger
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint

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

"""Whose record an audit is about, and what its state files make of it.

The state files are those of the CPU manager and, beside it, of the memory manager; a kubelet's or
an agent's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.audit.findings import RECORD_BROKEN, RECORD_DOUBTFUL, Finding
from pinfold.audit.located import (
    Assignments,
    Containers,
    Located,
    has_own_cgroups,
    is_below,
    is_of_a_kubelet,
    is_of_a_pod,
    locate_containers,
    locate_own,
    same_uid,
)
from pinfold.audit.record import AuditRecord, KnownContainer, Owner
from pinfold.audit.snapshot import KernelSnapshot
from pinfold.audit.told import AgentSays
from pinfold.core.values.cpuset import MAX_CPU, CPUSet
from pinfold.state.cpu_manager_state import CheckpointError, CPUManagerCheckpoint
from pinfold.state.doctor import examine
from pinfold.state.findings import Circumstances, Severity
from pinfold.state.memory_manager_state import MEMORY_MANAGER_STATE, MemoryManagerCheckpoint
from pinfold.state.restore import pod_sets
from pinfold.state.state_file import StateFile, UnusableFileError, ledger_of

KUBELET_STATE: Final = Path("/var/lib/kubelet/cpu_manager_state")
OWN_STATE: Final = Path("/var/lib/pinfold/cpu_manager_state")
OWN_TREE: Final = "pinfold"
_NAME: Final = OWN_STATE.name

Nodes = Mapping[tuple[str, str], CPUSet]
"""Pod uid and container name -> the NUMA nodes of its memory."""


class RecordError(ValueError):
    """A record that nothing can be compared with; the message names the file and the remedy."""


class StateFiles(Struct, frozen=True):
    """The CPU manager's state file, and the memory manager's: None where there is none."""

    path: Path
    cpus: bytes
    memory: bytes | None = None

    @property
    def memory_path(self) -> Path:
        """Where the memory manager's is."""
        return memory_file(self.path)


def memory_file(state: Path) -> Path:
    """Where the memory manager's state lies when the CPU manager's is at ``state``."""
    return state.with_name(MEMORY_MANAGER_STATE)


class Place(Struct, frozen=True):
    """What was asked for: whose record, and of which machine.

    ``state`` is the state file that was named; with ``only_given`` there are owners on the command
    line, and no record is read unless it is asked for.
    """

    root: Path
    state: Path | None = None
    kubelet: bool = False
    only_given: bool = False

    @property
    def is_live(self) -> bool:
        """Whether it is the machine that this runs on."""
        return self.root == Path("/")

    @property
    def has_record(self) -> bool:
        """Whether a state file is read."""
        return self.kubelet or self.state is not None or not self.only_given

    @property
    def wants_agent(self) -> bool:
        """Whether a running agent's word is wanted: where its record is, and its pods' names."""
        return self.is_live and self.has_record and not self.kubelet

    def wants_runtime(self, snapshot: KernelSnapshot, agent: AgentSays | None) -> bool:
        """Whether a container runtime has something to do with the record."""
        if not self.has_record or self.kubelet:
            return self.kubelet
        return agent.has_runtime if agent is not None else not has_own_cgroups(snapshot, OWN_TREE)

    def state_file(self, agent: AgentSays | None) -> Path:
        """The state file to read."""
        if self.state is not None:
            return self.state
        if agent is not None:
            return agent.state_dir / _NAME
        return self.root / (KUBELET_STATE if self.kubelet else OWN_STATE).relative_to("/")

    @property
    def without_record(self) -> str:
        """What to do where there is no state file."""
        if self.kubelet:
            return (
                "a kubelet writes it when its CPU manager starts; name it with --state when the "
                "kubelet has another --root-dir"
            )
        return (
            "no agent has run here; name its file with --state, a cgroup with --owner, or audit a "
            "kubelet with --kubelet"
        )


class Seen(Struct, frozen=True):
    """What was seen of a machine: its cgroups, and its containers by their cgroups' paths.

    ``told`` is what a runtime and an agent say of the containers, ``agent`` what it says of itself.
    """

    snapshot: KernelSnapshot
    containers: Containers
    told: tuple[KnownContainer, ...] = ()
    agent: AgentSays | None = None


def recorded(place: Place, files: StateFiles, seen: Seen) -> AuditRecord:
    """The record that state files hold, with the cgroups of those who are in it.

    Raises:
        RecordError: the CPU manager's file is of no use.
    """
    path, agent = files.path, seen.agent
    try:
        state = StateFile.read(files.cpus)
        if not isinstance(state.document, CPUManagerCheckpoint):
            raise RecordError(f"{path}: a {state.kind.value} file; the audit needs {_NAME}")
        ledger, pods = ledger_of(state.document), pod_sets(state.document)
    except (UnusableFileError, CheckpointError) as error:
        raise RecordError(f"{path}: {error}; see pinfold state check {path}") from None
    assignments = {uid: dict(sets) for uid, sets in ledger.assignments.items()}
    for uid, cpus in pods.items():
        assignments.setdefault(uid, {})[""] = cpus
    nodes, memory_faults = _memory_nodes(files)
    located = _locate(place, _with_sharers(assignments, nodes), seen)
    located, sharers = _apart(located, assignments, nodes)
    located = replace(located, owners=tuple(_as_told(located.owners, seen.told)))
    circumstances = Circumstances(path=str(path))
    repair = "pinfold delete pod/{pod}"
    if place.kubelet:
        repair = circumstances.repair("--drop-missing-pods {pod}")
    elif agent is not None and agent.runtime == "nri":
        # The pods are the kubelet's: the agent drops what its runtime no longer has.
        repair = ""
    return AuditRecord(
        source=str(path),
        owners=located.owners,
        # Under the policy none the kubelet records no pool.
        shared=ledger.default or None if ledger.policy_name == "none" else ledger.default,
        shared_cgroups=located.shared,
        repair=repair,
        faults=(
            *_faults(state, circumstances),
            *memory_faults,
            *(() if agent is None else agent.earlier),
        ),
        containers=seen.containers,
        sharers=sharers,
        interrupts=None if agent is None else agent.interrupts,
        idle_side=located.idle,
        caches=() if agent is None else agent.caches,
        limits=() if agent is None else agent.limits,
    )


def _as_told(owners: Iterable[Owner], told: Iterable[KnownContainer]) -> Iterator[Owner]:
    """The owners, with the shared pool of mixed ones, idle siblings, and what they lend."""
    said = {(same_uid(one.pod_uid), one.name): one for one in told}
    for owner in owners:
        one = said.get((same_uid(owner.pod), owner.container))
        if one is not None:
            owner = replace(owner, shared=one.shared, idle=one.idle, lent=one.lent)  # noqa: PLW2901 - the same one
        yield owner


def _locate(place: Place, assignments: Assignments, seen: Seen) -> Located:
    snapshot, containers, agent = seen.snapshot, seen.containers, seen.agent
    tree = OWN_TREE if agent is None else agent.tree or OWN_TREE
    is_ours: Callable[[KnownContainer], bool] = is_of_a_pod
    if place.kubelet:
        is_ours = is_of_a_kubelet
    elif agent is not None and agent.has_runtime:
        uids = {same_uid(one.pod_uid) for one in agent.containers}
        is_ours = lambda one: same_uid(one.pod_uid) in uids  # noqa: E731 - as the others
    elif agent is not None or has_own_cgroups(snapshot, tree):
        return locate_own(snapshot, assignments, tree, seen.told)
    elif any(map(is_below(tree), containers.values())):
        is_ours = is_below(tree)
    return locate_containers(snapshot, assignments, containers, is_ours=is_ours, told=seen.told)


def _faults(state: StateFile, circumstances: Circumstances) -> tuple[Finding, ...]:
    """What the doctor of state files says, as findings of the audit."""
    return tuple(
        Finding(
            RECORD_BROKEN if fault.severity is Severity.ERROR else RECORD_DOUBTFUL,
            fault.what,
            fault.where,
            fix=(fault.fix,) if fault.fix.startswith("pinfold ") else (),
            why=fault.why,
        )
        for fault in examine(state, circumstances)
        if fault.severity is not Severity.NOTE
    )


# ----------------------------------------------------------------------------------------- memory


def _memory_nodes(files: StateFiles) -> tuple[Nodes, tuple[Finding, ...]]:
    """Who has memory of which NUMA nodes, and what is wrong with the record."""
    if files.memory is None:
        return {}, ()
    path = str(files.memory_path)
    try:
        checkpoint = MemoryManagerCheckpoint.parse(files.memory)
        checkpoint.verify()
    except CheckpointError as error:
        return {}, (Finding(RECORD_BROKEN, f"{path}: {error}", path),)
    found = {
        (uid, name): {node for block in blocks or () for node in block.numa_affinity or ()}
        for uid, containers in (checkpoint.entries or {}).items()
        for name, blocks in (containers or {}).items()
    }
    return {
        key: CPUSet(n for n in nodes if 0 <= n <= MAX_CPU) for key, nodes in found.items() if nodes
    }, ()


def _with_sharers(assignments: Assignments, nodes: Nodes) -> dict[str, dict[str, CPUSet]]:
    """The owners of CPUs, and those who have memory only with no CPUs: all are looked for."""
    every = {uid: dict(sets) for uid, sets in assignments.items()}
    for uid, name in nodes:
        every.setdefault(uid, {}).setdefault(name, CPUSet())
    return every


def _apart(
    located: Located, assignments: Assignments, nodes: Nodes
) -> tuple[Located, tuple[Owner, ...]]:
    """The owners of CPUs, and the others, who go on to count as containers of the shared pool."""
    owners: list[Owner] = []
    sharers: list[Owner] = []
    for owner in located.owners:
        known = replace(owner, mems=nodes.get((owner.pod, owner.container), owner.mems))
        owns = owner.container in assignments.get(owner.pod, {})
        (owners if owns else sharers).append(known)
    paths = [path for sharer in sharers for path in sharer.cgroups]
    shared = (*located.shared, *(path for path in paths if path not in located.shared))
    return replace(located, owners=tuple(owners), shared=shared), tuple(sharers)

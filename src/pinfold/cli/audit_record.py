"""What ``pinfold audit`` compares the kernel with: a state file, and where its containers are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.cli.audit_memory import (
    apart,
    memory_file,
    memory_nodes,
    read_memory,
    with_sharers,
)
from pinfold.cli.output import InputError, input_errors

if TYPE_CHECKING:
    from pinfold.adapters.procfs.owners import Assignments, Located
    from pinfold.audit.containers import KnownContainer
    from pinfold.audit.findings import Finding
    from pinfold.audit.record import AuditRecord
    from pinfold.audit.snapshot import KernelSnapshot
    from pinfold.cli.audit_containers import AgentSays, Told
    from pinfold.state.doctor import Circumstances
    from pinfold.state.ledger import Ledger
    from pinfold.state.state_file import StateFile

KUBELET_STATE = Path("/var/lib/kubelet/cpu_manager_state")
OWN_STATE = Path("/var/lib/pinfold/cpu_manager_state")
OWN_TREE: Final = "pinfold"
_RUNTIMES: Final = ("cri", "nri")
"""What an agent calls it when a container runtime runs its containers."""
_ATTEMPTS: Final = 5


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
        from pinfold.adapters.procfs.owners import has_own_cgroups  # noqa: PLC0415 - late

        if not self.has_record or self.kubelet:
            return self.kubelet
        if agent is not None:
            return agent.runtime in _RUNTIMES
        return not has_own_cgroups(snapshot, OWN_TREE)

    def state_file(self, agent: AgentSays | None) -> Path:
        """The state file to read."""
        if self.state is not None:
            return self.state
        if agent is not None:
            return agent.state_dir / OWN_STATE.name
        return self.root / (KUBELET_STATE if self.kubelet else OWN_STATE).relative_to("/")


class _Seen(Struct, frozen=True):
    """The containers as they were told, and as they were found by their cgroups."""

    told: list[KnownContainer]
    containers: dict[str, KnownContainer]


def read_record(
    place: Place, agent: AgentSays | None, ask: Callable[[KernelSnapshot], Told]
) -> tuple[KernelSnapshot, AuditRecord]:
    """The kernel, and the record with the containers that ``ask`` and an agent tell of.

    A record that changes meanwhile is read again.

    Raises:
        InputError: there is no record, or none that can be read.
        PortError: the kernel cannot be read.
    """
    from pinfold.adapters.procfs.containers import find_containers  # noqa: PLC0415 - after --help
    from pinfold.adapters.procfs.files import KernelFiles  # noqa: PLC0415
    from pinfold.adapters.procfs.snapshot import read_snapshot  # noqa: PLC0415
    from pinfold.audit.record import AuditRecord  # noqa: PLC0415

    if place.has_record:
        path = place.state_file(agent)
        snapshot, data, memory = _at_one_moment(path, place)
    else:
        snapshot, data, memory = read_snapshot(place.root), b"", None
    told = ask(snapshot)
    if told.problem:
        snapshot = replace(snapshot, unseen=(*snapshot.unseen, told.problem))
    known = [*told.containers, *(agent.containers if agent is not None else ())]
    containers = find_containers(snapshot, KernelFiles(place.root), known)
    if place.has_record:

        def locate(assignments: Assignments) -> Located:
            return _locate(place, snapshot, assignments, agent, _Seen(known, containers))

        record = _record((data, memory), path, place, agent, locate)
    else:
        record = AuditRecord("--owner")
    return snapshot, replace(record, containers=containers, runtime=told.runtime)


def _at_one_moment(path: Path, place: Place) -> tuple[KernelSnapshot, bytes, bytes | None]:
    from pinfold.adapters.procfs.snapshot import read_snapshot  # noqa: PLC0415 - after --help
    from pinfold.adapters.statefile.files import (  # noqa: PLC0415
        StateFileError,
        read_state_file,
    )

    with input_errors(StateFileError):
        if not path.exists():
            raise InputError(f"{path}: no such file; {_no_record(kubelet=place.kubelet)}")
        data, memory = read_state_file(path), read_memory(memory_file(path))
        for _ in range(_ATTEMPTS):
            snapshot = read_snapshot(place.root)
            again = read_state_file(path), read_memory(memory_file(path))
            if again == (data, memory):
                break
            data, memory = again
    return snapshot, data, memory


def _no_record(*, kubelet: bool) -> str:
    if kubelet:
        return (
            "a kubelet writes it when its CPU manager starts; name it with --state when the "
            "kubelet has another --root-dir"
        )
    return (
        "no agent has run here; name its file with --state, a cgroup with --owner, or audit a "
        "kubelet with --kubelet"
    )


def _locate(
    place: Place,
    snapshot: KernelSnapshot,
    assignments: Assignments,
    agent: AgentSays | None,
    seen: _Seen,
) -> Located:
    from pinfold.adapters.procfs.containers import same_uid  # noqa: PLC0415 - after --help
    from pinfold.adapters.procfs.owners import (  # noqa: PLC0415
        has_own_cgroups,
        is_below,
        is_of_a_kubelet,
        is_of_a_pod,
        locate_containers,
        locate_own,
    )

    tree = OWN_TREE if agent is None else agent.tree or OWN_TREE
    uids = {same_uid(one.pod_uid) for one in agent.containers} if agent is not None else set()
    is_below_tree = is_below(tree)
    is_ours: Callable[[KnownContainer], bool]
    if place.kubelet:
        is_ours = is_of_a_kubelet
    elif agent is not None and agent.runtime in _RUNTIMES:
        is_ours = lambda one: same_uid(one.pod_uid) in uids  # noqa: E731 - as the others
    elif agent is not None or has_own_cgroups(snapshot, tree):
        return locate_own(snapshot, assignments, tree, seen.told)
    elif any(is_below_tree(one) for one in seen.containers.values()):
        is_ours = is_below_tree
    else:
        is_ours = is_of_a_pod
    return locate_containers(
        snapshot, assignments, seen.containers, is_ours=is_ours, told=seen.told
    )


def _record(
    files: tuple[bytes, bytes | None],
    path: Path,
    place: Place,
    agent: AgentSays | None,
    locate: Callable[[Assignments], Located],
) -> AuditRecord:
    from pinfold.audit.record import AuditRecord  # noqa: PLC0415 - after --help
    from pinfold.state.cpu_manager_state import CheckpointError  # noqa: PLC0415
    from pinfold.state.cpu_manager_state import CPUManagerCheckpoint as Checkpoint  # noqa: PLC0415
    from pinfold.state.doctor import Circumstances  # noqa: PLC0415
    from pinfold.state.state_file import (  # noqa: PLC0415
        StateFile,
        UnusableFileError,
        ledger_of,
        pod_sets,
    )

    circumstances = Circumstances(path=str(path))
    try:
        state = StateFile.read(files[0])
    except UnusableFileError as error:
        raise InputError(f"{path}: {error}; see pinfold state check {path}") from None
    if not isinstance(state.document, Checkpoint):
        raise InputError(f"{path}: a {state.kind.value} file; the audit needs cpu_manager_state")
    try:
        ledger: Ledger = ledger_of(state.document)
        pods = pod_sets(state.document)
    except CheckpointError as error:
        raise InputError(f"{path}: {error}; see pinfold state check {path}") from None
    assignments = {uid: dict(sets) for uid, sets in ledger.assignments.items()}
    for uid, cpus in pods.items():
        assignments.setdefault(uid, {})[""] = cpus
    nodes, faults = memory_nodes(files[1], memory_file(path))
    located, sharers = apart(locate(with_sharers(assignments, nodes)), assignments, nodes)
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
            *faults,
            *(() if agent is None else agent.earlier),
        ),
        sharers=sharers,
    )


def _faults(state: StateFile, circumstances: Circumstances) -> tuple[Finding, ...]:
    """What the doctor of state files says, as findings of the audit."""
    from pinfold.audit.findings import (  # noqa: PLC0415 - after --help
        RECORD_BROKEN,
        RECORD_DOUBTFUL,
        Finding,
    )
    from pinfold.state.doctor import Severity, examine  # noqa: PLC0415

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

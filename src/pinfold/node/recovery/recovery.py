"""Starting: from the record to a manager that goes on where the last one left off.

The checks are those of a kubelet that starts (upstream ``staticPolicy.validateState`` and the
checkpoint's policy name).  Where a kubelet exits and is restarted for ever, ``repair`` keeps every
allocation that still fits, decides again about the others, and says what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.settling import resume, settle
from pinfold.core.devices.state import DeviceOwnershipError, DeviceState
from pinfold.core.kubelet.versions import same_kubelet
from pinfold.core.memory.memory import MemoryStateError
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import NO_CPUS, CPUSet
from pinfold.node.held import as_held
from pinfold.node.recovery.asked import asking_for_its_claims
from pinfold.node.recovery.moving import (
    claims_of_the_gone,
    expect_claims,
    given_up,
    recorded_move,
)
from pinfold.node.recovery.recorded import (
    keep,
    recorded_devices,
    recorded_ledger,
    recorded_memory,
    with_devices_of,
    with_siblings,
    with_unplaced,
)
from pinfold.node.recovery.survivors import Loss, Survivor, as_seen, loss, recall
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import (
    ByLoad,
    ObjectKey,
    ObjectRecord,
    PendingMove,
    PodPhase,
    PodRecord,
    Record,
)
from pinfold.state.ledger import InvariantError, Ledger
from pinfold.state.startup import StartError, validate_static_state

_MISFITS: Final = (StartError, InvariantError, MemoryStateError, DeviceOwnershipError)
_REMEDY: Final = (
    "start with --on-mismatch=repair to keep what still fits and decide again about the rest, "
    "or go back to the old configuration"
)
_NOBODY: Final[Mapping[Owner, CPUSet]] = {}
_NAMED: Final = 5
"""How many pods a message names."""


class OnMismatch(Enum):
    """What to do when the record does not fit the machine or the configuration."""

    REFUSE = "refuse"
    REPAIR = "repair"


class MismatchError(Exception):
    """The record does not fit; ``problem`` is the kubelet's text."""

    def __init__(self, problem: str, remedy: str = _REMEDY) -> None:
        super().__init__(f"{problem} ({remedy})")
        self.problem = problem


class LostRecordError(MismatchError):
    """The record knows less than it did, or than what runs shows."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}; nothing was changed",
            "start with --on-mismatch=repair to adopt what runs and go on with what is recorded, "
            "or put the record back",
        )


class OtherRuntimeError(MismatchError):
    """Pods are on record whose containers this runtime does not see: no repair could know them."""

    def __init__(self, recorded: str, configured: str, pods: Sequence[PodRecord]) -> None:
        names = _some([pod.full_name for pod in pods])
        end = "let the kubelet end them" if recorded == "nri" else "delete them"
        super().__init__(
            f"pods of runtime {recorded} are recorded ({names}), and runtime "
            f"{configured} does not see their containers",
            f"start with `runtime: {recorded}` and {end}, or go back",
        )


class OtherTreeError(MismatchError):
    """Containers live in another cgroup tree: what they have forked away would be left in there."""

    def __init__(self, recorded: str, configured: str, living: Sequence[str]) -> None:
        super().__init__(
            f"containers run in the cgroup tree {recorded} ({_some(living)}), and this agent's is "
            f"{configured}",
            "go back to the `cgroupName` and `cgroupParent` of before, and delete the pods first",
        )


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more."""
    more = len(names) - _NAMED
    return ", ".join([*names[:_NAMED], *([f"{more} more"] if more > 0 else [])])


class Restored(Struct):
    """The state to start from, and what had to be changed to get there.

    ``failed`` are pods that lost their CPUs and got no others, ``held`` containers that the runtime
    does not know, ``above`` the generation that the record's has to be above, ``move`` the plan of
    moves to go on with; ``configured`` is what is meant to be otherwise than before.
    """

    state: NodeState
    active: dict[str, tuple[PodRecord, Workload]] = field(default_factory=dict)
    ended: dict[str, PodRecord] = field(default_factory=dict)
    failed: dict[str, PodRecord] = field(default_factory=dict)
    report: list[str] = field(default_factory=list)
    configured: list[str] = field(default_factory=list)
    held: frozenset[ContainerKey] = frozenset()
    above: int = 0
    move: PendingMove | None = None
    objects: Mapping[ObjectKey, ObjectRecord] = {}


def restore(  # noqa: PLR0913 - the record, the node, and how to read them
    record: Record,
    node: Node,
    empty: NodeState,
    *,
    parse: Callable[[str], Workload],
    on_mismatch: OnMismatch,
    runtime: str = "",
    cgroups: str = "",
    kubelet_version: str = "",
    unplaced: CPUSet = NO_CPUS,
    arrived: CPUSet = NO_CPUS,
    living: Sequence[Survivor] = (),
) -> Restored:
    """Make a state of a record; pure.

    Args:
        record: what the store holds.
        node: the policies as configured now.
        empty: the state of this node with nothing on it.
        parse: reads a pod's manifest; raises ValueError.
        on_mismatch: whether to refuse or to repair.
        runtime: what runs the containers from now on; "" is not compared.
        cgroups: the cgroup tree that they are in from now on; "" is not compared.
        kubelet_version: the kubelet as which is decided from now on; "" is not compared.
        unplaced: CPUs that are offline and of which nothing is known.  Those that the record has
            keep their owners, as all CPUs that are offline.
        arrived: CPUs that were such before, and are not now.
        living: the containers that live.

    Raises:
        MismatchError: it does not fit, and ``on_mismatch`` is REFUSE.
        LostRecordError: it knows less than it did, or than what lives shows; the same.
        OtherRuntimeError: another runtime has the containers of pods that are not over.
        OtherTreeError: containers live in another cgroup tree.
    """
    _check_runtime(record, runtime)
    _check_tree(record, cgroups, living)
    lost = loss(record, living)
    if lost and on_mismatch is OnMismatch.REFUSE:
        raise LostRecordError(lost.describe())
    restored = Restored(
        with_unplaced(empty, record, unplaced),
        above=max(lost.promised, record.generation),
        objects=record.objects,
    )
    before = "" if record.node is None else record.node.kubelet_version
    if kubelet_version and before and not same_kubelet(before, kubelet_version):
        restored.configured.append(
            f"decided as kubelet {kubelet_version} from now on, and as kubelet {before} before"
        )
    if kubelet_version and lost and not before:
        restored.configured.append(
            f"decided as kubelet {kubelet_version} from now on: as which kubelet before is lost "
            "with the record, and the setting kubeletVersion says which it is to be"
        )
    restored.held = frozenset(one.key for one in living if one.is_held)
    for uid, pod in record.pods.items():
        if not pod.phase.is_active:
            restored.ended[uid] = pod
            continue
        try:
            restored.active[uid] = (pod, parse(pod.manifest))
        except ValueError as error:
            restored.report.append(f"pod {pod.full_name}: {error}; it is ended")
            restored.failed[uid] = _failed(pod, str(error))
    if lost:
        _recall(restored, lost, living, parse)
        _give_up(restored, record.move)
        _repair(restored, node)
        return restored
    move = None
    try:
        fresh = restored.state.ledger
        active = with_siblings(restored.active, node.smt, arrived & fresh.limits.machine)
        move = recorded_move(record.move, active)
        ghosts = claims_of_the_gone(move, active)
        ledger, new = recorded_ledger(record, fresh, tuple(active.values()), arrived, ghosts)
        restored.active = active
        if new:
            restored.report.append(
                f"CPUs {new} were offline so far, and are in the shared pool now"
            )
        _check(record, ledger, fresh)
        expect_claims(move, ledger)
        memory = recorded_memory(record, node, restored.active.values())
        devices = recorded_devices(
            restored.state.devices, (pod for pod, _ in restored.active.values())
        )
    except _MISFITS as error:
        if on_mismatch is OnMismatch.REFUSE:
            raise MismatchError(str(error)) from None
        restored.report.append(f"the record does not fit: {error}")
        if move is None and record.move is not None:
            _look(restored, living)
        _give_up(restored, record.move, {} if move is None else move.holds.placed)
        _repair(restored, node)
        return restored
    state = replace(restored.state, ledger=ledger, memory=memory, devices=devices)
    for pod, workload in restored.active.values():
        state = resume(state, workload.pod, pod.load_driven)
    restored.state, restored.move = state, move
    return restored


def _check_runtime(record: Record, runtime: str) -> None:
    recorded = "" if record.node is None else record.node.runtime
    active = [pod for pod in record.pods.values() if pod.phase.is_active]
    if runtime and recorded and runtime != recorded and active:
        raise OtherRuntimeError(recorded, runtime, active)


def _check_tree(record: Record, cgroups: str, living: Sequence[Survivor]) -> None:
    recorded = "" if record.node is None else record.node.cgroups
    if cgroups and recorded and cgroups != recorded and living:
        raise OtherTreeError(recorded, cgroups, [str(one.key) for one in living])


def _check(record: Record, ledger: Ledger, fresh: Ledger) -> None:
    if record.node is None:
        return
    if ledger.policy_name != fresh.policy_name:
        raise StartError(
            f'configured policy "{fresh.policy_name}" differs from state checkpoint policy '
            f'"{ledger.policy_name}"'
        )
    if ledger.policy_name == "static":
        validate_static_state(ledger, fresh.limits)
    ledger.bound(fresh.limits)


def _recall(
    restored: Restored, lost: Loss, living: Sequence[Survivor], parse: Callable[[str], Workload]
) -> None:
    recalled = recall(restored.active, lost, living, parse, restored.state.offline)
    restored.report += recalled.report
    for uid in recalled.over:
        pod, _ = restored.active[uid]
        restored.failed[uid] = _failed(pod, "another pod of its name runs")
    restored.active = dict(recalled.active)
    for uid in restored.active:
        restored.ended.pop(uid, None)
        restored.failed.pop(uid, None)


def _look(restored: Restored, living: Sequence[Survivor]) -> None:
    """Take from the kernel which of their CPUs those who may have been moving are on."""
    for uid, (pod, load) in restored.active.items():
        ones = [one for one in living if one.key.pod_uid == uid]
        seen = as_seen(pod, ones, restored.state.offline)
        own = pod.assignments
        # Who is on others' CPUs was not put there by a plan.
        if all(cpus <= own.get(name, NO_CPUS) for name, cpus in seen.assignments.items()):
            restored.active[uid] = (seen, load)


def _give_up(
    restored: Restored, move: PendingMove | None, placed: Mapping[Owner, CPUSet] = _NOBODY
) -> None:
    """Leave everybody where he is, of those who move as ``placed`` says."""
    if move is not None:
        restored.report.append("the plan of moves that was under way is given up")
        restored.active = {
            uid: (given_up(pod, placed), load) for uid, (pod, load) in restored.active.items()
        }


def _repair(restored: Restored, node: Node) -> None:
    """Keep what fits, oldest pods first; decide again about the rest."""
    state = restored.state
    restored.active = {uid: asking_for_its_claims(*one) for uid, one in restored.active.items()}
    kept: list[tuple[PodRecord, Workload]] = []
    again: list[str] = []
    for uid, (pod, workload) in restored.active.items():
        try:
            state = resume(keep(state, pod, node, kept), workload.pod, pod.load_driven)
        except _MISFITS as error:
            restored.report.append(f"pod {pod.full_name} is decided again: {error}")
            again.append(uid)
        else:
            kept.append((pod, workload))
    for uid in again:
        pod, workload = restored.active[uid]
        # The devices stay, whatever becomes of CPUs and memory; their plugins are not there yet.
        decision = decide(node, replace(state, devices=DeviceState()), workload.pod)
        state = settle(state, decision)
        name = pod.full_name
        if decision.admitted:
            state = with_devices_of(state, pod)
            given = {n: a.cpus for n, a in decision.allocations.items()}
            again_as = replace(
                as_held(pod, state),
                baselines={},
                load_driven=dict.fromkeys(decision.load_driven, ByLoad()),
            )
            restored.active[uid] = (again_as, workload)
            where = ", ".join(f"{n} {cpus}" for n, cpus in given.items()) or "the shared pool"
            restored.report.append(f"pod {name} goes on: {where}")
        else:
            del restored.active[uid]
            restored.failed[uid] = _failed(pod, f"{decision.reason}: {decision.message}")
            restored.report.append(f"pod {name} is ended: {decision.message}")
    restored.state = state


def _failed(pod: PodRecord, message: str) -> PodRecord:
    return replace(
        pod, phase=PodPhase.FAILED, reason="NodeMismatch", message=message
    ).without_resources()

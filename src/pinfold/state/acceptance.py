"""What kubelets of other versions make of a state file: what an upgrade or a downgrade does to it.

Nothing here knows a rule: each kubelet's own reader is asked, and then the start of its policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS, has_gate
from pinfold.core.kubelet.node_config import STATIC
from pinfold.core.kubelet.versions import RELEASES, KubeletVersion
from pinfold.state.conversion import command_for
from pinfold.state.cpu_manager_state import CheckpointError, CPUManagerCheckpoint
from pinfold.state.doctor import bounds_of
from pinfold.state.findings import Circumstances
from pinfold.state.layouts import CPU_STATE, MEMORY_STATE, Layout, StateForm, StateForms
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.memory_restore import restore_memory
from pinfold.state.memory_startup import (
    MemoryStartError,
    cleared_machine_state,
    expected_machine_state,
    machine_state_difference,
)
from pinfold.state.restore import RestoreError, restore, to_checkpoint
from pinfold.state.startup import StartError, validate_static_state
from pinfold.state.state_file import UNKNOWN_CONTAINERS, StateFile, ledger_of


class Outcome(Enum):
    """What becomes of a file that a kubelet finds at its start."""

    ACCEPTED = "accepted"
    """It is read, and written in the layout that it has."""
    MIGRATED = "migrated"
    """It is read, and the next write makes another layout of it."""
    REFUSED = "refused"
    """The kubelet exits: the node has to be drained and the file deleted, or repaired."""


class Kubelet(Struct, frozen=True):
    """A kubelet: its version, and whether PodLevelResourceManagers is on."""

    version: KubeletVersion
    pod_level: bool = False

    @property
    def has_gate(self) -> bool:
        """Whether the version knows the gate at all."""
        return has_gate(POD_LEVEL_RESOURCE_MANAGERS, self.version)

    @property
    def is_recorded(self) -> bool:
        """Whether its answers were seen; else they were read from proposals."""
        return any(one.is_recorded and one.version.minor == self.version.minor for one in RELEASES)

    def form(self, table: StateForms) -> StateForm:
        """How it reads and writes the files of ``table``."""
        return table.at(self.version, pod_level=self.pod_level)

    def command_for(self, state: StateFile, path: str) -> str:
        """What makes a file of ``state`` that it takes."""
        is_memory = isinstance(state.document, MemoryManagerCheckpoint)
        return command_for(state, path, self.form(MEMORY_STATE if is_memory else CPU_STATE))

    def __str__(self) -> str:
        if not self.has_gate:
            return str(self.version)
        return f"{self.version} with {POD_LEVEL_RESOURCE_MANAGERS}={str(self.pod_level).lower()}"


class Acceptance(Struct, frozen=True):
    """What one kubelet makes of a file.

    ``writes`` is the layout of its next write (None: the file has one layout only), ``error`` what
    it says where it refuses the file, ``lost`` the pods whose own CPUs or memory it does not take.
    """

    kubelet: Kubelet
    outcome: Outcome
    writes: Layout | None = None
    error: str = ""
    lost: tuple[str, ...] = ()

    @property
    def keeps_all(self) -> bool:
        """Whether the kubelet starts, and knows all that the file says."""
        return self.outcome is not Outcome.REFUSED and not self.lost


KUBELETS = tuple(
    Kubelet(release.version, pod_level)
    for release in RELEASES
    for pod_level in (False, True)
    if not pod_level or has_gate(POD_LEVEL_RESOURCE_MANAGERS, release.version)
)
"""Every known line of kubelets, without and with the gate."""


def acceptances(state: StateFile, node: Circumstances) -> Iterator[Acceptance]:
    """What each of :data:`KUBELETS` makes of a file."""
    return (acceptance(state, kubelet, node) for kubelet in KUBELETS)


def acceptance(state: StateFile, kubelet: Kubelet, node: Circumstances) -> Acceptance:
    """What a kubelet makes of a file that it finds at its start.

    Where the machine is not known, the file's own CPUs and NUMA nodes stand for it; the containers
    that a file of the oldest layout names are taken for known.
    """
    document = state.document
    if isinstance(document, CPUManagerCheckpoint):
        return _cpu(state, document, kubelet, node)
    if isinstance(document, MemoryManagerCheckpoint):
        return _memory(state, document, kubelet, node)
    try:
        document.verify()
    except CheckpointError as error:
        return Acceptance(kubelet, Outcome.REFUSED, error=str(error))
    return Acceptance(kubelet, Outcome.ACCEPTED)


def written_by(state: StateFile, kubelet: Kubelet, node: Circumstances) -> StateFile:
    """The file after the next write of a kubelet that has taken ``state``.

    Raises:
        RestoreError: it does not take the file; in its words.
        CheckpointError: the same, for the memory manager.
    """
    document = state.document
    if isinstance(document, CPUManagerCheckpoint):
        form = kubelet.form(CPU_STATE)
        policy = node.policy if node.policy is not None else document.policy_name
        ledger = restore(state.file, policy, UNKNOWN_CONTAINERS, path=node.path, form=form)
        return StateFile.read(to_checkpoint(ledger, form.writes).encode())
    if isinstance(document, MemoryManagerCheckpoint):
        form = kubelet.form(MEMORY_STATE)
        policy = node.policy if node.policy is not None else document.policy_name
        restored = restore_memory(state.file, policy, path=node.path, form=form)
        return StateFile.read(_as_held(restored).sealed().encode())
    return state


def _as_held(restored: MemoryManagerCheckpoint) -> MemoryManagerCheckpoint:
    """As a kubelet has it in memory, where nothing is ``null``."""
    return replace(
        restored,
        machine_state=restored.machine_state or {},
        entries={
            uid: {name: blocks or () for name, blocks in (containers or {}).items()}
            for uid, containers in (restored.entries or {}).items()
        },
    )


def _cpu(
    state: StateFile, checkpoint: CPUManagerCheckpoint, kubelet: Kubelet, node: Circumstances
) -> Acceptance:
    form = kubelet.form(CPU_STATE)
    policy = node.policy if node.policy is not None else checkpoint.policy_name
    try:
        ledger = restore(state.file, policy, UNKNOWN_CONTAINERS, path=node.path, form=form)
    except RestoreError as error:
        return Acceptance(kubelet, Outcome.REFUSED, form.writes, str(error))
    lost = tuple(sorted((checkpoint.pod_entries or {}).keys() - ledger.bubbles.keys()))
    try:
        if policy == STATIC:
            validate_static_state(ledger, bounds_of(ledger_of(checkpoint), node))
    except StartError as error:
        return Acceptance(kubelet, Outcome.REFUSED, form.writes, str(error), lost)
    return _accepted(state, kubelet, form, lost)


def _memory(
    state: StateFile, checkpoint: MemoryManagerCheckpoint, kubelet: Kubelet, node: Circumstances
) -> Acceptance:
    form = kubelet.form(MEMORY_STATE)
    policy = node.policy if node.policy is not None else checkpoint.policy_name
    try:
        restored = restore_memory(state.file, policy, path=node.path, form=form)
    except CheckpointError as error:
        return Acceptance(kubelet, Outcome.REFUSED, form.writes, str(error))
    lost = sorted((checkpoint.pod_entries or {}).keys() - (restored.pod_entries or {}).keys())
    try:
        if policy == "Static":
            _validate_memory(restored)
    except MemoryStartError as error:
        return Acceptance(kubelet, Outcome.REFUSED, form.writes, str(error), tuple(lost))
    return _accepted(state, kubelet, form, tuple(lost))


def _validate_memory(restored: MemoryManagerCheckpoint) -> None:
    if not restored.machine_state:
        if restored.entries:
            raise MemoryStartError(
                "[memorymanager] machine state can not be empty when it has memory assignments"
            )
        return
    expected = expected_machine_state(restored, cleared_machine_state(restored))
    if machine_state_difference(restored.machine_state, expected) is not None:
        raise MemoryStartError(
            "[memorymanager] the expected machine state is different from the real one"
        )


def _accepted(
    state: StateFile, kubelet: Kubelet, form: StateForm, lost: tuple[str, ...]
) -> Acceptance:
    is_same = state.layout == form.writes.value
    outcome = Outcome.ACCEPTED if is_same else Outcome.MIGRATED
    return Acceptance(kubelet, outcome, form.writes, lost=lost)

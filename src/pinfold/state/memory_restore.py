"""Restoring the memory manager's state from its file, as the kubelet does at start.

Upstream: ``stateCheckpoint.restoreState`` (``memorymanager/state/state_checkpoint.go``).
"""

from __future__ import annotations

from msgspec.structs import replace

from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.go_json import quote
from pinfold.state.layouts import MEMORY_STATE, Layout, StateForm
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.reading import read_in_turn


def restore_memory(
    file: bytes,
    policy_name: str,
    *,
    path: str = "/var/lib/kubelet/memory_manager_state",
    form: StateForm | None = None,
) -> MemoryManagerCheckpoint:
    """Restore the state as a starting kubelet with ``memoryManagerPolicy`` ``policy_name`` does.

    ``form`` is how it reads and writes, else that of the default version.  The result has the
    layout in which it writes.

    Raises:
        CheckpointError: the kubelet exits; the message is the kubelet's, with ``path``.
    """
    try:
        return load_memory(file, policy_name, MEMORY_STATE.at() if form is None else form)
    except CheckpointError as error:
        raise CheckpointError(
            f"could not restore state from checkpoint: {error}, please drain this node and delete "
            f"the memory manager checkpoint file {quote(path)} before restarting Kubelet"
        ) from None


def load_memory(file: bytes, policy_name: str, form: StateForm) -> MemoryManagerCheckpoint:
    """The same without the frame of the message.

    Raises:
        CheckpointError: in the kubelet's words.
    """
    accepted = read_in_turn(file, form, MemoryManagerCheckpoint.attempt)
    checkpoint = accepted.checkpoint
    if checkpoint.policy_name != policy_name:
        raise CheckpointError(
            f"[memorymanager] configured policy {quote(policy_name)} differs from state "
            f"checkpoint policy {quote(checkpoint.policy_name)}"
        )
    pods = (accepted.first if form.keeps_half_read else checkpoint).pod_entries or {}
    if not form.has_pods:
        pods = {}
    return replace(
        checkpoint,
        pod_entries=None if form.writes is Layout.V1 else pods,
        layout=form.writes,
        data="",
        data_checksum=0,
    )

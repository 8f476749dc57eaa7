"""The kubelet's state files, mirrored beside the agent's own record for tools that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from pinfold.adapters.statefile.files import StateFileError, write_state_file
from pinfold.admission.admission import NodeState
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.memory.memory import MemoryState
from pinfold.core.memory.reservation import STATIC
from pinfold.ports.errors import PortError
from pinfold.ports.records import PodRecord
from pinfold.state.cpu_manager_state import CheckpointError, CPUManagerCheckpoint
from pinfold.state.device_checkpoint import KUBELET_INTERNAL_CHECKPOINT, Holding
from pinfold.state.device_checkpoint import checkpoint_of as device_checkpoint
from pinfold.state.layouts import CPU_STATE, MEMORY_STATE
from pinfold.state.memory_manager_state import MEMORY_MANAGER_STATE, MemoryManagerCheckpoint
from pinfold.state.memory_manager_state import checkpoint_of as memory_checkpoint
from pinfold.state.restore import to_checkpoint

CPU_MANAGER_STATE = "cpu_manager_state"


class StateFiles:
    """Writes ``cpu_manager_state``, and the two others where there is something to say.

    They have the layouts that the kubelet writes which the node is configured for; where these have
    no place for what pods have as a whole, those that have.

    Args:
        folder: where they lie.
        config: the node's configuration.
    """

    def __init__(self, folder: Path, config: NodeConfig) -> None:
        self._folder = folder
        self._config = config
        self._written: dict[str, bytes | None] = {}

    def write(self, state: NodeState, pods: Sequence[PodRecord]) -> None:
        """Write the files whose content has changed, and remove those that say nothing any more.

        The pods are the active ones, with the answers of their device plugins.

        Raises:
            PortError: one of them could not be written; the others are.
        """
        contents: dict[str, Callable[[], bytes] | None] = {
            CPU_MANAGER_STATE: lambda: self._cpus(state).encode(),
            MEMORY_MANAGER_STATE: None,
            KUBELET_INTERNAL_CHECKPOINT: None,
        }
        if state.memory is not None:
            memory = state.memory
            contents[MEMORY_MANAGER_STATE] = lambda: self._memory(memory).encode()
        if state.devices.inventory or state.devices.allocations.pods:
            contents[KUBELET_INTERNAL_CHECKPOINT] = partial(_devices, state, pods)
        problems = []
        for name, content in contents.items():
            try:
                self._put(name, None if content is None else content())
            except CheckpointError as error:
                problems.append(f"{name}: {error}")
            except (StateFileError, OSError) as error:
                problems.append(str(error))
        if problems:
            raise PortError("; ".join(problems))

    def _cpus(self, state: NodeState) -> CPUManagerCheckpoint:
        layout = CPU_STATE.layout_for(self._config, has_pods=bool(state.ledger.bubbles))
        return to_checkpoint(state.ledger, layout)

    def _memory(self, memory: MemoryState) -> MemoryManagerCheckpoint:
        layout = MEMORY_STATE.layout_for(self._config, has_pods=bool(memory.bubbles))
        return memory_checkpoint(STATIC, memory, layout)

    def _put(self, name: str, content: bytes | None) -> None:
        if name in self._written and self._written[name] == content:
            return
        if content is None:
            (self._folder / name).unlink(missing_ok=True)
        else:
            # Each start writes it anew, and a container that is being created shares the disk.
            write_state_file(self._folder / name, content, sync=False)
        self._written[name] = content


def _devices(state: NodeState, pods: Sequence[PodRecord]) -> bytes:
    return device_checkpoint(state.devices, _responses(pods)).encode()


def _responses(pods: Sequence[PodRecord]) -> Mapping[Holding, bytes]:
    return {
        Holding(pod.uid, container, resource): grant.response
        for pod in pods
        for container, grants in pod.devices.items()
        for resource, grant in grants.items()
    }

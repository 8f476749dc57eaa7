"""The kubelet's state files, mirrored beside the agent's own record for tools that read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pinfold.adapters.statefile.files import StateFileError, write_state_file
from pinfold.core.memory_reservation import STATIC
from pinfold.node.admission import NodeState
from pinfold.node.port_errors import PortError
from pinfold.node.records import PodRecord
from pinfold.state.device_checkpoint import KUBELET_INTERNAL_CHECKPOINT, Holding
from pinfold.state.device_checkpoint import checkpoint_of as device_checkpoint
from pinfold.state.memory_manager_state import MEMORY_MANAGER_STATE
from pinfold.state.memory_manager_state import checkpoint_of as memory_checkpoint
from pinfold.state.restore import to_checkpoint

CPU_MANAGER_STATE = "cpu_manager_state"


class StateFiles:
    """Writes ``cpu_manager_state``, and the two others where there is something to say.

    Args:
        folder: where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, bytes] = {}

    def write(self, state: NodeState, pods: Sequence[PodRecord]) -> None:
        """Write the files whose content has changed.

        Args:
            state: who has what.
            pods: the active pods, with the answers of their device plugins.

        Raises:
            PortError: one of them could not be written.
        """
        self._put(CPU_MANAGER_STATE, to_checkpoint(state.ledger).encode())
        if state.memory is not None:
            self._put(MEMORY_MANAGER_STATE, memory_checkpoint(STATIC, state.memory).encode())
        if state.devices.inventory or state.devices.allocations.pods:
            devices = device_checkpoint(state.devices, _responses(pods))
            self._put(KUBELET_INTERNAL_CHECKPOINT, devices.encode())

    def _put(self, name: str, content: bytes) -> None:
        if self._written.get(name) == content:
            return
        try:
            write_state_file(self._folder / name, content)
        except StateFileError as error:
            raise PortError(str(error)) from None
        self._written[name] = content


def _responses(pods: Sequence[PodRecord]) -> dict[Holding, bytes]:
    return {
        Holding(pod.uid, container, resource): grant.response
        for pod in pods
        for container, grants in pod.devices.items()
        for resource, grant in grants.items()
    }

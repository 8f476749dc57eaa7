"""Signals that the CRI has no call for."""

from __future__ import annotations

import os
import signal

from pinfold.adapters.cri.table import Table
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerStatus


async def send_signal(table: Table, status: ContainerStatus, number: int) -> None:
    """Send a signal to a container's main process; one that is gone is no error.

    Raises:
        RuntimeFailedError: there is no such signal, it is not permitted, or the runtime does not
            tell the process.
    """
    if status.pid is None:
        raise RuntimeFailedError(
            f"the runtime does not tell the process of container {status.key} ({status.id})"
        )
    try:
        descriptor = os.pidfd_open(status.pid)
    except OSError:
        return
    try:
        # The number could be somebody else's by now: the container still has it, so it is not.
        now = await table.fetch(status.id)
        if now is not None and now.pid == status.pid:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    except (OSError, ValueError) as error:
        raise RuntimeFailedError(
            f"signal {number} could not be sent to process {status.pid} of container"
            f" {status.key}: {error}"
        ) from None
    finally:
        os.close(descriptor)

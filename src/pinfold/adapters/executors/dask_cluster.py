"""Dask as an executor: a cluster that is there, or one on this machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from distributed import Client, LocalCluster

from pinfold.adapters.executors.local import blocked_keys
from pinfold.adapters.executors.pool import ExecutorError, WorkerPool

PATIENCE: Final = 30
"""Seconds to wait for the scheduler."""


def dask_pool(address: str | None, workers: int) -> WorkerPool:
    """Who carries calls out in a cluster.

    Args:
        address: of its scheduler; None: a cluster on this machine, which ends with the pool.
        workers: of a cluster on this machine.

    Raises:
        ExecutorError: there is no scheduler.
    """
    ending = ExitStack()
    try:
        with blocked_keys():
            if address is None:
                cluster = ending.enter_context(_local(workers))
                client = ending.enter_context(Client(cluster))
            else:
                client = ending.enter_context(Client(address, timeout=PATIENCE))
    except (OSError, ValueError, TimeoutError) as error:
        ending.close()
        raise ExecutorError(
            f"dask: no scheduler at {address}: {error}; is it running, and is its port reachable?"
        ) from None
    return _DaskPool(client, ending.close)


def _local(workers: int) -> LocalCluster:
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    )


class _DaskPool(WorkerPool):
    """A client's executor; the cluster says which call is begun when."""

    def __init__(self, client: Client, end: Callable[[], None]) -> None:
        super().__init__(client.get_executor(pure=False))
        self._end = end

    def close(self) -> None:
        """Wait for what was begun, and leave the cluster."""
        super().close()
        self._end()

    def give_up(self) -> None:
        """Leave the cluster; what nobody wants any more is taken back there."""
        super().give_up()
        self._end()

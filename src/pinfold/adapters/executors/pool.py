"""An executor, and what has to be known of it to use it well."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from types import TracebackType
from typing import Final, Self

from pinfold.core.values.errors import PinfoldError

MANY: Final = 1 << 20
"""As many calls at once as anybody has: the executor says when each is begun."""


class ExecutorError(PinfoldError):
    """There is no such executor, or it cannot be had; the message names the remedy."""


class WorkerPool:
    """An executor for a while; it is shut down at the end of a ``with``.

    Args:
        executor: the executor.
        at_once: how many calls to give it at once.
        same_process: whether calls are made in this process, one at a time, when they are given.
    """

    def __init__(
        self, executor: Executor, *, at_once: int = MANY, same_process: bool = False
    ) -> None:
        self.executor = executor
        self.at_once = at_once
        self.same_process = same_process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.give_up()

    def close(self) -> None:
        """Let the workers go once they have done what they were given."""
        self.executor.shutdown(wait=True)

    def give_up(self) -> None:
        """Let the workers go without waiting for what they have begun."""
        self.executor.shutdown(wait=False)

    def deaths(self) -> Mapping[int, str]:
        """Processes of workers that died by themselves, and how; as far as that is known."""
        return {}

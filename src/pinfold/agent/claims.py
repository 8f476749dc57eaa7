"""What an agent has for itself, so that no other works on the same containers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final, Protocol

import structlog

from pinfold.linux.locks import PATIENCE, HeldError, Lock, lock
from pinfold.node.books import Books
from pinfold.node.reconciler import reconcile
from pinfold.ports.errors import PortError

LOCK: Final = "pinfold.lock"

log = structlog.get_logger("pinfold")


class Claim(Protocol):
    """The right to some containers: to a tree of cgroups, or to be the plugin of a runtime."""

    def take(self, *, patience: float = PATIENCE) -> None:
        """Keep others out; nothing where that is so already; raises PortError.

        ``patience`` is seconds for another that was just killed to let go; nothing else goes on.
        """

    def missing(self) -> str:
        """What of it is gone, or was never had; "" while all is there and ours."""

    def release(self) -> None:
        """Let others have it; again is no error."""


class RuntimeClaim:
    """The right to be the plugin of the runtime that listens at ``socket``.

    What an agent claims with NRI is every container of the runtime, and its socket stands for
    that.  A socket cannot be locked, so a file beside it is, which a DaemonSet sees too; it goes
    with the agent.
    """

    def __init__(self, socket: Path) -> None:
        self._file = socket.with_name(LOCK)
        self._lock: Lock | None = None

    def take(self, *, patience: float = PATIENCE) -> None:
        """Keep other agents out; where there is no folder yet, that is done once there is.

        Raises:
            PortError: another agent has it, or the file cannot be made.
        """
        if not self.missing():
            return
        self._let_go()
        try:
            self._lock = lock(self._file, self._opened, patience=patience)
        except HeldError as held:
            raise PortError(
                f"{self._file}: another agent{held.who} is a plugin of the runtime there",
                "stop that one: two would both write the cpusets of all its containers",
            ) from None
        except FileNotFoundError:
            return  # the folder has gone again
        except OSError as error:
            raise PortError(
                f"{self._file}: {error.strerror}", "let the agent write to the folder of nriSocket"
            ) from None

    def missing(self) -> str:
        """The file, while its folder is there and it is not ours."""
        if self._lock is not None and self._lock.in_place:
            return ""
        return str(self._file) if self._file.parent.is_dir() else ""

    def release(self) -> None:
        """Let others have it; again is no error."""
        if self._lock is not None and self._lock.in_place:
            self._file.unlink(missing_ok=True)
        self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _opened(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._file, flags, 0o600)


class ClaimKeeper:
    """Makes the tree of cgroups anew where somebody has taken it away.

    ``again`` is set whenever that was done.
    """

    def __init__(self, books: Books, claim: Claim | None) -> None:
        self._books = books
        self._claim = claim
        self._looking = asyncio.Lock()
        self._returning = False
        self.again = asyncio.Event()

    @property
    def is_had(self) -> bool:
        """Whether what was claimed is there, and this agent's own."""
        return self._claim is None or not self._claim.missing()

    async def look(self) -> None:
        """Look once, and mend; raises PortError."""
        claim = self._claim
        if claim is None or not (self._returning or claim.missing()):
            return
        async with self._looking:
            if missing := claim.missing():
                await self._take_again(claim, missing)
                log.warning("made anew", problem=f"{missing} was taken away")
            if self._returning:
                # Whoever removed it has moved those in there elsewhere.
                await reconcile(self._books)
                self._returning = False

    async def _take_again(self, claim: Claim, missing: str) -> None:
        try:
            async with self._books.change():
                claim.take(patience=0.0)
                await self._books.open_cgroups(self._books.view.pool)
        except PortError as error:
            problem = f"{missing} was taken away, and cannot be had again: {error.problem}"
            raise PortError(problem, error.remedy) from None
        self._returning = True
        self.again.set()

"""Whose plugin a container runtime has: one agent's, or two would write the same cpusets.

What an agent claims with NRI is every container of the runtime, and its socket stands for that.  A
socket cannot be locked, so a file beside it is, which a DaemonSet sees too; it goes with the agent.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pinfold.linux.locks import PATIENCE, HeldError, Lock, lock
from pinfold.ports.errors import PortError

LOCK: Final = "pinfold.lock"


class RuntimeClaim:
    """The right to be the plugin of the runtime that listens at ``socket``."""

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

"""Who was let in: sessions of browsers, and tickets that let one in once."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Final

MOST_SESSIONS: Final = 64
"""One more takes the place of the one that was used last the longest ago."""

IDLE: Final = 12 * 3600.0
"""Seconds after which a session that nobody uses is over."""

TICKET_LIFE: Final = 60.0
"""Seconds in which a ticket is used, or is worth nothing."""

MOST_TICKETS: Final = 16

_BYTES: Final = 32


class Sessions:
    """Secrets that are known for a while; kept as digests, so that a look-up tells nothing by time.

    Args:
        now: seconds, on a clock that never goes back.
        life: for how long one is known, from its last use.
        most: how many there are at a time.
    """

    def __init__(
        self, now: Callable[[], float], *, life: float = IDLE, most: int = MOST_SESSIONS
    ) -> None:
        self._now = now
        self._life = life
        self._most = most
        self._used: dict[bytes, float] = {}

    def begin(self) -> str:
        """A new one: letters, digits, ``-`` and ``_``."""
        self._forget()
        while len(self._used) >= self._most:
            del self._used[min(self._used, key=self._used.__getitem__)]
        secret = secrets.token_urlsafe(_BYTES)
        self._used[_digest(secret)] = self._now()
        return secret

    def knows(self, secret: str) -> bool:
        """Whether it is one; it is used with that."""
        self._forget()
        key = _digest(secret)
        if key not in self._used:
            return False
        self._used[key] = self._now()
        return True

    def takes(self, secret: str) -> bool:
        """Whether it is one; from now on it is none."""
        self._forget()
        return self._used.pop(_digest(secret), None) is not None

    def end_all(self) -> None:
        """Nobody is let in any more by one of before."""
        self._used.clear()

    def __len__(self) -> int:
        """How many there are."""
        self._forget()
        return len(self._used)

    def _forget(self) -> None:
        before = self._now() - self._life
        for key in [key for key, used in self._used.items() if used < before]:
            del self._used[key]


def tickets(now: Callable[[], float]) -> Sessions:
    """Secrets for one use each, soon."""
    return Sessions(now, life=TICKET_LIFE, most=MOST_TICKETS)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()

"""Who waits for a change, and may go away before it is begun."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class GoneError(Exception):
    """Nobody waits for a change that was not begun; nothing was changed."""


class Caller(Struct):
    """One who waits; ``begun`` tells that something is being changed, which then goes on."""

    gone: bool = False
    begun: bool = False

    def begin(self) -> None:
        """From now on the change is carried out, whoever waits for it.

        Raises:
            GoneError: nobody does, and it was not begun.
        """
        if self.gone and not self.begun:
            raise GoneError
        self.begun = True


NOBODY: Final = Caller(begun=True)
"""A change that nobody can give up."""

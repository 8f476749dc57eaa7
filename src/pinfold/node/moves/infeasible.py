"""Infeasible resizes in the history: whoever asks for the same for ever fills it with nothing."""

from __future__ import annotations

from typing import Final

from pinfold.core.moves.owners import Owner
from pinfold.documents.history import Resized
from pinfold.node.books import Books
from pinfold.node.draft import Draft

EVERY: Final = 60.0
"""Seconds between two entries of the same."""


class Infeasible:
    """Knows which ones were told a short time ago; one for each node."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._told: dict[tuple[Owner, float, str | None], float] = {}

    def note(self, draft: Draft, owner: Owner, pod: str, document: Resized) -> bool:
        """Draft an entry of a resize of a pod (``namespace/name``); False where that was told.

        It is not where there is hardly room on the disk: what is left is for ending pods.
        """
        now = self._books.observers.uptime()
        self._told = {one: at for one, at in self._told.items() if now - at < EVERY}
        same = owner, document.cpus, document.reason
        if same in self._told or self._books.store.problem:
            return False
        self._told[same] = now
        draft.note("infeasible", (owner.pod_uid, pod), document)
        return True

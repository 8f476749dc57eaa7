"""What a node needs of the durable record."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from pinfold.ports.records import Batch, HistoryEntry, Record


class Store(Protocol):
    """The durable record: what was decided, and the history of decisions."""

    @property
    def problem(self) -> str:
        """Why nothing new should be begun: nothing can be written, or there is hardly room left.

        It says what to do about it, and is "" while all is well.  Room is kept for what has been
        begun, so that pods can be ended and deleted on a full disk; see :meth:`check`.
        """

    @property
    def generation(self) -> int:
        """How many batches were ever committed; see :class:`pinfold.ports.records.Record`."""

    async def load(self) -> Record:
        """Read the whole record; an empty one at the first start.

        Raises:
            StoreError: it is corrupt, of an unknown version, or cannot be read.
        """

    async def commit(self, batch: Batch) -> None:
        """Make all of a batch durable, or none of it.

        Raises:
            StoreError: nothing was changed (disk full, read-only, another writer).
        """

    async def check(self) -> None:
        """See whether :attr:`problem` is still so; never raises."""

    async def history(
        self,
        *,
        pod: str | None = None,
        namespace: str | None = None,
        kinds: Collection[str] = (),
        limit: int = 100,
    ) -> Sequence[HistoryEntry]:
        """The newest entries first, of one pod (``namespace/name`` or uid) or of all.

        With ``namespace`` only those of its pods, with ``kinds`` only those of these kinds.

        Raises:
            StoreError: it cannot be read.
        """

    async def close(self) -> None:
        """Close the record; nothing is pending."""

"""Writing the record, and what becomes of that which cannot be written."""

from __future__ import annotations

from collections.abc import Callable

from pinfold.node.drafted import Unwritten
from pinfold.ports.errors import PortError
from pinfold.ports.records import Batch
from pinfold.ports.store import Store


class RecordWriter:
    """Writes batches in order; what is owed goes with whatever is written next.

    ``owes`` is called when something begins to be owed, and has it paid.
    """

    def __init__(
        self, store: Store, report: Callable[[str | None, str], None], owes: Callable[[], object]
    ) -> None:
        self._store = store
        self._report = report
        self._owes = owes
        self._owed = Batch()

    async def write(self, batch: Batch, unwritten: Unwritten, pod: str | None) -> bool:
        """Write, if there is anything; whether it is on record, or owed to it.

        Raises:
            PortError: it cannot be written, and is refused.
        """
        if batch == Batch():
            return True
        try:
            await self.commit(batch)
        except PortError as error:
            if unwritten is Unwritten.REFUSED:
                raise
            if unwritten is Unwritten.REPORTED:
                self._report(pod, str(error))
                return False
            self._report(None, f"{error}; trying again")
            if self._owed == Batch():
                self._owes()
            self._owed = self._owed.then(batch)
        return True

    async def commit(self, batch: Batch) -> None:
        """Write what is owed, and this.

        Raises:
            PortError: nothing of it was written.
        """
        whole = self._owed.then(batch)
        if whole != Batch():
            await self._store.commit(whole)
        self._owed = Batch()

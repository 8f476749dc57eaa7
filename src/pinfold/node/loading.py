"""What the books begin with is on record before anything else, and what is odd about it is said."""

from __future__ import annotations

from pinfold.documents.history import Started
from pinfold.node.books import Books
from pinfold.node.drafted import NODE
from pinfold.node.recovery.recovery import Restored


async def load(books: Books, restored: Restored) -> None:
    """Write down what the books begin with, and tell of it.

    Raises:
        PortError: the record cannot be written.
    """
    now = books.observers.clock()
    async with books.change() as draft:
        for text in restored.report:
            draft.note("repaired", NODE, Started(start=text), now)
        for text in restored.configured:
            draft.note("configured", NODE, Started(start=text), now)
        if restored.report:
            for pod in books.view.pods.active.values():
                draft.put(pod, pod.record)
        for record in restored.failed.values():
            draft.remember(record)
        await draft.write(above=restored.above)
    for text in (*restored.report, *restored.configured, books.view.node.smt_remark):
        if text:
            books.observers.report(None, text)

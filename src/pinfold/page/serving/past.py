"""What has been: the history as the page shows it, and how the node was drawn then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from pinfold.documents.api import History, HistoryEntry
from pinfold.documents.explanation import Explanation
from pinfold.documents.history import (
    CacheGiven,
    Controlled,
    Displaced,
    Drifted,
    InterruptsKeptOff,
    QuotaChanged,
    Resized,
    SchedulingDomain,
    Started,
    StaysShared,
    TakenBack,
)
from pinfold.documents.live.event import Whole
from pinfold.documents.live.scene import Scene
from pinfold.documents.move_plan import MovePlan
from pinfold.documents.records import Record
from pinfold.page.serving.questions import HISTORY, AskedAgent
from pinfold.web.answers import Refusal

FORMS: Final[Mapping[str, Sequence[type[Record]]]] = {
    "admitted": (Explanation,),
    "rejected": (Explanation,),
    "adopted": (Explanation,),
    "drifted": (Drifted,),
    "repaired": (Drifted, Started),
    "configured": (Started,),
    "displaced": (Displaced,),
    "returned": (Displaced,),
    "controlled": (Controlled,),
    "taken-back": (TakenBack,),
    "resized": (Resized,),
    "infeasible": (Resized,),
    "domain": (SchedulingDomain,),
    "interrupts": (InterruptsKeptOff,),
    "stays-shared": (StaysShared,),
    "quota": (QuotaChanged,),
    "cache": (CacheGiven,),
    "moved": (MovePlan,),
    "undone": (MovePlan,),
}
"""Which documents of entries are shown, and which of their fields: those that these forms have.
None of them holds anything of a manifest, such as environment or command lines."""


class Past:
    """Asks the agent for what has been."""

    def __init__(self, agent: AskedAgent) -> None:
        self._agent = agent

    async def history(self, query: Mapping[str, str | int]) -> History:
        """The entries that are asked for, with what of them is shown; raises PortError."""
        told = await self._agent.ask(HISTORY, History, **query)
        return History(entries=[shown(entry) for entry in told.entries])

    async def scene(self, _whole: Whole, _at: float) -> Scene:
        """How the node was drawn then; raises PortError."""
        raise Refusal(503, "the past cannot be drawn yet")


def shown(entry: HistoryEntry) -> HistoryEntry:
    """An entry with nothing in its document that its form does not have."""
    return msgspec.structs.replace(entry, document=_shown(entry.kind, entry.document))


def _shown(kind: str, document: object) -> Mapping[str, Any] | None:
    for form in FORMS.get(kind, ()):
        try:
            told = msgspec.convert(document, form)
        except msgspec.ValidationError:
            continue
        builtins: dict[str, Any] = msgspec.to_builtins(told)
        return builtins
    return None

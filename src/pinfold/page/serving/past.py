"""What has been: the history as the page shows it, and how the node was drawn then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

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
from pinfold.render.history_text import history_words
from pinfold.render.terminal import clean
from pinfold.views.scene import SceneMaker
from pinfold.web.operations import HISTORY_LIMIT

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


FRESH: Final = 2.0
"""Seconds for which the entries are taken for those that there are: a slider asks often."""


class Past:
    """Asks the agent for what has been.

    Args:
        agent: who is asked.
        now: seconds, on a clock that never goes back.
    """

    def __init__(self, agent: AskedAgent, now: Callable[[], float] = time.monotonic) -> None:
        self._agent = agent
        self._now = now
        self._maker = SceneMaker()
        self._asking = asyncio.Lock()
        self._entries: tuple[Whole, float, Sequence[HistoryEntry]] | None = None

    async def history(self, query: Mapping[str, str | int]) -> History:
        """The entries that are asked for, with what of them is shown; raises PortError."""
        told = await self._agent.ask(HISTORY, query=query)
        return History(entries=[shown(entry) for entry in told.entries])

    async def scene(self, whole: Whole, at: float) -> Scene:
        """How the node was drawn then, as far back as the newest entries go.

        Args:
            whole: what there is now.
            at: the moment, in seconds since the epoch.

        Raises:
            PortError: the agent does not tell.
        """
        return self._maker.past(whole, await self._newest(whole), at)

    async def _newest(self, whole: Whole) -> Sequence[HistoryEntry]:
        """The newest entries: none is missing that has made the node what it is now."""
        async with self._asking:
            known = self._entries
            if known is None or known[0] is not whole or self._now() - known[1] > FRESH:
                told = await self._agent.ask(HISTORY, query={"limit": HISTORY_LIMIT})
                known = self._entries = whole, self._now(), told.entries
        return known[2]


def shown(entry: HistoryEntry) -> HistoryEntry:
    """An entry with nothing in its document that its form does not have, and the same in words.

    What is drawn of it has no characters that change how others are shown.
    """
    told = replace(entry, document=_shown(entry.kind, entry.document))
    pod = None if entry.pod is None else clean(entry.pod)
    return replace(told, kind=clean(entry.kind), pod=pod, words=clean(history_words(told)))


def _shown(kind: str, document: object) -> Mapping[str, Any] | None:
    for form in FORMS.get(kind, ()):
        try:
            told = msgspec.convert(document, form)
        except msgspec.ValidationError:
            continue
        builtins: dict[str, Any] = msgspec.to_builtins(told)
        return builtins
    return None

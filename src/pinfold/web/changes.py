"""Changes that somebody asked for: each ends in an answer, and is not carried out in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import structlog
from msgspec import Struct
from starlette.requests import Request

from pinfold.node.pods.caller import Caller
from pinfold.web.answers import Refusal
from pinfold.web.requests import hung_up

_T = TypeVar("_T")

_CANCEL_PATIENCE: Final = 1.0
"""Seconds for something that was not begun to be given up."""

log = structlog.get_logger("pinfold.web")


class Patience(Struct, frozen=True):
    """Seconds after which a request is answered with 503.

    ``change`` is for what is asked for to be done (a pod's grace period comes on top), and
    ``reading`` for an answer that changes nothing.
    """

    change: float = 30.0
    reading: float = 10.0


_PATIENCE: Final = Patience()


class Changes:
    """Runs each change as a task of its own.

    An admission that is given up between its record and its effects would leave what no restart
    has to expect.  So a change whose client has gone, or waits too long, is given up if nothing was
    changed yet, and goes on otherwise; then its outcome is logged.

    Args:
        problems: why the agent is not ready, for the answer to a client that waited too long.
        patience: see the class.
    """

    def __init__(
        self, problems: Callable[[], Sequence[str]] = tuple, patience: float = _PATIENCE.change
    ) -> None:
        self._problems = problems
        self._patience = patience
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(
        self,
        work: Coroutine[Any, Any, _T],
        *,
        request: Request,
        caller: Caller,
        longer: float = 0.0,
    ) -> _T:
        """Wait for a change; when the waiting is cancelled, one that was begun goes on.

        Args:
            work: the change, which tells ``caller`` when it begins.
            request: what asks for it; its body was read.
            caller: who waits.
            longer: seconds that this change may take beside the usual.

        Raises:
            Refusal: it has not come to an end in time.
        """
        what = f"{request.method} {request.url.path}"
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        left = asyncio.create_task(hung_up(request))
        patience = self._patience + longer
        try:
            await asyncio.wait({task, left}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._give_up(task, caller, what, "the agent stops")
            raise
        finally:
            left.cancel()
        if task.done():
            return task.result()
        has_left = left.done() and not left.cancelled()
        why = "the client has gone" if has_left else f"it has taken more than {patience:g} s"
        outcome = await self._give_up(task, caller, what, why)
        reasons = "; ".join(self._problems()) or "see the agent's log"
        raise Refusal(
            503, f"{why} ({reasons}); {outcome}", "pinfold status shows what is; then try again"
        )

    async def _give_up(self, task: asyncio.Task[Any], caller: Caller, what: str, why: str) -> str:
        caller.gone = True
        if caller.begun:
            log.warning("abandoned", request=what, why=why, outcome="it goes on")
            task.add_done_callback(lambda done: _tell(done, what))
            return "it goes on, and the history and the agent's log tell its outcome"
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_PATIENCE)
        log.warning("abandoned", request=what, why=why, outcome="nothing was changed")
        return "nothing was changed"

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Whoever waited has it; asking for it keeps asyncio from calling it forgotten.
            task.exception()


def _tell(task: asyncio.Task[Any], what: str) -> None:
    if task.cancelled():
        outcome = "the agent stopped before its end"
    elif (error := task.exception()) is not None:
        outcome = f"it failed: {error}"
    else:
        outcome = "it was carried out"
    log.warning("abandoned", request=what, outcome=outcome)

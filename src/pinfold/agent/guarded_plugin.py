"""The NRI plugin, registered only while the kubelet leaves the containers' CPUs alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pinfold.adapters.nri import NriPlugin
from pinfold.node.nri.kubelet_guard import (
    PERIOD,
    GuardVerdict,
    KubeletPolicy,
    judge_kubelet,
    unreadable_state,
)
from pinfold.ports.errors import PortError
from pinfold.ports.figures import Figure

_MAX_BYTES: Final = 64 << 20


class GuardedPlugin:
    """Runs a plugin, and ends it while the kubelet pins containers itself.

    Not to be registered is what leaves everything alone: the runtime does not even ask.

    Args:
        make: a new plugin.
        serve: what goes on while that is to be registered; ends only with an error.
        let_go: forgets every container, and touches none.
        report: told each verdict that stops the plugin, once.
        state_file: the kubelet's; None: it is not looked at.
        period: seconds between two looks.
    """

    def __init__(  # noqa: PLR0913 - three callbacks, and what is looked at
        self,
        make: Callable[[], NriPlugin],
        serve: Callable[[NriPlugin], Coroutine[Any, Any, object]],
        let_go: Callable[[], Coroutine[Any, Any, object]],
        report: Callable[[str], None],
        *,
        state_file: Path | None,
        period: float = PERIOD,
    ) -> None:
        self._make = make
        self._serve = serve
        self._let_go = let_go
        self._report = report
        self._file = state_file
        self._period = period
        self._plugin: NriPlugin | None = None
        self.verdict = GuardVerdict(KubeletPolicy.ABSENT)
        """What was found of the kubelet at the last look."""

    @property
    def problem(self) -> str:
        """Why nothing is pinned; "" while the plugin is at work."""
        if self.verdict.problem:
            return self.verdict.problem
        return "not started" if self._plugin is None else self._plugin.problem

    @property
    def connected(self) -> bool:
        """Whether a runtime has taken the plugin."""
        return self._plugin is not None and self._plugin.connected

    @property
    def runtime(self) -> str:
        """The name and version of that runtime."""
        return "" if self._plugin is None else self._plugin.runtime

    def figures(self) -> Iterable[Figure]:
        """What the plugin counts; a new one, after a kubelet that pinned, begins at 0."""
        return () if self._plugin is None else self._plugin.counters.figures()

    async def run(self) -> None:
        """Look, and run the plugin or not, until cancelled."""
        serving: asyncio.Task[object] | None = None
        try:
            while True:
                before = self.verdict
                self.verdict = await asyncio.to_thread(look_at_kubelet, self._file)
                if self.verdict.problem and self.verdict != before:
                    self._report(self.verdict.problem)
                if not self.verdict.may_pin and (serving is not None or before.may_pin):
                    await self._end(serving)
                    serving = None
                    await self._forget()
                if self.verdict.may_pin and serving is None:
                    self._plugin = self._make()
                    serving = asyncio.create_task(self._work(self._plugin), name="nri plugin")
                if serving is None:
                    await asyncio.sleep(self._period)
                elif (await asyncio.wait({serving}, timeout=self._period))[0]:
                    serving.result()  # raises: it never ends by itself
        finally:
            await self._end(serving)

    async def _work(self, plugin: NriPlugin) -> object:
        return await self._serve(plugin)

    async def _end(self, serving: asyncio.Task[object] | None) -> None:
        self._plugin = None
        if serving is not None:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    async def _forget(self) -> None:
        try:
            await self._let_go()
        except PortError as error:
            self._report(f"the pods of before are still recorded: {error}")


def look_at_kubelet(file: Path | None) -> GuardVerdict:
    """What a kubelet's state file says now; without one to look at, nobody is in the way."""
    if file is None:
        return GuardVerdict(KubeletPolicy.ABSENT)
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES)
    except FileNotFoundError:
        return judge_kubelet(None, str(file))
    except OSError as error:
        return unreadable_state(str(file), error.strerror or str(error))
    return judge_kubelet(content, str(file))

"""Asks the API server about containers that were decided about, a little later.

So that nobody who waits for a container waits for the API server as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.adapters.kubernetes.client import KubeClient
from pinfold.adapters.kubernetes.events import EventRecorder, Involved
from pinfold.adapters.kubernetes.spec_check import Decided, Due, PodError, differences
from pinfold.ports.kubernetes import KubernetesError
from pinfold.retry.backoff import Backoff

REASON: Final = "CPUDecisionDiffers"
"""The reason of the event."""

_MOST: Final = 5000
_FIRST_RETRY: Final = 1.0
_LONGEST_RETRY: Final = 60.0


class _Check(Struct):
    namespace: str
    pod: str
    decided: Decided
    due: float
    found: tuple[str, ...] = ()


class PodChecks:
    """Compares decisions with the API server's pods.

    A difference has to be found twice before it is told: a pod's spec is changed before its
    container is.

    Args:
        client: the API server.
        events: takes the event on the pod.
        report: told each problem (pod as ``namespace/name`` or None).
        due: what the node makes of a pod as it was written.
        delay: seconds between a decision and the comparison.
        again: seconds before a difference is looked at once more.
    """

    def __init__(  # noqa: PLR0913 - collaborators and two times
        self,
        client: KubeClient,
        events: EventRecorder,
        report: Callable[[str | None, str], None],
        *,
        due: Due,
        delay: float = 5.0,
        again: float = 15.0,
    ) -> None:
        self._client = client
        self._events = events
        self._report = report
        self._due = due
        self._delay = delay
        self._again = again
        self._checks: dict[tuple[str, str], _Check] = {}
        self._news = asyncio.Event()
        self._told = ""
        self.checked = 0
        self.differing = 0

    @property
    def problem(self) -> str:
        """Why the API server could not be asked; "" where it could."""
        return self._told

    def check(self, namespace: str, pod: str, decided: Decided) -> None:
        """Compare this decision soon; it takes the place of an older one about the container."""
        key = (decided.pod_uid, decided.container)
        if key in self._checks or len(self._checks) < _MOST:
            self._checks[key] = _Check(namespace, pod, decided, time.monotonic() + self._delay)
            self._news.set()

    def forget(self, pod_uid: str) -> None:
        """A pod is gone."""
        for key in [key for key in self._checks if key[0] == pod_uid]:
            del self._checks[key]

    async def run(self) -> None:
        """Compare what comes, for ever."""
        backoff = Backoff(
            _FIRST_RETRY,
            _LONGEST_RETRY,
            KubernetesError,
            report=lambda error: self._say_once(
                f"pods are not compared with the API server's: {error}"
            ),
        )
        while True:
            self._news.clear()
            async with backoff:
                await self._compare_due()
            if backoff.problem:
                continue
            dues = [check.due for check in self._checks.values()]
            pause = max(0.0, min(dues) - time.monotonic()) if dues else None
            try:
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _compare_due(self) -> None:
        now = time.monotonic()
        due = {key: check for key, check in self._checks.items() if check.due <= now}
        pods: dict[tuple[str, str], Mapping[str, Any] | None] = {}
        for key, check in due.items():
            place = (check.namespace, check.pod)
            if place not in pods:
                pods[place] = await self._pod(*place)
            if self._checks.get(key) is not check:
                continue  # decided about anew, or gone, while the server answered
            del self._checks[key]
            found = self._differences(check, pods[place])
            self.checked += 1
            if found and found == check.found:
                self._tell(check)
            elif found:
                check.found, check.due = found, time.monotonic() + self._again
                self._checks[key] = check

    async def _pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """The pod; None where there is none (any more, or yet: a mirror pod comes late)."""
        try:
            pod = await self._client.get_pod(namespace, name)
        except KubernetesError as error:
            if error.status != 404:
                raise
            pod = None
        self._told = ""
        return pod

    def _differences(self, check: _Check, pod: Mapping[str, Any] | None) -> tuple[str, ...]:
        if pod is None:
            return ()
        try:
            return differences(pod, check.decided, due=self._due)
        except PodError as error:
            self._say_once(f"the API server's pod {check.namespace}/{check.pod}: {error}")
            return ()

    def _tell(self, check: _Check) -> None:
        self.differing += 1
        decided = check.decided
        text = (
            f"container {decided.container} was decided about by what the runtime shows, and the "
            f"API server's pod differs: {'; '.join(check.found)}"
        )
        self._report(f"{check.namespace}/{check.pod}", text)
        involved = Involved(check.pod, decided.pod_uid, check.namespace, decided.container)
        self._events.record(involved, REASON, text)

    def _say_once(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            self._report(None, problem)

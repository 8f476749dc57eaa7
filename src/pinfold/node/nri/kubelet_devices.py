"""Asks a kubelet which devices it has given to pods, and goes on without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, TypeVar

from pinfold.ports.errors import PortError
from pinfold.ports.figures import Figure
from pinfold.ports.podresources import NO_DEVICES, PodDevices, PodDevicesSource, PodName

LIMIT: Final = 0.3
"""Seconds that a kubelet has for an answer: a runtime drops a plugin that takes two (NRI)."""

LIMIT_FOR_ALL: Final = 1.0
"""Seconds for an answer about all pods, of the two that a runtime gives (Synchronize).

A container that is taken over without it stays where it is.
"""

_T = TypeVar("_T")


class KubeletDevices:
    """Asks a kubelet for devices; where it does not answer, there are none.

    A container must not wait for a kubelet, nor fail because of one.

    Args:
        source: the kubelet; None: nobody is asked.
        report: told why there is no answer, once as long as it stays the same.
        limit: seconds that an answer about one pod may take.
        limit_for_all: seconds that an answer about all pods may take.
    """

    def __init__(
        self,
        source: PodDevicesSource | None,
        report: Callable[[str | None, str], None],
        *,
        limit: float = LIMIT,
        limit_for_all: float = LIMIT_FOR_ALL,
    ) -> None:
        self._source = source
        self._report = report
        self._limit = limit
        self._limit_for_all = limit_for_all
        self.asked = 0
        self.unanswered = 0
        self.problem = ""
        """Why the last question had no answer; "" when it had."""

    async def of_pod(self, namespace: str, name: str) -> PodDevices:
        """The devices of one pod."""
        if self._source is None:
            return NO_DEVICES
        try:
            answer = await self._within(
                self._source.pod(namespace, name, self._limit), 2 * self._limit
            )
        except PortError as error:
            self._failed(f"{namespace}/{name}", error)
            return NO_DEVICES
        self.problem = ""
        return answer

    async def of_all(self) -> Mapping[PodName, PodDevices]:
        """The devices of all pods."""
        if self._source is None:
            return {}
        try:
            answer = await self._within(
                self._source.pods(self._limit_for_all), 1.5 * self._limit_for_all
            )
        except PortError as error:
            self._failed(None, error)
            return {}
        self.problem = ""
        return answer

    def figures(self) -> Iterator[Figure]:
        """What the metrics tell of it."""
        yield Figure(
            "pinfold_kubelet_pod_resources_requests",
            "Questions to the kubelet for devices of pods.",
            self.asked,
        )
        yield Figure(
            "pinfold_kubelet_pod_resources_unanswered",
            "Questions to the kubelet that had no answer in time.",
            self.unanswered,
        )

    async def _within(self, question: Awaitable[_T], seconds: float) -> _T:
        self.asked += 1
        try:
            # Its own time limit should do; this one holds for every source.
            async with asyncio.timeout(seconds):
                return await question
        except TimeoutError:
            raise PortError(f"no answer within {seconds:g} s") from None

    def _failed(self, pod: str | None, error: PortError) -> None:
        self.unanswered += 1
        if self.problem != str(error):
            self.problem = str(error)
            self._report(
                pod, f"CPUs are not aligned with devices, as the kubelet does not say any: {error}"
            )

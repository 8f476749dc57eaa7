"""Events on pods and nodes: what users see with ``kubectl describe`` and ``kubectl get events``.

Source: ``core/v1`` Event of the Kubernetes API.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from pinfold.adapters.kubernetes.client import KubeClient
from pinfold.ports.kubernetes import KubernetesError
from pinfold.retry.backoff import Backoff

COMPONENT: Final = "pinfold"
MINUTE: Final = 60.0
_MEMORY: Final = 3600.0
"""Seconds after which an event is another one; servers forget them then."""

_MOST: Final = 1000
_LONGEST_MESSAGE: Final = 1024
_LONGEST_NAME: Final = 253
_FIRST_RETRY: Final = 1.0
_LONGEST_RETRY: Final = 60.0
_NODE_NAMESPACE: Final = "default"


class Involved(Struct, frozen=True):
    """Whom an event is about: a pod, or one of its containers, or (namespace "") a node."""

    name: str
    uid: str
    namespace: str = ""
    container: str = ""


class _Series(Struct):
    """One event, and how often it has happened."""

    involved: Involved
    reason: str
    message: str
    first: float
    last: float
    count: int = 1
    told: int = 0
    due: float = 0.0
    name: str = ""

    @property
    def is_pending(self) -> bool:
        return self.count > self.told


class EventRecorder:
    """Takes events at any time, and writes them when it can; nobody has to wait for the server.

    Events of the same object and reason are one event with a count, written at most once in
    ``period`` seconds.  What happens while the server cannot be reached is written later; of more
    than a thousand different ones the newest are dropped.  ``host`` is the node's name.
    """

    def __init__(
        self,
        client: KubeClient,
        host: str,
        report: Callable[[str], None],
        *,
        period: float = MINUTE,
    ) -> None:
        self._client = client
        self._host = host
        self._tell = report
        self._period = period
        self._series: dict[tuple[str, str, str], _Series] = {}
        self._news = asyncio.Event()
        self._told = ""
        self.sent = 0
        self.dropped = 0

    @property
    def problem(self) -> str:
        """Why the last one could not be written; "" when it was."""
        return self._told

    @property
    def pending(self) -> int:
        """How many are to be written."""
        return sum(one.is_pending for one in self._series.values())

    def record(self, involved: Involved, reason: str, message: str) -> None:
        """Something has happened; returns at once."""
        now = time.time()
        key = (involved.namespace, involved.uid, reason)
        series = self._series.get(key)
        if series is not None and now - series.last < _MEMORY:
            series.count += 1
            series.last, series.message, series.involved = now, message, involved
        elif len(self._series) < _MOST or self._make_room(now):
            self._series[key] = _Series(involved, reason, message, now, now)
        else:
            self.dropped += 1
            return
        self._news.set()

    def _make_room(self, now: float) -> bool:
        """Forget those that are written and would not be written again."""
        over = [
            key
            for key, one in self._series.items()
            if not one.is_pending and now - one.last > self._period
        ]
        for key in over:
            del self._series[key]
        return bool(over)

    async def run(self) -> None:
        """Write what comes, for ever."""
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY, KubernetesError, report=self._report)
        while True:
            self._news.clear()
            now = time.monotonic()
            pending = [one for one in list(self._series.values()) if one.is_pending]
            async with backoff:
                for one in pending:
                    if one.due <= now:
                        await self._write(one)
            if backoff.problem:
                continue
            waiting = [one.due for one in pending if one.is_pending]
            pause = max(0.0, min(waiting) - time.monotonic()) if waiting else None
            try:
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _write(self, one: _Series) -> None:
        """Write one event as it is now; raises KubernetesError."""
        count, namespace = one.count, one.involved.namespace or _NODE_NAMESPACE
        try:
            if one.name and not await self._patched(one, namespace):
                one.name = ""
            if not one.name:
                document = self._document(one, namespace)
                await self._client.create_event(namespace, document)
                one.name = document["metadata"]["name"]
        except KubernetesError as error:
            if not _is_about_one(error):
                raise
            # This one it will never take (its namespace ends, say); the next one it may.
            self._report(str(error))
            self.dropped += 1
        else:
            self._told = ""
            self.sent += 1
        one.told = count
        one.due = time.monotonic() + self._period

    async def _patched(self, one: _Series, namespace: str) -> bool:
        changes = {
            "count": one.count,
            "message": one.message[:_LONGEST_MESSAGE],
            "lastTimestamp": _timestamp(one.last),
        }
        try:
            await self._client.patch_event(namespace, one.name, changes)
        except KubernetesError as error:
            if error.status != 404:
                raise
            return False
        return True

    def _document(self, one: _Series, namespace: str) -> dict[str, Any]:
        involved = one.involved
        kind = "Pod" if involved.namespace else "Node"
        about: dict[str, str] = {
            "apiVersion": "v1",
            "kind": kind,
            "name": involved.name,
            "uid": involved.uid,
        }
        if involved.namespace:
            about["namespace"] = involved.namespace
        if involved.container:
            about["fieldPath"] = f"spec.containers{{{involved.container}}}"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": _event_name(involved.name), "namespace": namespace},
            "involvedObject": about,
            "type": "Warning",
            "reason": one.reason,
            "message": one.message[:_LONGEST_MESSAGE],
            "count": one.count,
            "firstTimestamp": _timestamp(one.first),
            "lastTimestamp": _timestamp(one.last),
            "source": {"component": COMPONENT, "host": self._host},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._host,
        }

    def _report(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            self._tell(f"an event was not written: {problem}")


def rejection(text: str) -> tuple[str, str]:
    """Reason word and message of a refusal's text (``REASON: MESSAGE``)."""
    reason, colon, message = text.partition(": ")
    return (reason, message) if colon and reason.isalnum() else ("UnexpectedAdmissionError", text)


def _is_about_one(error: KubernetesError) -> bool:
    """Whether the server refuses this event, rather than all of them."""
    return 400 <= error.status < 500 and error.status not in (401, 408, 429)


def _event_name(name: str) -> str:
    suffix = f".{time.time_ns():x}{secrets.token_hex(2)}"
    return name[: _LONGEST_NAME - len(suffix)].rstrip(".-") + suffix


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

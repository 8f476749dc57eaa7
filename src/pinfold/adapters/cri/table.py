"""Our containers as the runtime last told them, and the exits that nobody was told yet.

The table is kept fresh by the runtime's events, and by looking.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.client import CriClient, CriError
from pinfold.adapters.cri.labels import (
    ATTEMPT,
    GRACE_PERIOD,
    KEEPSAKE,
    OURS,
    is_ours,
    key_of,
    whole_number,
)
from pinfold.adapters.cri.status import info_document
from pinfold.core.pod.workload import DEFAULT_GRACE_PERIOD
from pinfold.ports.runtime import ContainerState, ContainerStatus
from pinfold.retry.backoff import Backoff

_AT_ONCE: Final = 8
AWAY: Final = 2.0
"""Seconds without a listing after which the runtime counts as away; a restart takes one."""

POLL: Final = 1.0
"""Seconds from look to look, as the kubelet's; a look takes 2 ms with 100 containers.

Events make it quick, looking makes it sure: containerd 1.7 gives each event to one listener only
(measured), so another listener takes some away.
"""
_RESUBSCRIBE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_NOT_OFFERED_PAUSE: Final = 60.0
_TOLD: Final = frozenset(
    {
        pb.ContainerEventType.CONTAINER_STOPPED_EVENT,
        pb.ContainerEventType.CONTAINER_DELETED_EVENT,
    }
)
_KILLED: Final = 137
_STATES: Final = {
    pb.ContainerState.CONTAINER_CREATED: ContainerState.CREATED,
    pb.ContainerState.CONTAINER_RUNNING: ContainerState.RUNNING,
    pb.ContainerState.CONTAINER_EXITED: ContainerState.EXITED,
    # The runtime lost track of it, as of one that it created when it was killed.  Nobody would be
    # told of its end: it is ended, as a kubelet ends it, and removed.
    pb.ContainerState.CONTAINER_UNKNOWN: ContainerState.EXITED,
}
_ORDER: Final = tuple(ContainerState)


class Table:
    """Asks the runtime only about what has changed; an exit is put in ``exits`` once."""

    def __init__(self, client: CriClient) -> None:
        self._client = client
        self._known: dict[str, ContainerStatus] = {}
        self._hidden: set[str] = set()
        self._grace: dict[str, int] = {}
        self._logs: dict[str, Path] = {}
        self._keepsakes: dict[str, str] = {}
        self._refreshing = asyncio.Lock()
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._unanswered: float | None = None
        self._failure: CriError | None = None
        self.exits: asyncio.Queue[ContainerStatus | BaseException | None] = asyncio.Queue()

    @property
    def problem(self) -> str:
        """Why nobody knows what has become of the containers; "" while the runtime lists them."""
        if self._unanswered is None or time.monotonic() - self._unanswered < AWAY:
            return ""
        if self._failure is None or self._failure.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
            return f"the container runtime at {self._client.address} does not answer"
        return self._failure.problem

    async def refresh(self) -> list[ContainerStatus]:
        """List all of our containers, and tell the exits since the last time; raises CriError."""
        async with self._refreshing:
            before = dict(self._known)
            listed = {item.id: item for item in await self._list() if is_ours(item.labels)}
            changed = [item.id for item in listed.values() if self._has_changed(item)]
            await asyncio.gather(*map(self.fetch, changed))
            for container_id, status in before.items():
                if container_id not in listed:
                    self._vanished(container_id, status)
        return [status for status in self._known.values() if status.id not in self._hidden]

    async def _list(self) -> Iterable[pb.Container]:
        if self._unanswered is None:
            self._unanswered = time.monotonic()
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=OURS))
        try:
            answer = await self._client.call("ListContainers", request, pb.ListContainersResponse)
        except CriError as error:
            self._failure = error
            raise
        self._unanswered = self._failure = None
        return answer.containers

    async def fetch(self, container_id: str) -> ContainerStatus | None:
        """Ask about one container; None when there is none.

        Raises:
            CriError: the runtime does not answer, or the container is not ours.
        """
        request = pb.ContainerStatusRequest(container_id=container_id, verbose=True)
        try:
            async with self._gate:
                answer = await self._client.call(
                    "ContainerStatus", request, pb.ContainerStatusResponse
                )
        except CriError as error:
            if error.code != "NOT_FOUND":
                raise
            return None
        if answer.status.id != container_id:
            raise self._client.garbage("ContainerStatus", "another container than was asked for")
        if not is_ours(answer.status.labels):
            raise CriError(
                f"container {container_id} at {self._client.address} is somebody else's",
                "only its owner may change it",
                code="PERMISSION_DENIED",
            )
        annotations = answer.status.annotations
        self._grace[container_id] = whole_number(annotations, GRACE_PERIOD, DEFAULT_GRACE_PERIOD)
        self._logs[container_id] = Path(answer.status.log_path)
        self._keepsakes[container_id] = annotations.get(KEEPSAKE, "")
        return self._take(_status(answer))

    def get(self, container_id: str) -> ContainerStatus | None:
        """What is known without asking."""
        return self._known.get(container_id)

    def keepsake(self, container_id: str) -> str:
        """What the container was given to keep; "" where nothing is known of it."""
        return self._keepsakes.get(container_id, "")

    def grace(self, container_id: str) -> int:
        """Seconds from SIGTERM to SIGKILL, as the container was created with."""
        return self._grace.get(container_id, DEFAULT_GRACE_PERIOD)

    def logs(self) -> list[tuple[str, Path]]:
        """The containers that run, each with the file that the runtime writes."""
        return [
            (container_id, self._logs[container_id])
            for container_id, status in self._known.items()
            if status.state is ContainerState.RUNNING and container_id in self._logs
        ]

    def end_created(self, container_id: str, exit_code: int, message: str) -> None:
        """One that was never started will not be, as if its process had been ended."""
        status = self._known[container_id]
        self._take(
            ContainerStatus(
                status.id,
                status.key,
                status.attempt,
                ContainerState.EXITED,
                exit_code=exit_code,
                message=message,
            )
        )

    def hide(self, container_id: str) -> None:
        """It is being removed: nothing is told of it any more."""
        self._hidden.add(container_id)

    def show(self, container_id: str) -> None:
        """It could not be removed."""
        self._hidden.discard(container_id)

    def forget(self, container_id: str) -> None:
        """It is gone."""
        self._known.pop(container_id, None)
        self._hidden.discard(container_id)
        self._grace.pop(container_id, None)
        self._logs.pop(container_id, None)
        self._keepsakes.pop(container_id, None)

    def _has_changed(self, item: pb.Container) -> bool:
        known = self._known.get(item.id)
        if item.id in self._hidden:
            return False
        return known is None or _ORDER.index(known.state) < _ORDER.index(_STATES[item.state])

    def _take(self, status: ContainerStatus) -> ContainerStatus:
        """Keep what is newer; an answer that was overtaken changes nothing."""
        known = self._known.get(status.id)
        if known is not None and _ORDER.index(known.state) > _ORDER.index(status.state):
            return known
        if known is not None and known.state is status.state and known.pid == status.pid:
            return known
        self._known[status.id] = status
        is_news = known is not None and known.state is not ContainerState.EXITED
        if is_news and status.state is ContainerState.EXITED and status.id not in self._hidden:
            self.exits.put_nowait(status)
        return status

    def _vanished(self, container_id: str, status: ContainerStatus) -> None:
        if container_id in self._hidden or container_id not in self._known:
            return
        if status.state is not ContainerState.EXITED:
            self.end_created(container_id, _KILLED, "somebody removed it from the runtime")
        self.forget(container_id)


def _status(answer: pb.ContainerStatusResponse) -> ContainerStatus:
    wire = answer.status
    state = _STATES[wire.state]
    is_over = state is ContainerState.EXITED
    started = wire.started_at / 1e9 if wire.started_at > 0 else None
    finished = wire.finished_at / 1e9 if is_over and wire.finished_at > 0 else None
    if started is not None and finished is not None:
        # containerd notes the start of a short one after its end.
        started = min(started, finished)
    message = ": ".join(word for word in (wire.reason, wire.message) if word)
    return ContainerStatus(
        id=wire.id,
        key=key_of(wire.labels),
        attempt=whole_number(wire.annotations, ATTEMPT, wire.metadata.attempt),
        state=state,
        pid=None if is_over else pid_of(answer.info),
        exit_code=_exit_code(wire) if is_over else None,
        started_at=started,
        finished_at=finished,
        message=message if is_over else "",
    )


def _exit_code(wire: pb.ContainerStatus) -> int:
    return _KILLED if wire.state == pb.ContainerState.CONTAINER_UNKNOWN else wire.exit_code


def pid_of(info: Mapping[str, str]) -> int | None:
    """The main process, from what a runtime tells verbosely; None when there is none (yet)."""
    pid = info_document(info).get("pid")
    return pid if isinstance(pid, int) and not isinstance(pid, bool) and pid > 0 else None


class Watch:
    """Keeps a table fresh, for ever; see :meth:`run`."""

    def __init__(self, client: CriClient, table: Table) -> None:
        self._client = client
        self._table = table
        self._nudge = asyncio.Event()

    async def run(self) -> None:
        """Look whenever something happened, and from time to time."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="container events")
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL):
                        await self._nudge.wait()
                self._nudge.clear()
                # While the runtime is away there is nothing to see; calls tell the callers so.
                with suppress(CriError):
                    await self._table.refresh()

    async def _follow(self) -> None:
        backoff = Backoff(_RESUBSCRIBE, _LONGEST_PAUSE)
        while True:
            offered = True
            try:
                async for event in self._client.events():
                    backoff.well()
                    if event.container_event_type in _TOLD:
                        self._nudge.set()
            except CriError as error:
                offered = error.code != "UNIMPLEMENTED"
            # Whatever happened while nobody listened.
            self._nudge.set()
            await asyncio.sleep(backoff.failed() if offered else _NOT_OFFERED_PAUSE)

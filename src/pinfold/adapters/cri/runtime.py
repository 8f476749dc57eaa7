"""The runtime that runs containers through the CRI."""

from __future__ import annotations

import asyncio
import os
import signal as signals
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.client import CriClient, CriError, Retry, gone_is_fine
from pinfold.adapters.cri.creation import Creator
from pinfold.adapters.cri.images import ensure_image
from pinfold.adapters.cri.logs import rotate
from pinfold.adapters.cri.sandboxes import CriSettings, Sandboxes
from pinfold.adapters.cri.status import oom_score_floor
from pinfold.adapters.cri.table import Table, Watch
from pinfold.linux.descriptors import gone_or_raise
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerSpec, ContainerState, ContainerStatus

_ENDING: Final = frozenset(
    {signals.SIGHUP, signals.SIGINT, signals.SIGQUIT, signals.SIGKILL, signals.SIGTERM}
)
_MAYBE_DONE: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "DATA_LOSS"})


class CriRuntime:
    """The :class:`pinfold.ports.runtime.Runtime` of a CRI runtime, for one event loop.

    Only containers with the label ``pinfold.dev/managed`` are seen and changed.  A created
    container of containerd has no process yet (``pid`` None): it gets its CPUs with
    ``ContainerSpec.placement``, or by a change of its resources, before it is started.

    SIGTERM becomes a StopContainer with the pod's grace period, which sends the image's stop
    signal, and SIGKILL one without; a created container is ended by never being started.
    """

    def __init__(self, client: CriClient, settings: CriSettings) -> None:
        self._client = client
        self._settings = settings
        self._sandboxes = Sandboxes(client, settings)
        self._creator = Creator(client, self._sandboxes)
        self._table: Table | None = None
        self._opening: asyncio.Task[Table] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._behind: set[asyncio.Task[None]] = set()
        self._stopping: set[str] = set()
        self._oom_score_floor = 0

    @property
    def problem(self) -> str:
        """That the runtime is away, in a sentence; "" while it answers, or was not asked yet."""
        return "" if self._table is None else self._table.problem

    async def pull(self, spec: ContainerSpec) -> str:
        """See :meth:`pinfold.ports.runtime.ImageRuntime.pull`."""
        return await ensure_image(self._client, spec.process, self._sandboxes.to_be(spec))

    async def create(self, spec: ContainerSpec) -> ContainerStatus:
        """See :meth:`pinfold.ports.runtime.Runtime.create`; with its pod's sandbox."""
        table = await self._open()
        container_id = await self._creator.create(spec, self._oom_score_floor)
        status = await table.fetch(container_id)
        if status is None:
            raise RuntimeFailedError(
                f"container {spec.key} ({container_id}) was removed as soon as it was created"
            )
        return status

    async def start(self, container_id: str) -> ContainerStatus:
        """See :meth:`pinfold.ports.runtime.Runtime.start`."""
        table = await self._open()
        before = table.get(container_id) or await table.fetch(container_id)
        if before is None:
            raise RuntimeFailedError(f"there is no container {container_id}")
        if before.state is not ContainerState.CREATED:
            raise RuntimeFailedError(
                f"container {before.key} ({container_id}) cannot be started:"
                f" it is {before.state.value}",
                "create another one",
            )
        await self._start(table, before)
        status = await table.fetch(container_id)
        if status is None:
            raise RuntimeFailedError(f"container {before.key} was removed while it was started")
        return status

    async def keepsake(self, container_id: str) -> str:
        """See :meth:`pinfold.ports.runtime.KeepsakeRuntime.keepsake`."""
        return (await self._open()).keepsake(container_id)

    async def signal(self, container_id: str, signal: int) -> None:
        """See :meth:`pinfold.ports.runtime.Runtime.signal`.

        Raises:
            RuntimeFailedError: the runtime does not answer, or it is somebody else's container.
        """
        table = await self._open()
        status = table.get(container_id)
        if status is None or status.state is ContainerState.RUNNING:
            status = await table.fetch(container_id)
        if status is None or status.state is ContainerState.EXITED:
            return
        if status.state is ContainerState.CREATED:
            if signal in _ENDING:
                table.end_created(container_id, 128 + signal, "ended before it was started")
        elif signal == signals.SIGKILL:
            await self._stop(container_id, 0)
        elif signal == signals.SIGTERM:
            if container_id not in self._stopping:
                self._stopping.add(container_id)
                self._do_behind(self._terminate(container_id, table.grace(container_id)))
        else:
            await _send_signal(table, status, signal)

    async def remove(self, container_id: str) -> None:
        """See :meth:`pinfold.ports.runtime.Runtime.remove`."""
        table = await self._open()
        if table.get(container_id) is None and await table.fetch(container_id) is None:
            return
        table.hide(container_id)
        try:
            await self._creator.remove(container_id)
        except BaseException:
            table.show(container_id)
            raise
        table.forget(container_id)

    async def remove_pod(self, pod_uid: str) -> None:
        """Remove a pod's sandbox and its emptyDir volumes, if any; raises RuntimeFailedError."""
        await self._sandboxes.remove(pod_uid)

    async def bound_logs(self) -> list[str]:
        """See :meth:`pinfold.ports.logs.BoundedLogs.bound_logs`."""
        if self._table is None:
            return []
        settings = self._settings
        problems = []
        for container_id, file in self._table.logs():
            # Nothing else is ours, whatever a runtime says.
            if file.is_relative_to(settings.log_root):
                problem = await rotate(self._client, container_id, file, settings.log_limits)
                problems += [problem] if problem else []
        return problems

    async def containers(self) -> Sequence[ContainerStatus]:
        """See :meth:`pinfold.ports.runtime.Runtime.containers`."""
        return await (await self._open()).refresh()

    async def exits(self) -> AsyncIterator[ContainerStatus]:
        """See :meth:`pinfold.ports.runtime.Runtime.exits`; it ends when the runtime is closed.

        Each exit is told once, to one of the iterators; one that waits for nobody is kept.  One
        that somebody else removed while it ran is told with exit code 137.
        """
        table = await self._open_patiently()
        while (told := await table.exits.get()) is not None:
            if isinstance(told, BaseException):
                # Who listens next is told what has ended meanwhile: it is found by looking.
                self._watch(table)
                raise told
            yield told
        table.exits.put_nowait(None)

    async def close(self) -> None:
        """See :meth:`pinfold.ports.runtime.Runtime.close`; the client is closed, too."""
        tasks = [task for task in (self._opening, self._watching, *self._behind) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._creator.close(), return_exceptions=True)
        if self._table is not None:
            self._table.exits.put_nowait(None)
        await self._client.close()

    # ------------------------------------------------------------------------------ what is behind

    async def _open(self) -> Table:
        """Know what there is before anything is changed: later exits are news from then on."""
        if self._table is not None:
            return self._table
        if self._opening is None or (self._opening.done() and self._opening.exception()):
            self._opening = asyncio.create_task(self._first_look(), name="first look")
        return await asyncio.shield(self._opening)

    async def _open_patiently(self) -> Table:
        while True:
            with suppress(CriError):
                return await self._open()
            await asyncio.sleep(1)

    async def _first_look(self) -> Table:
        table = Table(self._client)
        await table.refresh()
        floor = self._settings.oom_score_floor
        if floor is None:
            path = self._client.address.removeprefix("unix://")
            floor = await asyncio.to_thread(oom_score_floor, path)
        self._oom_score_floor = floor
        self._table = table
        self._watch(table)
        return table

    def _watch(self, table: Table) -> None:
        self._watching = asyncio.create_task(Watch(self._client, table).run(), name="exits of CRI")
        self._watching.add_done_callback(self._watch_ended)

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and self._table is not None and task.exception() is not None:
            self._table.exits.put_nowait(task.exception())

    async def _start(self, table: Table, before: ContainerStatus) -> None:
        request = pb.StartContainerRequest(container_id=before.id)
        ends = time.monotonic() + self._client.long
        while True:
            try:
                await self._client.call(
                    "StartContainer",
                    request,
                    pb.StartContainerResponse,
                    timeout=max(ends - time.monotonic(), 1),
                    retry=Retry.ONCE,
                )
            except CriError as error:
                now = await table.fetch(before.id) if error.code in _MAYBE_DONE else None
                if now is not None and now.state is not ContainerState.CREATED:
                    return
                if now is None or error.code != "UNAVAILABLE" or time.monotonic() > ends:
                    with suppress(CriError):
                        await table.fetch(before.id)
                    raise CriError(
                        f"container {before.key} could not be started: {error}", code=error.code
                    ) from None
            else:
                return

    async def _terminate(self, container_id: str, grace: int) -> None:
        try:
            # The one who asked waits for the exit, and sends SIGKILL where it does not come.
            with suppress(CriError):
                await self._stop(container_id, grace)
        finally:
            self._stopping.discard(container_id)

    async def _stop(self, container_id: str, grace: int) -> None:
        request = pb.StopContainerRequest(container_id=container_id, timeout=grace)
        with gone_is_fine():
            await self._client.call(
                "StopContainer",
                request,
                pb.StopContainerResponse,
                timeout=grace + self._client.long,
            )

    def _do_behind(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)


async def _send_signal(table: Table, status: ContainerStatus, number: int) -> None:
    """Send a signal to a container's main process; one that is gone is no error.

    Raises:
        RuntimeFailedError: there is no such signal, it is not permitted, or the runtime does not
            tell the process.
    """
    if status.pid is None:
        raise RuntimeFailedError(
            f"the runtime does not tell the process of container {status.key} ({status.id})"
        )
    try:
        descriptor = os.pidfd_open(status.pid)
    except OSError as error:
        gone_or_raise(f"process {status.pid}", error)
        return
    try:
        # The number could be somebody else's by now: the container still has it, so it is not.
        now = await table.fetch(status.id)
        if now is not None and now.pid == status.pid:
            signals.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    except (OSError, ValueError) as error:
        raise RuntimeFailedError(
            f"signal {number} could not be sent to process {status.pid} of container"
            f" {status.key}: {error}"
        ) from None
    finally:
        os.close(descriptor)

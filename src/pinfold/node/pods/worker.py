"""The life of one pod: init containers in order, sidecars, the others; restarts; the end.

Source: the kubelet's pod lifecycle (init containers one after the other, a restartable one beside
those after it; restart policy with an exponential back-off; at the end SIGTERM, the grace period,
SIGKILL; sidecars last, in reverse order).
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from pinfold.core.pod.pod import Container
from pinfold.node.pods.pod_life import PodLife
from pinfold.node.pods.worker_host import ManagerHost
from pinfold.ports.errors import PortError, RuntimeFailedError
from pinfold.ports.records import PodPhase
from pinfold.ports.runtime import ContainerState, ContainerStatus
from pinfold.retry.backoff import Backoff

CANNOT_START: Final = 128
"""The exit code of a container that could not be started (as container runtimes report it)."""


FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 10.0
"""Seconds between two tries to end what is left of a container, or to start one."""


class PodWorker:
    """One pod's life, as a task of its own."""

    def __init__(self, host: ManagerHost, pod: PodLife) -> None:
        self._host = host
        self._pod = pod
        self._task: asyncio.Task[None] | None = None
        self._sidecars: list[asyncio.Task[int]] = []

    def start(self, spawn: Callable[..., asyncio.Task[None]]) -> None:
        """Begin, or go on where an agent that is gone left off."""
        self._task = spawn(self._live(), name=f"pod {self._pod.uid}")

    async def stop(self) -> None:
        """Start nothing more; what runs goes on.  Returns when nothing is being started."""
        async with self._pod.lock:
            tasks = [*self._sidecars, *([] if self._task is None else [self._task])]
            current = asyncio.current_task()
            for task in tasks:
                if task is not current:
                    task.cancel()
        await asyncio.gather(*(t for t in tasks if t is not current), return_exceptions=True)

    async def _live(self) -> None:
        pod = self._pod
        spec = self._host.now(pod).workload.pod
        for container in spec.init_containers:
            if container.is_sidecar:
                await self._begin_sidecar(container)
            elif await self._run(container) != 0:
                self._host.ended(pod, PodPhase.FAILED)
                return
        running: list[asyncio.Task[int]] = []
        try:
            for container in spec.containers:
                running.append(  # noqa: PERF401 - what was begun must be known when cancelled
                    await self._begin(container)
                )
            pod.started.set()
            await self._host.pod_running(pod)
            codes = await asyncio.gather(*running)
        except asyncio.CancelledError:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise
        failed = any(codes)
        self._host.ended(pod, PodPhase.FAILED if failed else PodPhase.SUCCEEDED)

    async def _begin(self, container: Container) -> asyncio.Task[int]:
        """Run a container in a task; returns once it was started, or failed to the first time."""
        begun = asyncio.Event()
        task = asyncio.create_task(self._run(container, begun))
        waiter = asyncio.create_task(begun.wait())
        try:
            await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        finally:
            waiter.cancel()
        return task

    async def _begin_sidecar(self, container: Container) -> None:
        self._sidecars.append(await self._begin(container))

    async def _run(self, container: Container, begun: asyncio.Event | None = None) -> int:
        """Keep a container running as its restart policy says; returns the last exit code."""
        host, pod = self._host, self._pod
        status = host.containers.seen.statuses.get(pod.key(container))
        now = host.now(pod)
        record = now.record
        attempt = record.restarts.get(container.name, 0)
        ended = record.exit_codes.get(container.name)
        if status is None and ended is not None:
            if not now.workload.restarts(container, ended):
                return ended
            attempt += 1
        loop = asyncio.get_running_loop()
        while True:
            is_new = status is None
            away = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
            while (found := await self._running(container, status, attempt, begun)) is None:
                # No attempt of the container's, and nothing of it is left.
                is_new, status = True, None
                await self._for_sure(container, lambda: host.containers.end(pod.key(container)))
                await asyncio.sleep(away.failed())
            status = found
            if begun is not None:
                begun.set()
            began = loop.time()
            if status.state is not ContainerState.EXITED:
                status = await host.wait_container(pod, status)
            # The times of the status are those of a clock that somebody may have set meanwhile.
            ran_for = loop.time() - began if is_new else _ran_for(status)
            code = CANNOT_START if status.exit_code is None else status.exit_code
            again = host.now(pod).workload.restarts(container, code)
            # In this order: no stray runs on when the CPUs of an init container are given back, and
            # an exit is never forgotten before it is written down.
            await self._for_sure(container, lambda: host.containers.end(pod.key(container)))
            await host.container_exited(pod, container, code, final=not again)
            await self._forget(container, status)
            if not again:
                return code
            attempt = max(attempt, status.attempt) + 1
            await asyncio.sleep(host.pause_before(attempt, ran_for))
            status = None

    async def _running(
        self,
        container: Container,
        status: ContainerStatus | None,
        attempt: int,
        begun: asyncio.Event | None,
    ) -> ContainerStatus | None:
        """The container once it was started; one that could not be counts as exited.

        None where the runtime was away.  Who is cancelled leaves to the next agent what there is.
        """
        host, pod = self._host, self._pod
        if status is not None and status.state is not ContainerState.CREATED:
            return status
        try:
            # Without the lock: who ends the pod waits neither for an image nor for CPUs.
            image = await self._image(container, begun) if status is None else ""
            await host.until_it_may_run(pod, container)
            async with host.at_work(pod, container):
                if status is None:
                    return await host.start_container(pod, container, attempt, image)
                return await host.continue_container(pod, container, status)
        except PortError as error:
            failure = error
        pod.failure = f"container {container.name} was not started: {failure}"
        host.report(pod, pod.failure)
        key = pod.key(container)
        await host.until_it_answers()
        await self._for_sure(container, lambda: host.forget_attempts(key))
        if _is_away(failure):
            return None
        return ContainerStatus(
            id="",
            key=key,
            attempt=attempt,
            state=ContainerState.EXITED,
            exit_code=CANNOT_START,
            message=str(failure),
        )

    async def _image(self, container: Container, begun: asyncio.Event | None) -> str:
        """See that an image is there: whatever restarts, no attempt is counted before it is.

        Source: the kubelet's ``startContainer``, in which this comes before there is a container.

        Raises:
            PortError: the runtime is away.
        """
        host, pod = self._host, self._pod
        failures = 0
        while True:
            try:
                return await host.pull(pod, container)
            except PortError as error:
                if _is_away(error):
                    raise
                failures += 1
                pause = host.pause_after(failures)
                problem = f"{error}; trying again in {pause:g} s"
                host.report(pod, f"container {container.name} waits for its image: {problem}")
            if begun is not None:
                begun.set()
            await asyncio.sleep(pause)

    async def _forget(self, container: Container, status: ContainerStatus) -> None:
        if status.id:
            host = self._host
            await self._for_sure(container, lambda: host.forget_container(status))

    async def _for_sure(self, container: Container, work: Callable[[], Awaitable[None]]) -> None:
        """Try until it works: as long as something of a container is left, its CPUs are taken."""

        async def once() -> None:
            async with self._host.at_work(self._pod, container):
                await work()

        await self._insist(once, f"container {container.name} is not gone")

    async def _insist(self, work: Callable[[], Awaitable[None]], problem: str) -> None:
        def failed(error: Exception, _pause: float) -> None:
            self._host.report(self._pod, f"{problem}: {error}")

        await Backoff(FIRST_PAUSE, LONGEST_PAUSE, PortError).insist(work, failed)

    async def terminate(self, live: Sequence[ContainerStatus], grace: float) -> None:
        """End everything: SIGTERM, the grace period for all, SIGKILL; sidecars after the others."""
        await self.stop()
        pod, loop = self._pod, asyncio.get_running_loop()
        deadline = loop.time() + grace
        spec = self._host.now(pod).workload.pod
        sidecars = [c for c in spec.init_containers if c.is_sidecar]
        others = [c for c in spec.all_containers if not c.is_sidecar]
        await self._end_all(others, live, deadline)
        for container in reversed(sidecars):
            await self._end_all([container], live, deadline)

    async def _end_all(
        self,
        containers: Sequence[Container],
        live: Sequence[ContainerStatus],
        deadline: float,
    ) -> None:
        host, pod, loop = self._host, self._pod, asyncio.get_running_loop()
        attempts = [
            [status for status in live if status.key == pod.key(container)]
            for container in containers
        ]
        running = [
            status
            for statuses in attempts
            for status in statuses
            if status.state is ContainerState.RUNNING
        ]
        left = deadline - loop.time()
        if running and left > 0:
            waits = [asyncio.create_task(host.wait_container(pod, status)) for status in running]
            asks = [asyncio.create_task(self._ask_to_end(status)) for status in running]
            try:
                await asyncio.wait(waits, timeout=left)
            finally:
                for task in (*waits, *asks):
                    task.cancel()
        for container, statuses in zip(containers, attempts, strict=True):
            await self._for_sure(
                container, functools.partial(host.containers.end, pod.key(container))
            )
            for status in statuses:
                await self._forget(container, status)

    async def _ask_to_end(self, status: ContainerStatus) -> None:
        """Send SIGTERM; one that cannot be asked is killed after the grace period all the same."""
        ask = functools.partial(self._host.containers.runtime.signal, status.id, signal.SIGTERM)
        await self._insist(ask, f"container {status.key.name} is not told to end")


def _is_away(error: PortError) -> bool:
    return isinstance(error, RuntimeFailedError) and error.is_away


def _ran_for(status: ContainerStatus) -> float:
    if status.started_at is None or status.finished_at is None:
        return 0.0
    return max(status.finished_at - status.started_at, 0.0)

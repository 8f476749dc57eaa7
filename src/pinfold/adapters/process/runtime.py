"""The runtime that runs containers as plain processes, with nothing but the kernel.

Each container has a folder (``folder.py``) and a supervisor (``supervisor.py``) that outlive the
agent; this is what an agent holds of them.  Ends are told by pidfds, never found by looking around.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pinfold.adapters.process.command import Command, resolve
from pinfold.adapters.process.container import Container
from pinfold.adapters.process.documents import Identity, Processes
from pinfold.adapters.process.folder import ContainerFolder
from pinfold.adapters.process.launch import give_word, kill_child, launch
from pinfold.adapters.process.processes import identify, send_signal
from pinfold.adapters.process.registry import Registry
from pinfold.linux.descriptors import FILE_LIMIT, file_limit, lack_of_files
from pinfold.logs.layout import LogLimits, log_file, prepare
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerSpec, ContainerState, ContainerStatus

_RECORD_PATIENCE: Final = 5.0
"""Seconds from the end of a main process to its record."""


_MOST_AT_ONCE: Final = 64
_FILES_FOR_EACH: Final = 64
"""Containers are created at once as far as there are so many files for each."""


class ProcessRuntime:
    """The :class:`pinfold.ports.runtime.Runtime` of plain processes, with its folders in ``root``.

    One object has ``root`` for itself, from its first use until :meth:`close`, in one event loop.
    A container gets its own session, the signals' defaults, umask 022, no open files, no standard
    input, and an environment of PATH, HOME and what the specification says; its working directory
    is ``/`` if none is given.  Its OOM score, priority and scheduling policy are the agent's where
    nothing else is asked for.

    What it writes goes to its log below ``log_root`` (``logs`` beside ``root`` if none is given;
    see :mod:`pinfold.logs.layout`), which stays when the container is removed; output and error as
    one, in the order in which they were written.

    A start that raises leaves the container EXITED, with exit code 127 (not found) or 126, as in
    a shell; :meth:`exits` does not tell of it again.  ``patience`` is how many seconds a
    supervisor, a start or a kill may take.
    """

    def __init__(
        self,
        root: Path,
        *,
        patience: float = 30.0,
        log_root: Path | None = None,
        log_limits: LogLimits | None = None,
    ) -> None:
        self._limits = log_limits or LogLimits()
        self._registry = Registry(root, self._limits)
        self._log_root = (log_root or root.with_name("logs")).absolute()
        self._patience = patience
        # Each takes some ten files while it goes on.
        at_once = min(_MOST_AT_ONCE, max(1, file_limit() // _FILES_FOR_EACH))
        self._creating = asyncio.Semaphore(at_once)

    def lack(self, containers: int) -> str:
        """See :meth:`pinfold.ports.runtime.Watching.lack`: each is held by a pidfd."""
        return lack_of_files(containers)

    async def create(self, spec: ContainerSpec) -> ContainerStatus:
        """See :meth:`pinfold.ports.runtime.Runtime.create`."""
        self._registry.open()
        command = resolve(spec)
        async with self._creating:
            return await self._create(spec, command)

    async def _create(self, spec: ContainerSpec, command: Command) -> ContainerStatus:
        folder = self._new_folder()
        supervisor = None
        log = log_file(self._log_root, spec)
        try:
            prepare(log)
            folder.make(log)
            order = command.order(self._registry.boot, FILE_LIMIT)
            supervisor = await launch(
                folder, spec, order, patience=self._patience, limits=self._limits
            )
            return self._registry.hold(folder).status
        except BaseException:
            if supervisor is not None:
                kill_child(supervisor, folder)
            with suppress(RuntimeFailedError):
                folder.delete()
            raise

    async def start(self, container_id: str) -> ContainerStatus:
        """See :meth:`pinfold.ports.runtime.Runtime.start`."""
        self._registry.open()
        container = self._registry.get(container_id)
        if container is None:
            raise RuntimeFailedError(f"there is no container {container_id}")
        if container.status.state is not ContainerState.CREATED:
            raise RuntimeFailedError(
                f"container {container.status.key} ({container_id}) cannot be started:"
                f" it is {container.status.state.value}",
                "create another one",
            )
        is_known = False
        container.is_awaited = True
        try:
            await self._give_word(container)
        except RuntimeFailedError:
            is_known = True
            raise
        finally:
            container.is_awaited = False
            if container.ended.is_set() and not is_known:
                self._registry.tell(container)
        return container.status

    async def signal(self, container_id: str, signal: int) -> None:
        """See :meth:`pinfold.ports.runtime.Runtime.signal`; so is one that was removed.

        Raises:
            RuntimeFailedError: there is no such signal, or it is not permitted.
        """
        self._registry.open()
        container = self._registry.get(container_id)
        if container is None or container.processes is None or container.ended.is_set():
            return
        send_signal(container.processes.main, signal)

    async def remove(self, container_id: str) -> None:
        """See :meth:`pinfold.ports.runtime.Runtime.remove`; one that was removed is no error.

        Raises:
            RuntimeFailedError: the process does not end, or the folder cannot be deleted; the
                container is still there, and removing it can be tried again.
        """
        self._registry.open()
        container = self._registry.get(container_id)
        if container is None:
            return
        was_ended = container.ended.is_set()
        container.is_awaited = True
        try:
            await self._registry.end(container, self._patience)
            container.folder.delete()
            self._registry.forget(container)
        finally:
            container.is_awaited = False
            if container.ended.is_set() and not was_ended:
                self._registry.tell(container)

    async def containers(self) -> Sequence[ContainerStatus]:
        """See :meth:`pinfold.ports.runtime.Runtime.containers`.

        The message of one with a damaged file says so.
        """
        self._registry.open()
        self._registry.collect()
        for container in self._registry:
            container.notice_start()  # an agent that was killed may have given the word
        return [container.status for container in self._registry]

    async def keepsake(self, container_id: str) -> str:
        """See :meth:`pinfold.ports.runtime.KeepsakeRuntime.keepsake`."""
        self._registry.open()
        container = self._registry.get(container_id)
        return "" if container is None else container.keepsake

    async def mended(self) -> Sequence[str]:
        """See :meth:`pinfold.ports.runtime.MendingRuntime.mended`."""
        self._registry.open()
        return tuple(self._registry.problems)

    async def exits(self) -> AsyncIterator[ContainerStatus]:
        """See :meth:`pinfold.ports.runtime.Runtime.exits`; it ends when the runtime is closed.

        Each exit is told once, to one of the iterators; one that waits for nobody is kept.
        """
        self._registry.open()
        while (container := await self._registry.next_exit()) is not None:
            yield container.status

    async def attach(
        self, spec: ContainerSpec, pid: int, start: int | None = None
    ) -> ContainerStatus:
        """Account for a process that somebody else started; it is RUNNING.

        Its exit code is known to whoever started it, and None here.

        Raises:
            RuntimeFailedError: there is no such process, or the record cannot be written.
        """
        self._registry.open()
        main = identify(pid)
        if main is None or start not in (None, main.start):
            raise RuntimeFailedError(f"there is no process {pid}")
        folder = self._new_folder()
        identity = Identity(spec.key, spec.attempt)
        processes = Processes(self._registry.boot, main, None, "", identity)
        try:
            folder.make()
            folder.write_spec(spec, processes)
            folder.write_started(time.time())
            folder.write_processes(processes)
            return self._registry.hold(folder).status
        except BaseException:
            with suppress(RuntimeFailedError):
                folder.delete()
            raise

    def log(self, container_id: str) -> Path:
        """The log of a container (see :mod:`pinfold.logs.layout`); there once it has written."""
        return self._registry.root / container_id / "log"

    async def bound_logs(self) -> list[str]:
        """See :meth:`pinfold.ports.logs.BoundedLogs.bound_logs`.

        A log is bounded by whoever writes it.  Containers that an older program made write to
        files themselves, which can only be emptied.
        """
        self._registry.open()
        found = []
        for container in self._registry:
            path = container.folder.path / "log"
            try:
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_size > self._limits.most:
                    os.truncate(path, 0)
                    found.append(f"{path}: emptied, as it had {status.st_size} bytes")
            except OSError:
                continue  # there is none
        return found

    async def close(self) -> None:
        """See :meth:`pinfold.ports.runtime.Runtime.close`."""
        self._registry.close()

    def _new_folder(self) -> ContainerFolder:
        """A name that sorts by the time, and is unique whatever the clock does."""
        name = f"{time.time_ns():016x}{secrets.token_hex(8)}"
        return ContainerFolder(self._registry.root / name)

    async def _give_word(self, container: Container) -> None:
        """Let a created container go; it runs when this returns, or has ended when this raises."""
        key = container.status.key
        try:
            failure = await give_word(container.folder, patience=self._patience)
        except OSError as error:  # also TimeoutError
            # The word may have been given: only killing it makes sure that it never runs.
            await self._registry.end(container, self._patience)
            raise RuntimeFailedError(
                f"container {key} could not be started and was killed:"
                f" {str(error) or f'nothing happened for {self._patience:g} s'}",
                "see that its cgroup is not frozen",
            ) from None
        if failure:
            await self._registry.wait(container, _RECORD_PATIENCE)
            raise RuntimeFailedError(*failure.split("\n", 1))
        container.notice_start()
        if container.status.started_at is None:
            await self._registry.wait(container, _RECORD_PATIENCE)
            raise RuntimeFailedError(
                f"container {key} ended before it was started"
                f" (exit code {container.status.exit_code})"
            )

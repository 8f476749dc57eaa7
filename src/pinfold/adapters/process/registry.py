"""The containers of one folder: found, followed to their ends, and kept from other agents."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from pinfold.adapters.process.container import (
    LONGEST_PAUSE,
    Container,
    hold,
    lost,
    read_exit,
    record_exit,
)
from pinfold.adapters.process.folder import ContainerFolder
from pinfold.adapters.process.launch import launch_reader
from pinfold.adapters.process.living import supervisors
from pinfold.adapters.process.processes import (
    ProcessWatch,
    identify,
    move_here,
    send_signal,
)
from pinfold.adapters.process.salvage import containers, look
from pinfold.linux.descriptors import raise_file_limit
from pinfold.linux.locks import HeldError, Lock, folder_of, lock
from pinfold.linux.processes import boot_id
from pinfold.logs.layout import LogLimits
from pinfold.ports.errors import RuntimeFailedError

_LOCK_PATIENCE: Final = 1.0
"""Seconds for an agent that was just killed to let go of the folder."""

_READER: Final = "reader of "
"""The token of a process that reads what a container writes: this and the container's."""


class Registry:
    """The containers below ``root``, which this object has for itself while it is open.

    A container is followed by its supervisor, which ends when the exit is on the disk; where the
    supervisor was killed, by its main process, and another process reads what it writes.
    """

    def __init__(self, root: Path, limits: LogLimits) -> None:
        self.root = root.absolute()
        self.limits = limits
        self.boot = ""
        self.problems: list[str] = []
        """What was damaged when this was opened, and what was made of it."""
        self._containers: dict[str, Container] = {}
        self._exited: asyncio.Queue[str | None] = asyncio.Queue()
        self._watch: ProcessWatch | None = None
        self._unwatched: list[str] = []
        self._lock: Lock | None = None
        self._closed = False

    def open(self) -> None:
        """Find the containers; nothing happens when this is open already.

        Raises:
            RuntimeFailedError: the folder cannot be used, another agent uses it, or this was
                closed.
        """
        if self._watch is not None:
            return
        if self._closed:
            raise RuntimeFailedError(f"the runtime of {self.root} was closed")
        self.boot = boot_id()
        raise_file_limit()
        watch = ProcessWatch()
        try:
            self.root.mkdir(0o700, parents=True, exist_ok=True)
            self._lock = self._take()
            self._watch = watch
            alive = supervisors(self.root)
            for found in containers(self.root, self.boot, alive, self.problems):
                container = self._add(hold(found))
                # Reservations may have changed: it works where the agent does, as its own do.
                if container.processes is not None and container.processes.boot == self.boot:
                    move_here(container.processes.supervisor)
        except BaseException as error:
            self._let_go()
            self._containers.clear()
            watch.close()
            if isinstance(error, OSError):
                raise RuntimeFailedError(
                    f"cannot use the folder {error.filename or self.root}: {error.strerror}",
                    "correct its owner and mode, or give another one",
                ) from None
            raise
        asyncio.get_running_loop().add_reader(watch.fileno(), self.collect)

    def close(self) -> None:
        """Let go of the containers; whoever waits for an exit gets none."""
        self._closed = True
        self._exited.put_nowait(None)
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch.fileno())
            self._watch.close()
        self._let_go()

    def __iter__(self) -> Iterator[Container]:
        return iter(self._containers.values())

    def get(self, container_id: str) -> Container | None:
        """A container as it is now."""
        self.collect()
        return self._containers.get(container_id)

    def hold(self, folder: ContainerFolder) -> Container:
        """Take up a container that was just made; raises RuntimeFailedError."""
        container = self._add(hold(look(folder, self.boot)))
        if container.ended.is_set():
            self.tell(container)
        return container

    def forget(self, container: Container) -> None:
        """Take out a container whose folder is deleted."""
        self._containers.pop(container.folder.id, None)

    def collect(self) -> None:
        """Take note of the processes that ended."""
        if self._watch is None:
            return
        tokens, self._unwatched = [*self._unwatched, *self._watch.ended()], []
        for token in tokens:
            container = self._containers.get(token.removeprefix(_READER))
            if container is None or container.ended.is_set():
                continue
            if token.startswith(_READER):
                self._have_read_later(container)
                continue
            container.is_orphan = True
            try:
                self._follow(container)
            except RuntimeFailedError:
                self._unwatched.append(token)  # too many open files; there may be fewer next time
            if container.ended.is_set() and not container.is_awaited:
                self.tell(container)

    def tell(self, container: Container) -> None:
        """Have an end told by :meth:`next_exit`, unless the container is forgotten by then."""
        self._exited.put_nowait(container.folder.id)

    async def next_exit(self) -> Container | None:
        """The next container that exited and was not removed since; None after :meth:`close`."""
        while True:
            container_id = await self._exited.get()
            if container_id is None:
                self._exited.put_nowait(None)
                return None
            if container_id in self._containers:
                return self._containers[container_id]

    async def end(self, container: Container, patience: float) -> None:
        """Kill the main process, and wait until its end is recorded.

        Raises:
            RuntimeFailedError: it may not be killed, or has not ended in ``patience`` seconds.
        """
        processes = container.processes
        if processes is None or container.ended.is_set():
            return
        send_signal(processes.main, signal.SIGKILL)
        if await self.wait(container, patience):
            return
        if processes.supervisor is not None and not container.is_orphan:
            # A supervisor that is stopped, or that a disk holds up, must not keep the container.
            send_signal(processes.supervisor, signal.SIGKILL)
            if await self.wait(container, 1):
                return
        pid = processes.main.pid
        raise RuntimeFailedError(
            f"process {pid} of container {container.status.key} was killed but does not end",
            f"thaw its cgroup, or see where it hangs: cat /proc/{pid}/stack",
        )

    async def wait(self, container: Container, patience: float) -> bool:
        """Wait for the end of a container; whether it came."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await container.ended.wait()
        return container.ended.is_set()

    def _add(self, container: Container) -> Container:
        self._follow(container)
        self._containers[container.folder.id] = container
        return container

    def _follow(self, container: Container) -> None:
        """Watch whichever process of a container's lives, or let it end."""
        watch, processes, token = self._watch, container.processes, container.folder.id
        now = time.time()
        if watch is None:
            return
        living = processes if processes is not None and processes.boot == self.boot else None
        if living is not None and living.supervisor is not None and not container.is_orphan:
            if watch.add(living.supervisor, token, reap=True):
                return
            container.is_orphan = True
        end = read_exit(container, now)
        if end is None:
            if living is not None and not container.is_main_watched:
                reap = not container.is_attached
                container.is_main_watched = watch.add(living.main, token, reap=reap)
                if container.is_main_watched:
                    self._have_read(container)
                    return
            end = lost(container, self.boot, now)
            record_exit(container, end)
        container.finish(end)

    def _have_read(self, container: Container) -> None:
        """See that what an orphan writes is read: it waits once its pipe is full."""
        if self._watch is None or container.processes is None or container.is_attached:
            return
        container.read_since = time.monotonic()
        pid = launch_reader(container.folder, container.processes.main, self.limits)
        # Too many open files: it reads all the same, and only its end is not noticed.
        with suppress(RuntimeFailedError):
            reader = None if pid is None else identify(pid)
            if reader is not None:
                self._watch.add(reader, f"{_READER}{container.folder.id}", reap=True)

    def _have_read_later(self, container: Container) -> None:
        """Replace a reader that has ended, the later the more often one has ended at once."""
        if time.monotonic() - container.read_since > LONGEST_PAUSE:
            container.reading.well()
        pause = container.reading.failed()
        asyncio.get_running_loop().call_later(pause, self._have_read_again, container)

    def _have_read_again(self, container: Container) -> None:
        if container.folder.id in self._containers and not container.ended.is_set():
            self._have_read(container)

    def _take(self) -> Lock:
        try:
            return lock(self.root, folder_of(self.root), patience=_LOCK_PATIENCE)
        except HeldError as held:
            raise RuntimeFailedError(
                f"{self.root} is used by another agent{held.who}", "stop it, or give another folder"
            ) from None

    def _let_go(self) -> None:
        self._watch = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

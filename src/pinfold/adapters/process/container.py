"""A container as the agent holds it, and as it is found on the disk after a restart."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.adapters.process.documents import Exit, Processes
from pinfold.adapters.process.folder import ContainerFolder
from pinfold.adapters.process.records import CorruptRecordError
from pinfold.adapters.process.salvage import Found
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerState, ContainerStatus
from pinfold.retry.backoff import Backoff

LOST_EXIT_CODE: Final = 137
"""128 + SIGKILL: for a main process whose supervisor was killed, so that nobody saw its end."""

UNKNOWN_EXIT_CODE: Final = 255
"""For a container that ended with the machine, or whose record is corrupt."""


_FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
"""Seconds until what reads an orphan's output is started again; one that lasts so long is well."""


class Container(Struct):
    """One container: its folder, its processes (None: the record is corrupt), what is known."""

    folder: ContainerFolder
    processes: Processes | None
    status: ContainerStatus
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_awaited: bool = False
    """Whether a caller waits for its end, so that :meth:`ProcessRuntime.exits` need not tell."""

    is_orphan: bool = False
    """Whether its supervisor is gone."""
    is_main_watched: bool = False
    """Whether its main process is watched, or was."""
    read_since: float = 0.0
    """When the last process that reads its output in place of its supervisor was started."""
    reading: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE, LONGEST_PAUSE))
    """How long it takes until the next one is, should that end."""

    @property
    def is_attached(self) -> bool:
        """Whether somebody else started its main process."""
        return self.processes is not None and self.processes.supervisor is None

    @property
    def keepsake(self) -> str:
        """What it was given to keep; "" where that is damaged."""
        with suppress(CorruptRecordError):
            return self.folder.read_spec().keepsake
        return ""

    def notice_start(self) -> None:
        """Become RUNNING when the main process has been given the word."""
        if self.status.state is ContainerState.CREATED:
            started = self.folder.started_at()
            if started is not None:
                self.status = replace(self.status, state=ContainerState.RUNNING, started_at=started)

    def finish(self, end: Exit) -> None:
        """Become EXITED."""
        self.notice_start()
        messages = (self.status.message, end.message)
        self.status = replace(
            self.status,
            state=ContainerState.EXITED,
            pid=None,
            exit_code=end.code,
            finished_at=end.at,
            message="; ".join(message for message in messages if message),
        )
        self.ended.set()


def hold(found: Found) -> Container:
    """A container that somebody knows, as if its main process were alive."""
    identity, processes, folder = found.identity, found.processes, found.folder
    if identity is None:
        raise RuntimeFailedError(
            f"{folder.path} was damaged as soon as it was written", "see the disk, and dmesg"
        )
    container = Container(
        folder,
        processes,
        ContainerStatus(
            folder.id,
            identity.key,
            identity.attempt,
            ContainerState.CREATED,
            processes.main.pid if processes else None,
            message="; ".join([*found.problems, *found.notes]),
        ),
    )
    container.notice_start()
    return container


def lost(container: Container, boot: str, now: float) -> Exit:
    """What to tell of a container whose main process is gone and whose end nobody saw."""
    processes = container.processes
    if processes is None:
        return Exit(UNKNOWN_EXIT_CODE, now)
    if processes.boot != boot:
        return Exit(UNKNOWN_EXIT_CODE, now, "the machine was restarted")
    if processes.supervisor is None:
        return Exit(None, now, "its exit status is known only to the process that started it")
    return Exit(
        LOST_EXIT_CODE,
        now,
        f"its supervisor (process {processes.supervisor.pid}) was killed, and its exit status lost",
    )


def read_exit(container: Container, now: float) -> Exit | None:
    """The recorded end, also when the record is corrupt; None when there is none."""
    try:
        return container.folder.read_exit()
    except CorruptRecordError as error:
        return Exit(UNKNOWN_EXIT_CODE, now, str(error))


def record_exit(container: Container, end: Exit) -> None:
    """Keep an end that the agent concluded for the next agent, which would conclude the same."""
    with suppress(RuntimeFailedError):
        container.folder.write_exit(end)

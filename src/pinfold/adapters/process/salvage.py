"""The containers of a folder at the start, with everything that somebody may have done to them.

No file of a container stops a start or loses a container that lives.  Whose it is stands in three
places, and what a damaged file said of its processes is asked of the kernel.  A folder that nobody
can make sense of is moved aside, into ``damaged``, and no process is touched for it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pinfold.adapters.process.documents import Identity, Processes, Spec
from pinfold.adapters.process.folder import ContainerFolder
from pinfold.adapters.process.living import Supervisor
from pinfold.adapters.process.processes import ProcessId, parent_of, send_signal
from pinfold.adapters.process.records import CorruptRecordError, is_there
from pinfold.node.port_errors import RuntimeFailedError

DAMAGED: Final = "damaged"
"""The folder with those that nobody can make sense of."""

_ID: Final = re.compile(r"[0-9a-f]{32}")
_DOOMED: Final = ".removing"


@dataclass(slots=True)
class Found:
    """A container as its folder and the kernel tell of it.

    ``processes`` is None where nobody knows any; ``notes`` are for its status, ``problems`` what
    was damaged.
    """

    folder: ContainerFolder
    identity: Identity | None = None
    processes: Processes | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def look(folder: ContainerFolder, boot: str, living: Supervisor | None = None) -> Found:
    """Read one folder, and put right what ``living``, its supervisor, tells otherwise."""
    found = Found(folder)
    spec = state = None
    try:
        spec = folder.read_spec()
    except CorruptRecordError as error:
        # An agent that is killed early has not written it; what was started, had it.
        if is_there(folder.path / "spec.json") or folder.started_at() is not None:
            found.problems.append(str(error))
    try:
        state = found.processes = folder.read_processes()
        found.notes += [state.note] if state.note else []
    except CorruptRecordError as error:
        found.problems.append(str(error))
    told = (
        None if spec is None else spec.identity,
        None if state is None else state.identity,
        None if living is None else living.identity,
    )
    found.identity = next((one for one in told if one is not None), None)
    if _know_better(found, spec, boot, living) and found.processes is not None:
        waits = living is not None and living.waits
        with suppress(RuntimeFailedError):
            folder.mend(found.processes, None if waits else _began(found.processes.main))
    return found


def _know_better(found: Found, spec: Spec | None, boot: str, living: Supervisor | None) -> bool:
    """Find the processes without ``state``; whether the folder says something else of them."""
    state = found.processes
    if found.identity is None:
        return False
    if living is not None:
        if state is None or not _is_told(state, boot, living):
            main = living.main()
            if main is None:
                return False  # it has ended this moment
            if state is not None:
                found.problems.append(f"{found.folder.path}/state tells of other processes")
            found.processes = Processes(boot, main, living.process, "", found.identity)
            return True
        return not found.folder.has_room() or not (living.waits or found.folder.started_at())
    if state is None and spec is not None and spec.attached is not None:
        found.processes = spec.attached
        return True
    return state is not None and state.supervisor is None and not found.folder.started_at()


def _is_told(state: Processes, boot: str, living: Supervisor) -> bool:
    """Whether a file tells of the processes that are there."""
    at_home = parent_of(state.main.pid) in {living.process.pid, None}
    return state.boot == boot and state.supervisor == living.process and at_home


def containers(
    root: Path, boot: str, living: Mapping[str, Supervisor], problems: list[str]
) -> Iterator[Found]:
    """The containers below ``root``; what was damaged is added to ``problems``.

    Args:
        root: where their folders are.
        boot: the kernel's name for the time since the machine was started.
        living: the supervisors that live, by the container's id.
        problems: what was found, and what was made of it.
    """
    missing = dict(living)
    for folder in _folders(root, living):
        supervisor = missing.pop(folder.id, None)
        if not is_there(folder.path):
            if supervisor is not None and supervisor.waits:
                _end(supervisor)  # its main process has executed nothing, and nobody will start it
            continue
        found = look(folder, boot, supervisor)
        problems += [f"container {_name(found)}: {problem}" for problem in found.problems]
        if found.identity is None:
            problems.append(_quarantine(folder))
        else:
            yield found
    for supervisor in missing.values():
        if supervisor.waits:
            _end(supervisor)
        elif (found_again := _make_again(root, supervisor, boot)) is not None:
            problems.append(
                f"container {_name(found_again)}: its folder was removed and is there again"
            )
            yield found_again


def _name(found: Found) -> str:
    return found.folder.id if found.identity is None else str(found.identity.key)


def _folders(root: Path, living: Mapping[str, Supervisor]) -> Iterator[ContainerFolder]:
    """All folders; what an agent left half made or half removed is cleared away.

    A supervisor of an agent that was killed may still be about to write ``state``.  It does so
    under the folder's name: once the folder has another one, it fails and ends, or has succeeded.
    """
    for path in sorted(root.iterdir()):
        name = path.name.removesuffix(_DOOMED)
        if not _ID.fullmatch(name) or not os.path.isdir(path):  # noqa: PTH112 - never raises
            continue
        folder = ContainerFolder(path.with_name(name))
        doomed = path.with_name(name + _DOOMED)
        with suppress(OSError):
            if path != doomed and not is_there(path / "state") and not _lives(folder, living):
                path.rename(doomed)
                path = doomed  # noqa: PLW2901 - the same folder
            if path == doomed and is_there(path / "state"):
                path.rename(folder.path)
                path = folder.path  # noqa: PLW2901 - the same folder
            if path == doomed:
                shutil.rmtree(path)
        yield folder


def _lives(folder: ContainerFolder, living: Mapping[str, Supervisor]) -> bool:
    """Whether a container without ``state`` is one all the same, which only lost that file."""
    supervisor = living.get(folder.id)
    if supervisor is not None:
        return supervisor.executed() is not None
    with suppress(CorruptRecordError):
        attached = folder.read_spec().attached
        return attached is not None and is_there(Path(f"/proc/{attached.main.pid}"))
    return False


def _make_again(root: Path, supervisor: Supervisor, boot: str) -> Found | None:
    folder = ContainerFolder(root / supervisor.folder.name)
    main = supervisor.executed()
    if supervisor.identity is None or main is None:
        return None
    found = Found(folder, supervisor.identity)
    found.processes = Processes(boot, main, supervisor.process, "", supervisor.identity)
    try:
        folder.make()
        folder.mend(found.processes, _began(main))
    except RuntimeFailedError:
        return None
    return found


def _began(process: ProcessId) -> float:
    """When a process of this boot was started, in seconds since the epoch."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - process.start / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def _end(supervisor: Supervisor) -> None:
    with suppress(RuntimeFailedError):
        send_signal(supervisor.process, signal.SIGKILL)


def _quarantine(folder: ContainerFolder) -> str:
    """Move a folder out of the way."""
    place = folder.path.parent / DAMAGED
    try:
        place.mkdir(0o700, exist_ok=True)
        aside = place / folder.id
        if is_there(aside):
            aside = place / f"{folder.id}-{time.time_ns():x}"
        folder.path.rename(aside)
    except OSError as error:
        return f"container {folder.id} is passed over: nobody knows whose it is ({error.strerror})"
    return f"container {folder.id} is passed over: nobody knows whose it is; see {aside}"

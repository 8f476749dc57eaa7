"""The containers of a folder at the start, with everything that somebody may have done to them.

No file of a container stops a start or loses a container that lives.  Whose it is stands in three
places: the command line of a supervisor that lives is believed first, then ``state``, which names
the processes too, then ``spec.json``.  What a damaged file said of the processes is asked of the
kernel.  A folder that nobody can make sense of, or that claims the processes of another, is moved
aside, into ``damaged``, and no process is touched for it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from pinfold.adapters.process.documents import Identity, Processes, Spec
from pinfold.adapters.process.folder import ContainerFolder
from pinfold.adapters.process.living import Supervisor
from pinfold.adapters.process.processes import ProcessId, identify, parent_of, send_signal
from pinfold.adapters.process.records import CorruptRecordError, is_there
from pinfold.ports.errors import RuntimeFailedError

DAMAGED: Final = "damaged"
"""The folder with those that nobody can make sense of."""

_ID: Final = re.compile(r"[0-9a-f]{32}")
_DOOMED: Final = ".removing"


class Found(Struct):
    """A container as its folder and the kernel tell of it.

    ``processes`` is None where nobody knows any; ``notes`` are for its status, ``problems`` what
    was damaged; ``strayed`` is the container whose ``spec.json`` lay here.
    """

    folder: ContainerFolder
    identity: Identity | None = None
    processes: Processes | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    strayed: Identity | None = None


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
    believed = state is not None and (living is None or _is_told(state, boot, living))
    told = (
        None if living is None else living.identity,
        state.identity if believed and state is not None else None,
        None if spec is None else spec.identity,
    )
    found.identity = next((one for one in told if one is not None), None)
    if spec is not None and spec.identity != found.identity:
        found.problems.append(f"{folder.path}/spec.json is of {spec.identity.key}; set aside")
        found.strayed, spec = spec.identity, None
        with suppress(RuntimeFailedError):
            folder.set_aside("spec.json")
    if _know_better(found, spec, boot, living) and found.processes is not None:
        # Asked now: it may not have forked its main process yet when the living were looked for.
        waits = living is not None and living.executed() is None
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
        if not found.folder.has_room():
            return True
        return not found.folder.started_at() and living.executed() is not None
    if state is None and spec is not None and spec.attached is not None:
        found.processes = spec.attached
        return True
    return state is not None and state.supervisor is None and not found.folder.started_at()


def _is_told(state: Processes, boot: str, living: Supervisor) -> bool:
    """Whether a file tells of the processes that are there."""
    at_home = parent_of(state.main.pid) in {living.process.pid, None}
    is_his = None in {state.identity, living.identity} or state.identity == living.identity
    return state.boot == boot and state.supervisor == living.process and at_home and is_his


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
    kept: dict[Hashable, Found] = {}
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
        elif supervisor is None and (owner := _whose(found, boot, living)) is not None:
            problems.append(_quarantine(folder, f"its processes are those of container {owner}"))
        else:
            claim = folder.id if supervisor is not None else _claim(found, boot)
            twin = kept.setdefault(claim, found)
            if twin is not found:
                if _is_written_to(found):
                    kept[claim], found, twin = found, twin, found
                why = f"its processes are those of container {twin.folder.id}"
                problems.append(_quarantine(found.folder, why))
    _give_back(kept.values())
    yield from kept.values()
    for supervisor in missing.values():
        if supervisor.waits:
            _end(supervisor)
        elif (found_again := _make_again(root, supervisor, boot)) is not None:
            problems.append(
                f"container {_name(found_again)}: its folder was removed and is there again"
            )
            yield found_again


def _whose(found: Found, boot: str, living: Mapping[str, Supervisor]) -> str | None:
    """The other container whose living supervisor this folder tells of."""
    processes = found.processes
    if processes is None or processes.boot != boot or processes.supervisor is None:
        return None
    main = processes.main
    parent = parent_of(main.pid) if identify(main.pid) == main else None
    for container_id, supervisor in living.items():
        if supervisor.process == processes.supervisor or supervisor.process.pid == parent:
            return container_id
    return None


def _claim(found: Found, boot: str) -> Hashable:
    """What no other folder may claim: a main process that lives, else nothing but its own name.

    A process that somebody else started may be that of several containers.
    """
    processes = found.processes
    if processes is None or processes.boot != boot:
        return found.folder.id
    if identify(processes.main.pid) != processes.main:
        return found.folder.id
    return processes.main, None if processes.supervisor is not None else found.identity


def _is_written_to(found: Found) -> bool:
    """Whether the main process writes to this folder, and not to a copy of it."""
    if found.processes is None:
        return False
    with suppress(OSError):
        output = found.folder.path / "output"
        return output.samefile(f"/proc/{found.processes.main.pid}/fd/1")
    return False


def _give_back(kept: Collection[Found]) -> None:
    """Put each ``spec.json`` that lay with another container where it belongs, if none is there."""
    owners = {found.identity: found.folder.path for found in kept}
    for found in kept:
        owner = owners.get(found.strayed) if found.strayed is not None else None
        if owner is not None and not is_there(owner / "spec.json"):
            with suppress(OSError):
                (found.folder.path / "spec.json.damaged").rename(owner / "spec.json")


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


def _quarantine(folder: ContainerFolder, why: str = "nobody knows whose it is") -> str:
    """Move a folder out of the way; what to say of it."""
    place = folder.path.parent / DAMAGED
    try:
        place.mkdir(0o700, exist_ok=True)
        aside = place / folder.id
        if is_there(aside):
            aside = place / f"{folder.id}-{time.time_ns():x}"
        folder.path.rename(aside)
    except OSError as error:
        return f"container {folder.id} is passed over: {why} ({error.strerror})"
    return f"container {folder.id} is passed over: {why}; see {aside}"

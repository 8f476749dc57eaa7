"""What the kernel shows of the trial's processes, and what these are told.

A container's process is known by a variable in its environment, which its children inherit
wherever they move: ``TRIAL_POD=TRIAL/POD``, ``TRIAL_OWNS=N`` for one that owns N CPUs, and besides
``TRIAL_MOVES=1`` for one whose CPUs change meanwhile; such a one is read what it is told of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POD: Final = b"TRIAL_POD="
OWNS: Final = b"TRIAL_OWNS="
ESCAPES: Final = b"TRIAL_ESCAPES="
MOVES: Final = b"TRIAL_MOVES="

_YOUNG_TICKS: Final = 1000
"""Clock ticks in which a process may still execute what gives it its mark."""


_TOLD_IN: Final = "assignment.json"

_PF_EXITING: Final = 0x4
"""Of the flags in ``/proc/PID/stat`` (the kernel's ``include/linux/sched.h``)."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a container reads of its CPUs in its ``assignment.json``."""

    generation: int
    current: frozenset[int]
    coming: frozenset[int]

    @property
    def kept(self) -> frozenset[int]:
        """What it has, and is not to lose before it is told so."""
        return self.current & self.coming


@dataclass(frozen=True, slots=True)
class Thread:
    """Where a thread was put last, and how often it was given a CPU until then."""

    tid: int
    cpu: int
    turns: int


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment; ``allowed`` is the union over its threads.

    ``born`` is its start in clock ticks since the boot, ``owns`` how many CPUs its container owns
    (at first, where it ``moves``), ``escapes`` whether it is one that moves itself out of its
    cgroup.  ``has_ended`` is so as soon as it executes nothing of its own any more: the kernel may
    take a while to make it a zombie.
    """

    pid: int
    born: int
    pod: str
    owns: int
    escapes: bool
    allowed: frozenset[int]
    has_ended: bool
    moves: bool = False
    told: Told | None = None
    threads: tuple[Thread, ...] = ()

    @property
    def name(self) -> str:
        """The pod and the process, for a finding."""
        return f"{self.pod} (process {self.pid})"


class Processes:
    """The marked processes of one trial; what was learned of a process is kept while it lives."""

    def __init__(self, trial: str) -> None:
        self._prefix = POD + trial.encode() + b"/"
        self._marks: dict[tuple[int, int], _Mark | None] = {}

    def walk(self) -> list[Process]:
        """All that are there now, also those that have ended."""
        found, seen = [], {}
        told: dict[str, Told | None] = {}
        now = _ticks()
        for pid in _pids("/proc"):
            stat = _stat(pid)
            if stat is None:
                continue
            ended, born = stat
            mark = self._marks.get((pid, born))
            if mark is None and ((pid, born) not in self._marks or now - born < _YOUNG_TICKS):
                mark = self._read(pid)
            seen[pid, born] = mark
            if mark is not None:
                allowed = frozenset().union(*_allowed(pid))
                if mark.moves and mark.folder not in told:
                    told[mark.folder] = _told(mark.folder)
                found.append(
                    Process(
                        pid,
                        born,
                        mark.pod,
                        mark.owns,
                        mark.escapes,
                        allowed,
                        ended,
                        mark.moves,
                        told.get(mark.folder),
                        tuple(_threads(pid)),
                    )
                )
        self._marks = seen
        return found

    def _read(self, pid: int) -> _Mark | None:
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return None
        values = {w[: w.index(b"=") + 1]: w for w in words if b"=" in w}
        pod = values.get(POD, b"")
        if not pod.startswith(self._prefix):
            return None
        owns = values.get(OWNS, OWNS + b"0")[len(OWNS) :]
        name = pod[len(self._prefix) :].decode()
        moves = MOVES in values
        # Whatever the variable is called that says where it is.
        own = [w.partition(b"=")[2].decode() for w in words if w.startswith(b"PINFOLD_")]
        there = [one for one in own if moves and Path(one, _TOLD_IN).exists()]
        return _Mark(name, int(owns), ESCAPES in values, moves, there[0] if there else "")


@dataclass(frozen=True, slots=True)
class _Mark:
    """What the environment of a process says; ``folder`` is where its container is told."""

    pod: str
    owns: int
    escapes: bool
    moves: bool
    folder: str


def _told(folder: str) -> Told | None:
    if not folder:
        return None
    try:
        document = json.loads(Path(folder, _TOLD_IN).read_bytes())
        current, coming = (document[name]["cpus"] for name in ("current", "coming"))
        return Told(int(document["generation"]), cpus_in(current), cpus_in(coming))
    except (OSError, ValueError, KeyError):
        return None


def _threads(pid: int) -> Iterator[Thread]:
    for tid in _pids(f"/proc/{pid}/task"):
        folder = f"/proc/{pid}/task/{tid}"
        with suppress(OSError, IndexError, ValueError):
            # First how often it ran, then where: what is counted was there, or somewhere before.
            turns = int(Path(folder, "schedstat").read_bytes().split()[2])
            cpu = int(Path(folder, "stat").read_bytes().rpartition(b")")[2].split()[36])
            yield Thread(tid, cpu, turns)


def online() -> frozenset[int]:
    """The CPUs that are online now."""
    return _list("online")


def present() -> frozenset[int]:
    """The CPUs that could be online."""
    return _list("present")


def _list(name: str) -> frozenset[int]:
    return cpus_in(Path(f"/sys/devices/system/cpu/{name}").read_text(encoding="ascii"))


def cpus_in(text: str) -> frozenset[int]:
    """The CPUs of a list in the kernel's format."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def born(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot; None when it has ended."""
    stat = _stat(pid)
    return None if stat is None or stat[0] else stat[1]


def _stat(pid: int) -> tuple[bool, int] | None:
    """Whether a process has ended, and when it began; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) <= 19:
        return None
    return fields[0] in b"ZX" or bool(int(fields[6]) & _PF_EXITING), int(fields[19])


def _allowed(pid: int) -> Iterator[frozenset[int]]:
    for tid in _pids(f"/proc/{pid}/task"):
        with suppress(OSError):
            yield frozenset(os.sched_getaffinity(tid))


def _pids(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208 - names
    except OSError:
        return []


def _ticks() -> int:
    uptime = Path("/proc/uptime").read_text(encoding="ascii").split()[0]
    return int(float(uptime) * os.sysconf("SC_CLK_TCK"))

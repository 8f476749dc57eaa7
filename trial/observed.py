"""What the kernel shows of the trial's processes, and what a walk over them proves.

A container's process is known by a variable in its environment, which its children inherit
wherever they move: ``TRIAL_POD=TRIAL/POD``, and ``TRIAL_OWNS=N`` for one that owns N CPUs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

POD: Final = b"TRIAL_POD="
OWNS: Final = b"TRIAL_OWNS="
ESCAPES: Final = b"TRIAL_ESCAPES="

_YOUNG_TICKS: Final = 1000
"""Clock ticks in which a process may still execute what gives it its mark."""


_PF_EXITING: Final = 0x4
"""Of the flags in ``/proc/PID/stat`` (the kernel's ``include/linux/sched.h``)."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment; ``allowed`` is the union over its threads.

    ``born`` is its start in clock ticks since the boot, ``owns`` how many CPUs its container owns,
    ``escapes`` whether it is one that moves itself out of its cgroup.  ``has_ended`` is so as soon
    as it executes nothing of its own any more: the kernel may take a while to make it a zombie.
    """

    pid: int
    born: int
    pod: str
    owns: int
    escapes: bool
    allowed: frozenset[int]
    has_ended: bool

    @property
    def name(self) -> str:
        """The pod and the process, for a finding."""
        return f"{self.pod} (process {self.pid})"


class Processes:
    """The marked processes of one trial; what was learned of a process is kept while it lives."""

    def __init__(self, trial: str) -> None:
        self._prefix = POD + trial.encode() + b"/"
        self._marks: dict[tuple[int, int], tuple[str, int, bool] | None] = {}

    def walk(self) -> list[Process]:
        """All that are there now, also those that have ended."""
        found, seen = [], {}
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
                found.append(Process(pid, born, *mark, allowed, ended))
        self._marks = seen
        return found

    def _read(self, pid: int) -> tuple[str, int, bool] | None:
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return None
        values = {w[: w.index(b"=") + 1]: w for w in words if b"=" in w}
        pod = values.get(POD, b"")
        if not pod.startswith(self._prefix):
            return None
        owns = values.get(OWNS, OWNS + b"0")[len(OWNS) :]
        return pod[len(self._prefix) :].decode(), int(owns), ESCAPES in values


Walks = tuple[list[Process], list[Process], list[Process]]


@dataclass(slots=True)
class Judgement:
    """What the walks have shown so far."""

    walks: int = 0
    judged: int = 0
    """Pairs of an owner and a process of somebody else that were held against each other."""
    unjudged: int = 0
    """Walks around a CPU that went or came."""
    strangers: int = 0
    misplaced: int = 0
    findings: list[str] = field(default_factory=list)

    def find(self, kind: str, text: str) -> None:
        """Count a finding; the first are kept in words."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.findings) < 40:
            self.findings.append(f"{kind}: {text}")


class Judge:
    """Holds walks against each other; knows the CPUs that each owner was given (its home)."""

    def __init__(self) -> None:
        self.judgement = Judgement()
        self._homes: dict[str, frozenset[int]] = {}

    def look(
        self, walks: Walks, offline: frozenset[int] = frozenset()
    ) -> dict[str, frozenset[int]]:
        """Judge the middle one of three walks; the owners there, with their CPUs.

        Whoever is an owner, with the same CPUs, in all three was so at every moment of the middle
        one: nobody else may have been allowed there.  An owner keeps those of its CPUs that are
        not offline; while all of them are, it owns nothing, and may be where nobody else is owner.
        """
        before, now, after = (_by_identity(walk) for walk in walks)
        owners: dict[str, frozenset[int]] = {}
        for key, process in now.items():
            if not process.owns or process.has_ended or process.escapes:
                continue
            # The kernel leaves out CPUs that are on their way offline, before it says they are.
            if not process.allowed:
                continue
            # One that has ended shows where it was allowed, and holds nothing any more.
            around = [one for one in (before.get(key), after.get(key)) if one and not one.has_ended]
            if len(around) < 2 or any(one.allowed != process.allowed for one in around):
                continue
            cpus = self._owned(process, offline)
            if not cpus:
                continue
            known = owners.setdefault(process.pod, cpus)
            if process.allowed != known:
                self.judgement.find(
                    "misplaced",
                    f"{process.name} owns {_cpus(known)}, and may run on {_cpus(process.allowed)}",
                )
        self._look_for_strangers(owners, now.values())
        return owners

    def _owned(self, process: Process, offline: frozenset[int]) -> frozenset[int]:
        """The CPUs that a process owns now; none where that cannot be said."""
        if offline and process.pod in self._homes:
            return self._homes[process.pod] - offline
        if len(process.allowed) == process.owns:
            self._homes[process.pod] = process.allowed
            return process.allowed
        if not offline:
            self.judgement.find(
                "misplaced",
                f"{process.name} owns {process.owns} CPUs and may run on {_cpus(process.allowed)}",
            )
        return frozenset()

    def _look_for_strangers(
        self, owners: Mapping[str, frozenset[int]], processes: Collection[Process]
    ) -> None:
        for pod, cpus in owners.items():
            for process in processes:
                if process.pod == pod or process.has_ended or process.escapes:
                    continue
                self.judgement.judged += 1
                if cpus & process.allowed:
                    self.judgement.find(
                        "strangers",
                        f"{process.name} may run on {_cpus(process.allowed)}; {_cpus(cpus)} belong "
                        f"to {pod}",
                    )


def _by_identity(walk: list[Process]) -> Mapping[tuple[int, int], Process]:
    return {(process.pid, process.born): process for process in walk}


def _cpus(cpus: frozenset[int]) -> str:
    return ",".join(map(str, sorted(cpus))) or "no CPU"


def online() -> frozenset[int]:
    """The CPUs that are online now."""
    return _list("online")


def present() -> frozenset[int]:
    """The CPUs that could be online."""
    return _list("present")


def _list(name: str) -> frozenset[int]:
    text = Path(f"/sys/devices/system/cpu/{name}").read_text(encoding="ascii")
    cpus: set[int] = set()
    for part in text.strip().split(","):
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

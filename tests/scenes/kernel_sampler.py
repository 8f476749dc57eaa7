"""Watches from the kernel's side whether anybody is on an owner's CPUs; a process of its own.

``python -m tests.scenes.kernel_sampler ROOT STATE_FILE RESULT``.  ROOT is the cgroup below which
all containers are, STATE_FILE the agent's mirrored ``cpu_manager_state``.  It walks all threads
below ROOT, again and again, until its standard input ends; then it writes RESULT, a JSON document.

An owner is a main process with the argument ``owner:UID/CONTAINER``: it is there from its first
instruction (before that, the process is still the runtime's own) until it is gone.  Nothing is
taken to be at one moment that was not: a walk is judged with the walks around it.  Who was an owner
in the walks before and after it was so all along; who has run since the walk before, and is then
found on a CPU, ran on it or was to.

Nobody else may be on an owner's CPU, with one exception: whose group of the cpu controller has an
ancestor, sibling of one of the owner's, with ``cpu.idle`` 1, and who is in the cpuset of the idle
side; it borrows.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from pinfold.core.values.cpuset import CPUSet

LAST_CPU: Final = 36
"""Field 39 of ``/proc/PID/stat``, counted from the state (field 3)."""
START_TIME: Final = 19
PAUSE: Final = 0.004
KEPT: Final = 50
"""Findings that are kept whole; the others are only counted."""

MACHINERY: Final = (b"runc", b"containerd-shim", b"/proc/self/exe\0init", b"pinfold.adapters")
"""What a process in a container's cgroup begins with until it executes the container's command."""


PAUSE_PROCESS: Final = "/bin/sleep 2000000000"
"""A pod's sandbox holds its namespaces and sleeps; no manager confines it, so it counts apart."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread at one moment; ``ran`` is its time on CPUs so far, in nanoseconds."""

    tid: int
    born: int
    group: str
    command: str
    last: int
    allowed: CPUSet
    ran: int
    ranks: tuple[tuple[str, bool], ...] = ()
    """Its group of the cpu controller and those above, the highest first; whether each is idle."""


@dataclass(frozen=True, slots=True)
class Owner:
    """An owner's main process, and what the agent's record gives it (None: nothing)."""

    pid: int
    born: int
    group: str
    cpus: CPUSet | None
    allowed: CPUSet
    ranks: tuple[tuple[str, bool], ...] = ()


@dataclass(slots=True)
class Walk:
    """One walk over all threads."""

    at: float
    owners: dict[str, Owner] = field(default_factory=dict)
    threads: dict[tuple[int, int], Thread] = field(default_factory=dict)


@dataclass(slots=True)
class Result:
    """What was seen; ``judged`` counts threads of strangers beside an owner, walk by walk."""

    walks: int = 0
    judged: int = 0
    ran: int = 0
    """Of the judged ones, those that had run since the walk before."""
    owners: list[str] = field(default_factory=list)
    strangers: int = 0
    """How many findings: somebody else was, or was allowed, on an owner's CPU."""
    misplaced: int = 0
    """How many findings: an owner was not on its CPUs, or two had the same."""
    borrowers: int = 0
    """How often a borrower might run on an owner's CPU, walk by walk."""
    borrowed: int = 0
    """How often it was seen there after it had run."""
    sandboxes: int = 0
    """How often a sandbox's process ran on an owner's CPU (as it began or ended)."""
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)


class Sampler:
    """Walks below a cgroup, and judges."""

    def __init__(self, root: Path, state_file: Path) -> None:
        self._root = root
        self._state_file = state_file
        self._walks: list[Walk] = []
        self._owners: set[str] = set()
        self._cpu = _cpu_hierarchy()
        self.result = Result()

    def run(self, seconds: float | None = None) -> Result:
        """Walk until standard input ends, or for some seconds."""
        began = time.monotonic()
        while not self._is_over(None if seconds is None else began + seconds):
            self._walks = [*self._walks[-3:], self.walk()]
            self.result.walks += 1
            if len(self._walks) == 4:
                self._judge()
        self.result.seconds = time.monotonic() - began
        self.result.owners = sorted(self._owners)
        return self.result

    def _is_over(self, deadline: float | None) -> bool:
        if deadline is not None:
            time.sleep(PAUSE)
            return time.monotonic() > deadline
        return bool(select.select([sys.stdin], [], [], PAUSE)[0])

    # -------------------------------------------------------------------------------- looking

    def walk(self) -> Walk:
        """Everybody below the root, now."""
        walk = Walk(time.monotonic())
        record = self._record()
        for group, folder in ((str(one), one) for one in _folders(self._root)):
            for pid in _numbers(folder / "cgroup.procs"):
                command = _read(Path(f"/proc/{pid}/cmdline"))
                if not command or any(word in command[:200] for word in MACHINERY):
                    continue
                text = command.replace(b"\0", b" ").decode(errors="replace")[-120:]
                for thread in _threads(pid, group, text, self._ranks(pid)):
                    walk.threads[thread.tid, thread.born] = thread
                    if thread.tid == pid and (name := _owner(command)) is not None:
                        cpus, ranks = record.get(name), thread.ranks
                        mine = Owner(pid, thread.born, group, cpus, thread.allowed, ranks)
                        # A child that did not execute its own command yet looks the same.
                        walk.owners[name] = min(
                            (mine, walk.owners.get(name, mine)), key=lambda one: (one.born, one.pid)
                        )
        return walk

    def _ranks(self, pid: int) -> tuple[tuple[str, bool], ...]:
        """The groups of the cpu controller that a process is in, and which of them are idle."""
        if self._cpu is None:
            return ()
        found, path = [], ""
        for part in _group_of(pid, self._cpu).strip("/").split("/"):
            path += f"/{part}"
            found.append((path, _read(Path(f"{self._cpu}{path}/cpu.idle")).strip() == b"1"))
        return tuple(found)

    def _borrows(self, thread: Thread, owner: Owner) -> bool:
        """Whether the kernel ranks a thread below an owner, and it is where CPUs are lent to."""
        idle_side = str(self._root / "idle")
        if thread.group != idle_side and not thread.group.startswith(f"{idle_side}/"):
            return False
        for (its, is_idle), (owners, _) in zip(thread.ranks, owner.ranks, strict=False):
            if its != owners:
                return is_idle  # the first that differ are siblings
        return False

    def _record(self) -> Mapping[str, CPUSet]:
        """Who owns which CPUs, as the agent says."""
        try:
            entries = json.loads(self._state_file.read_text()).get("entries", {})
        except (OSError, ValueError):
            return {}
        return {
            f"{uid}/{container}": CPUSet.parse(cpus)
            for uid, containers in entries.items()
            for container, cpus in containers.items()
        }

    # -------------------------------------------------------------------------------- judging

    def _judge(self) -> None:
        earliest, before, walk, after = self._walks
        taken: dict[str, CPUSet] = {}
        for name, owner in walk.owners.items():
            if not _same(name, before, walk, after):
                continue
            self._owners.add(f"{name} {owner.pid}")
            cpus = owner.cpus
            if cpus is None:
                self._find("misplaced", f"{name} runs, and has no CPUs on record")
                continue
            if owner.allowed != cpus:
                self._find("misplaced", f"{name} owns {cpus}, and may run on {owner.allowed}")
            for other, its in taken.items():
                if not its.isdisjoint(cpus):
                    self._find("misplaced", f"{name} and {other} own {its & cpus}")
            taken[name] = cpus
            self._look_for_strangers(name, owner, walk, earliest, before)

    def _look_for_strangers(
        self, name: str, owner: Owner, walk: Walk, earliest: Walk, before: Walk
    ) -> None:
        cpus = owner.cpus or CPUSet()
        # Who ran between the last two walks did so beside an owner that was there before both.
        all_along = _same(name, earliest, before)
        for key, thread in walk.threads.items():
            if thread.group == owner.group or thread.group.startswith(f"{owner.group}/"):
                continue
            known = before.threads.get(key)
            ran = thread.ran != (known.ran if known else 0)
            if thread.command.startswith(PAUSE_PROCESS):
                self.result.sandboxes += ran and all_along and thread.last in cpus
                continue
            self.result.judged += 1
            self.result.ran += ran
            if self._borrows(thread, owner):
                self.result.borrowers += not thread.allowed.isdisjoint(cpus)
                self.result.borrowed += ran and all_along and thread.last in cpus
                continue
            if not thread.allowed.isdisjoint(cpus):
                self._find("strangers", f"{thread} may run on the CPUs {cpus} of {name}")
            if ran and all_along and thread.last in cpus:
                self._find("strangers", f"{thread} ran on the CPUs {cpus} of {name}")

    def _find(self, kind: str, text: str) -> None:
        setattr(self.result, kind, getattr(self.result, kind) + 1)
        if len(self.result.findings) < KEPT:
            self.result.findings.append(f"{kind}: {text}")


def _same(name: str, *walks: Walk) -> bool:
    """Whether an owner is the same process, with the same CPUs on record, in all walks."""
    found = [walk.owners.get(name) for walk in walks]
    return None not in found and len({(one.pid, one.born, one.cpus) for one in found if one}) == 1


def _owner(command: bytes) -> str | None:
    for word in command.split(b"\0"):
        if word.startswith(b"owner:"):
            return word[6:].decode()
    return None


def _folders(root: Path) -> Iterator[Path]:
    yield root
    with suppress(OSError):  # it is removed while it is walked
        for entry in os.scandir(root):
            if entry.is_dir(follow_symlinks=False):
                yield from _folders(Path(entry.path))


def _cpu_hierarchy() -> str | None:
    """Where the hierarchy with the cpu controller is mounted."""
    for line in _read(Path("/proc/self/mountinfo")).decode().splitlines():
        kind, _, options = line.partition(" - ")[2].split(" ", 2)
        point = line.split()[4]
        if kind == "cgroup" and "cpu" in options.split()[-1].split(","):
            return point
        if kind == "cgroup2" and b"cpu" in _read(Path(f"{point}/cgroup.controllers")).split():
            return point
    return None


def _group_of(pid: int, hierarchy: str) -> str:
    """The cgroup of a process in the cpu controller's hierarchy."""
    for line in _read(Path(f"/proc/{pid}/cgroup")).decode().splitlines():
        number, controllers, path = line.split(":", 2)
        unified = number == "0" and (Path(hierarchy) / "cgroup.controllers").exists()
        if unified or "cpu" in controllers.split(","):
            return path
    return ""


def _threads(
    pid: int, group: str, command: str, ranks: tuple[tuple[str, bool], ...]
) -> Iterator[Thread]:
    try:
        tids = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return
    for tid in tids:
        at = Path(f"/proc/{pid}/task/{tid}")
        # Run time before CPU: a move in between is then not taken for a run.
        ran = _read(at / "schedstat").split()
        fields = _read(at / "stat").rpartition(b")")[2].split()
        allowed = _read(at / "status").partition(b"Cpus_allowed_list:")[2].split()
        if not (ran and fields and allowed) or fields[0] in (b"Z", b"X"):
            continue
        yield Thread(
            tid,
            int(fields[START_TIME]),
            group,
            command,
            int(fields[LAST_CPU]),
            CPUSet.parse(allowed[0].decode()),
            int(ran[0]),
            ranks,
        )


def _numbers(file: Path) -> list[int]:
    return [int(word) for word in _read(file).split()]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def main() -> None:
    """See the module."""
    root, state_file, result = map(Path, sys.argv[1:])
    sampler = Sampler(root, state_file)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    found = sampler.run()
    result.write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()

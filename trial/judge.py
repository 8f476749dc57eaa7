"""What walks over the trial's processes prove."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from trial.observed import Process

Walks = tuple[list[Process], list[Process], list[Process]]


@dataclass(slots=True)
class Judgement:
    """What the walks have shown so far."""

    walks: int = 0
    judged: int = 0
    """Pairs of an owner and a process of somebody else that were held against each other."""
    ran: int = 0
    """Threads that had run, whose last CPU was held against the owners'."""
    moving: int = 0
    """Owners whose CPUs were not the same in all of three walks, and that were judged."""
    unsure: int = 0
    """Owners with so much news between three walks that nobody can tell what was theirs."""
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
        self._before: dict[str, frozenset[int]] = {}
        self._turns: dict[tuple[int, int], int] = {}

    def look(
        self, walks: Walks, offline: frozenset[int] = frozenset()
    ) -> dict[str, frozenset[int]]:
        """Judge the middle one of three walks; the owners there, with their CPUs.

        Whoever is an owner, with the same CPUs, in all three was so at every moment of the middle
        one: nobody else may have been allowed there.  An owner keeps those of its CPUs that are
        not offline; while all of them are, it owns nothing, and may be where nobody else is owner.
        Of an owner that moves, that is so of those CPUs that it had in all three.
        """
        before, now, after = (_by_identity(walk) for walk in walks)
        owners = self._moving_owners((before, now, after), offline)
        for key, process in now.items():
            if not process.owns or process.moves or process.has_ended or process.escapes:
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
        self._look_where_they_ran(owners, now.values())
        return owners

    def skip(self) -> None:
        """Some walks are not judged: nobody knows what became of whom since the one before."""
        self._before, self._turns = {}, {}

    def _moving_owners(
        self, walks: tuple[_Walk, _Walk, _Walk], offline: frozenset[int]
    ) -> dict[str, frozenset[int]]:
        """The owners that move, with what was theirs, and no one else's, all the time."""
        first, now, last = walks
        found: dict[str, list[tuple[Process, Process, Process]]] = {}
        for key, process in now.items():
            around = first.get(key), process, last.get(key)
            if process.moves and not process.escapes and all(o and not o.has_ended for o in around):
                found.setdefault(process.pod, []).append(around)  # type: ignore[arg-type]  # none is None
        owners = {}
        for pod, processes in found.items():
            told = [one.told for one in processes[0]]
            began, _, ended = told
            seen = [one.allowed for three in processes for one in three]
            cpus = frozenset.intersection(*seen)
            self.judgement.moving += any(one != cpus for one in seen)
            if began is None or ended is None or ended.generation - began.generation > 1:
                # What it has at all three looks may have been somebody else's in between.
                self.judgement.unsure += 1
                continue
            if began.generation != ended.generation:
                # What is taken is told before: it was not, by the only news that there was.
                cpus &= began.kept & ended.kept
            else:
                kept = began.kept - offline
                for _, process, _ in processes:
                    if kept - process.allowed:
                        self.judgement.find(
                            "misplaced",
                            f"{process.name} was told that it keeps {_cpus(kept)}, and may run on "
                            f"{_cpus(process.allowed)}",
                        )
                cpus |= kept
            if offline:
                # Without any of its CPUs it is where others are.
                cpus &= began.current | ended.current
            owners[pod] = cpus - offline
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

    def _look_where_they_ran(
        self, owners: dict[str, frozenset[int]], processes: Collection[Process]
    ) -> None:
        """Who has run since the walk before, and where; owners are those of both walks."""
        held = {pod: cpus & self._before.get(pod, frozenset()) for pod, cpus in owners.items()}
        whose = {cpu: pod for pod, cpus in held.items() for cpu in cpus}
        turns: dict[tuple[int, int], int] = {}
        for process in processes:
            for thread in process.threads:
                key = thread.tid, process.born
                turns[key] = thread.turns
                if (
                    process.has_ended
                    or process.escapes
                    or self._turns.get(key) in (None, turns[key])
                ):
                    continue
                self.judgement.ran += 1
                if whose.get(thread.cpu, process.pod) != process.pod:
                    self.judgement.find(
                        "strangers",
                        f"{process.name}, thread {thread.tid}, ran on CPU {thread.cpu} of "
                        f"{whose[thread.cpu]}",
                    )
        self._before, self._turns = owners, turns


_Walk = Mapping[tuple[int, int], Process]


def _by_identity(walk: list[Process]) -> _Walk:
    return {(process.pid, process.born): process for process in walk}


def _cpus(cpus: frozenset[int]) -> str:
    return ",".join(map(str, sorted(cpus))) or "no CPU"

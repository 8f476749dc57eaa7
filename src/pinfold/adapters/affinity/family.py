"""Which processes belong to a container, where no cgroup tells.

A container is its main process; every child of a member; everybody in a session that a member
leads or led, and in a process group that a descendant leads or led.  Whoever was once seen as a
member stays one.  A process that loses its parent *and* makes a session of its own between two
looks is lost.

The main process's own group is no evidence: in ``pinfold run -- a | b`` the shell puts ``b`` there.

A session or group lives on without its leader, and as long as it does, nobody gets the leader's
pid.  The kernel gives out pids in a circle: a number that was ours a moment ago is still ours, if
fewer tasks were born since than there are pids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pinfold.adapters.affinity.processes import Snapshot
from pinfold.linux.processes import Stat


class Family:
    """The processes of one container, as of the last look; zombies too.

    ``members`` is by pid.
    """

    def __init__(self) -> None:
        self.members: dict[int, Stat] = {}
        self._mains: set[tuple[int, int]] = set()
        # By number: how many tasks the machine had ever had when somebody was last seen in it.
        self._sessions: dict[int, int] = {}
        self._groups: dict[int, int] = {}

    def adopt(self, main: Stat) -> None:
        """Make a process the main one, or another main one."""
        self.members[main.pid] = main
        self._mains.add((main.pid, main.start))

    def disown(self, main: Stat) -> None:
        """Forget a process and its descendants, which now belong to another container."""
        if not main.is_same(self.members.get(main.pid)):
            return
        gone = {main.pid}
        while more := {p.pid for p in self.members.values() if p.parent in gone} - gone:
            gone |= more
        for pid in gone:
            process = self.members.pop(pid)
            self._mains.discard((pid, process.start))
            self._sessions.pop(pid, None)
            self._groups.pop(pid, None)

    def is_guest(self, process: Stat) -> bool:
        """Whether it is a main process in somebody else's session, such as a shell's."""
        return self._is_main(process) and process.session != process.pid

    def groups(self) -> set[int]:
        """Process groups that are ours alone, also where nobody was seen in them just now."""
        seen = {p.group for p in self.members.values() if p.session in self._sessions}
        # The first group of a session has its number.  A member without a group we can name is in
        # one of another PID namespace, shown as 0, which would be our own.
        return (seen | self._sessions.keys() | self._groups.keys()) - {0}

    def renew(self, now: Snapshot, reuse: int) -> None:
        """Drop what is gone; before ``reuse`` tasks are born, no pid comes again."""
        self.members = {
            pid: process
            for pid, old in self.members.items()
            if (process := now.processes.get(pid)) is not None and process.is_same(old)
        }
        self._mains &= {(process.pid, process.start) for process in self.members.values()}
        self.note(now)
        for numbers in (self._sessions, self._groups):
            for number, born in list(numbers.items()):
                is_taken = number in now.processes and number not in self.members
                if is_taken or now.born - born >= reuse:
                    del numbers[number]

    def note(self, now: Snapshot) -> None:
        """Note which sessions and groups are ours and have somebody in them."""
        for process in self.members.values():
            if process.session == process.pid or process.session in self._sessions:
                self._sessions[process.session] = now.born
            is_leader = process.group == process.pid
            if (is_leader and not self._is_main(process)) or process.group in self._groups:
                self._groups[process.group] = now.born

    def claims(self, process: Stat) -> bool:
        """Whether a process whose parent is no member is in a session or group of ours."""
        return process.session in self._sessions or process.group in self._groups

    def _is_main(self, process: Stat) -> bool:
        return (process.pid, process.start) in self._mains


class _Foreign:
    """Processes that are nobody's yet."""

    def __init__(self, processes: Iterable[Stat]) -> None:
        self.left = {process.pid: process for process in processes}
        self._children: dict[int, list[Stat]] = defaultdict(list)
        for process in self.left.values():
            self._children[process.parent].append(process)

    def join_parents(self, family: Family, now: Snapshot) -> None:
        """Let the descendants of members join."""
        self._join(family, [c for pid in family.members for c in self._children.pop(pid, ())], now)

    def join_sessions(self, family: Family, now: Snapshot) -> bool:
        """Let those join who are in a session or group of the family; whether any did."""
        return self._join(family, [p for p in self.left.values() if family.claims(p)], now)

    def _join(self, family: Family, waiting: list[Stat], now: Snapshot) -> bool:
        has_joined = False
        while waiting:
            process = waiting.pop()
            if self.left.pop(process.pid, None) is not None:
                family.members[process.pid] = process
                has_joined = True
                waiting += self._children.pop(process.pid, ())
        if has_joined:
            family.note(now)
        return has_joined


def reunite(families: Iterable[Family], now: Snapshot, reuse: int) -> None:
    """Bring all families up to date, all of them so that none takes from another.

    A process belongs to its nearest main process.  ``reuse`` is how many tasks must be born before
    a pid can come again.
    """
    families = list(families)
    owned: set[int] = set()
    for family in families:
        family.renew(now, reuse)
        owned |= family.members.keys()
    foreign = _Foreign(p for pid, p in now.processes.items() if pid not in owned)
    for family in families:
        foreign.join_parents(family, now)
    # An orphan may lead to a session, and that one to further orphans.
    while any([foreign.join_sessions(family, now) for family in families]):  # noqa: C419 - all have to
        pass

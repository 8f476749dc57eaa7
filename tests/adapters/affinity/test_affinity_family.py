"""Which processes are a container's, by pids, parents, sessions and groups alone."""

from __future__ import annotations

from msgspec.structs import replace

from pinfold.adapters.affinity.family import Family, reunite
from pinfold.adapters.affinity.processes import Snapshot
from pinfold.linux.processes import Stat

REUSE = 1000


def process(
    pid: int, parent: int = 1, *, session: int = 10, group: int | None = None, start: int = 0
) -> Stat:
    """A process that sleeps; its group has its session's number unless another is given."""
    number = group or session
    return Stat(pid, "x", "S", parent, number, session, 0, 1, start or pid, 0)


MAIN = process(10)
SHELLS = process(10, 5, session=5, group=10)
"""A main process in a shell's session, where it leads a group as every job does."""


def adopted(main: Stat) -> Family:
    family = Family()
    family.adopt(main)
    return family


def look(*families: Family, at: tuple[Stat, ...], born: int = 0) -> list[list[int]]:
    """Let them look at these processes; the pids that each holds then."""
    reunite(families, Snapshot({p.pid: p for p in at}, born), REUSE)
    return [sorted(family.members) for family in families]


def test_children_and_theirs() -> None:
    family = adopted(MAIN)
    at = (MAIN, process(11, 10), process(12, 11, session=12), process(13, 2, session=13))
    assert look(family, at=at) == [[10, 11, 12]]


def test_orphans_of_its_session() -> None:
    family = adopted(MAIN)
    assert look(family, at=(MAIN, process(11), process(12, 11, session=12))) == [[10, 11, 12]]


def test_once_a_member_always_a_member() -> None:
    family = adopted(MAIN)
    look(family, at=(MAIN, process(11, 10, session=11)))
    assert look(family, at=(process(11, 1, session=11), process(12, 1, session=11))) == [[11, 12]]


def test_the_session_outlives_its_leader_even_unseen() -> None:
    family = adopted(MAIN)
    look(family, at=(MAIN,), born=5)
    assert look(family, at=(process(11),), born=500) == [[11]]


def test_a_session_number_may_have_come_again() -> None:
    """So many tasks were born since somebody was seen there that the pids may have come round."""
    family = adopted(MAIN)
    look(family, at=(MAIN,), born=5)
    assert look(family, at=(process(11),), born=5 + REUSE) == [[]]
    assert family.groups() == set()


def test_a_session_with_a_known_member_is_the_same_however_much_is_born() -> None:
    family = adopted(MAIN)
    look(family, at=(MAIN, process(11, 10)), born=5)
    assert look(family, at=(process(11), process(12)), born=5 + 9 * REUSE) == [[11, 12]]


def test_a_leader_with_a_used_pid_is_a_stranger_with_its_whole_session() -> None:
    family = adopted(MAIN)
    look(family, at=(MAIN,))
    again = process(10, start=99)
    assert look(family, at=(again, process(11, 10), process(12))) == [[]]
    assert family.groups() == set()


def test_a_member_with_a_used_pid_is_a_stranger() -> None:
    family = adopted(MAIN)
    look(family, at=(MAIN, process(11, 10, session=11)))
    again = process(11, 2, session=11, start=99)
    assert look(family, at=(MAIN, again, process(12, 11, session=11))) == [[10]]


def test_a_shells_session_and_the_main_processs_group_are_no_evidence() -> None:
    """``pinfold run -- a | b``."""
    family = adopted(SHELLS)
    shell, other = process(5, session=5), process(20, 5, session=5, group=10)
    orphan = process(21, 1, session=5, group=10)
    assert look(family, at=(shell, SHELLS, other, orphan, process(11, 10, session=5))) == [[10, 11]]
    assert family.groups() == set()
    assert family.is_guest(SHELLS)
    assert not adopted(MAIN).is_guest(MAIN)


def test_a_group_that_a_descendant_led() -> None:
    """What a job in the background of an interactive shell leaves behind."""
    family = adopted(SHELLS)
    job = process(11, 10, session=5, group=11)
    look(family, at=(SHELLS, job))
    assert look(family, at=(SHELLS, process(12, 1, session=5, group=11))) == [[10, 12]]
    assert family.groups() == {11}


def test_groups_that_can_be_signalled() -> None:
    family = adopted(MAIN)
    # The last one is in a PID namespace that shows its group as 0.
    look(family, at=(MAIN, process(11, 10, group=11), replace(process(12, 10), group=0)))
    assert family.groups() == {10, 11}


def test_a_main_process_inside_of_another_container() -> None:
    """Each process belongs to the nearest one."""
    outer, inner = adopted(MAIN), adopted(process(20, 10))
    at = (MAIN, process(20, 10), process(21, 20), process(11, 10))
    assert look(outer, inner, at=at) == [[10, 11], [20, 21]]
    assert look(inner, outer, at=at) == [[20, 21], [10, 11]]


def test_disowning_takes_the_descendants() -> None:
    family = adopted(MAIN)
    at = (MAIN, process(11, 10, session=11), process(12, 11, session=11), process(13, 10))
    look(family, at=at)
    family.disown(at[1])
    other = adopted(at[1])
    assert look(family, other, at=at) == [[10, 13], [11, 12]]
    family.disown(process(13, start=99))
    assert 13 in family.members

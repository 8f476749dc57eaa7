"""The threads of a container are listed when their number, or one of them, has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinfold.adapters.observation.thread_waits import ThreadWaits
from pinfold.adapters.observation.threads import LISTED_AFTER, MemberWaits
from pinfold.linux.descriptors import open_files
from pinfold.linux.kept_file import KeptFile


class Members:
    """A cgroup and a proc of plain files."""

    def __init__(self, root: Path, *, numbered: bool = True) -> None:
        self.proc, self.folder = root / "proc", root / "cgroup"
        self.proc.mkdir()
        self.folder.mkdir()
        self.number = self.folder / "pids.current"
        self.waits = MemberWaits(
            self.folder,
            "tasks",
            KeptFile(self.number) if numbered else None,
            ThreadWaits(self.proc),
        )

    def are(self, *tids: int, number: int | None = None) -> None:
        (self.folder / "tasks").write_text("".join(f"{tid}\n" for tid in tids))
        self.number.write_text(f"{len(tids) if number is None else number}\n")

    def waited(self, tid: int, nanoseconds: int) -> None:
        (self.proc / str(tid)).mkdir(exist_ok=True)
        (self.proc / str(tid) / "schedstat").write_text(f"5 {nanoseconds} 1\n")

    def end(self, tid: int) -> None:
        # As the kernel says it of a thread that has ended: nothing.
        (self.proc / str(tid) / "schedstat").write_text("")

    def is_listed(self) -> bool:
        """Whether the next look lists them: it fails where there is no list."""
        listing = self.folder / "tasks"
        said = listing.read_text()
        listing.unlink()
        try:
            self.waits.look()
        except FileNotFoundError:
            return True
        finally:
            listing.write_text(said)
        return False


@pytest.fixture
def members(tmp_path: Path) -> Members:
    return Members(tmp_path)


def test_they_are_listed_once_as_long_as_they_are_the_same(members: Members) -> None:
    members.waited(1, 100)
    members.waited(2, 200)
    members.are(1, 2)
    assert members.waits.look() == 0
    members.waited(1, 130)
    listed = members.is_listed()
    assert not listed
    members.waited(2, 205)
    assert members.waits.look() == 35


def test_one_more_or_one_less_is_listed_at_once(members: Members) -> None:
    members.waited(1, 100)
    members.are(1)
    members.waits.look()
    members.waited(2, 50)
    members.are(1, 2)
    assert members.waits.look() == 0
    members.waited(2, 57)
    assert members.waits.look() == 7
    members.are(2)
    assert members.is_listed()


def test_one_that_ended_for_another_is_seen_though_their_number_is_the_same(
    members: Members,
) -> None:
    for tid in (1, 2):
        members.waited(tid, 100)
    members.are(1, 2)
    members.waits.look()
    members.end(1)
    members.waited(3, 900)
    members.are(3, 2)
    members.waited(2, 110)
    assert members.waits.look() == 10
    members.waited(3, 904)
    assert members.waits.look() == 14


def test_who_has_ended_and_is_still_counted_makes_it_be_listed_each_time(
    members: Members,
) -> None:
    members.waited(1, 100)
    members.are(1, number=2)
    members.waits.look()
    assert members.is_listed()


def test_they_are_listed_now_and_then_whatever_their_number_is(members: Members) -> None:
    members.waited(1, 100)
    members.are(1)
    members.waits.look()
    times = [members.is_listed() for _ in range(LISTED_AFTER)]
    assert times == [False] * (LISTED_AFTER - 1) + [True]


@pytest.mark.parametrize("numbered", [True, False])
def test_without_a_number_they_are_listed_each_time(tmp_path: Path, *, numbered: bool) -> None:
    before = open_files()
    members = Members(tmp_path, numbered=numbered)
    members.waited(1, 100)
    members.are(1)
    members.number.unlink()
    members.waits.look()
    assert members.is_listed()
    members.waited(1, 160)
    assert members.waits.look() == 60
    members.waits.close()
    assert open_files() == before

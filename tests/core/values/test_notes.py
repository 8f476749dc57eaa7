"""What is to be said of many things: of one kind once, and nothing of it lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.values.notes import Note, said_once

_WORDS = st.text("abc", max_size=2)
_NOTES = st.lists(st.builds(Note, _WORDS, st.text("xyz", min_size=1, max_size=2)), max_size=30)


def test_many_of_one_kind_are_said_once_with_a_count() -> None:
    notes = [Note(f"x.yaml: document {at}", "Service has no pods, left out") for at in range(3000)]
    other = Note("y.yaml", "nothing in it")
    assert list(said_once([*notes[:1], other, *notes[1:]])) == [
        "Service has no pods, left out (3,000 times: x.yaml: document 0, x.yaml: document 1, ...)",
        "y.yaml: nothing in it",
    ]


def test_two_of_a_kind_are_said_each_by_itself() -> None:
    ended = [Note(f"pod {name}", "has ended", " ") for name in "ab"]
    assert list(said_once(ended)) == ["pod a has ended", "pod b has ended"]


def test_what_is_said_of_one_place_again_is_dropped() -> None:
    assert list(said_once([Note("", "all"), Note("", "all"), Note("", "all")])) == ["all"]


@given(_NOTES)
def test_each_kind_is_said_and_counted(notes: list[Note]) -> None:
    said = list(said_once(notes))
    kinds = {note.what for note in notes}
    assert len(said) <= 2 * len(kinds)
    for kind in kinds:
        places = {note for note in notes if note.what == kind}
        if len(places) > 2:
            assert sum(one.startswith(f"{kind} ({len(places)} times: ") for one in said) == 1
        else:
            assert {note.text for note in places} <= set(said)

"""Server-sent events: whatever the pieces in which they come, the messages are the same."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinfold.formats.event_stream import (
    EventStream,
    Message,
    StreamError,
    pause,
    remark,
    written,
)

WORDS = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=8)
DATA = st.lists(WORDS, min_size=1, max_size=3).map(lambda lines: "\n".join(lines).encode())
MESSAGES = st.lists(st.builds(Message, id=WORDS.filter(bool), event=WORDS, data=DATA), max_size=5)


def read(pieces: Iterable[bytes], longest: int = 1 << 20) -> list[Message]:
    stream = EventStream(longest)
    return [message for piece in pieces for message in stream.feed(piece)]


def cut(text: bytes, places: Iterable[int]) -> list[bytes]:
    """The text in pieces."""
    at = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(at)]


@given(
    MESSAGES,
    st.lists(st.integers(0, 10_000), max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.booleans(),
)
@example([Message("a", "", b"x")], [0, 1, 2, 3], b"\r\n", True)  # noqa: FBT003 - as given draws it
def test_any_pieces_make_the_same_messages(
    messages: list[Message], places: list[int], end: bytes, mark: bool
) -> None:
    text = b"".join(remark("alive") + written(one) for one in messages).replace(b"\n", end)
    text = b"\xef\xbb\xbf" * mark + text
    assert read(cut(text, places)) == messages
    assert read(bytes([one]) for one in text) == messages


def test_what_the_standard_says_of_fields() -> None:
    stream = EventStream()
    text = (
        b"retry: 2500\nid: 7\nid: nul\0is none\ndata:one\ndata\ndata:  two\nunknown: x\n:\n\n"
        b"event: empty\n\n"
        b"data: goes on\n\n"
        b"retry: soon\ndata: never whole"
    )
    assert list(stream.feed(text)) == [
        Message("7", "", b"one\n\n two"),
        Message("7", "", b"goes on"),
    ]
    assert (stream.pause, stream.last_id) == (2.5, "7")
    assert list(stream.feed(b"\n" + pause(0.25) + b"\n")) == [Message("7", "", b"never whole")]
    assert stream.pause == 0.25


@pytest.mark.parametrize(
    "text",
    [b"data: " + b"x" * 200, b"x" * 200, b"data: abc\n" * 30, b"data: " + b"x" * 200 + b"\n\n"],
)
def test_nothing_is_kept_that_is_too_long(text: bytes) -> None:
    with pytest.raises(StreamError, match="longer than 100 bytes"):
        read(cut(text, range(0, 500, 7)), longest=100)


def test_a_document_is_one_line() -> None:
    document = json.dumps({"name": "a\nb\rc\u2028"}).encode()
    text = written(Message("r-1", "changed", document))
    assert text.count(b"\n") == 4
    assert read([text]) == [Message("r-1", "changed", document)]

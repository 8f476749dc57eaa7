"""The framings of an NRI socket: whatever the bytes and however they are cut."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from fuzz.nri_target import NRI_TARGET
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.nri.frames import (
    MAX_FRAME,
    MAX_MESSAGE,
    FramingError,
    Message,
    MessageReader,
    MessageType,
    Splitter,
    encode_message,
)

MESSAGES = st.builds(
    Message,
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.one_of(st.binary(max_size=50), st.integers(4000, 9000).map(bytes)),
)
CUTS = st.lists(st.integers(0, 30_000), max_size=12)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [data[start:end] for start, end in pairwise(edges)]


def decode(data: list[bytes]) -> list[tuple[int, Message]]:
    splitter, readers = Splitter(), dict[int, MessageReader]()
    return [
        (connection, message)
        for part in data
        for connection, piece in splitter.feed(part)
        for message in readers.setdefault(connection, MessageReader()).feed(piece)
    ]


@given(st.lists(st.tuples(st.integers(0, 3), MESSAGES), max_size=5), CUTS)
def test_messages_come_out_as_they_went_in(
    sent: list[tuple[int, Message]], cuts: list[int]
) -> None:
    data = b"".join(encode_message(*message) for message in sent)
    assert decode(pieces(data, cuts)) == sent


def test_messages_in_single_bytes_and_with_interleaved_frames() -> None:
    one, two = Message(1, MessageType.REQUEST, b"one"), Message(3, MessageType.RESPONSE, b"two")
    whole = encode_message(1, one) + encode_message(2, two)
    assert decode([bytes([byte]) for byte in whole]) == [(1, one), (2, two)]
    # A message in frames of one byte each, between frames of another connection, some empty.
    frames = b"".join(
        struct.pack(">II", connection, 1) + bytes([byte]) + struct.pack(">II", 7, 0)
        for pair in zip(encode_message(1, one)[8:], encode_message(2, two)[8:], strict=True)
        for connection, byte in enumerate(pair, 1)
    )
    assert decode([frames]) == [(1, one), (2, two)]


def test_a_go_runtime_has_room_for_every_first_frame() -> None:
    data = encode_message(2, Message(1, MessageType.REQUEST, bytes(10_000)))
    assert struct.unpack_from(">II", data) == (2, 4096)
    assert struct.unpack_from(">II", data, 8 + 4096) == (2, 10 + 10_000 - 4096)


def test_the_longest_message_and_one_that_is_longer() -> None:
    longest = Message(1, MessageType.REQUEST, bytes(MAX_MESSAGE))
    assert decode([encode_message(1, longest)]) == [(1, longest)]
    with pytest.raises(ValueError, match=str(MAX_MESSAGE)):
        encode_message(1, Message(1, MessageType.REQUEST, bytes(MAX_MESSAGE + 1)))


@given(st.integers(1, 100), CUTS)
def test_an_oversized_message_is_thrown_away_and_the_next_is_read(
    more: int, cuts: list[int]
) -> None:
    length = MAX_MESSAGE + more
    reader = MessageReader()
    assert reader.feed(struct.pack(">IIBB", length, 5, 1, 0)) == []
    for _ in range(length // (1 << 20)):
        assert reader.feed(bytes(1 << 20)) == []
        assert len(reader._buffer) == 0  # noqa: SLF001 - what is kept is memory only
    rest = bytes(length % (1 << 20)) + struct.pack(">IIBB", 2, 7, 1, 0) + b"ok"
    messages = [message for part in pieces(rest, cuts) for message in reader.feed(part)]
    assert messages == [Message(5, 1, oversized=length), Message(7, 1, b"ok")]


def test_a_frame_that_cannot_be() -> None:
    splitter = Splitter()
    assert list(splitter.feed(struct.pack(">II", 1, MAX_FRAME))) == []
    with pytest.raises(FramingError, match="4294967295 bytes on connection 1"):
        list(Splitter().feed(struct.pack(">II", 1, 2**32 - 1)))


@given(st.binary(max_size=300), CUTS)
def test_an_end_in_the_middle_is_noticed(data: bytes, cuts: list[int]) -> None:
    whole = struct.pack(">II", 9, len(data)) + data
    splitter = Splitter()
    for part in pieces(whole, cuts):
        list(splitter.feed(part))
    assert not splitter.in_frame
    list(splitter.feed(whole[: 1 + len(data) // 2]))
    assert splitter.in_frame


@given(st.binary(max_size=400))
def test_garbage_is_read_or_refused(data: bytes) -> None:
    NRI_TARGET.run(data)


def test_the_fuzz_target_accepts_its_seeds() -> None:
    for seed in NRI_TARGET.seeds():
        NRI_TARGET.run(seed)

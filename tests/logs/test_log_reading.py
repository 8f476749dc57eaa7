"""Reading logs: whole, the end of them, and while they are written and rotated."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.process.output import Log
from pinfold.logs import reading
from pinfold.logs.reading import LogOptions, read_log

LINES = st.lists(st.text("ab ", max_size=12), max_size=40)


async def all_of(file: Path, options: LogOptions) -> bytes:
    return b"".join([piece async for piece in read_log(file, options)])


def read(file: Path, **options: object) -> bytes:
    return asyncio.run(all_of(file, LogOptions(**options)))  # type: ignore[arg-type] # as given


@given(LINES, st.integers(0, 45), st.integers(80, 400), st.data())
def test_the_tail_is_the_end_of_all_that_there_is(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    count: int,
    size: int,
    data: st.DataObject,
) -> None:
    """Whatever is cut where: into files, into partial lines, into pieces that are read."""
    cut, piece = data.draw(st.integers(1, 7)), data.draw(st.integers(3, 400))
    file = tmp_path_factory.mktemp("log") / "0.log"
    log = Log(os.fsencode(file), size, 1000)
    text = "".join(f"{line}\n" for line in lines).encode()
    for start in range(0, len(text), cut):
        log.take(text[start : start + cut])
    before, reading.PIECE = reading.PIECE, piece  # type: ignore[misc] # smaller than any file
    try:
        assert read(file) == text
        last = text.splitlines(keepends=True)[-count or len(text) :]
        assert read(file, tail=count) == b"".join(last)
    finally:
        reading.PIECE = before  # type: ignore[misc] # as above


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "nowhere" / "0.log") == b""
    assert read(tmp_path / "nowhere" / "0.log", tail=3) == b""


def test_times_are_shown_and_compared(tmp_path: Path) -> None:
    file = tmp_path / "0.log"
    file.write_bytes(
        b"2026-01-02T03:04:05.000000001Z stdout F early\n"
        b"2026-01-02T04:04:06.500000000+01:00 stderr P la\n"
        b"2026-01-02T04:04:07.500000000+01:00 stderr F te\n"
        b"rubbish\n\0\0\0\n"
        b"2026-01-02T03:04:07Z stdout F \n"
    )
    assert read(file) == b"early\nlate\n\n"
    moment = 1767323046.0  # 03:04:06
    assert read(file, since=moment) == b"late\n\n"
    assert read(file, since=moment, timestamps=True, tail=2) == (
        b"2026-01-02T04:04:06.500000000+01:00 late\n2026-01-02T03:04:07Z \n"
    )
    assert read(file, tail=0) == b""


def test_following_loses_nothing_however_often_it_is_rotated(tmp_path: Path) -> None:
    """The writer keeps two files, and writes one about as often as somebody looks."""
    file = tmp_path / "0.log"
    log = Log(os.fsencode(file), 2000, 3)
    ended = asyncio.Event()
    looks = asyncio.Event()

    async def write() -> None:
        for number in range(3000):
            if number % 20 == 0:
                await looks.wait()
                looks.clear()
            log.take(f"line {number}\n".encode())
        ended.set()

    def has_ended() -> bool:
        looks.set()  # it is asked before each look
        return ended.is_set()

    async def run() -> bytes:
        writing = asyncio.create_task(write())
        text = b""
        async for piece in read_log(file, LogOptions(follow=True), has_ended):
            text += piece
        await writing
        return text

    before, reading.LOOK_PERIOD = reading.LOOK_PERIOD, 0.001  # type: ignore[misc] # as the writer
    try:
        text = asyncio.run(run())
    finally:
        reading.LOOK_PERIOD = before  # type: ignore[misc] # as above
    assert text == b"".join(b"line %d\n" % number for number in range(3000))


def test_what_is_rotated_while_it_is_looked_at_is_read_once_and_in_order(tmp_path: Path) -> None:
    """The writer waits for nobody: what is told may have gaps."""
    file = tmp_path / "0.log"
    log = Log(os.fsencode(file), 100, 20)

    def write() -> None:
        for number in range(5000):
            log.take(b"%d\n" % number)

    async def run() -> bytes:
        writing = asyncio.create_task(asyncio.to_thread(write))
        return b"".join(
            [piece async for piece in read_log(file, LogOptions(follow=True), writing.done)]
        )

    before, reading.LOOK_PERIOD = reading.LOOK_PERIOD, 0  # type: ignore[misc] # as the writer
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        numbers = [int(line) for line in asyncio.run(run()).split()]
    finally:
        sys.setswitchinterval(interval)
        reading.LOOK_PERIOD = before  # type: ignore[misc] # as above
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 4999


def test_who_follows_no_more_has_nothing_open(tmp_path: Path) -> None:
    file = tmp_path / "0.log"
    Log(os.fsencode(file), 2000, 3).take(b"line\n")

    async def run() -> None:
        pieces = read_log(file, LogOptions(follow=True), lambda: False)
        assert await anext(pieces) == b"line\n"
        await pieces.aclose()  # type: ignore[attr-defined] # it is a generator

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # the writer's

"""The kernel's files of one value: read whole, written at once, and gone or not readable."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pinfold.linux.kernel_files import descendants, read_ids, read_value, subfolders, write_value
from pinfold.ports.errors import NoRoomError
from tests.scenes.process_world import no_files


def test_a_value_is_read_whole_and_stripped(tmp_path: Path) -> None:
    text = "\n".join(str(number) for number in range(20_000))
    (tmp_path / "tasks").write_text(f"{text}\n")
    assert read_value(tmp_path / "tasks") == text
    assert read_ids(tmp_path / "tasks") == list(range(1, 20_000))


@pytest.mark.parametrize(("value", "line"), [("", b"\n"), ("0-3,8", b"0-3,8\n"), (12, b"12\n")])
def test_nothing_is_written_as_a_line_and_all_with_one_call(value: str | int, line: bytes) -> None:
    reader, writer = os.pipe()
    try:
        write_value(f"/proc/self/fd/{writer}", value)
        os.set_blocking(reader, False)
        assert os.read(reader, 100) == line
    finally:
        os.close(reader)
        os.close(writer)


def test_a_file_that_is_gone_or_refuses(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_value(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        write_value(tmp_path / "none", 1)
    with pytest.raises(OSError, match="Invalid argument"):
        write_value("/proc/self/oom_score_adj", "nonsense")
    assert read_ids(tmp_path / "none") == []
    assert subfolders(tmp_path / "none") == []


def test_folders_come_after_what_they_hold(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/file").touch()
    (tmp_path / "link").symlink_to("a")
    found = [os.path.relpath(path, tmp_path) for path in descendants(tmp_path)]
    assert sorted(found) == [".", "a", "a/b", "a/b/c", "a/d", "e"]
    for at, path in enumerate(found):
        assert not any(later.startswith(f"{path}/") for later in found[at:])
    assert sorted(subfolders(tmp_path)) == ["a", "e"]


@pytest.mark.parametrize("look", [read_ids, subfolders, lambda path: list(descendants(path))])
def test_what_cannot_be_read_is_not_taken_for_gone(
    tmp_path: Path, look: Callable[[Path], object]
) -> None:
    place = tmp_path / "tasks"
    if look is read_ids:
        place.write_text("1\n")
    else:
        (place / "child").mkdir(parents=True)
    assert look(place)
    with no_files(), pytest.raises(NoRoomError, match="Too many open files"):
        look(place)

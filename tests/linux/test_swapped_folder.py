"""Folders whose files change all at once."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from pinfold.linux.swapped_folder import DATA, SwappedFile, swap


def files(**texts: str) -> dict[str, SwappedFile]:
    return {name.replace("_", "/"): SwappedFile(text.encode()) for name, text in texts.items()}


def seen(folder: Path) -> dict[str, str]:
    """What an application sees."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for name in sorted(entry.name for entry in os.scandir(folder))
        if not name.startswith("..")
        for path in ([folder / name] if (folder / name).is_file() else (folder / name).rglob("*"))
        if path.is_file()
    }


def test_files_come_change_and_go(tmp_path: Path) -> None:
    assert swap(tmp_path, files(a="1", deep_b="2", deep_er_c="3"))
    assert seen(tmp_path) == {"a": "1", "deep/b": "2", "deep/er/c": "3"}
    assert (tmp_path / "deep").readlink() == Path("..data/deep")
    first = str((tmp_path / DATA).readlink())
    assert not swap(tmp_path, files(a="1", deep_b="2", deep_er_c="3"))
    assert str((tmp_path / DATA).readlink()) == first
    assert swap(tmp_path, files(a="9", new="4"))
    assert seen(tmp_path) == {"a": "9", "new": "4"}
    assert len([e for e in os.scandir(tmp_path) if e.is_dir(follow_symlinks=False)]) == 1


def test_modes_are_kept_past_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        swap(tmp_path, {"a": SwappedFile(b"1", 0o444), "d/b": SwappedFile(b"2", 0o640)})
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o444
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "d" / "b").stat().st_mode) == 0o640
    assert swap(tmp_path, {"a": SwappedFile(b"1", 0o400), "d/b": SwappedFile(b"2", 0o640)})
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o400


def test_others_in_the_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "ack").mkdir()
    (tmp_path / "ack" / "generation").write_text("1")
    swap(tmp_path, files(a="1"))
    swap(tmp_path, files(b="1"))
    assert sorted(seen(tmp_path)) == ["ack/generation", "b"]


def test_what_an_interrupted_swap_has_left_is_removed(tmp_path: Path) -> None:
    swap(tmp_path, files(a="1"))
    (tmp_path / "..2026_01_01_00_00_00.1").mkdir()
    (tmp_path / "..2026_01_01_00_00_00.1" / "a").write_text("half")
    (tmp_path / "..data_tmp").symlink_to("..2026_01_01_00_00_00.1")
    swap(tmp_path, files(a="2"))
    assert sorted(entry.name for entry in os.scandir(tmp_path)) == [
        *sorted((DATA, str((tmp_path / DATA).readlink()))),
        "a",
    ]


def test_what_cannot_be_swapped_stays_as_it_was(tmp_path: Path) -> None:
    swap(tmp_path, files(a="1"))
    (tmp_path / "b").mkdir()
    with pytest.raises(FileExistsError):
        swap(tmp_path, files(a="2", b="2"))
    assert (tmp_path / "a").read_text() == "1"
    assert len([e for e in os.scandir(tmp_path) if e.name.startswith("..")]) == 2


def test_a_reader_never_sees_half(tmp_path: Path) -> None:
    swap(tmp_path, files(a="0", b="0"))
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                folder = os.open(tmp_path / DATA, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                # The folder may go after the link was read; the link is always there.
                if not (tmp_path / DATA).is_symlink():
                    wrong.append("no data")
                continue
            try:
                found = set()
                for name in ("a", "b"):
                    descriptor = os.open(name, os.O_RDONLY, dir_fd=folder)
                    found.add(os.read(descriptor, 100))
                    os.close(descriptor)
                if len(found) != 1:
                    wrong.append(str(found))
            except FileNotFoundError:
                pass  # it was swapped and removed while it was looked at
            finally:
                os.close(folder)

    reader = threading.Thread(target=read)
    reader.start()
    for count in range(300):
        swap(tmp_path, files(a=str(count), b=str(count)))
    stop.set()
    reader.join()
    assert wrong == []

"""Folders in which all files change at once, laid out as the kubelet does for projected volumes.

Each file that is seen is a link through ``..data``, which is a link to a folder of its own; a new
content is a new such folder, and ``..data`` is replaced by ``rename(2)``.  inotify(7) reports
``IN_MOVED_TO`` of ``..data`` once for each change.  The old folder is removed at once, as there:
who has opened it and finds a file gone opens ``..data`` again.  Source: upstream
``pkg/volume/util/atomic_writer.go``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

DATA: Final = "..data"
"""The link that is swapped."""

_NEW: Final = "..data_tmp"
_FOLDER_MODE: Final = 0o755
_FILE_MODE: Final = 0o644


class SwappedFile(Struct, frozen=True):
    """A file's content and permissions; ``group`` None is this process's."""

    content: bytes
    mode: int = _FILE_MODE
    group: int | None = None


def swap(folder: Path, files: Mapping[str, SwappedFile]) -> bool:
    """Give a folder other files, all of them at once; whoever reads it sees the old or the new.

    It is not brought to the disk: after a power failure the files may be anything.

    Args:
        folder: it is there, and nobody else writes in it; what has no name of these files and
            begins with no ``..`` stays.
        files: by path in the folder, relative and without ``..``.

    Returns:
        Whether anything was changed: not where all is as it is to be.

    Raises:
        OSError: it has what it had.
    """
    names = sorted({PurePosixPath(path).parts[0] for path in files})
    old = _current(folder)
    if old is not None and _seen(folder) == names and _read(folder / old) == dict(files):
        return False
    new = _fill(folder, files)
    try:
        for name in names:
            link = folder / name
            if not link.is_symlink():
                link.symlink_to(f"{DATA}/{name}")
        (folder / _NEW).unlink(missing_ok=True)
        (folder / _NEW).symlink_to(new.name)
        (folder / _NEW).replace(folder / DATA)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    # What is left of the old one is removed the next time.
    with contextlib.suppress(OSError):
        for name in set(_seen(folder)) - set(names):
            (folder / name).unlink()
        for entry in list(os.scandir(folder)):
            if entry.name.startswith("..") and entry.name not in (DATA, new.name):
                _remove(Path(entry.path))
    return True


def _current(folder: Path) -> str | None:
    """The name of the folder in which the files are; None: nothing that could be used."""
    try:
        name = str((folder / DATA).readlink())
    except OSError:
        return None
    return name if "/" not in name and (folder / name).is_dir() else None


def _seen(folder: Path) -> list[str]:
    """The links into the data."""
    return sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.is_symlink()
        and not entry.name.startswith("..")
        and Path(entry.path).readlink() == Path(DATA, entry.name)
    )


def _read(data: Path) -> dict[str, SwappedFile]:
    """What is in a folder of files, as far as it can be what was written."""
    return dict(_files(data, ""))


def _files(folder: Path, above: str) -> Iterator[tuple[str, SwappedFile]]:
    for entry in os.scandir(folder):
        path = f"{above}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path), f"{path}/")
        elif entry.is_file(follow_symlinks=False):
            status = entry.stat(follow_symlinks=False)
            group = None if status.st_gid == os.getegid() else status.st_gid
            content = Path(entry.path).read_bytes()
            yield path, SwappedFile(content, stat.S_IMODE(status.st_mode), group)


def _fill(folder: Path, files: Mapping[str, SwappedFile]) -> Path:
    """A new folder with these files, as the kubelet names it."""
    moment = time.strftime("..%Y_%m_%d_%H_%M_%S", time.gmtime())
    new = folder / f"{moment}.{time.monotonic_ns()}"
    new.mkdir()
    try:
        new.chmod(_FOLDER_MODE)
        for path, file in files.items():
            place = new / path
            for parent in reversed(place.relative_to(new).parents[:-1]):
                (new / parent).mkdir(exist_ok=True)
                (new / parent).chmod(_FOLDER_MODE)
            place.write_bytes(file.content)
            if file.group is not None:
                os.chown(place, -1, file.group)
            place.chmod(file.mode)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return new


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()

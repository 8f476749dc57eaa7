"""A file of events: each run leaves a part, and the parts make the file, whole or not at all.

The parts are in a hidden folder beside the file, so that no other disk gets full, and so that a
run in another process needs nothing but the name of its part.  They are put together in the order
of the runs, so the file has the same bytes however many processes there were.

The folder is locked for as long as its simulation goes on.  One that was killed leaves it behind,
and the next one that makes the same file removes it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Protocol, Self

from msgspec import Struct

from pinfold.adapters.events import csv_form
from pinfold.formats.extras import install_command, missing_library
from pinfold.linux import durable
from pinfold.linux.locks import HeldError, Lock, folder_of, lock
from pinfold.ports.events import EventsError, RunEvent

_AT_ONCE: Final = 16_384
"""Events that are written at once; as many are in memory."""
_SUFFIX: Final = ".parts"
_WHOLE: Final = ".whole"
_OURS: Final = re.compile(rf"[0-9]{{8}}|\.[0-9]{{8}}\.new|{re.escape(_WHOLE)}", re.ASCII)
"""What there is in a folder of parts."""


class Form(Protocol):
    """How events are written: a module of this folder."""

    def writer(self, file: BinaryIO) -> Any:  # noqa: ANN401 - what the form's library writes with
        """What :meth:`write` is given, at the start of a part."""

    def write(self, writer: Any, events: list[RunEvent]) -> None:  # noqa: ANN401 - the same
        """Write some events."""

    def close(self, writer: Any) -> None:  # noqa: ANN401 - the same
        """Write what is left."""

    def put_together(self, parts: list[Path], file: BinaryIO) -> None:
        """Make a file of parts."""


def form_of(path: Path) -> Form:
    """The form that a file's name asks for.

    Raises:
        EventsError: there is no such form, or the library for it is not installed.
    """
    form = path.suffix.lower()
    if form == ".csv":
        return csv_form
    if form != ".parquet":
        raise EventsError(f"{path}: the name of a file of events ends with .csv or .parquet")
    try:
        from pinfold.adapters.events import parquet_form  # noqa: PLC0415 - 115 ms
    except ModuleNotFoundError as error:
        raise EventsError(
            f"{path}: {missing_library(error)} is not installed, which writes Parquet: "
            f"{install_command('parquet')}, or write a file .csv"
        ) from None
    return parquet_form


class FolderParts(Struct, frozen=True):
    """Parts in a folder; ``path`` is the file that they make."""

    path: Path
    folder: Path

    def part(self, number: int) -> PartWriter:
        """The writer for a run, by its place among all runs, counted from 0."""
        return PartWriter(self.path, self.folder / f"{number:08d}")


class PartWriter:
    """Writes the events of one run, some at a time.

    Args:
        path: the file that is made of it, for messages.
        part: where it is written.
    """

    def __init__(self, path: Path, part: Path) -> None:
        self._path = path
        self._part = part
        self._form = form_of(path)
        self._events: list[RunEvent] = []

    def __enter__(self) -> Self:
        with _told(self._path):
            self._file = durable.new_name(self._part).open("wb")
            self._writer = self._form.writer(self._file)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._give_up()
            return
        try:
            with _told(self._path):
                self._form.write(self._writer, self._events)
                self._form.close(self._writer)
                self._file.close()
                durable.new_name(self._part).replace(self._part)
        except EventsError:
            self._give_up()
            raise

    def _give_up(self) -> None:
        # What was not written before is not written now, and nobody asks for it any more.
        with contextlib.suppress(OSError, ValueError):
            self._form.close(self._writer)
        with contextlib.suppress(OSError, ValueError):
            self._file.close()
        with contextlib.suppress(OSError):
            durable.new_name(self._part).unlink()

    def add(self, event: RunEvent) -> None:
        """Take one more."""
        self._events.append(event)
        if len(self._events) >= _AT_ONCE:
            with _told(self._path):
                self._form.write(self._writer, self._events)
            self._events.clear()


class EventFile:
    """A file of events to be; ``parts`` goes to the runs.

    Nothing is there, or what was there before, until :meth:`put_together`.

    Args:
        path: its name ends with ``.csv`` or ``.parquet``.

    Raises:
        EventsError: of another form, or it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        form_of(self.path)
        with _told(self.path):
            if self.path.is_dir():
                raise EventsError(f"{self.path}: is a folder; name a file in it")
            # Absolute: a worker may be started elsewhere.
            beside, name = self.path.parent.absolute(), f".{self.path.name}."
            _sweep(beside, name)
            self._lock = _own_folder(beside, name)
            self.parts = FolderParts(self.path, self._lock.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.parts.folder, ignore_errors=True)
        self._lock.release()

    def put_together(self) -> None:
        """Make the file of all parts that are there, in the order of the runs.

        Raises:
            EventsError: it cannot be written; what was there before still is.
        """
        folder = self.parts.folder
        with _told(self.path):
            parts = sorted(one for one in folder.iterdir() if not one.name.startswith("."))
            new = folder / _WHOLE
            with new.open("wb") as file:
                form_of(self.path).put_together(parts, file)
                durable.sync(file)
            new.replace(self.path)
            durable.sync_folder(self.path.parent)


def _own_folder(beside: Path, name: str) -> Lock:
    """A new folder of parts, which nobody sweeps while it is locked; raises OSError."""
    while True:
        folder = Path(tempfile.mkdtemp(_SUFFIX, name, beside))
        try:
            return lock(folder, folder_of(folder))
        except (HeldError, FileNotFoundError):
            continue  # Somebody swept it before it was locked.


def _sweep(beside: Path, name: str) -> None:
    """Remove the folders of parts of simulations that were killed, as far as it is allowed."""
    for folder in list(beside.iterdir()):
        middle = folder.name.removeprefix(name).removesuffix(_SUFFIX)
        if folder.name != f"{name}{middle}{_SUFFIX}" or not re.fullmatch(r"[a-z0-9_]{8}", middle):
            continue
        with contextlib.suppress(HeldError, OSError):
            if folder.is_symlink() or not folder.is_dir():
                continue
            held = lock(folder, folder_of(folder))
            try:
                if all(_OURS.fullmatch(one.name) and one.is_file() for one in folder.iterdir()):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                held.release()


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EventsError(
            f"{path}: the events cannot be written: {error.strerror or error}; "
            "name a file in a folder that can be written, with room for them"
        ) from None

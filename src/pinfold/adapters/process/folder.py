"""The folder of one container: what an agent that was restarted knows of it.

- ``spec.json``: what was asked for, written by the agent
- ``state``: who the processes are; before it is there, the container is not
- ``started``: when the main process was about to execute the command
- ``exit``: how it ended; ``exit.new`` holds its room on the disk until then
- ``output``: the FIFO that the container writes to (``output.py``)
- ``log``: a link to the log that this goes to; a file where an older program made the container
- ``go``, ``outcome``: the FIFOs of the start

What they say is in :mod:`pinfold.adapters.process.documents`.  Each has a checksum
(:mod:`pinfold.adapters.process.records`), and whose container it is stands in ``spec.json``, in
``state`` and in the supervisor's command line: no damage to one of them loses a container.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.adapters.process.documents import Exit, NonsenseError, Processes, Spec, spec_document
from pinfold.adapters.process.records import (
    MAX_LINES,
    CorruptRecordError,
    is_there,
    lines,
    read,
    read_lines,
    read_summed,
    summed,
)
from pinfold.linux.durable import sync_folder
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerSpec

_MAX_SPEC: Final = 16 * 1024 * 1024
_FILES: Final = (
    *("spec.json", "spec.json.new", "state.new", "started", "exit", "exit.new"),
    *("output", "log", "go", "outcome"),
)
"""All but ``state``; others are found by looking."""
RESERVED: Final = 4096
"""Bytes that ``exit`` is given beforehand, so that a full disk cannot lose it."""


class ContainerFolder(Struct, frozen=True):
    """A container's folder; its name is the container's id.

    What writes raises RuntimeFailedError where the disk is full or cannot be written; what reads
    raises CorruptRecordError where a file is missing (but ``exit``) or makes no sense.
    """

    path: Path

    @property
    def id(self) -> str:
        """The container's id."""
        return self.path.name

    def make(self, log: Path | None = None) -> None:
        """Make the folder with its FIFOs; only the owner may look into it.

        Args:
            log: where what the container writes goes; None: not here, as for an attached process.
        """
        with self._writing():
            self.path.mkdir(0o700)
            os.mkfifo(self.path / "go", 0o600)
            os.mkfifo(self.path / "outcome", 0o600)
            if log is not None:
                output = self.path / "output"
                os.mkfifo(output, 0o600)
                # A container that opens /dev/stdout may be of any user; nobody else gets here.
                output.chmod(0o622)
                (self.path / "log").symlink_to(log)

    def write_spec(self, spec: ContainerSpec, attached: Processes | None = None) -> None:
        """Write down what was asked for, and reserve the room that the end will take.

        ``attached`` is the process of a container that somebody else started.
        """
        with self._writing():
            self._write("spec.json", summed(spec_document(spec, attached)))
            self._reserve()

    def write_processes(self, processes: Processes) -> None:
        """Write ``state``: from now on the container is."""
        with self._writing():
            self._write("state", lines(processes.values()))

    def write_started(self, at: float) -> None:
        """Write ``started`` for a process that runs already."""
        with self._writing():
            (self.path / "started").write_bytes(lines({"at": repr(at)}))

    def write_exit(self, end: Exit) -> None:
        """Write down the end."""
        with self._writing():
            self._write("exit", lines(end.values()))

    def mend(self, processes: Processes, began: float | None) -> None:
        """Have ``state``, ``started`` and the room for ``exit`` as they should be for what runs.

        ``began`` is in seconds since the epoch; None: it waits for the word.
        """
        with self._writing():
            for name in ("state", "started", "exit.new"):
                path = self.path / name
                if is_there(path) and not path.is_file():
                    self._set_aside(name)
            self._write("state", lines(processes.values()))
            if began is not None and not self.started_at():
                self.write_started(began)
            if not is_there(self.path / "exit.new"):
                self._reserve()

    def set_aside(self, name: str) -> None:
        """Give a file another name, under which nobody reads it."""
        with self._writing():
            self._set_aside(name)

    def read_spec(self) -> Spec:
        """Read ``spec.json``."""
        path = self.path / "spec.json"
        data, has_sum = read_summed(path, _MAX_SPEC)
        with _sensible(path):
            return Spec.of(data, has_sum=has_sum)

    def read_processes(self) -> Processes:
        """Read ``state``."""
        path = self.path / "state"
        with _sensible(path):
            return Processes.of(read_lines(path))

    def read_exit(self) -> Exit | None:
        """Read ``exit``; None as long as it is not there."""
        path = self.path / "exit"
        if not is_there(path):
            return None
        with _sensible(path):
            return Exit.of(read_lines(path))

    def started_at(self) -> float | None:
        """When the main process was about to execute the command; None before."""
        path = self.path / "started"
        if not is_there(path):
            return None
        try:
            data = read(path, MAX_LINES)
            # Older versions wrote the number alone.
            at = float(data if data[:1].isdigit() else read_lines(path)["at"])
        except (KeyError, ValueError):  # also CorruptRecordError
            return 0.0  # it is there, so it was started; when, is not known
        return at if isfinite(at) else 0.0

    def has_room(self) -> bool:
        """Whether the room for ``exit`` is there."""
        return (self.path / "exit.new").is_file()

    def delete(self) -> None:
        """Delete the folder, ``state`` first: an interrupted deletion is a container that is not.

        Raises:
            RuntimeFailedError: the disk cannot be written.
        """
        with self._writing():
            state = self.path / "state"
            if state.is_dir():
                shutil.rmtree(state)
            state.unlink(missing_ok=True)
            # Name by name: this takes no file, of which there may be none left.
            for name in _FILES:
                with contextlib.suppress(OSError):
                    (self.path / name).unlink()
            try:
                self.path.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                shutil.rmtree(self.path)

    def _set_aside(self, name: str) -> None:
        (self.path / name).replace(self.path / f"{name}.damaged")

    def _reserve(self) -> None:
        with (self.path / "exit.new").open("xb") as file:
            file.write(bytes(RESERVED))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.path.parent)

    def _write(self, name: str, data: bytes) -> None:
        temporary = self.path / f"{name}.new"
        # In place, so that room that was reserved is used; a FIFO there must not hold us up.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - Path cannot take a descriptor
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(descriptor)
        temporary.replace(self.path / name)
        sync_folder(self.path)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RuntimeFailedError(
                f"cannot write {error.filename or self.path}: {error.strerror or error}",
                "make room on the disk, or give another state folder",
            ) from None


@contextlib.contextmanager
def _sensible(path: Path) -> Iterator[None]:
    try:
        yield
    except NonsenseError as error:
        why = f": {error}" if str(error) else ""
        raise CorruptRecordError(f"{path} makes no sense{why}") from None

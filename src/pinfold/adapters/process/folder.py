"""The folder of one container: what an agent that was restarted knows of it.

- ``spec.json``: what was asked for, written by the agent
- ``state``: who the processes are; before it is there, the container is not
- ``started``: when the main process was about to execute the command
- ``exit``: how it ended; ``exit.new`` holds its room on the disk until then
- ``output``: the FIFO that the container writes to (``output.py``)
- ``log``: a link to the log that this goes to; a file where an older program made the container
- ``go``, ``outcome``: the FIFOs of the start

``state`` and ``exit`` are lines of a word and a value; the last line is ``end``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from pinfold.adapters.process.processes import ProcessId
from pinfold.node.port_errors import ContainerKey, RuntimeFailedError
from pinfold.node.ports import ContainerSpec

_MAX_RECORD: Final = 64 * 1024
_MAX_SPEC: Final = 16 * 1024 * 1024
RESERVED: Final = 4096
"""Bytes that ``exit`` is given beforehand, so that a full disk cannot lose it."""


class CorruptRecordError(ValueError):
    """A file of a container's that cannot be read or makes no sense; the message names it."""


@dataclass(frozen=True, slots=True)
class Processes:
    """``state``: the processes of a container, which mean something during one boot only.

    ``supervisor`` is None for a process that somebody else started; ``note`` tells what the kernel
    refused.
    """

    boot: str
    main: ProcessId
    supervisor: ProcessId | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Exit:
    """``exit``: the end of a container; ``code`` None is not known, ``at`` seconds of the epoch."""

    code: int | None
    at: float
    message: str = ""


class _SpecDocument(msgspec.Struct, frozen=True):
    """``spec.json``; bytes that are no UTF-8 are escaped with backslashes."""

    version: int
    pod_uid: str
    name: str
    namespace: str
    pod_name: str
    attempt: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    working_dir: str | None
    oom_score_adj: int | None


@dataclass(frozen=True, slots=True)
class ContainerFolder:
    """A container's folder; its name is the container's id."""

    path: Path

    @property
    def id(self) -> str:
        """The container's id."""
        return self.path.name

    def make(self, log: Path | None = None) -> None:
        """Make the folder with its FIFOs; only the owner may look into it.

        Args:
            log: where what the container writes goes; None: not here, as for an attached process.

        Raises:
            RuntimeFailedError: the disk is full or cannot be written.
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

    def write_spec(self, spec: ContainerSpec) -> None:
        """Write down what was asked for, and reserve the room that the end will take.

        Raises:
            RuntimeFailedError: the disk is full or cannot be written.
        """
        document = _SpecDocument(
            1,
            spec.key.pod_uid,
            spec.key.name,
            spec.namespace,
            spec.pod_name,
            spec.attempt,
            tuple(_readable(argument) for argument in spec.process.argv),
            {
                _readable(name): _readable(value)
                for name, value in {**spec.process.env, **spec.env}.items()
            },
            None if spec.process.working_dir is None else _readable(spec.process.working_dir),
            spec.oom_score_adj,
        )
        with self._writing():
            self._write("spec.json", msgspec.json.encode(document))
            with (self.path / "exit.new").open("xb") as file:
                file.write(bytes(RESERVED))
                file.flush()
                os.fsync(file.fileno())
            _sync(self.path.parent)

    def write_processes(self, processes: Processes) -> None:
        """Write ``state``: from now on the container is.

        Raises:
            RuntimeFailedError: the disk is full or cannot be written.
        """
        lines = [f"boot {processes.boot}"]
        if processes.supervisor is not None:
            lines.append(f"supervisor {processes.supervisor.pid} {processes.supervisor.start}")
        lines += [f"main {processes.main.pid} {processes.main.start}", f"note {processes.note}"]
        with self._writing():
            self._write("state", "\n".join(["pinfold-process 1", *lines, "end\n"]).encode())

    def write_started(self, at: float) -> None:
        """Write ``started`` for a process that runs already.

        Raises:
            RuntimeFailedError: the disk is full or cannot be written.
        """
        with self._writing():
            (self.path / "started").write_text(f"{at!r}\n")

    def write_exit(self, end: Exit) -> None:
        """Write down the end.

        Raises:
            RuntimeFailedError: the disk is full or cannot be written.
        """
        code = "" if end.code is None else str(end.code)
        text = f"code {code}\nat {end.at!r}\nmessage {end.message}\nend\n"
        with self._writing():
            self._write("exit", text.encode())

    def read_key(self) -> tuple[ContainerKey, int]:
        """Whose container it is, and which attempt.

        Raises:
            CorruptRecordError: ``spec.json`` is missing or makes no sense.
        """
        path = self.path / "spec.json"
        try:
            document = msgspec.json.decode(_read(path, _MAX_SPEC), type=_SpecDocument)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptRecordError(f"{path} makes no sense: {error}") from None
        return ContainerKey(document.pod_uid, document.name), document.attempt

    def read_processes(self) -> Processes:
        """Read ``state``.

        Raises:
            CorruptRecordError: it is missing or makes no sense.
        """
        values = self._lines("state")

        def process(word: str) -> ProcessId:
            pid, start = values[word].split(" ")
            return ProcessId(int(pid), int(start))

        try:
            return Processes(
                values["boot"],
                process("main"),
                process("supervisor") if "supervisor" in values else None,
                values["note"],
            )
        except (KeyError, ValueError):
            raise CorruptRecordError(f"{self.path}/state makes no sense") from None

    def read_exit(self) -> Exit | None:
        """Read ``exit``; None as long as it is not there.

        Raises:
            CorruptRecordError: it makes no sense.
        """
        if not (self.path / "exit").exists():
            return None
        values = self._lines("exit")
        try:
            code = int(values["code"]) if values["code"] else None
            return Exit(code, float(values["at"]), values["message"])
        except (KeyError, ValueError):
            raise CorruptRecordError(f"{self.path}/exit makes no sense") from None

    def started_at(self) -> float | None:
        """When the main process was about to execute the command; None before."""
        path = self.path / "started"
        try:
            return float(_read(path, _MAX_RECORD))
        except CorruptRecordError:
            return None
        except ValueError:
            return 0.0  # the file is there, so it was started; when, is not known

    def delete(self) -> None:
        """Delete the folder, ``state`` first: an interrupted deletion is a container that is not.

        Raises:
            RuntimeFailedError: the disk cannot be written.
        """
        with self._writing():
            (self.path / "state").unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.path)

    def _lines(self, name: str) -> dict[str, str]:
        path = self.path / name
        try:
            lines = _read(path, _MAX_RECORD).decode().split("\n")
        except UnicodeDecodeError:
            raise CorruptRecordError(f"{path} makes no sense") from None
        if lines[-2:] != ["end", ""]:
            raise CorruptRecordError(f"{path} is truncated")
        return {word: value for word, _, value in (line.partition(" ") for line in lines[:-2])}

    def _write(self, name: str, data: bytes) -> None:
        temporary = self.path / f"{name}.new"
        # In place, so that room that was reserved is used.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - Path cannot take a descriptor
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(descriptor)
        temporary.replace(self.path / name)
        _sync(self.path)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RuntimeFailedError(
                f"cannot write {error.filename or self.path}: {error.strerror or error}",
                "make room on the disk, or give another state folder",
            ) from None


def _readable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise CorruptRecordError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > limit:
        raise CorruptRecordError(f"{path} is larger than {limit} bytes")
    return data


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

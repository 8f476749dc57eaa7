"""Files of our own that mean something until the machine is started anew.

They speak of processes, or of what the kernel was told; both end with the machine.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.linux.descriptors import NO_ROOM, no_room
from pinfold.linux.durable import new_name, replace
from pinfold.linux.processes import boot_id
from pinfold.ports.errors import PortError

_NO_BOOT: Final = ""


class BootRecord(Struct, frozen=True, kw_only=True):
    """What such a file holds; the default of ``version`` is the one form that is known.

    ``boot`` is the kernel's name for the time of which it speaks.
    """

    version: int = 1
    boot: str = _NO_BOOT


T = TypeVar("T", bound=BootRecord)


class BootFile(Generic[T]):
    """A file with one record; it is replaced whole, and a link in its place is not followed.

    Args:
        path: the file.
        kind: the record; sets of CPUs in it are texts in the file.
        what: the record's name, for messages.
        remedy: what to do where the file is damaged or of another version.
        elsewhere: what to do where the system lets nobody read or write it.
        error: the error to raise.
        mode: the file's permissions.
    """

    def __init__(  # noqa: PLR0913 - what each file says when it cannot be used
        self,
        path: Path,
        kind: type[T],
        what: str,
        remedy: str,
        *,
        elsewhere: str = "",
        error: type[PortError] = PortError,
        mode: int = 0o600,
    ) -> None:
        self.path = path
        self._kind = kind
        self._what = what
        self._remedy = remedy
        self._elsewhere = elsewhere
        self._error = error
        self._mode = mode

    def load(self) -> T | None:
        """What was saved since the machine was started; None: nothing.

        A damaged file that is older than this start is what a power cut has left.

        Raises:
            PortError: it cannot be read, is damaged, or of another version.
        """
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(self.path, flags), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise self._error(
                        f"{self.path}: no {self._what}: no regular file", self._remedy
                    )
                data, written = file.read(), status.st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure(error) from None
        boot = self._boot()
        known = next(one.default for one in fields(self._kind) if one.name == "version")
        try:
            head = msgspec.json.decode(data, type=BootRecord)
            if head.boot not in {_NO_BOOT, boot}:
                return None
            if head.version != known:
                raise self._error(
                    f"{self.path}: version {head.version} of {self._what} is not known",
                    f"use the pinfold that wrote it, or {self._remedy}",
                )
            record = msgspec.json.decode(data, type=self._kind, dec_hook=_cpus)
        except (msgspec.MsgspecError, UnicodeError) as error:
            if written < time.time() - time.clock_gettime(time.CLOCK_BOOTTIME):
                return None
            raise self._error(f"{self.path}: no {self._what}: {error}", self._remedy) from None
        return record if record.boot == boot else None

    def save(self, record: T, *, sync: bool = True) -> None:
        """Replace what is there; with ``sync`` it is on the disk when this returns."""
        data = msgspec.json.format(msgspec.json.encode(record, enc_hook=str))
        try:
            replace(self.path, data, mode=self._mode, sync=sync)
        except OSError as error:
            raise self._failure(error, f"writing the {self._what}: ") from None

    def remove(self) -> None:
        """Have no file, nor what a writer that was killed has left beside it."""
        try:
            self.path.unlink(missing_ok=True)
            new_name(self.path).unlink(missing_ok=True)
        except OSError as error:
            raise self._failure(error, "removing it: ") from None

    def _boot(self) -> str:
        try:
            return boot_id()
        except PortError as error:
            raise self._error(error.problem, error.remedy) from None

    def _failure(self, error: OSError, doing: str = "") -> PortError:
        short = error.errno in NO_ROOM
        remedy = no_room(self.path, error).remedy if short else self._elsewhere
        return self._error(f"{self.path}: {doing}{error.strerror or error}", remedy)


def _cpus(kind: type, value: object) -> object:
    if kind is not CPUSet:
        raise NotImplementedError(str(kind))
    if not isinstance(value, str):
        # msgspec makes a message of it that names the field.
        raise ValueError("expected a list of CPUs")  # noqa: TRY004 - what msgspec asks of hooks
    try:
        return CPUSet.parse(value)
    except CPUSetError as error:
        raise ValueError(str(error)) from None

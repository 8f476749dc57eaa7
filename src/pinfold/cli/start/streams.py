"""Standard input, output and error of the program: what cannot be written is one line."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

from pinfold.cli.output import Refused
from pinfold.cli.start.exit_statuses import UNREAD

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_INPUT, _OUTPUT, _ERROR = range(3)
_CONTRARY: Final = {_INPUT: os.O_WRONLY, _OUTPUT: os.O_RDONLY, _ERROR: os.O_RDONLY}


class OutputError(Refused):
    """Standard output cannot be written: a full disk, or none at all (``>&-``)."""

    def __init__(self, error: OSError) -> None:
        closed = "it is closed; >/dev/null is for what nobody wants to read"
        why = closed if error.errno == errno.EBADF else error.strerror or error
        super().__init__(f"standard output: {why}")


class _Output(io.FileIO):
    """Standard output; raises OutputError, and SystemExit where nobody reads it any more."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # What is left in the buffer would fail once more when the program ends.
            self._forget()
            if error.errno == errno.EPIPE:
                raise SystemExit(UNREAD.code) from None
            raise OutputError(error) from None

    def _forget(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


class _Error(io.FileIO):
    """Standard error; where it cannot be written there is nobody to be told."""

    def write(self, data: ReadableBuffer, /) -> int:
        with suppress(OSError):
            return super().write(data)
        return memoryview(data).nbytes


def are_the_programs_own() -> bool:
    """Whether nobody has put others into their places, as tests do."""
    return sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__


def take_over() -> None:
    """Have the streams behave so, once, at the start of the program.

    A descriptor that was closed before the program began would be given to the next file that is
    opened, which what is printed would then be written into.  So each is opened, the wrong way
    round: who uses it has the kernel's error.
    """
    for descriptor, mode in _CONTRARY.items():
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stdin is None:
        sys.stdin = open(_INPUT, encoding="utf-8", closefd=False)  # noqa: SIM115 - a descriptor, for as long as the program runs
    sys.stdout = _text(_Output(_OUTPUT, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Error(_ERROR, "w", closefd=False), sys.stderr)


def end_unwritten(error: OSError) -> NoReturn:
    """End a program that has not taken them over, and could not write what it had to say."""
    take_over()
    if error.errno == errno.EPIPE:
        raise SystemExit(UNREAD.code)
    refused = OutputError(error)
    refused.show()
    raise SystemExit(refused.exit_code)


def _text(raw: io.FileIO, before: TextIO | None) -> io.TextIOWrapper:
    """A text stream on this descriptor, of the encoding of that one, which is None if closed."""
    if before is not None:
        before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=(before and before.encoding) or "utf-8",
        errors=before.errors if before is not None else "backslashreplace",
        line_buffering=raw.isatty(),
    )

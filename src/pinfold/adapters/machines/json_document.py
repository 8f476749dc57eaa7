"""JSON documents from outside: decoded, checked against a form, one kind of error.

The forms are :mod:`msgspec` structs beside the reader of each format; fields that a form does
not have are ignored.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from pinfold.core.machine.machine import MachineError
from pinfold.core.values.cpuset import CPUSet, CPUSetError

T = TypeVar("T")


def decode(data: bytes, *, name: str) -> Any:  # noqa: ANN401 - any JSON value
    """Decode JSON of no particular form; raises MachineError."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise MachineError(
            f"{name}: not valid JSON ({error}); is the file complete? Capture it again"
        ) from error


def convert(value: object, form: type[T], *, name: str, what: str) -> T:
    """Check a decoded value against ``form``.

    ``name`` is the file's, for messages, and ``what`` the format's and how to get a good file.

    Raises:
        MachineError: a field is missing, of another type or out of bounds; the message has its
            place as a path (``$.topology[0].cores``).
    """
    try:
        return msgspec.convert(value, form)
    except (ValueError, RecursionError) as error:
        raise MachineError(f"{name}: {error}; this does not look like {what}") from error


def cpu_set(text: str, *, name: str, place: str) -> CPUSet:
    """Read a CPU list in a document; raises MachineError."""
    try:
        return CPUSet.parse(text)
    except CPUSetError as error:
        raise MachineError(f"{name}: {place}: {error}") from error

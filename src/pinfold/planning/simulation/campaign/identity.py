"""What decides a run, as one short text: the same text, the same result, byte for byte.

All of the run's values are in it, the content of the files that its arrivals are read from, and
this program itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from pathlib import Path

from msgspec import Struct

import pinfold
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.simulation.experiment.specification import RunSpec
from pinfold.ports.arrivals import ArrivalSource, OfFiles, TraceError

_LENGTH = 32
"""Hexadecimal digits: 128 bits, so that two runs never share a text by chance."""
_PIECE = 2**20


class Identities:
    """Identities of many runs; a file is read once, however many runs have to do with it."""

    def __init__(self) -> None:
        self._sources: dict[bytes, str] = {}

    def of_arrivals(self, spec: RunSpec) -> str:
        """What decides which pods come: runs of which it is the same read the same arrivals.

        Raises:
            TraceError: a file cannot be read.
        """
        drawn = (spec.guarantee, spec.seed, spec.stop_after, spec.stop_arrivals)
        return _digest(self._of_source(spec.arrivals), drawn)

    def of_run(self, spec: RunSpec, *how: object) -> str:
        """What decides a run; ``how``: plain values that say what else is told of it.

        Raises:
            TraceError: a file cannot be read.
        """
        return _digest(_program(), self._of_source(spec.arrivals), spec, how)

    def _of_source(self, source: ArrivalSource) -> str:
        text = b"".join(canonical(source))
        known = self._sources.get(text)
        if known is None:
            files = source.files() if isinstance(source, OfFiles) else ()
            known = self._sources[text] = _digest(text, tuple(map(_content, files)))
        return known


def canonical(value: object) -> Iterator[bytes]:
    """A value as bytes that are the same in every process, whatever order its sets have there."""
    match value:
        case CPUSet():
            yield b"c%x" % value.mask
        case Struct():
            yield f"s{type(value).__qualname__}(".encode()
            for name in value.__struct_fields__:
                yield name.encode()
                yield from canonical(getattr(value, name))
            yield b")"
        case Enum():
            yield f"e{type(value).__qualname__}.{value.name}".encode()
        case str() | bytes():
            text = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            yield b"t%d:%b" % (len(text), text)
        case None | bool() | int() | float():
            yield f"n{value!r},".encode()
        case Mapping():
            yield b"m("
            for key, held in value.items():
                yield from canonical(key)
                yield from canonical(held)
            yield b")"
        case AbstractSet():
            yield b"u("
            yield from sorted(b"".join(canonical(one)) for one in value)
            yield b")"
        case tuple() | list():
            yield b"l("
            for one in value:
                yield from canonical(one)
            yield b")"
        case type():
            yield f"k{value.__module__}.{value.__qualname__}".encode()
        case _:
            # Whatever else can be sent to another process says by itself what it is made of.
            reduced = value.__reduce_ex__(4)
            if isinstance(reduced, str):
                yield f"g{type(value).__module__}.{reduced}".encode()
                return
            made, *of = reduced
            yield f"r{made.__module__}.{made.__qualname__}".encode()
            yield from canonical([one for one in of if one is not None])


def _digest(*values: object) -> str:
    found = hashlib.sha256()
    for one in canonical(values):
        found.update(one)
    return found.hexdigest()[:_LENGTH]


def _content(path: Path) -> str:
    found = hashlib.sha256()
    try:
        if not (path.is_file() or path.is_dir()) and path.exists():
            # Each run reads it once more, and a pipe or a device has no end, or only one reader.
            raise TraceError(f"{path}: a pipe or a device; write what it tells to a file first")
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                found.update(piece)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None
    return found.hexdigest()


@cache
def _program() -> str:
    """This version of the program, and its code, which may be a working copy of somebody's."""
    folder = Path(pinfold.__file__).parent
    files = sorted(folder.rglob("*.py"))
    return _digest(pinfold.__version__, *(_content(path) for path in files))

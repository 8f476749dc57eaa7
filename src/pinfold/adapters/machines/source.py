"""Where a machine comes from: whatever ``--machine`` is given.

Content decides, not the name: a directory or a tar archive is a sysfs tree, ``<`` begins hwloc
XML, ``{`` a JSON document of one of several kinds, ``#`` the rows of ``lscpu -p``; what is no
file is a short form.  XML and JSON may be packed with xz, gzip or bzip2.
"""

from __future__ import annotations

import os
import stat
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pinfold.core.machine.machine import Machine, MachineError
from pinfold.formats.paths import StrPath, path_text

if TYPE_CHECKING:
    from typing import Protocol

    class Unpacker(Protocol):
        """What the decompressors have in common."""

        @property
        def eof(self) -> bool:
            """Whether the end of the packed data was reached."""

        def decompress(self, data: bytes, max_length: int, /) -> bytes:
            """At most ``max_length`` bytes of what ``data`` unpacks to."""


MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
"""Largest XML or JSON text, unpacked; the XML of 4096 CPUs has about 4 MB."""

FORMS: Final = (
    "a sysfs tree (directory or .tar, .tar.gz, .tar.xz), hwloc XML (lstopo file.xml), cAdvisor's "
    "MachineInfo JSON, lscpu -J -e, the JSON of 'pinfold topology -o json', or a short form such "
    "as 2s8c2t"
)

_HEAD_BYTES: Final = 512
_PACKED_HEAD_BYTES: Final = 1024 * 1024
"""bzip2 gives nothing before a whole block of 900 kB is read."""

_UNPACKING_MEMORY: Final = 256 * 1024 * 1024
_PACKINGS: Final = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2"}
_TAR_MAGIC: Final = (257, b"ustar")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SUFFIXES: Final = (".gz", ".xz", ".bz2", ".json", ".xml", ".v3", ".hwloc", ".txt")


def open_machine(source: StrPath | None) -> Machine:
    """Read a machine from anything that ``--machine`` takes, or this one (None).

    An existing path always wins over a short form of the same spelling.

    Raises:
        MachineError: nothing of that name, a file of no known form, or one that is damaged; the
            message names the file, the place in it, and what to do.
        TypeError: neither a text nor a ``pathlib.Path``.

    >>> len(open_machine("2s8c2t").online)
    32
    """
    if source is None:
        # Each form is imported when it is there: the start-up time of every command counts.
        from pinfold.adapters.machines.discovery import read_live  # noqa: PLC0415 - 3.9 ms

        return read_live()
    source = path_text(source)
    try:
        mode = os.stat(source).st_mode  # noqa: PTH116 - Path("") would be this directory
    except (OSError, ValueError) as error:
        return _no_file(source, error)
    path = Path(source)
    if stat.S_ISDIR(mode):
        return _read_tree(path)
    try:
        # A pipe, as in --machine <(lscpu -J -e), can be read only once, and so holds no archive.
        if stat.S_ISREG(mode) and _begins_tar(_read_head(path)):
            return _read_tree(path)
        data = _read_all(path)
    except OSError as error:
        raise MachineError(f"{source}: cannot be read: {error.strerror or error}") from None
    return read_document(data, name=_machine_name(path), file=source)


def is_tree(source: StrPath) -> bool:
    """Whether a source of a machine is a sysfs tree: a folder, or an archive of one.

    Raises:
        MachineError: it cannot be read.
    """
    source = path_text(source)
    path = Path(source)
    try:
        return path.is_dir() or (path.is_file() and _begins_tar(_read_head(path)))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise MachineError(f"{source[:200]}: cannot be read: {reason}") from None


def read_document(data: bytes, *, name: str, file: str) -> Machine:
    """Read an XML, JSON or ``lscpu -p`` text, not packed; ``file`` is its name for messages.

    Raises:
        MachineError: no known form, or damaged.
    """
    text = data.removeprefix(_BYTE_ORDER_MARK).lstrip()
    first = text[:1]
    if first == b"<":
        from pinfold.adapters.machines.hwloc import machine_from_hwloc  # noqa: PLC0415 - 3.7 ms

        # What is stripped would move the XML declaration or the line numbers of messages.
        return machine_from_hwloc(text, name=name, file=file)
    if first in (b"{", b"["):
        return _read_json(text, name=name, file=file)
    if first == b"#":
        from pinfold.adapters.machines.lscpu import (  # noqa: PLC0415 - 1.0 ms
            is_parsable,
            machine_from_parsable,
        )

        rows = text.decode(errors="replace")
        if is_parsable(rows):
            return machine_from_parsable(rows, name=name, file=file)
    if not first:
        raise MachineError(f"{file}: nothing in it; a machine is {FORMS}")
    raise MachineError(
        f"{file}: begins neither as XML nor as JSON nor as a tar archive; a machine is {FORMS}"
    )


def _read_json(text: bytes, *, name: str, file: str) -> Machine:
    from pinfold.adapters.machines.lscpu import (  # noqa: PLC0415 - 1.0 ms
        decode_lscpu,
        machine_from_lscpu,
    )

    value = decode_lscpu(text, name=file)
    keys = value.keys() if isinstance(value, dict) else ()
    if "lscpu" in keys:
        from pinfold.adapters.machines.lscpu_summary import (  # noqa: PLC0415 - 1.3 ms
            machine_from_lscpu_summary,
        )

        return machine_from_lscpu_summary(value, name=name, file=file)
    if "version" in keys or "schema" in keys or "numa" in keys:
        from pinfold.adapters.machines.own_json import (  # noqa: PLC0415 - 1.9 ms
            machine_from_own_json,
        )

        return machine_from_own_json(value, file=file)
    if "topology" in keys or "num_cores" in keys:
        from pinfold.adapters.machines.cadvisor import (  # noqa: PLC0415 - 0.8 ms
            machine_from_cadvisor,
        )

        return machine_from_cadvisor(value, name=name, file=file)
    if "cpus" in keys:
        return machine_from_lscpu(value, name=name, file=file)
    raise MachineError(f"{file}: JSON, but of none of the known forms; a machine is {FORMS}")


def _no_file(source: str, error: OSError | ValueError) -> Machine:
    from pinfold.core.machine.short_form import (  # noqa: PLC0415 - 0.9 ms
        looks_like_short_form,
        parse_short_form,
    )

    if looks_like_short_form(source):
        try:
            return parse_short_form(source)
        except MachineError as wrong:
            raise MachineError(f"{wrong}; nor is there a file of that name") from None
    reason = "no such file"
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        reason = error.strerror or reason
    shown = source if len(source) <= 200 else source[:197] + "..."
    raise MachineError(f"{shown!r}: {reason}; a machine is {FORMS}") from None


def _read_tree(path: Path) -> Machine:
    from pinfold.adapters.machines.discovery import read_machine  # noqa: PLC0415 - 3.5 ms

    return read_machine(path)


def _begins_tar(head: bytes) -> bool:
    """Whether the first bytes are a tar archive's, of any vintage, and no text."""
    at, magic = _TAR_MAGIC
    if head[at : at + len(magic)] == magic:
        return True
    # Archives from before POSIX have no magic, but are padded with zero bytes, which no text is.
    return len(head) >= _HEAD_BYTES and head[at : at + len(magic)] == bytes(len(magic))


def _read_head(path: Path) -> bytes:
    """The first bytes, unpacked."""
    with path.open("rb") as file:
        packed = file.read(_PACKED_HEAD_BYTES)
    if _packing(packed) is None:
        return packed[:_HEAD_BYTES]
    return _unpack(path, packed, _HEAD_BYTES, whole=False)


def _read_all(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) <= MAX_DOCUMENT_BYTES and _packing(data) is not None:
        data = _unpack(path, data, MAX_DOCUMENT_BYTES + 1, whole=True)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise MachineError(
            f"{path}: more than {MAX_DOCUMENT_BYTES >> 20} MiB of text, which no machine has; "
            "is this the right file?"
        )
    return data


def _packing(data: bytes) -> str | None:
    return next((name for magic, name in _PACKINGS.items() if data.startswith(magic)), None)


def _unpack(path: Path, data: bytes, limit: int, *, whole: bool) -> bytes:
    """At most ``limit`` bytes; with ``whole``, data that ends early is an error."""
    import bz2  # noqa: PLC0415 - 0.0 ms: not every Python has it
    import lzma  # noqa: PLC0415 - 0.0 ms: not every Python has it

    packing = _packing(data)
    unpacker: Unpacker
    if packing == "gzip":
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    elif packing == "xz":
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_UNPACKING_MEMORY)
    else:
        unpacker = bz2.BZ2Decompressor()
    try:
        unpacked = unpacker.decompress(data, limit)
    except (zlib.error, lzma.LZMAError, OSError, ValueError, MemoryError) as error:
        raise MachineError(
            f"{path}: the {packing} data is damaged ({error}); copy the file again"
        ) from None
    if whole and not unpacker.eof and len(unpacked) < limit:
        raise MachineError(f"{path}: the {packing} data is truncated; copy the file again")
    return unpacked


def _machine_name(path: Path) -> str:
    name = path.name
    while name.endswith(_SUFFIXES):
        name = name[: name.rindex(".")]
    return name or path.name

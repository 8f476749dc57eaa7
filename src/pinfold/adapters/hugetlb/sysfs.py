"""The files of the kernel's pools of huge pages; each failure names file and remedy."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pinfold.core.pod.hugepages import folder_size
from pinfold.linux.kernel_files import read_value, write_value
from pinfold.ports.errors import PortError

NODES: Final = "sys/devices/system/node"
MACHINE: Final = "sys/kernel/mm/hugepages"
_NODE: Final = re.compile(r"node([0-9]{1,9})", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_REMEDIES: Final = {
    errno.EACCES: "run as root",
    errno.EPERM: "run as root",
    errno.EROFS: "sysfs is mounted read-only here, as in a container; run it on the host",
    errno.EINVAL: "this kernel takes pages of this size at boot only: hugepagesz=SIZE hugepages=N",
}


class HugePagePoolError(PortError):
    """The pools cannot be read or set, or do not have what was asked for; nothing is changed."""


def pool_folders(root: Path) -> Iterator[tuple[int | None, int, Path]]:
    """Node, page size and folder of every pool; node None where the kernel tells no nodes."""
    nodes = [
        (int(match[1]), entry / "hugepages")
        for entry in _entries(root / NODES)
        if (match := _NODE.fullmatch(entry.name))
    ]
    places: list[tuple[int | None, Path]] = [
        (node, folder) for node, folder in nodes if folder.is_dir()
    ]
    for node, place in places or [(None, root / MACHINE)]:
        for folder in _entries(place):
            size = folder_size(folder.name)
            if size:
                yield node, size, folder


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def read_number(file: Path) -> int:
    """Read a number; raises HugePagePoolError."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not text"
        raise HugePagePoolError(f"{file}: {problem}") from None
    if not _NUMBER.fullmatch(text):
        raise HugePagePoolError(f"{file}: {text[:40]!r} is no number")
    return int(text)


class KeptPages:
    """Counts again and again, at some 20 us a pool, the pages that the kernel was told to keep.

    ``root`` is the folder that ``sys`` is in.  Sizes and nodes are those that are there at first.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._pools = [
            (node, size, str(folder / "nr_hugepages"), str(folder / "surplus_hugepages"))
            for node, size, folder in pool_folders(root)
        ]

    def read(self) -> dict[int | None, dict[int, int]]:
        """Node (None where the kernel tells no nodes) -> page size in bytes -> pages.

        Empty where the kernel has no huge pages.

        Raises:
            HugePagePoolError: a file cannot be read, or is no number.
        """
        found: dict[int | None, dict[int, int]] = {}
        for node, size, total, surplus in self._pools:
            found.setdefault(node, {})[size] = _number(total) - _number(surplus)
        return found


def _number(file: str) -> int:
    """As :func:`read_number`, but quick while all is well."""
    try:
        return int(read_value(file))
    except (OSError, ValueError):
        return read_number(Path(file))


def write_number(file: Path, number: int) -> None:
    """Write a number; raises HugePagePoolError."""
    try:
        write_value(file, number)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "")
        raise HugePagePoolError(f"{file}: writing {number}: {error.strerror}", remedy) from None

"""What is mounted, as ``/proc/PID/mountinfo`` shows it.

Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_MOST_OCTAL: Final = 0o377


class Mount(Struct, frozen=True):
    """One mount.

    Attributes:
        root: the part of the file system that is seen there, as a path from its root.
        point: where it is mounted.
        kind: the file system's name, such as ``cgroup2``.
        options: those of the file system itself, such as a cgroup v1 hierarchy's controllers.
        writable: whether neither this mount nor the file system is read-only.
        is_shared: whether what is mounted below it is seen in other mount namespaces, too.
    """

    root: str
    point: str
    kind: str
    options: frozenset[str]
    writable: bool
    is_shared: bool = False

    @property
    def path(self) -> Path:
        """Where it is mounted."""
        return Path(self.point)


def parse_mountinfo(text: str) -> Iterator[Mount]:
    """The mounts of a ``mountinfo`` text, in the order in which they were made.

    What is no line of such a file is passed over.
    """
    for line in text.split("\n"):
        left, dash, right = line.partition(" - ")
        # A source may be empty, so that there are two blanks: only one separates.
        before, after = left.split(" "), right.split(" ")
        if not dash or len(before) < 6 or len(after) < 3:
            continue
        options = frozenset(after[2].split(","))
        yield Mount(
            root=unescaped(before[3]),
            point=unescaped(before[4]),
            kind=after[0],
            options=options,
            writable="ro" not in options and "ro" not in before[5].split(","),
            is_shared=any(field.startswith("shared:") for field in before[6:]),
        )


def mounts(proc: Path = Path("/proc")) -> Iterator[Mount]:
    """What this process sees mounted; raises OSError."""
    # Names that are no UTF-8 become what ``os.fsdecode`` makes of them, so that paths are found.
    text = (proc / "self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    return parse_mountinfo(text)


def unescaped(text: str) -> str:
    """A name in which the kernel has written blanks and the like as octal numbers."""
    return _OCTAL.sub(_byte, text) if "\\" in text else text


def _byte(match: re.Match[str]) -> str:
    number = int(match[1], 8)
    return chr(number) if number <= _MOST_OCTAL else match[0]

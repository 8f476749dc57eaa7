"""Reading values out of a tree: numbers, CPU sets, sizes.

A missing or blank file is None, for the rules of discovery to judge; anything else that does not
parse is an error that names the file.
"""

from __future__ import annotations

import re
from typing import Final

from pinfold.adapters.machines.tree import Tree
from pinfold.core.machine.machine import MachineError
from pinfold.core.values.cpuset import MAX_CPU, CPUSet, CPUSetError

_NUMBER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_SIZE = re.compile(r"(\d{1,15})\s*([KMG]?)B?", re.ASCII | re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

REMEDY: Final = "capture the machine again, or remove the file if the kernel wrote it so"


def parse_number(text: str) -> int:
    """A decimal integer, signed; raises ValueError."""
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped) is None:
        raise ValueError(f"{stripped[:40]!r} is no number")
    return int(stripped)


def parse_size(text: str) -> int:
    """A cache size such as ``32768K``, in bytes; raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text.strip()[:40]!r} is no size")
    return int(match[1]) * _UNITS[match[2].upper()]


class Reader:
    """Typed access to a tree.

    Raises:
        MachineError: from every method, if a file is there and is not what it should be.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        # CPUs that share something have the same text in their mask files.
        self._masks: dict[str, CPUSet] = {}

    def error(self, path: str, problem: object) -> MachineError:
        """An error about the file ``path``."""
        return MachineError(f"{self.tree.name}: {path}: {problem}; {REMEDY}")

    def text(self, path: str) -> str | None:
        """The content without blanks around it; None if missing or blank."""
        text = self.raw(path)
        return (text.strip() or None) if text is not None else None

    def raw(self, path: str) -> str | None:
        """The content; None if missing."""
        text = self.tree.read(path)
        # Some kernels end a file with a NUL (5.15-rc1, topology masks).
        return text.rstrip("\0") if text is not None and text.endswith("\0") else text

    def number(self, path: str) -> int | None:
        """A decimal number."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return parse_number(text)
        except ValueError as error:
            raise self.error(path, error) from None

    def size(self, path: str) -> int | None:
        """A cache size in bytes."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return parse_size(text)
        except ValueError as error:
            raise self.error(path, error) from None

    def mask(self, path: str) -> CPUSet | None:
        """A mask file; blank is the empty set."""
        text = self.raw(path)
        if text is None:
            return None
        known = self._masks.get(text)
        if known is None:
            try:
                known = self._masks[text] = CPUSet.parse_hex(text)
            except CPUSetError as error:
                raise self.error(path, error) from None
        return known

    def cpu_list(self, path: str) -> CPUSet | None:
        """A list file; blank is the empty set."""
        text = self.raw(path)
        if text is None:
            return None
        try:
            return CPUSet.parse(text)
        except CPUSetError as error:
            raise self.error(path, error) from None

    def cpu_set(self, masks: tuple[str, ...], lists: tuple[str, ...]) -> CPUSet | None:
        """The first of the files that exists; mask files count before list files.

        Some edited captures have lists that contradict the masks; hwloc and cAdvisor read masks.
        """
        for path in masks:
            found = self.mask(path)
            if found is not None:
                return found
        for path in lists:
            found = self.cpu_list(path)
            if found is not None:
                return found
        return None

    def numbered(self, path: str, prefix: str) -> list[int]:
        """The numbers of the entries ``prefixN`` of a directory, ascending."""
        found = set()
        for name in self.tree.names(path):
            digits = name.removeprefix(prefix)
            if digits != name and digits.isascii() and digits.isdecimal() and len(digits) < 10:
                number = int(digits)
                if number <= MAX_CPU:
                    found.add(number)
        return sorted(found)

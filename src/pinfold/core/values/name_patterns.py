"""Patterns that stand for several names, such as ``gpu-*``, as a shell's for files."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

_SIGNS: Final = frozenset("*?[")
"""No name of Kubernetes has any of them."""


def is_pattern(text: str) -> bool:
    """Whether it may stand for several names."""
    return not _SIGNS.isdisjoint(text)


def named(text: str, names: Iterable[str]) -> list[str]:
    """Which of the names a name or a pattern stands for."""
    return [name for name in names if fnmatchcase(name, text)]

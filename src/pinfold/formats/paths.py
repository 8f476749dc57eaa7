"""The paths that public functions take: a text, or anything that stands for a path."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike, fspath
from typing import TypeAlias

from pinfold.core.values.errors import wrong_type

StrPath: TypeAlias = str | PathLike[str]
_NO_PATHS: tuple[type[object], ...] = (bytes, bytearray)
"""What is iterated by characters that are numbers."""


def path_text(path: StrPath) -> str:
    """The path as a text, for messages and for who reads it.

    Raises:
        TypeError: neither a text nor a path.

    >>> from pathlib import Path
    >>> path_text(Path("pods") / "web.yaml")
    'pods/web.yaml'
    """
    if isinstance(path, str):
        return path
    found = fspath(path) if isinstance(path, PathLike) else path
    if not isinstance(found, str):
        raise wrong_type("a path", "a str or a pathlib.Path", path)
    return found


def path_texts(paths: StrPath | Iterable[StrPath]) -> tuple[str, ...]:
    """One path or several, as texts.

    Raises:
        TypeError: see :func:`path_text`.

    >>> path_texts("x"), path_texts(["a", "b"])
    (('x',), ('a', 'b'))
    """
    if isinstance(paths, str | PathLike):
        return (path_text(paths),)
    if isinstance(paths, _NO_PATHS) or not isinstance(paths, Iterable):
        raise wrong_type("paths", "a path (str or pathlib.Path), or several", paths)
    return tuple(map(path_text, paths))

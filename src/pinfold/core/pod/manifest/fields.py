"""Fields of a manifest as the types that they must have; errors name the field by its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from pinfold.core.pod.api import PodError, as_yaml

MOST_CONTAINERS: Final = 1000
"""Containers of a pod that is to run, init containers too."""

MOST_EXPANDED: Final = 16 << 20
"""Characters that all ``$(NAME)`` of a pod may stand for; a process can have less."""


class Room:
    """How much the references of one pod may still stand for: each may double the one before."""

    def __init__(self) -> None:
        self._left = MOST_EXPANDED

    def take(self, text: str) -> str:
        """The text; raises PodError."""
        self._left -= len(text)
        if self._left < 0:
            raise PodError(
                "spec.containers",
                f"the references $(NAME) stand for more than {MOST_EXPANDED} characters",
            )
        return text


def mappings(value: object, path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Items of a list with their paths; None is an empty list.

    Raises:
        PodError: no list, or an item that is no mapping.
    """
    if value is None:
        return
    if not isinstance(value, list):
        raise PodError(path, "must be a list")
    for index, item in enumerate(value):
        yield mapping(item, f"{path}[{index}]"), f"{path}[{index}]"


def mapping(value: object, path: str) -> Mapping[str, Any]:
    """A mapping; None is an empty one; raises PodError."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise PodError(path, "must be a mapping")
    return value


def absolute(value: object, path: str) -> str:
    """An absolute path; raises PodError."""
    text = text_of(value, path) or ""
    if not text.startswith("/") or "\0" in text or ".." in text.split("/"):
        raise PodError(path, "must be an absolute path without '..'")
    return text


def flag(value: object, path: str) -> bool:
    """A boolean; None is False; raises PodError."""
    if value is None or isinstance(value, bool):
        return bool(value)
    raise PodError(path, "must be true or false")


def number(value: object, path: str) -> int | None:
    """A number from 0 to 2147483647, or None; raises PodError."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise PodError(path, "must be a number from 0 to 2147483647")
    return value


def text_of(value: object, path: str) -> str | None:
    """A text, or None; raises PodError."""
    if value is None or isinstance(value, str):
        return value
    raise PodError(path, f"must be a string, not {as_yaml(value)} (quote it)"[:200])


def moment(value: object, path: str) -> float | None:
    """A time as the API writes it, in seconds since the epoch, or None; raises PodError."""
    text = text_of(value, path)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.timestamp()
    except (ValueError, OverflowError):
        pass
    raise PodError(path, f"must be a time such as 2026-01-31T08:00:00Z: {text[:80]!r}")

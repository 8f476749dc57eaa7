"""Uids and names of users as names of folders, and back."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from pinfold.ports.errors import CgroupError, ContainerKey

POD_PREFIX: Final = "pod-"
SHARED: Final = "shared"
EXCLUSIVE: Final = "exclusive"
IDLE: Final = "idle"
"""The sides of a tree."""
GUARDIAN: Final = "guardian"
"""Where the process sits that undoes what is lent."""
BALANCED: Final = "balanced"
"""The cpuset of all CPUs that are no domain of their own (v1)."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]")
_ESCAPE: Final = re.compile(r"=([0-9a-f]{2})")
_LONGEST: Final = 200
_TAKEN: Final = frozenset({"tasks", "notify_on_release", "release_agent"})
"""Files of cgroup v1 without a dot; all others have one, and dots are escaped."""


def pod_folder(uid: str) -> str:
    """The folder of a pod; raises CgroupError."""
    return POD_PREFIX + _escaped(uid)


def container_folder(key: ContainerKey) -> str:
    """The folder of a container in its pod's; raises CgroupError."""
    return _escaped(key.name)


def can_be_named(key: ContainerKey) -> bool:
    """Whether a container can have a cgroup at all; where not, there is none of it."""
    try:
        return bool(pod_folder(key.pod_uid) and container_folder(key))
    except CgroupError:
        return False


@lru_cache(maxsize=4096)
def key_of(pod: str, container: str) -> ContainerKey | None:
    """The container whose folders these are; None for folders of others."""
    if not pod.startswith(POD_PREFIX):
        return None
    uid, name = _plain(pod.removeprefix(POD_PREFIX)), _plain(container)
    return None if uid is None or name is None else ContainerKey(uid, name)


def _escaped(text: str) -> str:
    """Every byte that is not plain becomes ``=xx``, the dots of the kernel's own files too."""
    if not text:
        raise CgroupError("an empty uid or name cannot be a cgroup's name")
    try:
        parts = [
            char if _PLAIN.fullmatch(char) else "".join(map(_code, char.encode())) for char in text
        ]
    except UnicodeEncodeError:
        raise CgroupError(f"{text[:80]!r}: no text that a cgroup can be named after") from None
    if text in _TAKEN:
        parts[0] = _code(ord(text[0]))
    escaped = "".join(parts)
    if len(escaped) > _LONGEST:
        raise CgroupError(
            f"{text[:80]!r}...: too long for a cgroup's name", f"{_LONGEST} bytes at most"
        )
    return escaped


def _code(byte: int) -> str:
    return f"={byte:02x}"


def _plain(text: str) -> str | None:
    raw = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    try:
        found = raw.encode("latin-1").decode()
        return found if _escaped(found) == text else None
    except (UnicodeError, CgroupError):
        return None

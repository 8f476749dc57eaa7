"""Versions of the kubelet: which ones are known, and tables of what is otherwise from one on.

Three lines are *recorded*: what they answer was seen (``1.34``, ``1.35``, ``1.36``).  What is known
of ``1.37`` was read from proposals.  A value that differs by version is a :class:`ByVersion`, and
is asked :meth:`~ByVersion.at` a version; nothing else compares versions.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, Generic, TypeVar

from msgspec import Struct

from pinfold.core.values.errors import PinfoldError

T = TypeVar("T")

_NUMBER: Final = "(0|[1-9][0-9]{0,3})"
_BUILD: Final = "[-+][0-9A-Za-z.+_-]{0,200}"
_TEXT: Final = re.compile(rf"v?{_NUMBER}\.{_NUMBER}(?:\.{_NUMBER})?(?:{_BUILD})?")


class KubeletVersionError(PinfoldError, ValueError):
    """A text that is no version, or one of a kubelet that is older than all that are known."""


class KubeletVersion(Struct, frozen=True, order=True):
    """A version of the kubelet; ``str`` is its line, such as ``1.36``."""

    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"1.{self.minor}"

    @property
    def shown(self) -> str:
        """The line, and the patch where another one is meant than that of the line: ``1.35.2``."""
        usual = any(one.version == self for one in RELEASES)
        return str(self) if usual else self.full

    @property
    def full(self) -> str:
        """With the patch: ``1.36.2``."""
        return f"1.{self.minor}.{self.patch}"


class Release(Struct, frozen=True):
    """One line of kubelets; ``version`` is the patch that is meant where none is named."""

    version: KubeletVersion
    is_recorded: bool
    """Whether its answers were seen; else they were read from proposals."""


V1_34: Final = KubeletVersion(34, 9)
V1_35: Final = KubeletVersion(35, 6)
V1_36: Final = KubeletVersion(36, 2)
V1_37: Final = KubeletVersion(37, 0)

RELEASES: Final = (
    Release(V1_34, is_recorded=True),
    Release(V1_35, is_recorded=True),
    Release(V1_36, is_recorded=True),
    Release(V1_37, is_recorded=False),
)
"""Every known line, oldest first."""

OLDEST: Final = RELEASES[0].version
NEWEST: Final = RELEASES[-1].version
DEFAULT_VERSION: Final = max(one.version for one in RELEASES if one.is_recorded)
"""Meant where nobody says which kubelet: the newest that is recorded."""


class VersionSource(Enum):
    """Who said which kubelet is meant, the first one wins."""

    FLAG = "flag"
    """Somebody asked for this kubelet's answers: ``--kubelet-version``."""
    CONFIGURATION = "configuration"
    """``kubeletVersion`` of the section ``pinfold``."""
    RECORD = "record"
    """The agent's record: the version with which it was begun."""
    NODE = "node"
    """A Node object, or another document of the node."""
    CAPTURE = "capture"
    """What was written down of the machine."""
    DEFAULT = "default"
    """Nobody."""


class NamedVersion(Struct, frozen=True):
    """A version as somebody named it: the one whose answers are given, and what is to be said.

    ``remark`` is "" where these are the recorded answers of the version that was named.
    """

    version: KubeletVersion
    remark: str = ""


def named_version(text: str) -> NamedVersion:
    """Read a version, as people or kubelets write it: ``1.36``, ``v1.36.2``, ``v1.35.6+k3s1``.

    A newer one than all that are known is answered for by the newest.

    Raises:
        KubeletVersionError: no version, or an older one than all that are known.
    """
    found = _TEXT.fullmatch(text.strip())
    known = ", ".join(str(one.version) for one in RELEASES)
    if found is None:
        raise KubeletVersionError(f"{text!r} is no version of a kubelet; known are {known}")
    major, minor, patch = int(found[1]), int(found[2]), found[3]
    if (major, minor) < (1, OLDEST.minor):
        raise KubeletVersionError(
            f"kubelet {major}.{minor} is older than all that are known; known are {known}"
        )
    if (major, minor) > (1, NEWEST.minor):
        return NamedVersion(
            NEWEST,
            f"kubelet {major}.{minor} is not known yet: these are the answers of {NEWEST}, the "
            "newest that is known, read from proposals and not recorded",
        )
    release = next(one for one in RELEASES if one.version.minor == minor)
    version = release.version if patch is None else KubeletVersion(minor, int(patch))
    if release.is_recorded:
        return NamedVersion(version)
    return NamedVersion(
        version, f"what is known of kubelet {release.version} was read from proposals, not recorded"
    )


def told_version(text: str) -> NamedVersion:
    """Read a version that a node tells of itself: there are nodes of all ages.

    Of an older one than all that are known the oldest is answered for, of what is no version the
    default; the remark says so.
    """
    try:
        return named_version(text)
    except KubeletVersionError as error:
        old = _TEXT.fullmatch(text.strip()) is not None
        version = OLDEST if old else DEFAULT_VERSION
        return NamedVersion(version, f"{error}: these are the answers of {version}")


def same_kubelet(one: str, other: str) -> bool:
    """Whether two versions, as they are written, are answered for alike: ``1.34``, ``1.34.9``."""
    return told_version(one).version == told_version(other).version


def is_recorded(version: KubeletVersion) -> bool:
    """Whether the answers of a version's line were seen; else they were read from proposals."""
    return any(one.is_recorded and one.version.minor == version.minor for one in RELEASES)


class ByVersion(Struct, Generic[T], frozen=True):
    """A value that changes from version to version: ``(first version, value)``, oldest first.

    What came with a patch to several lines is one entry for each of them.
    """

    history: tuple[tuple[KubeletVersion, T], ...]

    def at(self, version: KubeletVersion) -> T:
        """The value that a kubelet of this version has; the first one for all before."""
        value = self.history[0][1]
        for since, later in self.history:
            if since <= version:
                value = later
        return value


def since(*versions: KubeletVersion) -> ByVersion[bool]:
    """What is so from a version on; where it came with patches, from each of these in its line."""
    history = [(KubeletVersion(0), False)]
    for version in versions:
        if version.patch and history[-1][1]:
            history.append((KubeletVersion(version.minor), False))
        history.append((version, True))
    return ByVersion(tuple(history))

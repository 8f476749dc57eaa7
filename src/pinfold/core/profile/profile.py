"""What a profile of a node says, row by row: what is read where, what is expected, and why.

The records are the form of the file (docs/how-to/check-a-node-profile.md).
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

EXCLUSIVE, RESERVED, ONLINE = "exclusive", "reserved", "online"
SEVERITIES: Final = ("error", "warning", "info")

CPUGroup = Literal["exclusive", "reserved"]

_PATH: Final = re.compile(
    r"/(?:proc/sys|proc/irq|sys)(?:/(?!\.{1,2}(?:/|$))(?:cpu\{(?:exclusive|online)\}|[\w.+:\-]+))+"
)
_REFUSED: Final = ("/sys/kernel/debug/", "/sys/kernel/tracing/")
_READ: Final = {
    "parameter": re.compile(r"[A-Za-z0-9_.\-]{1,64}"),
    "kubelet": re.compile(r"[A-Za-z]{1,64}(?:\.[A-Za-z0-9_.\-]{1,64})?"),
    "program": re.compile(r"[\w.\-]{1,15}", re.ASCII),
    "swap": re.compile("devices"),
    "idle": re.compile("latency"),
}
_PLACEHOLDER: Final = re.compile(r"\{([a-z][a-z-]*)\}")
_FILLED: Final = frozenset({"exclusive", "reserved", "reserved-mask"})

_Text = Annotated[str, Meta(min_length=1, max_length=1000)]


class _Part(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A part of the file."""


class Read(Struct, frozen=True):
    """What is read: a ``path``, or of a ``kind`` the thing of this ``name``."""

    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Read:
        """Read ``/proc/sys/...``, ``parameter isolcpus``, ``kubelet cpuManagerPolicy`` and so on.

        Raises:
            ValueError: nothing that a profile may read.
        """
        if text.startswith("/"):
            if _PATH.fullmatch(text) is None or f"{text}/".startswith(_REFUSED):
                raise ValueError(
                    "a path is below /proc/sys, /proc/irq or /sys (not debug or tracing), with "
                    f"cpu{{exclusive}} or cpu{{online}} for each such CPU, not {text[:80]!r}"
                )
            return cls("path", text)
        kind, _, name = text.partition(" ")
        pattern = _READ.get(kind)
        if pattern is None or pattern.fullmatch(name) is None:
            raise ValueError(
                "must be a path, parameter NAME, kubelet FIELD, program NAME, swap devices or "
                f"idle latency, not {text[:80]!r}"
            )
        return cls(kind, name)

    @property
    def cpus(self) -> str:
        """Of which CPUs it is read, one by one: ``exclusive``, ``online``, or "" for no such."""
        if self.kind == "idle":
            return EXCLUSIVE
        found = _PLACEHOLDER.search(self.name) if self.kind == "path" else None
        return "" if found is None else found[1]


class Expect(_Part, frozen=True):
    """What is expected of a value: exactly one of these."""

    is_: Annotated[tuple[str | int, ...], Meta(min_length=1)] | None = field(
        default=None, name="is"
    )
    """One of these texts."""
    at_least: float | None = None
    at_most: float | None = None
    has_cpus: CPUGroup | None = None
    """All of these CPUs are in it."""
    lacks_cpus: CPUGroup | None = None
    """None of these CPUs is in it."""

    def __post_init__(self) -> None:
        said = (self.is_, self.at_least, self.at_most, self.has_cpus, self.lacks_cpus)
        if sum(one is not None for one in said) != 1:
            raise ValueError("must have one of is, atLeast, atMost, hasCpus and lacksCpus")

    @property
    def group(self) -> str:
        """The CPUs that it is about, if any."""
        return self.has_cpus or self.lacks_cpus or ""

    def __str__(self) -> str:
        if self.is_ is not None:
            return " or ".join(map(str, self.is_))
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        if self.has_cpus is not None:
            return f"all {self.has_cpus} CPUs"
        return f"no {self.lacks_cpus} CPU"


class Row(_Part, frozen=True, kw_only=True):
    """One thing that a profile looks at."""

    name: Annotated[str, Meta(pattern="^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
    """What findings call it."""
    what: _Text
    """What is to be so, in a few words."""
    read: str
    """Where: see :meth:`Read.parse`."""
    form: Literal["text", "choice", "list", "mask"] = "text"
    """How it is written: as it is, ``[chosen] other``, ``0-3,8``, or a bitmask such as ``ff``."""
    expect: Expect
    absent: Literal["unknown", "fits", "differs"] = "unknown"
    """What it means that there is no such thing on the machine."""
    severity: Literal["error", "warning", "info"] = "warning"
    why: _Text
    """Why it matters."""
    source: _Text
    """Where that is said: a page of the kernel's documentation, a man page, a page of
    Kubernetes."""
    change: _Text
    """The line that changes it, with ``{exclusive}``, ``{reserved}`` and ``{reserved-mask}`` for
    the CPUs."""

    def __post_init__(self) -> None:
        Read.parse(self.read)
        if self.expect.group and self.form not in {"list", "mask"}:
            raise ValueError("hasCpus and lacksCpus need form: list or form: mask")
        for name in _PLACEHOLDER.findall(self.change):
            if name not in _FILLED:
                raise ValueError(f"change: there is no {{{name[:40]}}} to fill in")

    @property
    def place(self) -> Read:
        """What is read."""
        return Read.parse(self.read)

    @property
    def needs_exclusive(self) -> bool:
        """Whether it can be told only where it is known which CPUs are exclusive."""
        return bool(self.expect.group) or self.place.cpus == EXCLUSIVE


class ProfileFile(_Part, frozen=True, kw_only=True):
    """A file: its rows, and those of a built-in profile that it goes on from."""

    kind: Literal["NodeProfile"]
    version: Literal[1]
    name: Annotated[str, Meta(pattern="^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
    about: _Text
    includes: str | None = None
    """The name of a built-in profile; a row of the same name replaces the one there."""
    leave_out: tuple[str, ...] = ()
    """Names of its rows that do not count here."""
    rows: tuple[Row, ...] = ()


class Profile(Struct, frozen=True):
    """A profile with all its rows."""

    name: str
    about: str
    rows: tuple[Row, ...]


def whole_profile(file: ProfileFile, base: Profile | None) -> Profile:
    """The file's rows, after those that it includes.

    Raises:
        ValueError: two rows of one name, or one is left out that there is not.
    """
    names = [row.name for row in file.rows]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise ValueError(f"rows[{at}].name: {name} is there twice")
    known = {row.name: row for row in (() if base is None else base.rows)}
    for at, name in enumerate(file.leave_out):
        if name not in known:
            raise ValueError(f"leaveOut[{at}]: no row {name[:40]!r} is included")
        if name in names:
            raise ValueError(f"leaveOut[{at}]: {name} is left out and there is a row of that name")
    rows = {**known, **{row.name: row for row in file.rows}}
    kept = tuple(row for name, row in rows.items() if name not in file.leave_out)
    return Profile(file.name, file.about, kept)

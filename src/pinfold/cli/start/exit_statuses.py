"""With which status a command ends: one table, of which the page and each ``--help`` are made.

2 is for input that is at fault (the command line, a file), 1 for what was looked at and refused.
"""

from __future__ import annotations

from textwrap import wrap
from typing import Final

from msgspec import Struct


class ExitStatus(Struct, frozen=True):
    """One row: a status, what it means, and of which commands.

    ``status``: None for that of a command that is run.  ``commands``: none for all of them.
    ``meaning``: as ``--help`` has it, after the number.
    """

    status: int | None
    meaning: str
    commands: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The status as a number."""
        if self.status is None:
            raise ValueError(f"the status is another's: {self.meaning}")
        return self.status


_AGENTS: Final = ("explain", "resize", "apply", "delete", "logs", "status", "history", "rebalance")
_SERVERS: Final = ("quota serve", "classes serve")

ANSWERED: Final = ExitStatus(0, "done, or answered")
REFUSED: Final = ExitStatus(1, "looked at and refused")
USAGE: Final = ExitStatus(2, "the command line or a file is at fault")
INTERRUPTED: Final = ExitStatus(130, "interrupted by SIGINT (Ctrl-C)")
UNREAD: Final = ExitStatus(141, "whoever read standard output has had enough")
TERMINATED: Final = ExitStatus(143, "ended by SIGTERM")

GENERAL: Final = (ANSWERED, REFUSED, USAGE, INTERRUPTED, UNREAD, TERMINATED)
"""What every command may end with; the rows below say what a status means of one command."""

REJECTION_TOLD: Final = ExitStatus(
    0, "answered; that pods are rejected is an answer, too", ("plan", "explain", "simulate")
)
NO_AGENT: Final = ExitStatus(2, "no agent listens", _AGENTS)
NOBODY_TO_RUN: Final = ExitStatus(
    2, "--detach, and no agent listens; or its socket is there, and nobody answers", ("run",)
)
OWN_STATUS: Final = ExitStatus(
    None, "the command's own status, and 128 + the signal where one ended it", ("run",)
)
NOT_RUN: Final = ExitStatus(1, "the CPUs cannot be had, and nothing was run", ("run",))
NOT_FOUND: Final = ExitStatus(127, "there is no such command", ("run",))
NOT_EXECUTABLE: Final = ExitStatus(126, "the command cannot be executed", ("run",))
REJECTED: Final = ExitStatus(
    1,
    "a pod was rejected, the agent refuses its manifest, or it runs already and otherwise",
    ("apply",),
)
NOT_DELETED: Final = ExitStatus(1, "one of them could not be deleted; the others are", ("delete",))
NOT_RESIZED: Final = ExitStatus(
    1,
    "infeasible, which changes nothing, or undone; there is no such pod or container; or --timeout "
    "is over, and what was begun goes on",
    ("resize",),
)
NOT_MOVED: Final = ExitStatus(
    1, "the agent's policy is not dynamic, or a move could not be made", ("rebalance",)
)
NOBODYS: Final = ExitStatus(
    2, "with MANIFEST... under policy none, where nobody has CPUs of his own", ("rebalance",)
)
NO_POD: Final = ExitStatus(1, "the agent knows no such pod", ("explain",))
NOT_IN_MANIFESTS: Final = ExitStatus(2, "the manifests have no such pod", ("explain",))
NO_START: Final = ExitStatus(
    2, "a configuration with which the kubelet would not start", ("plan", "explain", "rebalance")
)
NO_LOG: Final = ExitStatus(1, "there is no such pod or container, or nothing of it", ("logs",))
NOT_READY: Final = ExitStatus(1, "--ready, and the agent is not at work", ("status",))
STOPPED: Final = ExitStatus(
    0, "stopped by SIGTERM or SIGINT; what runs, runs on", ("agent", *_SERVERS)
)
NO_PLACE: Final = ExitStatus(1, "an address or a folder cannot be used", _SERVERS)
NO_NODE: Final = ExitStatus(
    1,
    "the record does not fit, or the state directory, the cgroups or the socket cannot be used",
    ("agent",),
)
DIFFERS: Final = ExitStatus(
    1, "the kernel does not agree; findings of severity info count with --strict only", ("audit",)
)
UNFIT: Final = ExitStatus(
    1,
    "the machine does not fit the profile, or it is not known whether it does; rows of severity "
    "info count with --strict only",
    ("profile check",),
)
FINDINGS: Final = ExitStatus(1, "findings; notes do not count", ("state check",))
UNMENDED: Final = ExitStatus(
    1, "something is left that this does not mend, or that a kubelet refuses", ("state repair",)
)
NOT_TAKEN: Final = ExitStatus(
    1,
    "with --kubelet-version: that kubelet refuses the file, or it or the one of --written-by loses "
    "something of it",
    ("state versions",),
)
UNUSABLE: Final = ExitStatus(
    2,
    "the file is of no use",
    ("state show", "state check", "state versions", "state repair", "state convert"),
)
NOT_CONVERTED: Final = ExitStatus(
    1,
    "something cannot be said on the other side, or with --strict anything was left out; nothing "
    "is written then",
    ("convert",),
)
GIVEN_UP: Final = ExitStatus(1, "a class is not viable on a node, or not there", ("readiness",))
COMING: Final = ExitStatus(3, "some are coming, and the rest are ready", ("readiness",))
NO_RUN: Final = ExitStatus(1, "a run came to no result", ("simulate",))
CUT_SHORT: Final = ExitStatus(
    130, "interrupted by SIGINT (143: SIGTERM), and what there is was printed", ("simulate",)
)
EXISTS: Final = ExitStatus(1, "FILE exists, and there is no --force", ("capture",))
NO_PAGES: Final = ExitStatus(
    1,
    "this kernel has no pages of the size or no such node, grants fewer than asked, or root is "
    "needed",
    ("hugepages allocate", "hugepages release"),
)
NOT_SHIELDED: Final = ExitStatus(1, "the kernel refuses, or root is needed", ("shield",))

OF_COMMANDS: Final = (
    REJECTION_TOLD,
    NO_START,
    NO_RUN,
    CUT_SHORT,
    NO_POD,
    NOT_IN_MANIFESTS,
    NOT_CONVERTED,
    GIVEN_UP,
    COMING,
    FINDINGS,
    NOT_TAKEN,
    UNMENDED,
    UNUSABLE,
    DIFFERS,
    UNFIT,
    EXISTS,
    STOPPED,
    NO_NODE,
    NO_PLACE,
    NOT_RESIZED,
    OWN_STATUS,
    NOT_RUN,
    NOBODY_TO_RUN,
    NOT_EXECUTABLE,
    NOT_FOUND,
    REJECTED,
    NOT_DELETED,
    NO_LOG,
    NOT_READY,
    NOT_MOVED,
    NOBODYS,
    NO_PAGES,
    NOT_SHIELDED,
    NO_AGENT,
)


def statuses_of(command: str) -> tuple[ExitStatus, ...]:
    """The rows of a command (``state check``), by their status; of the general ones 0, 1 and 2."""
    own = [row for row in OF_COMMANDS if command in row.commands]
    taken = {row.status for row in own}
    replaced = {*taken, ANSWERED.status} if OWN_STATUS in own else taken
    general = [USAGE, *(row for row in (ANSWERED, REFUSED) if row.status not in replaced)]
    return tuple(sorted([*own, *general], key=lambda row: -1 if row.status is None else row.code))


def epilog(command: str) -> str:
    """The end of a command's ``--help``."""
    told: dict[str, list[str]] = {}
    for row in statuses_of(command):
        told.setdefault("" if row.status is None else str(row.status), []).append(row.meaning)
    lines = ["\b", "Exit status:"]
    for status, meanings in told.items():
        text = "; or ".join(meanings)
        lines += wrap(text, 78, initial_indent=f"  {status:<5}", subsequent_indent=" " * 7)
    return "\n".join(lines)

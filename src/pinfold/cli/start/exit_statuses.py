"""With which status a command ends: one table, from which whatever tells of them is made.

2 is for input that is at fault (the command line, a file), 1 for what was looked at and refused.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class ExitStatus(Struct, frozen=True):
    """One row: a status, what it means, and of which commands.

    ``status``: None for that of a command that is run.  ``commands``: none for all of them.
    ``meaning``: as ``--help`` has it, after the number.  ``remedy``: what to do then, a sentence,
    as ``--explain-exit`` has it.
    """

    status: int | None
    meaning: str
    remedy: str
    commands: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The status as a number."""
        if self.status is None:
            raise ValueError(f"the status is another's: {self.meaning}")
        return self.status


_AGENTS: Final = ("explain", "resize", "apply", "delete", "logs", "status", "history", "rebalance")
_REPLICAS: Final = ("quota serve", "classes serve")

ANSWERED: Final = ExitStatus(
    0,
    "done, or answered",
    "Nothing.",
)
REFUSED: Final = ExitStatus(
    1,
    "looked at and refused",
    "The line on standard error says what was refused, and why: change that, and call it again.",
)
USAGE: Final = ExitStatus(
    2,
    "the command line or a file is at fault",
    "The last line on standard error names the option, or the file and the place in it, "
    "and what to write instead; --help lists what there is.",
)
INTERRUPTED: Final = ExitStatus(
    130,
    "interrupted by SIGINT (Ctrl-C)",
    "Nothing: what was about to be written is as it was before. Call it again.",
)
UNREAD: Final = ExitStatus(
    141,
    "whoever read standard output has had enough",
    "Nothing, where that was meant (| head); else look at the program after the pipe.",
)
TERMINATED: Final = ExitStatus(
    143,
    "ended by SIGTERM",
    "Nothing, where somebody ended it on purpose; else ask what did: a timeout, a service manager.",
)

GENERAL: Final = (ANSWERED, REFUSED, USAGE, INTERRUPTED, UNREAD, TERMINATED)
"""What every command may end with; the rows below say what a status means of one command."""

REJECTION_TOLD: Final = ExitStatus(
    0,
    "answered; that pods are rejected is an answer, too",
    "Read the answer: it names each pod that is rejected. A script that has to know reads -o json.",
    ("plan", "explain", "simulate"),
)
NO_AGENT: Final = ExitStatus(
    2,
    "no agent listens",
    "Start one (pinfold agent, or systemctl start pinfold), or name its socket with "
    "--socket or PINFOLD_SOCKET; only its user and root may ask it.",
    _AGENTS,
)
NOBODY_TO_RUN: Final = ExitStatus(
    2,
    "--detach, and no agent listens; or its socket is there, and nobody answers",
    "Start an agent, or leave out --detach; where a socket is there and nobody answers, "
    "wait until the agent has restarted, or remove the socket of one that is gone for "
    "good.",
    ("run",),
)
OWN_STATUS: Final = ExitStatus(
    None,
    "the command's own status, and 128 + the signal where one ended it",
    "Look it up in the documentation of the command that was run.",
    ("run",),
)
NOT_RUN: Final = ExitStatus(
    1,
    "the CPUs cannot be had, and nothing was run",
    "Ask for fewer CPUs (--cpus), or wait for some with --wait; pinfold status shows who has them.",
    ("run",),
)
NOT_FOUND: Final = ExitStatus(
    127,
    "there is no such command",
    "Check the spelling and PATH; a command is not run by a shell: use sh -c '...' for that.",
    ("run",),
)
NOT_EXECUTABLE: Final = ExitStatus(
    126,
    "the command cannot be executed",
    "Make it executable (chmod +x), and see that its interpreter is there.",
    ("run",),
)
REJECTED: Final = ExitStatus(
    1,
    "a pod was rejected, the agent refuses its manifest, or it runs already and otherwise",
    "The line of the pod says which; pinfold explain pod/NAME says why, and pinfold "
    "resize or pinfold delete make way.",
    ("apply",),
)
NOT_DELETED: Final = ExitStatus(
    1,
    "one of them could not be deleted; the others are",
    "Standard error names those that are left, and why; pinfold status shows the names.",
    ("delete",),
)
NOT_RESIZED: Final = ExitStatus(
    1,
    "infeasible, which changes nothing, or undone; there is no such pod or container; or "
    "--timeout is over, and what was begun goes on",
    "pinfold explain pod/NAME says what is free where; ask for fewer CPUs, or wait longer"
    " (--timeout).",
    ("resize",),
)
NOT_MOVED: Final = ExitStatus(
    1,
    "the agent's policy is not dynamic, or a move could not be made",
    "Set the policy dynamic in the agent's configuration; for a move that could not be "
    "made, see pinfold history.",
    ("rebalance",),
)
NOBODYS: Final = ExitStatus(
    2,
    "with MANIFEST... under policy none, where nobody has CPUs of his own",
    "Plan under a policy that gives CPUs: --policy static.",
    ("rebalance",),
)
NO_POD: Final = ExitStatus(
    1,
    "the agent knows no such pod",
    "pinfold status shows the pods there are; say its namespace with -n.",
    ("explain",),
)
NOT_IN_MANIFESTS: Final = ExitStatus(
    2,
    "the manifests have no such pod",
    "Check the name and namespace (-n), and that the manifests given hold the pod.",
    ("explain",),
)
NO_START: Final = ExitStatus(
    2,
    "a configuration with which the kubelet would not start",
    "The line says which field stops the kubelet, in its own words: change that field or flag.",
    ("plan", "explain", "rebalance"),
)
NO_CLUSTER: Final = ExitStatus(
    1,
    "a cluster cannot be read: it is not reached, it refuses, or tells too little of a node",
    "The line names the request and the right that is missing, or what else has to be given.",
    ("plan", "explain"),
)
NO_AGENTS_POD: Final = ExitStatus(
    1,
    "--node, and no agent is on that node, or the cluster refuses",
    "The line names what is missing: kubectl get nodes lists the nodes, and a right that is "
    "missing is named with its namespace.",
    ("status", "history", "topology", "audit"),
)
NO_LOG: Final = ExitStatus(
    1,
    "there is no such pod or container, or nothing of it",
    "pinfold status shows the pods and their containers (-c); logs go with their pod.",
    ("logs",),
)
NOT_READY: Final = ExitStatus(
    1,
    "--ready, and the agent is not at work",
    "Wait, and ask again; pinfold status without --ready says what is missing.",
    ("status",),
)
STOPPED: Final = ExitStatus(
    0,
    "stopped by SIGTERM or SIGINT; what runs, runs on",
    "Nothing.",
    ("agent", "serve", *_REPLICAS),
)
NO_PLACE: Final = ExitStatus(
    1,
    "an address or a folder cannot be used",
    "Give another address with --listen or --health-listen, or another folder with --certificates.",
    _REPLICAS,
)
NO_PAGE: Final = ExitStatus(
    1,
    "the address or the file of the token cannot be used",
    "Give another address with --listen, or another file with --token-file.",
    ("serve",),
)
NO_NODE: Final = ExitStatus(
    1,
    "the record does not fit, or the state directory, the cgroups or the socket cannot be used",
    "The line says which; a record of another machine or configuration is told by pinfold"
    " state check, a place that cannot be used wants root or another --state-dir, "
    "--socket.",
    ("agent",),
)
DIFFERS: Final = ExitStatus(
    1,
    "the kernel does not agree; findings of severity info count with --strict only",
    "Each finding says what to do about it; a running agent repairs its own within a period.",
    ("audit",),
)
UNFIT: Final = ExitStatus(
    1,
    "the machine does not fit the profile, or it is not known whether it does; rows of "
    "severity info count with --strict only",
    "Each row says which setting it is, and the lines that change it.",
    ("profile check",),
)
FINDINGS: Final = ExitStatus(
    1,
    "findings; notes do not count",
    "Each finding says how it is mended; pinfold state repair does what can be done.",
    ("state check",),
)
UNMENDED: Final = ExitStatus(
    1,
    "something is left that this does not mend, or that a kubelet refuses",
    "Standard error says what is left, and how it is mended by hand.",
    ("state repair",),
)
NOT_TAKEN: Final = ExitStatus(
    1,
    "with --kubelet-version: that kubelet refuses the file, or it or the one of "
    "--written-by loses something of it",
    "Drain the node and remove the file before that kubelet starts, or stay with one that"
    " takes it.",
    ("state versions",),
)
UNUSABLE: Final = ExitStatus(
    2,
    "the file is of no use",
    "Give a cpu_manager_state, memory_manager_state or kubelet_internal_checkpoint as a "
    "kubelet wrote it; its .bak-N is what it was before a repair.",
    ("state show", "state check", "state versions", "state repair", "state convert"),
)
NOT_CONVERTED: Final = ExitStatus(
    1,
    "something cannot be said on the other side, or with --strict anything was left out; "
    "nothing is written then",
    "Standard error names what has no word on the other side: leave it out of the "
    "classes, or call it without --strict.",
    ("convert",),
)
GIVEN_UP: Final = ExitStatus(
    1,
    "a class is not viable on a node, or not there",
    "Look at the node: its device plugin does not list what the class needs, and waiting "
    "will not help.",
    ("readiness",),
)
COMING: Final = ExitStatus(
    3,
    "some are coming, and the rest are ready",
    "Wait as long as the answer says, and ask again.",
    ("readiness",),
)
NO_RUN: Final = ExitStatus(
    1,
    "a run came to no result",
    "Standard error names the run and its error; --resume DIR keeps those that have ended.",
    ("simulate",),
)
CUT_SHORT: Final = ExitStatus(
    130,
    "interrupted by SIGINT (143: SIGTERM), and what there is was printed",
    "Call it again with --resume DIR, and it goes on where it was.",
    ("simulate",),
)
EXISTS: Final = ExitStatus(
    1,
    "FILE exists, and there is no --force",
    "Give another FILE, or --force to replace it.",
    ("capture",),
)
NO_PAGES: Final = ExitStatus(
    1,
    "this kernel has no pages of the size or no such node, grants fewer than asked, or "
    "root is needed",
    "pinfold hugepages show says what the kernel has; call it as root, ask for fewer, or "
    "free memory first: it has to be in one piece.",
    ("hugepages allocate", "hugepages release"),
)
NOT_SHIELDED: Final = ExitStatus(
    1,
    "the kernel refuses, or root is needed",
    "Call it as root; where the kernel refuses, standard error names the file and why.",
    ("shield",),
)

OF_COMMANDS: Final = (
    REJECTION_TOLD,
    NO_START,
    NO_CLUSTER,
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
    NO_PAGE,
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
    NO_AGENTS_POD,
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

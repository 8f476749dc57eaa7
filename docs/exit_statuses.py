"""The page of exit statuses, from the table of the command line."""

from __future__ import annotations

from pinfold.cli.start.exit_statuses import GENERAL, OF_COMMANDS, ExitStatus

_STATUSES = """\
A command's status is 2 where its input is at fault (the command line, a file), and 1 for what was
looked at and refused. One line on standard error says what is wrong, where, and what to do. Each
`--help` ends with the statuses of the command, and `pinfold COMMAND --explain-exit [STATUS]` says
what to do.
"""
_STATUSES_BELOW = """\
A file or a standard output that cannot be written for want of room, or a standard output that is
closed (`>&-`), is 1 and one line, in every command; a place where no file can be is 2. Where
standard error cannot be written nothing is said, and the status is the same.

SIGINT and SIGTERM end a command at any moment, also while its modules are loaded (the first
hundredths of a second are Python's own, which ends as it does); what it was about to write is as it
was before. `pinfold simulate` prints what it has by then.
"""


def page() -> str:
    """With what each command ends."""
    parts = ["\n# Exit statuses\n", _STATUSES]
    parts += ["| Status | Meaning | What to do |", "|---|---|---|"]
    parts += [f"| {row.code} | {row.meaning} | {_cell(row.remedy)} |" for row in GENERAL]
    parts += ["", _STATUSES_BELOW, "What they mean of single commands:\n"]
    parts += ["| Command | Status | Meaning | What to do |", "|---|---|---|---|"]
    parts += [
        f"| {_commands_of(row)} | {_status(row)} | {row.meaning} | {_cell(row.remedy)} |"
        for row in OF_COMMANDS
    ]
    return "\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _commands_of(row: ExitStatus) -> str:
    return ", ".join(f"`pinfold {name}`" for name in row.commands)


def _status(row: ExitStatus) -> str:
    return "its own" if row.status is None else str(row.status)

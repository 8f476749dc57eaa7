"""The page of exit statuses, from the table of the command line."""

from __future__ import annotations

from pinfold.cli.start.exit_statuses import GENERAL, OF_COMMANDS, ExitStatus

_STATUSES = """\
A command ends with 2 if its input is at fault (the command line or a file), and with 1 if the input
was understood and the request was refused. One line on standard error says what is wrong, where,
and what to do. Each `--help` ends with the statuses of the command, and `pinfold COMMAND
--explain-exit [STATUS]` says what to do.
"""
_STATUSES_BELOW = """\
Every command ends with 1 and one line if a disk is full or standard output is closed (`>&-`), and
with 2 if a file cannot be made at the place that you gave. If standard error cannot be written, the
command says nothing and ends with the same status.

SIGINT and SIGTERM end a command at any moment, even while it starts (only in the first hundredths
of a second it is Python that ends, in its own way). Files that the command was about to write stay
as they were. `pinfold simulate` prints the results that it has by then.
"""


def page() -> str:
    """With what each command ends."""
    parts = ["\n# Exit statuses\n", _STATUSES]
    parts += ["| Status | Meaning | What to do |", "|---|---|---|"]
    parts += [f"| {row.code} | {row.meaning} | {_cell(row.remedy)} |" for row in GENERAL]
    parts += ["", _STATUSES_BELOW, "What the statuses of single commands mean:\n"]
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

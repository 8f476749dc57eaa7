"""The exit statuses of a command in words: the end of its ``--help``, and ``--explain-exit``."""

from __future__ import annotations

import signal
from textwrap import wrap
from typing import Final

import click

from pinfold.cli.start.exit_statuses import (
    GENERAL,
    OF_COMMANDS,
    OWN_STATUS,
    ExitStatus,
    statuses_of,
)
from pinfold.linux.endings import BY_SIGNAL

_ALL: Final = "all"
"""The value of ``--explain-exit`` that is given none."""
_WIDTH: Final = 78


def epilog(command: str) -> str:
    """The end of a command's ``--help``."""
    told: dict[str, list[str]] = {}
    for row in statuses_of(command):
        told.setdefault("" if row.status is None else str(row.status), []).append(row.meaning)
    lines = ["\b", "Exit status:"]
    for status, meanings in told.items():
        text = "; or ".join(meanings)
        lines += wrap(text, _WIDTH, initial_indent=f"  {status:<5}", subsequent_indent=" " * 7)
    return "\n".join([*lines, "What to do then: --explain-exit [STATUS]"])


def explain_exit_option(command: str) -> click.Option:
    """``--explain-exit [STATUS]`` of a command (``state check``; "" is the program)."""

    def tell(context: click.Context, _option: click.Parameter, asked: str | None) -> None:
        if asked is None or context.resilient_parsing:
            return
        click.echo(_explained(command, asked))
        context.exit()

    return click.Option(
        ["--explain-exit"],
        is_flag=False,
        flag_value=_ALL,
        is_eager=True,
        expose_value=False,
        callback=tell,
        metavar="[STATUS]",
        help="Explain this exit status (or all of them), say what to do, and exit.",
    )


def _explained(command: str, asked: str) -> str:
    if asked == _ALL:
        return "\n".join(_told(row, command) for row in rows_of(command))
    called = f"pinfold {command}".rstrip()
    try:
        status = int(asked)
    except ValueError:
        raise click.UsageError(
            f"--explain-exit: {asked!r} is no exit status; of a command: "
            "pinfold COMMAND --explain-exit [STATUS]"
        ) from None
    rows = rows_of(command)
    found = [row for row in rows if row.status == status] or [*_of_a_signal(status)]
    if not found and OWN_STATUS in rows:
        found = [OWN_STATUS]
    if not found:
        known = ", ".join(str(one) for one in dict.fromkeys(row.status for row in rows))
        raise click.UsageError(f"{called} does not end with {asked}; its statuses are {known}")
    return "\n".join(_told(row, command) for row in found)


def rows_of(command: str) -> list[ExitStatus]:
    """All rows of a command, such as ``state check``; of a group those of all below it."""
    if not command:
        return [*GENERAL]
    below = {one for row in OF_COMMANDS for one in row.commands if one.startswith(f"{command} ")}
    own = dict.fromkeys(row for one in sorted({command, *below}) for row in statuses_of(one))
    taken = {row.status for row in own}
    return [*own, *(row for row in GENERAL if row.status not in taken)]


def _told(row: ExitStatus, command: str) -> str:
    """A row; where the command is a group it says of which of those below it."""
    status = "" if row.status is None else str(row.status)
    below = [one for one in row.commands if one.startswith(f"{command} ")]
    of = f"{', '.join(below)}: " if below else ""
    meaning = wrap(
        f"{of}{row.meaning}", _WIDTH, initial_indent=f"{status:<5}", subsequent_indent=" " * 5
    )
    remedy = wrap(row.remedy, _WIDTH, initial_indent="  -> ", subsequent_indent=" " * 5)
    return "\n".join((*meaning, *remedy))


def _of_a_signal(status: int) -> tuple[ExitStatus, ...]:
    """What a shell tells where a signal ended the program."""
    try:
        name = signal.Signals(status - BY_SIGNAL).name
    except ValueError:
        return ()
    meaning = f"ended by {name}, as a shell tells it"
    remedy = "Somebody sent it; SIGKILL also comes where memory is short: look at dmesg."
    return (ExitStatus(status, meaning, remedy),)

"""The manual: a page in roff for each command, of what its ``--help`` is made of.

The macros are those of man(7), which ``man`` of groff and of mandoc read.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from textwrap import wrap
from typing import Final

import click

from pinfold import __version__
from pinfold.cli.output import InputError
from pinfold.cli.start.examples import EXAMPLES
from pinfold.cli.start.status_words import rows_of
from pinfold.linux.own_places import SOCKET_VARIABLE

SECTION: Final = 1
"""Of the manual: commands that anybody may call."""
RELEASED: Final = ""
"""The day of the version, as its heading in the changelog has it; "" until it is released."""
_EPOCH: Final = "SOURCE_DATE_EPOCH"
_WHOLE: Final = 1000
_LINE: Final = 72

_ENVIRONMENT: Final = {
    "--socket": (SOCKET_VARIABLE, "The agent's socket, where --socket names none."),
    "--color": ("NO_COLOR, FORCE_COLOR", "Set to anything: no colours, or colours everywhere."),
}
"""Variables that stand for an option, by its name."""


def walk(
    command: click.Command, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The program, its commands and theirs, with the words that call them."""
    names = (*above, "pinfold" if not above else command.name or "")
    yield names, command
    if isinstance(command, click.Group):
        with click.Context(command, info_name=names[-1]) as context:
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                if found is not None and not found.hidden:
                    yield from walk(found, names)


def manual_page(names: tuple[str, ...], command: click.Command) -> str:
    """The page of a command, as roff.

    The date is that of ``SOURCE_DATE_EPOCH``, as who builds packages sets it, else that of the
    version, and none before its release: the same sources have the same pages.

    Args:
        names: the words that call it, such as ``("pinfold", "state", "check")``.
        command: what they call.

    Raises:
        InputError: ``SOURCE_DATE_EPOCH`` is no time.
    """
    title = _plain("-".join(names))
    with click.Context(command, info_name=" ".join(names)) as context:
        context.help_option_names = ["-h", "--help"]
        usage = " ".join(command.collect_usage_pieces(context))
        head = f'"{title.upper()}" "{SECTION}" "{_date()}" "pinfold {__version__}" "Pinfold"'
        about = command.get_short_help_str(_WHOLE).rstrip(".")
        lines = [
            f".TH {head}",
            *(".SH NAME", f"{title} \\- {_plain(about)}"),
            *(".SH SYNOPSIS", f".B {_plain(' '.join(names))}", *_filled(usage)),
            ".SH DESCRIPTION",
            *_description(command.help),
            *_commands(command, context, names),
        ]
        parameters = command.get_params(context)
        records = [record for one in parameters if (record := one.get_help_record(context))]
    lines.append(".SH OPTIONS")
    for spelled, text in records:
        if text:
            lines += [".TP", f".B {_plain(_one_line(spelled))}", *_filled(text)]
    lines += _examples(" ".join(names[1:]))
    lines.append(".SH EXIT STATUS")
    for row in rows_of(" ".join(names[1:])):
        status = "its own" if row.status is None else str(row.status)
        lines += [".TP", f".B {status}", *_filled(f"{row.meaning}."), ".br", *_filled(row.remedy)]
    lines += _environment({word for one in parameters for word in one.opts})
    lines += _see_also(names)
    return "\n".join([*lines, ""])


def _commands(
    command: click.Command, context: click.Context, names: tuple[str, ...]
) -> Iterator[str]:
    if not isinstance(command, click.Group):
        return
    yield ".SH COMMANDS"
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None and not below.hidden:
            yield from (".TP", f".BR {_plain('-'.join((*names, name)))} ({SECTION})")
            yield from _filled(below.get_short_help_str(_WHOLE))


def _examples(command: str) -> Iterator[str]:
    found = EXAMPLES.get(command, ())
    if found:
        yield ".SH EXAMPLES"
    for one in found:
        yield from (".TP", f".B {_plain(one.line)}", *_filled(one.about))


def _environment(options: set[str]) -> Iterator[str]:
    told = [variable for option, variable in _ENVIRONMENT.items() if option in options]
    if told:
        yield ".SH ENVIRONMENT"
    for variable, text in told:
        yield from (".TP", f".B {variable}", *_filled(text))


def _see_also(names: tuple[str, ...]) -> Iterator[str]:
    if len(names) > 1:
        yield from (".SH SEE ALSO", f".BR {_plain('-'.join(names[:-1]))} ({SECTION})")


def _description(text: str | None) -> Iterator[str]:
    """The paragraphs of a help; one of click's with a backspace keeps its layout."""
    paragraphs = inspect.cleandoc(text or "").split("\f")[0].strip().split("\n\n")
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            lines = paragraph.removeprefix("\b\n").splitlines()
            yield from (".nf", *map(_plain, lines), ".fi")
        else:
            yield from _filled(paragraph)


def _filled(text: str) -> Iterator[str]:
    """Text that is filled, in lines that a reader of the source takes in."""
    yield from map(_plain, wrap(_one_line(text), _LINE, break_on_hyphens=False))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _plain(line: str) -> str:
    """A line in which nothing is roff's; an option's hyphen stays one that can be copied."""
    escaped = line.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _date() -> str:
    epoch = os.environ.get(_EPOCH)
    if not epoch:
        return RELEASED
    try:
        return f"{datetime.fromtimestamp(int(epoch), UTC):%Y-%m-%d}"
    except (ValueError, OverflowError, OSError):
        raise InputError(
            f"{_EPOCH}={epoch[:40]}: has to be seconds since 1970, up to the year 9999; unset it "
            "for the day of the version"
        ) from None

"""What is said of every command line before its command begins: what none may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

_PLACES: Final = frozenset({"FILE", "FILE.html", "DIR", "PATH", "SRC"})
"""What the values of an option are called that is a file or a folder."""
_NAME: Final = "NAME"
_SHORT: Final = len("-o=")
_FILES: Final = ("FILE", "MANIFEST")
"""How the words are called that a command takes as files."""
_ADDRESSES: Final = ("http://", "https://")


def without_equals(above: click.Context, command: click.Command, args: Sequence[str]) -> list[str]:
    """The words of a command with ``-o=json`` as ``-ojson``, as programs in Go take them.

    Only an option of one letter that takes a value is read so, up to where options end.

    Args:
        above: where it is called.
        command: what is going to be called.
        args: the words after its name.
    """
    context = click.Context(
        command, parent=above, resilient_parsing=True, **command.context_settings
    )
    options = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    taking = {word for one in options if not (one.is_flag or one.count) for word in one.opts}
    words = [*args]
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            if isinstance(command, click.Group):
                below = command.get_command(context, word)
                rest = words[at + 1 :]
                return words[: at + 1] + (
                    rest if below is None else without_equals(context, below, rest)
                )
            if not context.allow_interspersed_args:
                break
        elif word[2:3] == "=" and len(word) > _SHORT and word[:2] in taking:
            words[at] = f"{word[:2]}{word[3:]}"
        elif word in taking:
            at += 1
        at += 1
    return words


def check_command_line(
    above: click.Context, command: click.Command, name: str, args: Sequence[str]
) -> None:
    """Refuse a command line of a command, or of one below it, that means nothing.

    The last of several values of an option would win without a word; and a variable that a script
    has not set would be a file without a name.

    Args:
        above: where it is called; a command keeps the help option of the first context it is in.
        command: what is going to be called.
        name: how it was called.
        args: the words after that.

    Raises:
        click.UsageError: an option that takes one value is there twice, or a file has no name or
            is an address.
    """
    # What else is wrong is told when the command is called.
    context = click.Context(
        command,
        parent=above,
        info_name=name,
        resilient_parsing=True,
        **command.context_settings,
    )
    values, rest, order = command.make_parser(context).parse_args(list(args))
    seen: set[str | None] = set()
    for one in order:
        if isinstance(one, click.Argument) and (one.metavar or "").strip("[").startswith(_FILES):
            _refuse_addresses("", values.get(one.name or ""))
        if isinstance(one, click.Option) and one.metavar in _PLACES:
            given = values.get(one.name or "")
            _refuse_addresses(f"{one.opts[0]}: ", given)
            if "" in (given if isinstance(given, list) else [given]):
                raise click.UsageError(f"{one.opts[0]}: an empty name is no file; leave it out")
        if (
            isinstance(one, click.Option)
            and one.metavar == _NAME
            and values.get(one.name or "") == ""
        ):
            raise click.UsageError(f"{one.opts[0]}: an empty name is none; leave it out")
        if not isinstance(one, click.Option) or one.multiple or one.count or one.is_flag:
            continue
        if one.name in seen:
            raise click.UsageError(f"{one.opts[0]}: is given twice, and takes one value")
        seen.add(one.name)
    if isinstance(command, click.Group) and rest:
        below = command.get_command(context, rest[0])
        if below is not None:
            check_command_line(context, below, rest[0], rest[1:])


def _refuse_addresses(where: str, given: object) -> None:
    for word in given if isinstance(given, list | tuple) else [given]:
        if isinstance(word, str) and word.lower().startswith(_ADDRESSES):
            raise click.UsageError(
                f"{where}{word:.80}: addresses are not read; download the file first, such as with "
                "curl -fsSLO ADDRESS"
            )

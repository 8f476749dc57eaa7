"""Options that take one value are given once: the last of several would win without a word."""

from __future__ import annotations

from collections.abc import Sequence

import click


def check_given_once(
    above: click.Context, command: click.Command, name: str, args: Sequence[str]
) -> None:
    """Refuse a command line of a command, or of one below it, with an option given twice.

    Args:
        above: where it is called; a command keeps the help option of the first context it is in.
        command: what is going to be called.
        name: how it was called.
        args: the words after that.

    Raises:
        click.UsageError: an option that takes one value is there twice.
    """
    # What else is wrong is told when the command is called.
    context = click.Context(
        command,
        parent=above,
        info_name=name,
        resilient_parsing=True,
        **command.context_settings,
    )
    _, rest, order = command.make_parser(context).parse_args(list(args))
    seen: set[str | None] = set()
    for one in order:
        if not isinstance(one, click.Option) or one.multiple or one.count or one.is_flag:
            continue
        if one.name in seen:
            raise click.UsageError(f"{one.opts[0]}: is given twice, and takes one value")
        seen.add(one.name)
    if isinstance(command, click.Group) and rest:
        below = command.get_command(context, rest[0])
        if below is not None:
            check_given_once(context, below, rest[0], rest[1:])

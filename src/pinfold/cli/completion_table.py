"""The table from which shells complete: the program's own commands, with what their values are."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
from msgspec.structs import replace

from pinfold.cli import main
from pinfold.cli.completion_values import values_of
from pinfold.completion.table import Argument, Command, Option

_MANUAL = "man"
_HELP = 72
"""Characters that a list beside the words has room for."""


def table() -> Command:
    """The whole program."""
    with click.Context(main, info_name="pinfold", help_option_names=["-h", "--help"]) as context:
        program = _described(main, context, ())
    # The words after it are those of the commands that it tells of.
    manual = replace(program.commands[_MANUAL], commands=_names(program))
    return replace(program, commands={**program.commands, _MANUAL: manual})


def _names(program: Command) -> dict[str, Command]:
    """What is below, with no more than its help."""
    below = program.commands.items()
    return {name: Command(help=one.help, commands=_names(one)) for name, one in below}


def _described(command: click.Command, context: click.Context, names: tuple[str, ...]) -> Command:
    parameters = command.get_params(context)
    return Command(
        help=_first_sentence(command.help),
        options=tuple(_options(parameters, names)),
        arguments=tuple(_arguments(parameters, names)),
        commands=dict(_below(command, context, names)),
        passes_on=not isinstance(command, click.Group) and not context.allow_interspersed_args,
    )


def _below(
    command: click.Command, context: click.Context, names: tuple[str, ...]
) -> Iterator[tuple[str, Command]]:
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if found is not None and not found.hidden:
            settings = found.context_settings
            with click.Context(found, parent=context, info_name=name, **settings) as below:
                yield name, _described(found, below, (*names, name))


def _options(parameters: list[click.Parameter], names: tuple[str, ...]) -> Iterator[Option]:
    for one in parameters:
        if isinstance(one, click.Option) and not one.hidden:
            is_flag = one.is_flag or one.count
            yield Option(
                words=tuple(sorted(one.opts, key=len)),
                help=_first_sentence(one.help),
                takes=None if is_flag else values_of(one, names),
                repeats=one.multiple,
                may_be_bare=not is_flag and getattr(one, "_flag_needs_value", False),
            )
            if one.secondary_opts:
                yield Option(
                    words=tuple(one.secondary_opts), help=f"The opposite of {one.opts[0]}."
                )


def _arguments(parameters: list[click.Parameter], names: tuple[str, ...]) -> Iterator[Argument]:
    for one in parameters:
        if isinstance(one, click.Argument):
            yield Argument(values_of(one, names), many=one.nargs != 1)


def _first_sentence(text: str | None) -> str:
    plain = " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())
    sentence, dot, _ = plain.partition(". ")
    told = f"{sentence}{dot}".strip()
    return told if len(told) <= _HELP else f"{told[: _HELP - 3].rsplit(' ', 1)[0]}..."

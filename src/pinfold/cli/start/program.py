"""What all commands have from the program that they are part of: how it begins, and how it ends."""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from pinfold.cli.output import InputError
from pinfold.cli.start import streams
from pinfold.cli.start.command_line import check_command_line, without_equals
from pinfold.cli.start.examples import told
from pinfold.cli.start.exit_statuses import INTERRUPTED
from pinfold.cli.start.status_words import epilog, explain_exit_option
from pinfold.cli.start.words import keep_words
from pinfold.linux.endings import end_at_once, end_with_cleanup

_NAMES: Final = frozenset({errno.ENAMETOOLONG, errno.ELOOP})
"""What is wrong with a name before there is a file: looking for it fails, whoever looks."""

_MEANT: Final = {
    **dict.fromkeys(
        ("-n", "--namespace", "-A", "--all-namespaces"),
        "This command takes what it is given, of every namespace.",
    ),
    "--no-headers": "Names alone: -o name; any column alone: -o jsonpath=EXPR.",
    "--selector": "Pods are chosen by --namespace, and by their names.",
    "--sort-by": "They are in the order of their admission; -o json is for sorting.",
    "--topology": "A machine is given with --machine.",
    "--topology-policy": "Did you mean --topology-manager-policy?",
    "--topology-scope": "Did you mean --topology-manager-scope?",
    "--kubeconfig": "A cluster is read by plan and explain; pods of one come to others by: "
    "kubectl get pods -A -o json",
    "--manifest": "Manifests are given without an option.",
    "--format": "Did you mean --output?",
    "plan --dry-run": "A plan changes nothing anyway.",
    "apply --dry-run": "pinfold plan FILE says what would become of the pods.",
    "apply --wait": "apply returns when the pods are admitted; pinfold status --watch follows "
    "them.",
    "history -f": "pinfold status --watch follows an agent.",
    "history --follow": "pinfold status --watch follows an agent.",
}
"""What people write, who know other programs, and what it is called here; also of one command."""

_MEANT_WORDS: Final = {
    "status": "pinfold explain pod/NAME tells of one pod; -n NAMESPACE lists those of a namespace.",
}
"""Likewise of words that a command takes none of."""
_UNEXPECTED: Final = "Got unexpected extra argument"

_MEANT_COMMANDS: Final = {
    "help": "pinfold --help lists the commands; pinfold COMMAND --help tells of one.",
    "version": "pinfold --version prints it.",
    "get": "pinfold status -o wide lists the pods of an agent.",
    "exec": "pinfold run COMMAND runs a command on CPUs of its own; one in a container is run by "
    "its runtime, such as crictl exec.",
    "ps": "pinfold status -o wide lists the pods of an agent.",
    "top": "pinfold status --watch follows an agent.",
    "describe": "pinfold explain pod/NAME tells of a pod.",
    "create": "pinfold apply FILE runs pods.",
    "diff": "pinfold plan --compare FILE tells what another configuration changes.",
}
"""Likewise of commands."""


class Program(click.Group):
    """Imports a command's module when it is called; lists them without any.

    ``groups``: the commands in groups, each with the first sentence of its help.  ``rooms``: the
    folder of ``cli.commands`` in which its module is, which has its name; without one it is
    there itself.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's
        groups: Mapping[str, Mapping[str, str]],
        rooms: Mapping[str, str],
        **more: Any,  # noqa: ANN401 - click's
    ) -> None:
        super().__init__(*args, **more)
        self.params.append(explain_exit_option(""))
        self._groups = groups
        self._table = {name: text for group in groups.values() for name, text in group.items()}
        self._rooms = rooms
        self._has_signals = False

    def main(self, *args: Any, **more: Any) -> Any:  # noqa: ANN401 - click's signature
        """Run a command; as a program of its own with streams and signals as all commands want."""
        if not streams.are_the_programs_own():
            return super().main(*args, **more)
        self._has_signals = True
        end_at_once()
        streams.take_over()
        try:
            try:
                return super().main(*args, **more)
            finally:
                sys.stdout.flush()
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the program's own words; options of commands do not stand there."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            problem = f"No such option {error.option_name!r}: options go after the command"
            raise click.UsageError(f"{problem}, as in pinfold status -n NAME.", ctx) from None

    def _main_shell_completion(self, *_given: object, **_more: object) -> None:
        """Nothing: ``pinfold completion`` prints the scripts, and one way is enough."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """Run what was asked for; SIGINT ends it with 130, and without a word."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            called = "" if error.ctx is None else error.ctx.info_name
            meant = _MEANT.get(f"{called} {error.option_name}") or _MEANT.get(error.option_name)
            if meant is None:
                raise
            raise click.UsageError(f"{error.message} {meant}", error.ctx) from None
        except OSError as error:
            if error.filename is None or error.errno not in _NAMES:
                raise
            raise InputError(f"{error.filename!s:.80}: {error.strerror}") from None
        except click.BadParameter as error:
            plain = _plainly(error)
            if plain == error.message:
                raise
            raise click.BadParameter(plain, error.ctx, error.param) from None
        except click.UsageError as error:
            called = "" if error.ctx is None else error.ctx.info_name or ""
            if called not in _MEANT_WORDS or not error.message.startswith(_UNEXPECTED):
                raise
            raise click.UsageError(f"{error.message}. {_MEANT_WORDS[called]}", error.ctx) from None
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                # The terminal has shown ^C.
                click.echo(err=True)
            raise SystemExit(INTERRUPTED.code) from None
        finally:
            if self._has_signals:
                end_at_once()

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Their names, in the order of the table."""
        return list(self._table)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        """Load a command; its help ends with its exit statuses."""
        if cmd_name not in self._table:
            return None
        room = f".{self._rooms[cmd_name]}" if cmd_name in self._rooms else ""
        module = importlib.import_module(f"pinfold.cli.commands{room}.{cmd_name}")
        command = getattr(module, cmd_name)
        if not isinstance(command, click.Command):
            return None
        _tell_statuses(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """What to run; all that it needs is loaded then, and from now on there is a clean end."""
        try:
            found = super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            meant = _MEANT_COMMANDS.get(error.command_name)
            if meant is not None:
                raise click.UsageError(f"{error.message} {meant}", ctx) from None
            raise click.NoSuchCommand(
                error.command_name, possibilities=self._table, ctx=ctx
            ) from None
        name, command, rest = found
        if command is not None and not ctx.resilient_parsing:
            rest = without_equals(ctx, command, rest)
            check_command_line(ctx, command, name or "", rest)
            keep_words(ctx, name or "", rest)
        if self._has_signals:
            end_with_cleanup()
        return name, command, rest

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """List them in their groups, with what the table says."""
        longest = max(map(len, self._table))
        for title, group in self._groups.items():
            with formatter.section(title):
                formatter.write_dl([(one.ljust(longest), text) for one, text in group.items()])


def _plainly(error: click.BadParameter) -> str:
    """What click says of a number, in words that say which ones there are."""
    kind = None if error.param is None else error.param.type
    written, found, _ = error.message.partition(" is not ")
    if not found or not isinstance(kind, click.IntRange | click.FloatRange):
        return error.message
    number = "whole number" if isinstance(kind, click.IntRange) else "number"
    least = "" if kind.min is None else f" from {kind.min}"
    most = "" if kind.max is None else f" to {kind.max}"
    return f"{written} is no {number}{least}{most}."


def _tell_statuses(command: click.Command, name: str) -> None:
    """Have the help of a command, or of those below it, end with examples and statuses; once.

    What a module holds is one object, however often it is looked up.
    """
    if any(one.name == "explain_exit" for one in command.params):
        return
    command.params.append(explain_exit_option(name))
    if isinstance(command, click.Group):
        for below, one in command.commands.items():
            _tell_statuses(one, f"{name} {below}")
    else:
        command.epilog = f"{told(name)}{epilog(name)}"

"""``pinfold man``: the manual page of a command."""

from __future__ import annotations

import shutil
import subprocess
import sys

import click

from pinfold.cli.manual import manual_page, walk
from pinfold.cli.output import InputError


@click.command()
@click.argument("names", nargs=-1, metavar="[COMMAND...]")
def man(names: tuple[str, ...]) -> None:
    """Show the manual page of a command.

    COMMAND is one such as plan or state check; without it the page is that of the program. On a
    terminal man shows the page; elsewhere it is printed as roff: pinfold man plan > pinfold-plan.1.
    """
    program = click.get_current_context().find_root().command
    found = dict(walk(program)).get(("pinfold", *names))
    if found is None:
        raise InputError(f"there is no command {' '.join(names)!r}; pinfold --help lists them")
    page = manual_page(("pinfold", *names), found)
    viewer = shutil.which("man")
    if viewer is not None and sys.stdout.isatty():
        subprocess.run([viewer, "-l", "-"], input=page, text=True, check=False)  # noqa: S603 - the system's man
    else:
        click.echo(page, nl=False)

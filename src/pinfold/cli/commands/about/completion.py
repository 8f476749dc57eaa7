"""``pinfold completion``: the script with which a shell completes Pinfold's commands."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from pinfold import completion as scripts

SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print the script that completes words in a shell.

    They are commands, options, values, and the pods of an agent.

    In ~/.bashrc: source <(pinfold completion bash)

    In ~/.zshrc, after compinit: source <(pinfold completion zsh)

    In fish, once: pinfold completion fish >~/.config/fish/completions/pinfold.fish
    """
    click.echo(script(shell), nl=False)


def script(shell: str) -> str:
    """The script for a shell."""
    folder = Path(scripts.__file__).parent / "scripts"
    return (folder / f"pinfold.{shell}").read_text()

"""What the commands share: options, errors, and how a document is printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import msgspec

F = TypeVar("F", bound=Callable[..., Any])

USAGE: Final = 2
"""Exit code for input that cannot be used; 1 is for a request that was refused."""


class InputError(click.ClickException):
    """One clear line about input that cannot be used."""

    exit_code = USAGE


@contextmanager
def input_errors(*kinds: type[Exception], prefix: str = "") -> Iterator[None]:
    """Turn the declared errors of the layers below into one line and exit code 2."""
    try:
        yield
    except kinds as error:
        raise InputError(f"{prefix}{error}") from None


def output_option(*formats: str) -> Callable[[F], F]:
    """The ``-o`` option."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default="text",
        show_default=True,
        help="How to print it.",
    )


def machine_option(command: F) -> F:
    """The ``--machine`` option."""
    return click.option(
        "--machine",
        metavar="SRC",
        help="The machine: a capture (folder or tar), hwloc XML, MachineInfo JSON, lscpu -J, "
        "a topology document, or a short form such as 2s8c2t. Without it: this machine.",
    )(command)


def each_pod_option(command: F) -> F:
    """The ``--each-pod`` option."""
    return click.option(
        "--each-pod",
        is_flag=True,
        help="A row for each pod, also where many replicas are alike.",
    )(command)


def color_option(command: F) -> F:
    """The ``--color/--no-color`` option."""
    return click.option(
        "--color/--no-color",
        default=None,
        help="Colour the output; without it by terminal, NO_COLOR and FORCE_COLOR.",
    )(command)


def print_json(document: object) -> None:
    """Print a document as JSON: a record, or what an agent has told."""
    print_text(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_text(text: str) -> None:
    """Print text that brings its own colours (or none); a full disk is told in one line."""
    try:
        click.echo(text.removesuffix("\n"), color=True)
    except BrokenPipeError:
        # Whoever reads has seen enough; click ends the command.
        raise
    except OSError as error:
        # What is left in the buffer would fail once more when the program ends.
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise click.ClickException(f"standard output: {error.strerror or error}") from None

"""How commands are given manifests and the names of pods, in the words of ``kubectl``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import click

from pinfold.cli.output import F


def manifest_arguments(
    metavar: str = "MANIFEST...", *, required: bool = True, apart: bool = False
) -> Callable[[F], F]:
    """The files of manifests: as arguments, and with ``-f`` as a user of ``kubectl`` gives them.

    The command has them as ``manifests``, those of ``-f`` first; or those as ``filenames``, where
    an argument may be something else (``apart``).
    """

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_files(
            *args: Any,  # noqa: ANN401 - click's
            manifests: tuple[str, ...],
            filenames: tuple[str, ...],
            **options: Any,  # noqa: ANN401 - click's
        ) -> Any:  # noqa: ANN401 - click's
            if apart:
                return command(*args, manifests=manifests, filenames=filenames, **options)
            every = (*filenames, *manifests)
            if required and not every:
                raise click.UsageError(f"Missing argument '{metavar}'.")
            return command(*args, manifests=every, **options)

        shown = metavar if required else f"[{metavar}]"
        taking = filename_option(
            "A manifest, as an argument is one: a file, a folder, or - for standard input."
        )(with_files)
        return cast("F", click.argument("manifests", nargs=-1, metavar=shown)(taking))

    return decorate


def check_whose(namespace: str | None, *, all_namespaces: bool) -> None:
    """Refuse two answers to whose pods are meant."""
    if all_namespaces and namespace is not None:
        raise click.UsageError("--namespace and --all-namespaces exclude each other")


def filename_option(help_text: str) -> Callable[[F], F]:
    """``-f``, which may be given several times; the command has them as ``filenames``."""
    return click.option(
        "-f", "--filename", "filenames", metavar="FILE", multiple=True, help=help_text
    )


namespace_option = click.option(
    "-n",
    "--namespace",
    metavar="NAMESPACE",
    help="That of pods whose names say none.",
)

all_namespaces_option = click.option(
    "-A",
    "--all-namespaces",
    is_flag=True,
    help="Of every namespace, as without --namespace.",
)

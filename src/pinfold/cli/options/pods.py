"""How commands are given manifests and the names of pods, in the words of ``kubectl``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, cast

import click

from pinfold.cli.output import F
from pinfold.core.pod.owner import KIND_OF


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
            "A manifest, the same as an argument: a file, a folder, or - for standard input."
        )(with_files)
        return cast("F", click.argument("manifests", nargs=-1, metavar=shown)(taking))

    return decorate


_KIND_WORDS: Final = {
    **{word: "pod" for word, kind in KIND_OF.items() if kind == "Pod"},
    **dict.fromkeys(("quota", "quotas", "resourcequota", "resourcequotas"), "quota"),
}
"""Words that say of which kind the names after them are."""


def kind_and_names(words: tuple[str, ...]) -> tuple[str, ...]:
    """Names as one word each: ``pod a b`` is ``pod/a pod/b``, as a user of ``kubectl`` writes it.

    A kind that stands alone is a name.  A name may say its namespace: ``pod team/a``.

    Raises:
        click.UsageError: after a kind a name says its kind again.
    """
    kind = _KIND_WORDS.get(words[0].lower()) if len(words) > 1 else None
    if kind is None:
        return words
    for name in words[1:]:
        if name.partition("/")[0].lower() in _KIND_WORDS and "/" in name:
            raise click.UsageError(
                f"{words[0]} {name}: there is no need to say the kind twice; write {kind}/NAME, or "
                f"{kind} NAME, with --namespace for that of another one"
            )
    return tuple(f"{kind}/{name}" for name in words[1:])


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
    help="The namespace, where a name or a manifest does not give one.",
)

namespace_filter_option = click.option(
    "-n",
    "--namespace",
    metavar="NAMESPACE",
    help="Only the pods of this namespace.",
)
"""Of commands that tell of all pods otherwise."""

all_namespaces_option = click.option(
    "-A",
    "--all-namespaces",
    is_flag=True,
    help="All namespaces; the same as without --namespace.",
)

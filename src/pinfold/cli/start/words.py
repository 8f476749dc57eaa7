"""The words of a command as they were given, for who runs the same elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

_KEY: Final = "pinfold.words"


def keep_words(context: click.Context, name: str, words: Sequence[str]) -> None:
    """Keep the words of a command that is called: its name, and what follows it."""
    context.meta[_KEY] = (name, *words)


def words_of(context: click.Context) -> tuple[str, ...]:
    """The words of the command that is being run; none where no program has called it."""
    found: tuple[str, ...] = context.meta.get(_KEY, ())
    return found

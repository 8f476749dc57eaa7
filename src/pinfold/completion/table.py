"""The commands, options and values of the program, as who completes them knows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

FILE: Final = Path(__file__).parent / "table.json"
"""In a wheel: the table as it was when that was built.  A checkout has none, and makes it anew."""

Word: TypeAlias = tuple[str, str]
"""A word, and what is said of it where a shell shows that; ``""`` for nothing."""


class Values(Struct, frozen=True, omit_defaults=True):
    """What may stand for a value.

    ``words``: those that are known.  ``source``: who knows others, a name in :data:`.SOURCES`; ""
    for nobody.  ``files``: ``files``, ``folders`` or "": what else it may be.  ``several``:
    separated by commas.
    """

    words: tuple[Word, ...] = ()
    source: str = ""
    files: str = ""
    several: bool = False


class Option(Struct, frozen=True, omit_defaults=True):
    """An option: its spellings, the first sentence of its help, and what it takes.

    ``takes``: None for a flag.  ``repeats``: it may be given several times.  ``may_be_bare``: it
    stands for something without a value, too.
    """

    words: tuple[str, ...]
    help: str = ""
    takes: Values | None = None
    repeats: bool = False
    may_be_bare: bool = False


class Argument(Struct, frozen=True, omit_defaults=True):
    """An argument that is no option; ``many``: all that follow are such ones."""

    takes: Values = Values()
    many: bool = False


class Command(Struct, frozen=True, omit_defaults=True):
    """A command with those below it; ``passes_on``: what follows its argument is another's."""

    help: str = ""
    options: tuple[Option, ...] = ()
    arguments: tuple[Argument, ...] = ()
    commands: Mapping[str, Command] = {}
    passes_on: bool = False


def read_table() -> Command | None:
    """The table of the wheel; None where there is none."""
    try:
        return msgspec.json.decode(FILE.read_bytes(), type=Command)
    except FileNotFoundError:
        return None

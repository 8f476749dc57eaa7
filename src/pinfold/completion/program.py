"""``pinfold __complete WORD...``: what the scripts of the shells ask.

The last word is the one that is completed.  The answer is that of Cobra's programs, which
``kubectl`` and its plugins understand: a line ``WORD<TAB>TEXT`` for each word, and ``:NUMBER``.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final

from pinfold.completion.engine import Answer, complete
from pinfold.completion.sources import SOURCES
from pinfold.completion.table import Command, read_table

WORDS: Final = "__complete"
"""Completes the words that follow."""
LINE: Final = "__complete-line"
"""The same for ``BREAKS LINE``, a line of bash up to the cursor and where that breaks words."""

_LONGEST: Final = 0.5
"""Seconds after which there is no answer, whatever takes so long."""
_OUTPUT: Final = 1
_NO_SPACE, _NO_FILES, _FOLDERS = 2, 4, 16
"""Cobra's ShellCompDirective."""


class _Late(BaseException):
    """It has taken too long."""


def answer_of(arguments: Sequence[str], make_table: Callable[[], Command]) -> str:
    """What the shell asks for; nothing, where it cannot be had in time.

    Args:
        arguments: :data:`WORDS` or :data:`LINE`, and what follows it.
        make_table: makes the table where the wheel has none.
    """
    table = read_table() or make_table()
    signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, _LONGEST)
    try:
        text = _answered(table, arguments)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except _Late:
        text = f":{_NO_FILES}\n"
    return text


def write(text: str) -> None:
    """Print it, whatever the words of the line are; raises OSError where that cannot be."""
    rest = os.fsencode(text)
    while rest:
        rest = rest[os.write(_OUTPUT, rest) :]


def _late(_number: int, _frame: FrameType | None) -> None:
    raise _Late


def _answered(table: Command, arguments: Sequence[str]) -> str:
    how, *rest = arguments
    if how == LINE:
        breaks, line = rest
        *words, word = split(line)
        # Of the characters at which bash breaks words @ alone belongs to what follows it.
        ends = [word.rfind(one) + (one != "@") for one in breaks if one in "=:@"]
        cut = max([0, *ends])
    else:
        *words, word = ["pinfold", *rest] if rest else ["pinfold", ""]
        cut = 0
    return _printed(complete(table, words[1:], word, SOURCES), cut)


def _printed(answer: Answer, cut: int) -> str:
    """The answer; ``cut`` characters of each word the shell has already, and takes for another."""
    number = {"files": 0, "folders": _FOLDERS}.get(answer.files, _NO_FILES)
    number += _NO_SPACE if answer.goes_on else 0
    rows = [f"{word[cut:]}\t{text}" if text else word[cut:] for word, text in answer.words]
    return "\n".join([*rows, f":{number}", ""])


def split(line: str) -> list[str]:
    """The words of a line as a shell takes them, the last one as far as it is there."""
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(f"{line}{closing}")
        except ValueError:
            continue
        return [*words, ""] if not closing and line[-1:].isspace() else words
    return [*line.split(), ""]

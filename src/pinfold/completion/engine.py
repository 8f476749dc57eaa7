"""Which words may come next on a command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from pinfold.completion.table import Command, Option, Values, Word


class Line(Struct):
    """What stands on the line before the word that is completed.

    ``command``: the innermost one that was called.  ``options``: those of it with the values they
    were given.  ``arguments``: its arguments.  ``waits``: the option whose value comes now.
    """

    command: Command
    options: dict[str, list[str]]
    arguments: list[str]
    waits: Option | None = None
    ended: bool = False
    """Whether options are over: ``--`` was there, or what follows is another command's."""

    def value(self, word: str) -> str | None:
        """The last value of an option, by its last spelling."""
        return next(reversed(self.options.get(word, [])), None)


Source: TypeAlias = Callable[[Line, str], Iterable[Word]]
"""Finds the words that begin so, for a line; takes no longer than a person waits."""


class Answer(Struct):
    """The words, whole ones, and what else may stand there: ``files``, ``folders`` or nothing.

    ``goes_on``: a word that is taken is not the end of it, such as ``NAME=``.
    """

    words: list[Word]
    files: str = ""
    goes_on: bool = False


def read_line(table: Command, words: Iterable[str]) -> Line:
    """Take the words before the one that is completed apart."""
    line = Line(table, {}, [])
    for word in words:
        if line.waits is not None and not (line.waits.may_be_bare and word.startswith("-")):
            line.options[line.waits.words[-1]].append(word)
            line.waits = None
            continue
        line.waits = None
        if line.ended or word == "-" or not word.startswith("-"):
            _argument(line, word)
        elif word == "--":
            line.ended = True
        else:
            _option(line, word)
    return line


def _argument(line: Line, word: str) -> None:
    below = None if line.ended or line.arguments else line.command.commands.get(word)
    if below is not None:
        line.command, line.options = below, {}
        return
    line.arguments.append(word)
    line.ended = line.ended or line.command.passes_on


def _option(line: Line, word: str) -> None:
    name, equals, value = word.partition("=")
    if not word.startswith("--") and len(word) > 2:
        # A letter with its value, such as -nNAME.
        name, equals, value = word[:2], "=", word[2:].removeprefix("=")
    option = _find(line.command, name)
    if option is None:
        return
    given = line.options.setdefault(option.words[-1], [])
    if option.takes is None:
        return
    if equals:
        given.append(value)
    else:
        line.waits = option


def _find(command: Command, name: str) -> Option | None:
    return next((one for one in command.options if name in one.words), None)


def complete(
    table: Command, before: Sequence[str], word: str, sources: Mapping[str, Source]
) -> Answer:
    """What ``word`` may become after the words before it.

    Args:
        table: of the program.
        before: without the program's own name.
        word: as far as it stands there, perhaps empty.
        sources: who knows words that no table has, by the name that the table has for them.
    """
    line = read_line(table, before)
    waits = line.waits
    if waits is not None and waits.takes is not None:
        if not (waits.may_be_bare and word.startswith("-")):
            return _values(line, waits.takes, word, sources)
        line.waits = None
    if word.startswith("-") and not line.ended:
        name, equals, value = word.partition("=")
        option = _find(line.command, name) if equals and word.startswith("--") else None
        if option is not None and option.takes is not None:
            answer = _values(line, option.takes, value, sources)
            answer.words = [(f"{name}={one}", text) for one, text in answer.words]
            return answer
        return _options(line, word)
    if line.command.commands and not line.arguments and not line.ended:
        below = line.command.commands.items()
        return Answer([(name, one.help) for name, one in below if name.startswith(word)])
    return _values(line, _wanted(line), word, sources)


def _wanted(line: Line) -> Values:
    arguments = line.command.arguments
    at = len(line.arguments)
    if line.command.passes_on and at:
        return Values(files="files")
    if at < len(arguments):
        return arguments[at].takes
    return arguments[-1].takes if arguments and arguments[-1].many else Values()


def _options(line: Line, word: str) -> Answer:
    found = [
        (spelling, option.help)
        for option in line.command.options
        if option.repeats or option.words[-1] not in line.options
        for spelling in option.words
        if spelling.startswith(word)
    ]
    # A long spelling says what it is; the short ones are for those who know them.
    long = [one for one in found if one[0].startswith("--")]
    return Answer(long or found)


def _values(line: Line, values: Values, word: str, sources: Mapping[str, Source]) -> Answer:
    head, comma, last = word.rpartition(",") if values.several else ("", "", word)
    begun = {*head.split(",")}
    words = [one for one in values.words if one[0].startswith(last) and one[0] not in begun]
    if values.source:
        words += [one for one in sources[values.source](line, last) if one[0].startswith(last)]
    goes_on = "=" not in last and bool(words) and all("=" in one for one, _ in words)
    if goes_on:
        words = [*{(f"{one.partition('=')[0]}=", text): None for one, text in words}]
    found = [(f"{head}{comma}{one}", text) for one, text in words]
    return Answer(found, values.files, goes_on)

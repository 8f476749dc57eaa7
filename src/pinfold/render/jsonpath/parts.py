"""What a template is made of, once it is read.

The dialect is that of kubectl (https://kubernetes.io/docs/reference/kubectl/jsonpath/), which is
not the JSONPath of RFC 9535: a template is text with ``{...}`` in it.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct

from pinfold.core.values.errors import PinfoldError

_SHOWN: Final = 200
"""Characters of a template that an error shows; a longer one fits on no line."""


class TemplateError(PinfoldError, ValueError):
    """A template that cannot be read, or that does not suit the document.

    ``problem``: what is wrong, in kubectl's words where it has some. ``template``: the whole text.
    ``at``: the index of the character that it is about.
    """

    def __init__(self, problem: str, template: str, at: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.template = template
        self.at = min(at, len(template))

    def __str__(self) -> str:
        """The problem, and below it the template with a mark at the place."""
        if not self.template.isprintable() or len(self.template) > _SHOWN:
            return f"{self.problem} (at character {self.at + 1})"
        return f"{self.problem}\n  {self.template}\n  {' ' * self.at}^"


class Field(Struct, frozen=True):
    """``.name`` or ``['name']``: a field of an object; other values have none."""

    at: int
    name: str


class Every(Struct, frozen=True):
    """``.*``: all that an object or a list holds."""

    at: int


class Descent(Struct, frozen=True):
    """``..``: a value and all below it that hold something, each before what is in it."""

    at: int


class Slice(Struct, frozen=True):
    """``[N]``, ``[START:STOP:STEP]``, ``[*]``: some of a list; negative ones count from its end.

    ``single``: one index was written, so that ``stop`` is the one behind it.
    """

    at: int
    start: int | None
    stop: int | None
    step: int | None
    single: bool


class Union(Struct, frozen=True):
    """``[A,B]``: what each of them finds, one after the other."""

    at: int
    branches: tuple[tuple[Step, ...], ...]


class Filter(Struct, frozen=True):
    """``[?(LEFT OPERATOR RIGHT)]``: those of a list for which that holds.

    Without an operator: for which LEFT is there.
    """

    at: int
    left: tuple[Step, ...]
    operator: str
    right: tuple[Step, ...]


class Literal(Struct, frozen=True):
    """A text in quotes, a number, ``true`` or ``false``: found whatever was found before it.

    ``alone``: it is found once; else once for each value that was found before it.
    """

    at: int
    value: str | float | bool
    alone: bool


Step: TypeAlias = Field | Every | Descent | Slice | Union | Filter | Literal


class Action(Struct, frozen=True):
    """``{...}``: the steps of a path; what it finds is printed with blanks between."""

    steps: tuple[Step, ...]


class Range(Struct, frozen=True):
    """``{range ...}`` to ``{end}``: its parts, for each value that the path finds."""

    steps: tuple[Step, ...]
    parts: tuple[Part, ...]


Part: TypeAlias = str | Action | Range


class Template(Struct, frozen=True):
    """A template that was read: its text, and its parts."""

    text: str
    parts: tuple[Part, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the document itself that it asks for, in its order."""
        paths = (one.steps for one in self.parts if not isinstance(one, str))
        return tuple(steps[0].name for steps in paths if steps and isinstance(steps[0], Field))

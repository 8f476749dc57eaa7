"""In which form a command prints its answer: ``-o``, one mechanism for all commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

import click

from pinfold.cli.output import F, json_text

_TEMPLATES: Final = {"jsonpath": "EXPR", "jsonpath-file": "FILE"}
"""Forms that take a value, and what it is called."""
_WITH_JSON: Final = ("yaml", *_TEMPLATES)
"""What every command prints that has a document."""
_DOCUMENTS: Final = frozenset({"json", "name", "wide", *_WITH_JSON})
_FORMS: Final = _DOCUMENTS | {"text", "svg", "html"}


class Output(str):
    """A form, such as ``json``; it knows how a document is told in it."""

    __slots__ = ("_text", "template")

    _text: Callable[[object], str] | None
    template: str
    """What a form of a template prints by; "" of all others."""

    def __new__(
        cls, form: str, text: Callable[[object], str] | None = None, template: str = ""
    ) -> Self:
        """Make one; ``text`` makes that of a document, in forms that need something for it."""
        made = super().__new__(cls, form)
        made._text = text
        made.template = template
        return made

    @property
    def is_document(self) -> bool:
        """Whether it is told of the document, and not drawn for people."""
        return self in _DOCUMENTS

    def told(self, document: object) -> str:
        """A document, such as an agent has told, as text; exits with one clear line."""
        return json_text(document) if self._text is None else self._text(document)

    def tell(self, document: object) -> None:
        """Print a document, as :meth:`told`."""
        click.echo(self.told(document), nl=False)


class Forms(click.Choice[str]):
    """The forms that a command has, of which some take a value: ``jsonpath={.pods[*].name}``."""

    def __init__(self, forms: Iterable[str]) -> None:
        every = [form for one in forms for form in (one, *(_WITH_JSON if one == "json" else ()))]
        super().__init__([*dict.fromkeys(map(_shown, every))])

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Output:
        """Read it; raises BadParameter, and InputError for a template that is none."""
        if isinstance(value, Output):
            return value
        form, equals, given = str(value).partition("=")
        if _shown(form) not in self.choices or (equals and form not in _TEMPLATES):
            known = ", ".join(self.choices)
            self.fail(f"{str(value)[:60]!r} is not one of {known}.", param, ctx)
        if form in _TEMPLATES and not given:
            problem = f"template format specified but no template given: -o {_shown(form)}."
            self.fail(problem, param, ctx)
        if form not in _DOCUMENTS or form == "json":
            return Output(form)
        from pinfold.cli.told_documents import teller, template_in  # noqa: PLC0415 - 9 ms

        template = template_in(given) if form == "jsonpath-file" else given
        return Output(form, teller(form, template), template)


class OutFile(click.Path):
    """A file to be written; what elsewhere is a form is refused, so that no file is called so."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click has it
        """Read it; raises BadParameter."""
        if value in _FORMS and not os.path.lexists(value):
            told = (
                f"{value!r} is a form, and here -o is a file; write ./{value} for one of that name."
            )
            self.fail(told, param, ctx)
        return super().convert(value, param, ctx)


def _shown(form: str) -> str:
    return f"{form}={_TEMPLATES[form]}" if form in _TEMPLATES else form


def output_option(*forms: str) -> Callable[[F], F]:
    """The ``-o`` option, the first form where there is none.

    With ``json`` come all other forms in which a document is told.
    """
    return click.option(
        "-o",
        "--output",
        type=Forms(forms),
        default=forms[0],
        show_default=True,
        help="How to print it.",
    )

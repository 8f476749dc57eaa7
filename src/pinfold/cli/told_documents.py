"""The text of a document in every form but JSON: loaded only where one of them is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from pinfold.cli.output import InputError, input_errors
from pinfold.formats.yaml_writing import written_yaml
from pinfold.render.jsonpath.parts import TemplateError
from pinfold.render.jsonpath.printing import printed
from pinfold.render.jsonpath.reading import read_template

_DEFAULT_NAMESPACE: Final = "default"


def teller(form: str, given: str) -> Callable[[object], str]:
    """What makes the text of a document in this form.

    Args:
        form: ``yaml``, ``name``, ``jsonpath`` or ``jsonpath-file``.
        given: the template of ``jsonpath``, the file with it of ``jsonpath-file``.

    Raises:
        InputError: the template or its file cannot be read.
    """
    if form == "yaml":
        return lambda document: written_yaml([plain(document)])
    if form == "name":
        return lambda document: "".join(f"{name}\n" for name in names_in(plain(document)))
    text = _text_of(given) if form == "jsonpath-file" else given
    with input_errors(TemplateError, prefix=f"-o {form}: "):
        template = read_template(text)
    if "{" not in text:
        click.echo(f"note: -o {form}: it has no {{...}}, so it is printed as it is", err=True)

    def by_template(document: object) -> str:
        with input_errors(TemplateError, prefix=f"-o {form}: "):
            return printed(template, plain(document))

    return by_template


def plain(document: object) -> Any:  # noqa: ANN401 - whatever JSON has
    """A record as JSON has it; the name of a file in it need not be Unicode."""
    told = json.loads(json.dumps(msgspec.to_builtins(document)))
    return _sayable(told)


def _sayable(value: Any) -> Any:  # noqa: ANN401 - whatever JSON has
    """With what is no character of Unicode written as a program would write it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_sayable(one) for one in value]
    if isinstance(value, dict):
        return {_sayable(key): _sayable(one) for key, one in value.items()}
    return value


def names_in(document: Mapping[str, Any]) -> Iterator[str]:
    """The names of what a document is about, as commands take them: ``pod/NAME``, ``quota/NAME``.

    Of another namespace than ``default`` it is ``pod/NAMESPACE/NAME``.
    """
    for kind, key in (("quota", "objects"), ("pod", "pods"), ("pod", "changed")):
        for one in document.get(key) or ():
            namespace = one.get("namespace") or _DEFAULT_NAMESPACE
            within = "" if namespace == _DEFAULT_NAMESPACE else f"{namespace}/"
            yield f"{kind}/{within}{one['name']}"


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise InputError(f"-o jsonpath-file={path}: {why}") from None

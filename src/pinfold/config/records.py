"""A mapping of a file as one of our records, and in words what is wrong where it is none.

The types, bounds and patterns are those of the record.  msgspec checks them; here is said which
field it is, what may stand there, and what was meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isfinite
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, UnsetType
from msgspec.structs import fields

from pinfold.config.values import ConfigError, nearest, show

R = TypeVar("R", bound=Struct)

_LARGEST: Final = 2**63 - 1
_MOST_NAMED: Final = 12
_KINDS: Final = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Mapping: "a mapping",
    Sequence: "a list",
}


class FieldError(ConfigError):
    """A field that is wrong: ``spec.nodes[1].count: must be ...``."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)


def as_record(value: object, form: type[R]) -> R:
    """Read a record from a mapping, as JSON and YAML have it.

    Raises:
        FieldError: the first field that is wrong, by its path, and what may stand there.
    """
    _check_plain(value, "")
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        for wrong in _wrong(value, form, ""):
            raise wrong from None
        raise FieldError("", str(error)) from None


def meant(name: object, known: Collection[str]) -> str:
    """What may have been meant by an unknown name, as the end of a sentence; else what there is."""
    if near := nearest(name, known):
        return f"; did you mean {near}?"
    more = ", ..." if len(known) > _MOST_NAMED else ""
    return f"; there are {', '.join(list(known)[:_MOST_NAMED])}{more}"


def below(path: str, name: object) -> str:
    """The path of a field of a mapping; a name with dots in it is put in brackets."""
    text = str(name)[:100]
    plain = text.replace("-", "").replace("_", "").isalnum()
    step = f".{text}" if plain else f"[{text!r}]"
    return f"{path}{step}".removeprefix(".")


def _check_plain(value: object, path: str) -> None:
    """See that every value can be written as JSON again; YAML has more, and so has Python."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise FieldError(path, f"the key {show(name)} is no text; put it in quotes")
            _check_plain(item, below(path, name))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _check_plain(item, f"{path}[{place}]")
    elif isinstance(value, float) and not isfinite(value):
        raise FieldError(path, "must be a number that can be written; this is infinite or none")
    elif isinstance(value, int) and abs(value) > _LARGEST:
        raise FieldError(path, f"must be at most {_LARGEST}")


def _wrong(value: object, kind: Any, path: str) -> Iterator[FieldError]:  # noqa: ANN401 - a type
    """All that is wrong with a value that should be of this kind, field by field."""
    kind, meta = _bare(kind)
    origin = get_origin(kind)
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield from _wrong_fields(value, kind, path)
    elif origin is Sequence and isinstance(value, list):
        if meta is not None and len(value) < (meta.min_length or 0):
            yield FieldError(path, "must not be empty")
        for place, item in enumerate(value):
            yield from _wrong(item, get_args(kind)[0], f"{path}[{place}]")
    elif origin is Mapping and isinstance(value, dict):
        for name, item in value.items():
            yield from _wrong(item, get_args(kind)[1], below(path, name))
    else:
        try:
            msgspec.convert(value, kind if meta is None else Annotated[kind, meta])
        except msgspec.ValidationError:
            # What a number that YAML makes of a text, such as a version, should have been.
            quoted = isinstance(value, int | float) and _allowed(kind, meta).startswith("a text")
            hint = f'; put it in quotes: "{value}"' if quoted else ""
            yield FieldError(path, f"must be {_allowed(kind, meta)}, not {show(value)}{hint}")


def _wrong_fields(value: object, form: type[Struct], path: str) -> Iterator[FieldError]:
    known = {field.encode_name: field for field in fields(form)}
    if not isinstance(value, dict):
        yield FieldError(path, f"must be a mapping ({', '.join(known)}), not {show(value)}")
        return
    for name in value:
        if name not in known:
            yield FieldError(path, f"unknown field {show(name)}{meant(name, known)}")
    for name, field in known.items():
        if name in value:
            yield from _wrong(value[name], field.type, below(path, name))
        elif field.required:
            kind, meta = _bare(field.type)
            yield FieldError(below(path, name), f"is missing; it is {_allowed(kind, meta)}")


def _bare(kind: Any) -> tuple[Any, Meta | None]:  # noqa: ANN401 - types
    """A type without ``UNSET``, and what is said about it."""
    meta = None
    while True:
        if get_origin(kind) is Annotated:
            kind, meta = get_args(kind)[:2]
        elif get_origin(kind) in (Union, UnionType) and UnsetType in get_args(kind):
            kind = Union[tuple(one for one in get_args(kind) if one is not UnsetType)]  # noqa: UP007 - of a tuple
        else:
            return kind, meta


def _allowed(kind: Any, meta: Meta | None) -> str:  # noqa: ANN401 - a type
    """What may stand there, in words."""
    if meta is not None and meta.description:
        return meta.description
    args, origin = get_args(kind), get_origin(kind)
    if origin is Literal:
        return " or ".join(filter(None, (", ".join(map(str, args[:-1])), str(args[-1]))))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_allowed(*_bare(one)) for one in args))
    if isinstance(kind, type) and issubclass(kind, Struct):
        return f"a mapping ({', '.join(field.encode_name for field in fields(kind))})"
    said = _KINDS.get(origin or kind, "something else")
    return said if meta is None else f"{said} {_bounds(meta)}".rstrip()


def _bounds(meta: Meta) -> str:
    least = f"above {meta.gt:g}" if meta.gt is not None else ""
    least = f"from {meta.ge}" if meta.ge is not None else least
    most = f"{least and ('to' if meta.ge is not None else 'and at most')} {meta.le}"
    if meta.le is not None:
        return f"{least} {most}".strip()
    if meta.max_length is not None:
        return f"of {meta.min_length or 0} to {meta.max_length} characters"
    return f"{least} on" if meta.ge is not None else least

"""Templates of ``-o jsonpath``: what they find, and that they never fail but with their place."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pinfold.render.jsonpath.parts import TemplateError
from pinfold.render.jsonpath.printing import printed
from pinfold.render.jsonpath.reading import read_template

_ODD = " \t\r\n.,[]$@{}\\'\"*?()<>=!:-+#/"
"""What means something in a template, or ends a name."""

_KEYS = st.text(alphabet=st.sampled_from("ab_1é" + _ODD), min_size=1, max_size=4)
_LEAVES = st.none() | st.booleans() | st.integers(-5, 10**12) | st.text(max_size=5)
_DOCUMENTS = st.recursive(
    _LEAVES,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(_KEYS, below, max_size=4),
    max_leaves=12,
)
_WORDS = st.lists(
    st.sampled_from(
        [
            "{",
            "}",
            "range",
            "end",
            ".a",
            "..",
            "[",
            "]",
            "*",
            "0",
            "-1",
            ":",
            ",",
            "'a'",
            '"a"',
            "[?(",
            ")]",
            "@",
            "$",
            "==",
            "<",
            "true",
            "\\",
            "\\n",
            "x",
            "1.5",
            "+",
            "é",
            " ",
            "\n",
            "range ",
        ]
    ),
    max_size=12,
).map("".join)


def found(template: str, document: object) -> str:
    return printed(read_template(template), document)


def tried(template: str, document: object) -> tuple[str, TemplateError | None]:
    try:
        return found(template, document), None
    except TemplateError as error:
        return "", error


def as_told(value: object) -> str:
    """One value as kubectl prints it: here JSON with what Go escapes in it."""
    if isinstance(value, str):
        return value
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return re.sub("[<>&\u2028\u2029]", lambda one: f"\\u{ord(one[0]):04x}", text)


def places(document: Any, path: str = "") -> Any:
    """Every value of a document with the path to it."""
    yield path, document
    if isinstance(document, dict):
        for key, value in document.items():
            if key != "*":
                yield from places(value, path + "." + "".join(f"\\{one}" for one in key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from places(value, f"{path}[{index}]")
            yield from places(value, f"{path}[{index - len(document)}]")


@given(_DOCUMENTS)
def test_every_value_is_found_by_its_path(document: object) -> None:
    for path, value in places(document):
        assert found(f"<{{{path}}}>", document) == f"<{as_told(value)}>"
        if path:
            assert found(f"{{${path}}}{{@{path}}}", document) == as_told(value) * 2


@given(_DOCUMENTS, _WORDS | st.text(max_size=20))
@example(None, "{")
@example([], "{..[?(@.a)]}")
@example({}, "{['\\']}")
@example(["a"], "{range @[*]}" * 33)
def test_a_template_is_printed_or_refused_at_its_place(document: object, template: str) -> None:
    text, error = tried(template, document)
    if error is None:
        assert "{" in template or text == template
    else:
        assert 0 <= error.at <= len(template)
        assert error.problem
        assert str(error).startswith(error.problem)


@given(st.lists(_LEAVES, max_size=6), st.data())
def test_a_slice_is_that_of_python_in_the_list(values: list[object], data: st.DataObject) -> None:
    bound = st.none() | st.integers(-len(values), len(values))
    start, stop = data.draw(bound), data.draw(bound)
    step = data.draw(st.none() | st.integers(1, 3))
    bounds = ":".join("" if one is None else str(one) for one in (start, stop, step))
    template = f"{{range @[{bounds}]}}{{@}}{{'\\x00'}}{{end}}"
    wanted = values[slice(start, stop, step)]
    text, error = tried(template, values)
    if error is None:
        assert text == "".join(f"{as_told(one)}\0" for one in wanted)
    else:
        # An index behind the end, or a start behind the stop: kubectl refuses what Python passes.
        assert re.match("array index out of bounds|starting index", error.problem)
        assert wanted == []


@given(st.lists(st.fixed_dictionaries({"n": st.integers(-9, 9)}), max_size=6), st.integers(-9, 9))
def test_a_filter_takes_those_for_which_it_holds(rows: list[dict[str, int]], than: int) -> None:
    for operator, holds in {
        "<": int.__lt__,
        "<=": int.__le__,
        ">": int.__gt__,
        ">=": int.__ge__,
        "==": int.__eq__,
        "!=": int.__ne__,
    }.items():
        wanted = [row["n"] for row in rows if holds(row["n"], than)]
        template = f"{{@[?(@.n{operator}{than})].n}}"
        assert found(template, rows) == " ".join(map(str, wanted))


@given(_DOCUMENTS)
def test_a_descent_finds_every_object_and_list_once(document: object) -> None:
    every = {path: value for path, value in places(document) if not re.search(r"\[-", path)}
    held = [one for one in every.values() if isinstance(one, dict | list | str) and one]
    if "*" not in json.dumps(document):
        separated = found("{range ..}{'\\x00'}{end}", document)
        assert separated.count("\0") == len(held)


@pytest.mark.parametrize(
    ("template", "at", "problem"),
    [
        ("a {.b", 2, "unclosed action"),
        ("{.b}{.pods[a]}", 11, "invalid array index a"),
        ("{.pods[?(@.x==y)]}", 14, "unrecognized identifier y"),
        ("{.pods[?(@.x=<1)]}", 12, "unrecognized filter operator =<"),
        ('{.b}{"a\\qb"}', 7, 'unquote string "a\\qb" error invalid syntax'),
        ("{.b}{end}", 4, "not in range, nothing to end"),
        ("{..  ..b}", 5, "invalid multiple recursive descent"),
        ("{.pods[0]}{.none[0]}{.name[0]}", 27, "string is not array or slice"),
        ("{.pods[*]['n',  'm'][0]}", 21, "number is not array or slice"),
        ("{.pods[3]}", 7, "array index out of bounds: index 3, length 2"),
        ("{.pods[?(@.n>'a')]}", 6, "incompatible types for comparison"),
        ("{.pods[?(@>1)]}", 6, "invalid type for comparison"),
        ("{.pods[?(.n[?(@)])]}", 11, "unterminated filter"),
        ("{.b[?({range .a})]}", 6, "unrecognized character in action: '{'"),
        ("{.b[?(range)]}", 6, "range and end stand in braces of their own"),
        ("{1" + "0" * 400 + "}", 1, "cannot parse number 1" + "0" * 400),
    ],
)
def test_an_error_points_at_the_place(template: str, at: int, problem: str) -> None:
    document = {"name": "x", "pods": [{"n": 1, "m": 2}, {"n": 2}]}
    with pytest.raises(TemplateError) as raised:
        found(template, document)
    assert (raised.value.problem, raised.value.at) == (problem, at)
    if len(template) < 100:
        assert str(raised.value) == f"{problem}\n  {template}\n  {' ' * at}^"


def test_a_template_that_fits_on_no_line_is_not_shown() -> None:
    with pytest.raises(TemplateError, match=r"^unclosed action \(at character 2\)$"):
        read_template("\n{.a")


def test_numbers_are_compared_as_numbers() -> None:
    rows = [{"n": 1}, {"n": 1.5}, {"n": 2.0}]
    assert found("{@[?(@.n>=1.5)].n}", rows) == "1.5 2"
    assert found("{@[?(@.n==2)].n}", rows) == "2"

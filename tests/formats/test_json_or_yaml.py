"""Texts that may be JSON or YAML: which reader is used, and whose error is told."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pinfold.formats.json_or_yaml import Document, DocumentError, read_documents

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=4)


def read(text: str) -> list[object]:
    return [document.content for document in read_documents(text)]


@given(st.lists(OBJECTS, max_size=3), st.sampled_from(["", "\n", "\r\n\t "]), st.booleans())
def test_json_values_are_read_as_json(values: list[object], between: str, indented: bool) -> None:
    text = between.join(json.dumps(v, indent=1 if indented else None) for v in values)
    assert read(text) == values


def test_what_only_yaml_reads() -> None:
    assert read("{a: yes, b: [1, 2]}") == [{"a": True, "b": [1, 2]}]
    assert read('{"a": 1,}') == [{"a": 1}]
    assert read('{"a": 1}\n---\n{"b": 2}\n') == [{"a": 1}, {"b": 2}]
    assert read("# a comment\n{}") == [{}]


def test_json_is_not_read_by_the_rules_of_yaml() -> None:
    # YAML 1.1 reads the first as a boolean where it is no quoted text; JSON has texts only.
    assert read('{"yes": "no", "emoji": "\\ud83d\\ude00"}') == [
        {"yes": "no", "emoji": "\U0001f600"}
    ]


def test_lines_of_json_values() -> None:
    assert list(read_documents('\n{"a":\n 1}\n\n {"b": 2}')) == [
        Document(2, {"a": 1}),
        Document(5, {"b": 2}),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1\n "b": 2}', "line 2, column 2: not JSON: expecting ',' delimiter"),
        ('{"a": 1}\nx', "line 2, column 1: not JSON: expecting value"),
        ('{"a": 1}\n{"b": 2,\n "b": 3}', "line 3, column 2: not JSON: key 'b' is already set"),
        ("{a: 1, b: 2, a: 3}", "line 1, column 14: not YAML: key 'a' is already set"),
        ('{"a": ' * 5000, "line 1, column 607: not JSON: nested deeper than 100 levels"),
        ('{"a": 1}{"a": NaN}', "not JSON: a number that JSON does not have"),
        ('{"a": "\\ud800"}', "line 1, column 10: not JSON: while parsing a quoted"),
        ('{"b": 1}\n{"a": "\\ud800"}', "line 2, column 10: not JSON: while parsing a quoted"),
        ("a: [\n", "line 2, column 1: not YAML"),
    ],
)
def test_errors_say_where_and_in_which_form(text: str, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read(text)
    assert words in str(caught.value)


def test_yaml_is_not_imported_for_json() -> None:
    code = (
        "import sys; from pinfold.formats.json_or_yaml import read_documents as r;"
        "list(r('{}')); sys.exit('yaml' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.text(st.sampled_from('{}[]",:ab1.\\ue \n'), max_size=40))
def test_any_text_that_looks_like_json_is_read_or_refused(text: str) -> None:
    found: list[object] | str
    try:
        found = read(text)
    except DocumentError as error:
        found = str(error)
    if isinstance(found, str):
        assert found.startswith("line ")
        return
    try:
        strict = json.loads(text)
    except json.JSONDecodeError:
        return
    if isinstance(strict, dict | list) and "NaN" not in text:
        assert found == [strict] or yaml.safe_load(text) == found[0]

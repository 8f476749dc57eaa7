"""The YAML reader against PyYAML's own loader and JSON, and on text that is no YAML."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pinfold.formats.yaml_documents import MAX_DEPTH, Document, YAMLError, yaml_documents

WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co", "Zl", "Zp"]),
    max_size=12,
)
# PyYAML leaves these texts without quotes, the API machinery reads them as numbers and booleans.
WORDS = WORDS.filter(lambda word: not re.fullmatch(r"[-+.]?[0-9].*[eEoO].*|[yYnN]", word))
SCALARS = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | WORDS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


def read(text: str) -> list[Any]:
    return [document.content for document in yaml_documents(text)]


def one(text: str) -> Any:
    [content] = read(text)
    return content


@given(VALUES.filter(lambda value: value is not None))
@example({"a": "012", "b": "1_000", "c": "on", "d": "~", "e": "0x1f", "f": "1:30"})
def test_what_was_dumped_is_read_back(value: object) -> None:
    block = yaml.safe_dump(value, allow_unicode=True)
    assert one(block) == value == yaml.safe_load(block)
    flow = yaml.safe_dump(value, default_flow_style=True)
    assert one(flow) == value
    assert one(json.dumps(value, ensure_ascii=False)) == value


@given(st.lists(VALUES.filter(lambda value: value is not None), max_size=4))
def test_documents_of_a_stream(values: list[object]) -> None:
    assert read(yaml.safe_dump_all(values, allow_unicode=True, explicit_start=True)) == values


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("yes", True),
        ("Off", False),
        ("~", None),
        ("Null", None),
        ("12", 12),
        ("-3", -3),
        ("+3", 3),
        ("1_000", 1000),
        ("012", 10),
        ("0o12", 10),
        ("0x1F", 31),
        ("0b101", 5),
        ("-0x10", -16),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("'12'", "12"),
        ('"yes"', "yes"),
        ("!!str 12", "12"),
        ('!!int "12"', 12),
        ("0-1", "0-1"),
        ("0,32", "0,32"),
        ("500m", "500m"),
        ("1Gi", "1Gi"),
        ("10s", "10s"),
        ("1:30", "1:30"),
        ("-x", "-x"),
        ("0x", "0x"),
        ("2024-01-01", "2024-01-01"),
        ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
    ],
)
def test_plain_scalars(scalar: str, value: object) -> None:
    found = one(f"a: {scalar}")["a"]
    assert found == value
    assert type(found) is type(value)


@given(st.from_regex(r"[-+]?[0-9a-fox_.e]{1,12}", fullmatch=True))
def test_numbers_agree_with_pyyaml_or_stay_texts(scalar: str) -> None:
    theirs, ours = yaml.safe_load(f"a: {scalar}")["a"], one(f"a: {scalar}")["a"]
    if isinstance(theirs, int) and "_" not in scalar:
        assert ours == theirs
    elif ours != theirs:
        # YAML 1.2 spells octal 0o and needs no dot in 1e3; the API machinery reads both.
        assert re.search(r"[eEo_]|[.]$|^[-+]?[.0]", scalar), (ours, theirs)


def test_every_document_has_its_line() -> None:
    text = "# a comment\n\na: 1\n---\n---\n\n\nb: 2\n...\n---\n- c\n"
    assert list(yaml_documents(text)) == [
        Document(3, {"a": 1}),
        Document(8, {"b": 2}),
        Document(11, ["c"]),
    ]


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "---\n---\n", "null\n", "~"])
def test_nothing(text: str) -> None:
    assert read(text) == []


def test_aliases_and_merges() -> None:
    text = (
        "base: &b {cpu: 1, memory: 1Gi}\nuse: *b\nmore: {<<: *b, cpu: 2}\nall: {<<: [*b, {x: 1}]}"
    )
    value = one(text)
    assert value["use"] == {"cpu": 1, "memory": "1Gi"}
    assert value["more"] == {"cpu": 2, "memory": "1Gi"}
    assert value["all"] == {"cpu": 1, "memory": "1Gi", "x": 1}
    assert value == yaml.safe_load(text)
    assert one('{"<<": 1}') == {"<<": 1}


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "already set"),
        ("a:\n  - {x: 1, x: 2}\n", 2, "already set"),
        ("a: [1,\n", 2, "flow"),
        ("a: b: c\n", 1, "not allowed"),
        ("a: 1\nb: 'c\nd: 1\n", 2, "close the quote"),
        ("\ta: 1\n", 1, "a tab cannot indent: use spaces"),
        ("a:\n  -\tb: 1\n", 2, "a tab cannot indent"),
        ("a: @b\n", 1, "quote a text that begins with '@'"),
        ("a: *b\n", 1, "no anchor before it in this document; set it with &b"),
        ("a: &a [*a]\n", 1, "alias *a stands for what it is a part of; write out"),
        ("a: 1\nb: &a\n  c: {d: *a}\n", 3, "alias *a stands for what it is a part of"),
        ("a: &a 1\n---\nb: *a\n", 3, "no anchor before it in this document"),
        ('a: 1\nb: 1\nc: "x\\qy"\n', 3, "a backslash is written"),
        ('a: 1\nb: "\\ud800"\n', 2, "a backslash is written"),
        ('a: 1\nb: "\\xzz"\n', 2, "a backslash is written"),
        ("a: 1\n b: 2\n", 2, "indent it like its neighbours"),
        ("a: 1\nb\nc: 1\n", 3, "a key is followed by ': '"),
        ("a:\n- 1\nb: [1\nc: 2\n", 4, "bracket"),
        ("? [1]\n: 2\n", 1, "scalar"),
        ("a: {<<: 1}\n", 1, "merges"),
        ("a: \x01\n", 1, "a control character (U+0001); remove it"),
        ("a: 1\nb: 2\nc: 'é\x07'\n", 3, "a control character (U+0007)"),
        ("a: 1\nb\0: 2\n", 2, "a NUL character; save the file as UTF-8"),
        ("a: 1\nb: \ud800\n", 2, "surrogate"),
    ],
)
def test_broken_text(text: str, line: int, word: str) -> None:
    with pytest.raises(YAMLError) as caught:
        read(text)
    assert caught.value.line == line
    assert word in str(caught.value)


@given(st.text(st.sampled_from("ab:-{}[]&*<>|!'\"#,? \n\t%@0.\\\0\x07é\ud800"), max_size=40))
def test_what_is_refused_is_told_with_what_helps(text: str) -> None:
    try:
        read(text)
    except YAMLError as error:
        told = str(error)
    else:
        return
    problem, _, remedy = told.partition("; ")
    assert problem
    assert remedy


def test_depth() -> None:
    assert one("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for text in ("[" * 5000 + "]" * 5000, '{"a":' * 200 + "1" + "}" * 200, "- " * 500 + "a"):
        with pytest.raises(YAMLError, match=r"(nested deeper|depth).*is it a manifest\? None is"):
            read(text)


def test_aliases_cannot_blow_up() -> None:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(YAMLError, match="aliases stand for more than"):
        read("\n".join(["l0: &l0 [x, x, x]", *levels]))


@given(st.text(st.sampled_from("ab:-{}[]&*<>|!'\"#,? \n\t%@0."), max_size=60) | st.text())
def test_any_text_is_read_or_refused_with_its_line(text: str) -> None:
    try:
        read(text)
    except YAMLError as error:
        line = error.line
    else:
        line = 1
    assert 1 <= line <= len(text.splitlines()) + 3

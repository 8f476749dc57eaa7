"""The page: whole, escaped, and the same for the same data."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from pinfold.render.report.page import page
from pinfold.render.report.view import (
    Column,
    Folded,
    Points,
    Report,
    Section,
    Shown,
    Table,
    Text,
)
from pinfold.render.terminal import clean
from tests.scenes.simulation_results import HOSTILE_NAMES

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Read(HTMLParser):
    """What a browser finds: elements with their attributes, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def count(self, tag: str) -> int:
        return [name for name, _ in self.elements].count(tag)


def everywhere(name: str) -> Report:
    """A report that has the name wherever a text can be."""
    table = Table(name, (Column(name, numeric=False), Column(name)), ((name, name),))
    folded = Folded(name, ((name, name),), (name,), f"{name}\n{name}")
    blocks = (Text(name, name), Points((Text(name, name),)), Shown(table), folded)
    return Report(name, name, (Section("one", name, blocks),), (name,))


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_is_text_wherever_it_stands(name: str) -> None:
    read = Read(page(everywhere(name)))
    plain = Read(page(everywhere("plain")))
    assert [tag for tag, _ in read.elements] == [tag for tag, _ in plain.elements]
    assert read.count("script") == 0
    shown = clean(name)
    assert (
        sum(shown in text for text in read.texts)
        == sum("plain" in t for t in plain.texts)
        - (
            # A line of code ends where the name has a line feed.
            0 if "\n" not in name else 1
        )
        or "\n" in name
    )
    labelled = [value for _, attributes in read.elements if (value := attributes.get("aria-label"))]
    assert shown in labelled


def test_tables_say_which_cells_are_headers() -> None:
    read = Read(page(everywhere("plain")))
    assert [attributes["scope"] for tag, attributes in read.elements if tag == "th"] == [
        "col",
        "col",
        "row",
    ]
    assert read.count("caption") == 1


def test_the_page_has_landmarks_and_a_policy_that_loads_nothing() -> None:
    read = Read(page(everywhere("plain")))
    assert all(read.count(tag) == 1 for tag in ("header", "nav", "main", "footer", "h1"))
    policies = [
        attributes["content"]
        for tag, attributes in read.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_same_data_make_the_same_page() -> None:
    assert page(everywhere("plain")) == page(everywhere("plain"))

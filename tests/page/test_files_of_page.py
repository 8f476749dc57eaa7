"""The files of the page, and the one file that is made of them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.documents.live.scene import Scene, ScenePage
from pinfold.page.files_of_page import alone, joined_modules, module_names, page_files, whole_page


class Elements(HTMLParser):
    """The texts of scripts and styles, as a browser splits them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.within: str | None = None
        self.found: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self.found.append((dict(attrs).get("type") or tag, ""))
            self.within = tag

    def handle_data(self, data: str) -> None:
        if self.within:
            kind, text = self.found.pop()
            self.found.append((kind, text + data))

    def handle_endtag(self, tag: str) -> None:
        if tag == self.within:
            self.within = None


def page_of(text: str) -> ScenePage:
    scene = Scene(
        title=text,
        subtitle=text,
        at=None,
        live=False,
        summary=text,
        owners=[],
        states=[],
        pods=[],
        notes=[text],
    )
    return ScenePage(title=text, scenes=[scene], details={text: text})


@given(st.text() | st.sampled_from(["</script>", "<!--<script>", "\u2028", "]]>", "&lt;"]))
def test_what_it_shows_comes_out_of_the_page_as_it_went_in(text: str) -> None:
    text = text.encode(errors="replace").decode()
    told = dict(Elements(whole_page(page_of(text))).found)["application/json"]
    page = json.loads(told)
    assert page["title"] == text
    assert page["scenes"][0]["notes"] == [text]
    assert page["details"] == {text: text}


def test_a_page_of_its_own_has_one_style_and_one_script_and_asks_for_nothing() -> None:
    text = whole_page(page_of("a"))
    assert [kind for kind, _ in Elements(text).found] == ["style", "application/json", "module"]
    assert not re.search(r'(?:href|src)="(?!data:)', text)
    assert whole_page(page_of("a")) == text


def test_modules_are_joined_after_what_they_import() -> None:
    names = module_names()
    assert names[-1] == "main.js"
    joined = joined_modules()
    assert [joined.index(f"// {name}\n") for name in names] == sorted(
        joined.index(f"// {name}\n") for name in names
    )


def test_what_is_served_has_a_kind_that_its_name_says() -> None:
    assert {name.rpartition(".")[2] for name in page_files()} == {"html", "css", "js"}


@pytest.mark.parametrize(
    "text",
    [
        'import x from "./dom.js";\n',
        'import * as x from "./dom.js";\n',
        "export default 1;\n",
        "export {x};\n",
        'const x = await import("./dom.js");\n',
        'const x = "</SCRIPT>";\n',
    ],
)
def test_a_module_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"odd\.js: "):
        alone("odd.js", text)

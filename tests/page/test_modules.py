"""What holds for each module of the page; a browser runs them all, tests/e2e says what they do."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from pinfold.page.files_of_page import PARTS, joined_style, module_names, style_names

LIMIT = 400
MOST = 25
FOLDER = files("pinfold.page").joinpath("files")
TEXTS = {name: FOLDER.joinpath(name).read_text(encoding="utf-8") for name in module_names()}
STYLES = {
    name: FOLDER.joinpath(*name.split("/")).read_text(encoding="utf-8") for name in style_names()
}
IMPORTS = re.compile(r'^import \{([^}]+)\} from "\./([a-z_]+\.js)";$', re.MULTILINE)
EXPORTS = re.compile(r"^export (?:async )?(?:function|class|const) (\w+)", re.MULTILINE)
TOPS = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)

# What makes code or markup of a text, or a style that a policy refuses.
NEVER = (
    r"\.(?:inner|outer)HTML\b",
    r"insertAdjacentHTML|document\.write|createContextualFragment|setHTML",
    r"\beval\(|new Function\(|setTimeout\(\s*[\"'`]",
    r"setAttribute\(\s*[\"']style|\bstyle:|cssText",
    r"https?://",
    r"\bvar \b|[^=!]==[^=]|!=[^=]",
)


def test_every_module_of_the_folder_is_used() -> None:
    there = {one.name for one in FOLDER.iterdir() if one.name.endswith(".js")}
    assert there == set(TEXTS)


def test_what_is_exported_is_imported_and_what_is_imported_is_exported() -> None:
    exported = {(name, what) for name, text in TEXTS.items() for what in EXPORTS.findall(text)}
    imported = {
        (module, what.strip())
        for text in TEXTS.values()
        for names, module in IMPORTS.findall(text)
        for what in names.split(",")
    }
    assert imported == exported


def test_a_name_at_the_top_is_there_once() -> None:
    """So that modules can be joined; a browser would not run the page else."""
    tops = [what for text in TEXTS.values() for what in TOPS.findall(text)]
    assert sorted(tops) == sorted(set(tops))


@pytest.mark.parametrize("name", TEXTS)
def test_a_module(name: str) -> None:
    text = TEXTS[name]
    assert text.startswith("/**"), "says what it is"
    assert len(text.splitlines()) <= LIMIT
    assert max(map(len, text.splitlines())) <= 120
    for names, _ in IMPORTS.findall(text):
        for what in names.split(","):
            assert len(re.findall(rf"\b{what.strip()}\b", text)) > 1, f"{what} is not used"
    assert forbidden(text) == []


def forbidden(text: str) -> list[str]:
    """What is never to be in a module, and is in this one outside its comments."""
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    code = re.sub(r"(^|\s)//.*", "", code, flags=re.MULTILINE)
    return [pattern for pattern in NEVER if re.search(pattern, code)]


@pytest.mark.parametrize(
    "line",
    [
        'document.body.innerHTML = "x";',
        'eval("1");',
        'fetch("https://example.com");',
        "if (one == other) act();",
    ],
)
def test_what_is_never_to_be_there_is_found(line: str) -> None:
    longest = max(TEXTS.values(), key=len)
    assert len(forbidden(f"// first\n/* https://a */\n{longest}\n{line} // last\n")) == 1


def test_no_folder_is_a_heap() -> None:
    for folder, end in ((FOLDER, ".js"), (FOLDER.joinpath("style"), ".css")):
        assert sum(one.name.endswith(end) for one in folder.iterdir()) <= MOST


def test_every_part_of_the_style_is_used_once() -> None:
    there = {f"style/{one.name}" for one in FOLDER.joinpath("style").iterdir()}
    assert sorted(there) == sorted(style_names())


def test_the_list_of_the_parts_is_nothing_else() -> None:
    """What else would stand there would not be in the page."""
    text = re.sub(
        r"/\*.*?\*/", "", FOLDER.joinpath(PARTS).read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert text.split("\n") == ["", *(f'@import "./{name}";' for name in style_names()), ""]


@pytest.mark.parametrize("name", STYLES)
def test_a_part_of_the_style(name: str) -> None:
    text = STYLES[name]
    assert text.startswith("/*"), "says what it is"
    assert len(text.splitlines()) <= LIMIT
    assert max(map(len, text.splitlines())) <= 120
    # Each is whole: where one ended within a rule, the next would not be read.
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    assert code.count("{") == code.count("}")
    assert "*/" not in code


def test_a_style_loads_nothing() -> None:
    assert not re.search(r"url\(|@import|https?:|</", joined_style())

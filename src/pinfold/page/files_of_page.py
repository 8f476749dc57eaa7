"""The files of the page: as they are served, and as one file that needs no server.

``files/`` holds an ``index.html``, plain ES modules, of which ``main.js`` is the first, and a
``page.css``, which names the parts of the style in ``style/``.  There is no build: the modules are
joined into one ``page.js`` in the order of their imports, the parts into one ``page.css`` in the
order that it names them, and those same texts are served and written into a page of its own, so
that both do the same and a page is asked for once, whatever it is made of.

That one can be made of the others by reading lines, modules keep a form: every import is a line
``import {one, other} from "./module.js";``, what is exported has ``export`` before it at the start
of a line, and no two modules have the same name at their top.  A browser would find the last one
to be a syntax error; whatever else is against this form is a :class:`ValueError` here.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from typing import Final

import msgspec

from pinfold.documents.live.scene import ScenePage

MAIN: Final = "main.js"
PARTS: Final = "page.css"
STYLE: Final = '<link rel="stylesheet" href="/files/page.css">'
SCRIPT: Final = '<script type="module" src="/files/page.js"></script>'
TITLE: Final = "<title>Pinfold</title>"

_IMPORT: Final = re.compile(r'import \{[\w, \n]+\} from "\./([a-z_]+\.js)";\n')
_PART: Final = re.compile(r'^@import "\./(style/[a-z_]+\.css)";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|class|const)\b)", re.MULTILINE)
# The types in comments name modules, too.
_LEFT: Final = re.compile(r"^(?:import|export)\b.*|^(?!\s*/?\*).*\bimport\(.*", re.MULTILINE)
# What would end the element, or be a comment, or the end of a line elsewhere.
_IN_JSON: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


@cache
def page_files() -> Mapping[str, bytes]:
    """What ``/files/NAME`` answers, by its name; ``index.html`` is ``/`` itself."""
    return {
        "index.html": _text("index.html").encode(),
        "page.css": joined_style().encode(),
        "page.js": joined_modules().encode(),
    }


def whole_page(page: ScenePage) -> str:
    """A page of its own: style, script and what it shows in one file, which asks for nothing.

    Its policy allows the one style and the one script that are in it, by their hashes.
    """
    style, script = joined_style(), joined_modules()
    told = msgspec.json.encode(page).decode().translate(_IN_JSON)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    text = _text("index.html")
    for before, after in (
        (TITLE, f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n{TITLE}'),
        (STYLE, f"<style>{style}</style>"),
        (
            SCRIPT,
            (
                f'<script type="application/json" id="page">{told}</script>\n'
                f'<script type="module">{script}</script>'
            ),
        ),
    ):
        if text.count(before) != 1:
            raise ValueError(f"index.html: one line {before}")
        text = text.replace(before, after)
    return text


def module_names() -> list[str]:
    """The modules of the page, each after those that it imports."""
    imports = {}
    waiting = [MAIN]
    while waiting:
        name = waiting.pop()
        if name not in imports:
            imports[name] = _IMPORT.findall(_text(name))
            waiting += imports[name]
    return list(TopologicalSorter(imports).static_order())


def joined_modules() -> str:
    """All modules as one, which imports and exports nothing.

    Raises:
        ValueError: a module has an import or an export in another form.
    """
    return "\n".join(alone(name, _text(name)) for name in module_names())


def alone(name: str, text: str) -> str:
    """The text of a module as a part of the joined one; the errors are those of that."""
    text = _EXPORT.sub("", _IMPORT.sub("", text))
    if left := _LEFT.search(text):
        raise ValueError(f"{name}: not in the form that can be joined: {left[0]}")
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError(f"{name}: holds what ends a script in a page")
    return f"// {name}\n{text}"


def style_names() -> list[str]:
    """The parts of the style, in the order in which they are joined."""
    return _PART.findall(_text(PARTS))


def joined_style() -> str:
    """All parts of the style as one, which loads nothing."""
    return "\n".join(f"/* {name} */\n{_text(name)}" for name in style_names())


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _text(name: str) -> str:
    return files(__package__).joinpath("files", *name.split("/")).read_text(encoding="utf-8")

"""Templates of ``-o jsonpath``, on a document and on what they are made of: never a traceback."""

from __future__ import annotations

import json
from typing import Final

from fuzz.engine import Target
from pinfold.render.jsonpath.parts import TemplateError
from pinfold.render.jsonpath.printing import printed
from pinfold.render.jsonpath.reading import read_template

_DOCUMENT: Final = {
    "version": 1,
    "name": "a",
    "pods": [
        {"name": "a", "cpus": 2, "numa_nodes": [0, 1], "reason": None},
        {"name": "b", "cpus": 0.5, "devices": {"example.com/gpu": ["gpu-0"]}, "admitted": True},
    ],
}
_SEEDS: Final = (
    '{range .pods[*]}{.name}{"\\t"}{.cpus}{"\\n"}{end}{.version}',
    '{.pods[?(@.name=="a")].numa_nodes[-1:]}',
    "{.pods[*]['name','cpus']} {.pods[0,1].cpus} {..name}",
    "{.pods[1].devices['example\\.com/gpu'][0]}{$.name}{@}",
    "{.pods[?(@.cpus>=1)].cpus}{1}{-2.5}{true}{'\\u00e9\\''}",
    "{.pods[::2].*}{.pods[?(@.reason)].name}",
)
_WORDS: Final = (b"{range ", b"{end}", b"[?(@.", b")]", b"..", b"[*]", b"['", b"\\", b"==", b":-1")


def run_jsonpath(data: bytes) -> None:
    """A template, read and printed; what is refused is refused at a place within it."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        template = read_template(text)
        _hold(template.text == text, "the template is another one")
        for document in (_DOCUMENT, text, None):
            told = printed(template, document)
            _hold("{" in text or told == text, "text alone is not printed as it is")
    except TemplateError as error:
        _hold(0 <= error.at <= len(text), "an error outside of the template")
        _hold(error.problem, "an error without a word")


def _seeds() -> list[bytes]:
    return [*(one.encode() for one in _SEEDS), json.dumps(_DOCUMENT).encode()]


def _hold(fact: object, text: str) -> None:
    if not fact:
        raise AssertionError(text)


JSONPATH_TARGET: Final = Target("jsonpath", run_jsonpath, _seeds, _WORDS)

"""What users of the commands are told names commands: no operation of the local API."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.roots import ROOT

SOURCE = ROOT / "src/pinfold"
OPERATION = re.compile(
    r"\b(?:GET|POST|PUT|PATCH|DELETE) /(?:v1|healthz|readyz|metrics|openapi)|\bpath /v1"
)
FOR_PROGRAMS = {
    "documents/schemas.py": "says for each schema where its document is met",
    "cli/client.py": "knows such words of older agents, to say others",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that are no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation
        ):
            yield node.lineno, node.value


def test_no_text_names_an_operation_of_the_api() -> None:
    found = {
        f"{name}:{line}: {text}"
        for path in SOURCE.rglob("*.py")
        if (name := str(path.relative_to(SOURCE))) not in FOR_PROGRAMS
        for line, text in texts(path)
        if OPERATION.search(text)
    }
    assert found == set(), "name the command that does it"


def test_it_would_be_noticed(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Answers GET /v1/pods."""\nREMEDY = "GET /v1/pods lists them"\n')
    assert [line for line, text in texts(module) if OPERATION.search(text)] == [2]

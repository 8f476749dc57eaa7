"""What a program makes manifests of, given before it has: charts, templates, kustomizations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

CHART: Final = "Chart.yaml"
_OVERLAYS: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_ACTION: Final = re.compile(
    r"\{\{-?\s*(?:[.$(\"/]|(?:if|else|end|include|template|range|with|define|block|toYaml|quote|"
    r"printf|default|required|tpl|not|and|or|eq)\b)"
)
"""How an action of a template begins (Go's ``text/template``, as Helm has it)."""


TEMPLATE: Final = (
    "{{ ... }} is of a template, as charts of Helm have; render it first: "
    "helm template CHART > all.yaml"
)


def unrendered_path(path: Path) -> str:
    """What a path is that is no manifest yet, and what makes manifests of it; "" for others."""
    if path.is_dir():
        for chart in (path, *((path.parent,) if path.name == "templates" else ())):
            if (chart / CHART).exists():
                return _chart(str(chart))
        overlay = next((name for name in _OVERLAYS if (path / name).exists()), None)
        return "" if overlay is None else _overlay(str(path))
    if path.name == CHART:
        return _chart(str(path.parent))
    return _overlay(str(path.parent)) if path.name in _OVERLAYS else ""


def unrendered_text(text: str, line: int) -> str:
    """The same of a text that cannot be read at a line, from 1: a template has actions there.

    Texts in quotes may have such braces and be no template: those of rules and workflows.
    """
    lines = text.splitlines()
    near = lines[max(0, line - 2) : line + 1]
    control = [one for one in lines if one.lstrip().startswith("{{")]
    if not any(map(_ACTION.search, (*near, *control))):
        return ""
    return TEMPLATE


def unrendered_value(problem: str) -> str:
    """The same of a value that is refused, which the problem quotes."""
    return TEMPLATE if _ACTION.search(problem) else ""


def _chart(path: str) -> str:
    return f"a chart of Helm, no manifest; render it first: helm template {path} > all.yaml"


def _overlay(path: str) -> str:
    return f"a kustomization, no manifest; build it first: kubectl kustomize {path} > all.yaml"

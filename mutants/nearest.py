"""Which tests are the nearest to a module: by their imports, and by the folder they are in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NEAR: Final = 2
"""Imports between a test and a module that count as near: a helper of the tests may lie between."""


@dataclass(frozen=True, slots=True)
class Order:
    """Files of tests, relative to the tree: first the near ones, then all others."""

    near: tuple[str, ...]
    others: tuple[str, ...]


class Imports:
    """Who imports whom in a tree that has its package in ``src`` and its tests in ``tests``.

    Imports inside of functions count; those of names from a package count for the module that has
    the name, where there is one.
    """

    def __init__(self, tree: Path, skipped: frozenset[str]) -> None:
        """Read all modules; folders and files of tests with a name in ``skipped`` are not."""
        files: dict[str, Path] = {}
        for root in (tree / "src", tree):
            inside = root if root.name == "src" else root / "tests"
            for path in inside.rglob("*.py"):
                parts = path.relative_to(root).with_suffix("").parts
                files[".".join(parts).removesuffix(".__init__")] = path
        self._imports = {
            name: {known for known in _imported(path) if known in files}
            for name, path in files.items()
        }
        self._tests = {
            name: str(path.relative_to(tree))
            for name, path in files.items()
            if path.name.startswith("test_") and not skipped & set(path.parts)
        }
        self._importers: dict[str, set[str]] = {}
        for name, imported in self._imports.items():
            for other in imported:
                self._importers.setdefault(other, set()).add(name)

    def order(self, module: str) -> Order:
        """All files of tests: by their distance, those that import little before the others.

        Near are those of the folder that mirrors the module's, too.
        """
        distances = {module: 0}
        reached = [module]
        for name in reached:
            for importer in sorted(self._importers.get(name, ())):
                if importer not in distances:
                    distances[importer] = distances[name] + 1
                    reached.append(importer)
        far = len(self._imports)
        inside = module.partition(".")[2]

        def is_own(test: str) -> bool:
            folder = test.partition(".")[2].rpartition(".")[0]
            return bool(folder) and inside.startswith(f"{folder}.")

        def rank(test: str) -> tuple[int, bool, int, str]:
            return distances.get(test, far), not is_own(test), len(self._imports[test]), test

        ranked = sorted(self._tests, key=rank)
        near = [test for test in ranked if distances.get(test, far) <= NEAR or is_own(test)]
        others = [test for test in ranked if test not in near]
        return Order(
            tuple(self._tests[test] for test in near), tuple(self._tests[test] for test in others)
        )


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)

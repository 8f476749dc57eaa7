"""The tests after the mutants: who notices which."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mutants.nearest import Imports
from mutants.operators import Mutant, mutants_of
from mutants.workspace import Outcome, Workspace

EQUIVALENTS: Final = "mutants/equivalents.toml"
CONFIRMATIONS: Final = 2
"""Further failures of a test with the same mutant, after which it is believed."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A mutant and its file, relative to the tree."""

    path: str
    mutant: Mutant

    def __str__(self) -> str:
        return f"{self.path}:{self.mutant.line} {self.mutant.change}"

    @property
    def key(self) -> tuple[str, str]:
        """What is the same wherever the line has moved to."""
        return self.path, self.mutant.change

    @property
    def module(self) -> str:
        """The dotted name of what is changed."""
        parts = Path(self.path).relative_to("src").with_suffix("").parts
        return ".".join(parts).removesuffix(".__init__")


def population(tree: Path, folders: Sequence[str]) -> list[Placed]:
    """All mutants of folders of the package, in order; raises ``FileNotFoundError``."""
    package = next(path.parent for path in sorted((tree / "src").glob("*/__init__.py")))
    files: dict[Path, None] = {}
    for folder in folders:
        if not (package / folder).is_dir():
            raise FileNotFoundError(f"{package / folder} is no folder")
        for file in sorted((package / folder).rglob("*.py")):
            if not file.stem.endswith("_pb2"):
                files[file] = None
    return [
        Placed(str(file.relative_to(tree)), mutant)
        for file in files
        for mutant in mutants_of(file.read_bytes())
    ]


def equivalents(tree: Path) -> dict[tuple[str, str], str]:
    """Changes (a file and what is changed there) that no test can tell, each with its reason."""
    entries = tomllib.loads((tree / EQUIVALENTS).read_text(encoding="utf-8"))
    return {
        (entry["file"], entry["change"]): entry["reason"] for entry in entries.get("equivalent", [])
    }


@dataclass(slots=True)
class Hunt:
    """The tests of one tree after mutants, in any number of workspaces."""

    imports: Imports
    near_only: bool = False
    """Whether those that survive the nearest tests are let go."""
    unfit: set[str] = field(default_factory=set)
    """Tests that fail in a copy without any mutant."""
    unsteady: set[str] = field(default_factory=set)
    """Tests that failed with a mutant, and not again."""

    def killer(self, placed: Placed, workspace: Workspace) -> Outcome:
        """Who notices a mutant: the nearest tests are asked first."""
        order = self.imports.order(placed.module)
        original = (workspace.tree / placed.path).read_bytes()
        with workspace.changed(placed.path, placed.mutant.source):
            passed_over: list[str] = []
            for tests in (order.near, () if self.near_only else order.others):
                left: Sequence[str] = tests
                while left:
                    outcome = workspace.run(left, [*sorted(self.unfit), *passed_over])
                    if outcome.culprit is None:
                        break
                    if self._is_to_blame(placed, workspace, original, outcome):
                        return outcome
                    # Those before it have passed.
                    passed_over.append(outcome.culprit)
                    left = left[left.index(outcome.culprit.partition("::")[0]) :]
        return Outcome(None)

    def _is_to_blame(
        self, placed: Placed, workspace: Workspace, original: bytes, outcome: Outcome
    ) -> bool:
        """Whether the mutant, and nothing else, is why a test has failed."""
        culprit = outcome.culprit or ""
        with workspace.changed(placed.path, original):
            if workspace.run([culprit]).culprit is not None:
                self.unfit.add(culprit)
                return False
        # What does not end takes its time: once is enough.  Others may depend on the moment.
        for _ in range(0 if outcome.silent else CONFIRMATIONS):
            if workspace.run([culprit]).culprit is None:
                self.unsteady.add(culprit)
                return False
        return True

"""Replaying the samples of the state files, and the whole recordings where they are at hand."""

from __future__ import annotations

from pathlib import Path

from tests.roots import SHARED
from tests.vectors.runner import (
    SAMPLES,
    Family,
    Tally,
    discover_families,
    read_vector_file,
    replay_file,
    topologies_for,
)

VECTORS = SHARED / "vectors"


def replay(path: Path, family_name: str, *others: Path) -> Tally:
    """Replay the cases of one family; ``others`` are files that have topologies."""
    file = read_vector_file(path)
    families: list[Family] = [
        family for family in discover_families() if family.name == family_name
    ]
    assert len(families) == 1
    file.cases[:] = [case for case in file.cases if families[0].claims(case[1])]
    return replay_file(file, topologies_for(file, [file, *map(read_vector_file, others)]), families)


def sample(family_name: str) -> Path:
    """The committed sample of a family."""
    return SAMPLES / f"{family_name}.sample.jsonl"

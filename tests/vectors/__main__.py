"""The command: ``python -m tests.vectors FILE...``.

A folder stands for all vector files in it, those of its folders too.  The last line sums up.  Exit
status 0 when every case passed, 1 when one failed or is of no family, 2 when a file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pinfold.core.kubelet.versions import KubeletVersionError, named_version
from tests.vectors.runner import (
    CASE_SECONDS,
    Tally,
    VectorFileError,
    as_version,
    discover_families,
    read_vector_file,
    replay_file,
    topologies_for,
    vector_files,
)

_WIDTH = 600


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the files, print the counts, return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.vectors", description=__doc__)
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help=".jsonl or .jsonl.gz, or a folder of them",
    )
    parser.add_argument(
        "--case-seconds", type=float, default=CASE_SECONDS, help="time limit of one case"
    )
    parser.add_argument(
        "--as",
        dest="version",
        metavar="V",
        help="replay the cases that name no version as if they were this kubelet's: what fails is "
        "what it answers otherwise than 1.34",
    )
    parser.add_argument("--show", type=int, default=10, help="how many failures to print")
    given = parser.parse_args(arguments)
    families = discover_families()
    total = Tally()
    try:
        files = [read_vector_file(path) for path in vector_files(given.files)]
        if given.version is not None:
            files = [as_version(file, str(named_version(given.version).version)) for file in files]
        for file in files:
            tally = replay_file(file, topologies_for(file, files), families, given.case_seconds)
            print(f"{file.path.name}: {_counts(tally)}", flush=True)
            total.add(tally)
    except (VectorFileError, KubeletVersionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _print_failures(total, given.show)
    if total.not_covered:
        print(f"not covered: {_split(total.not_covered)}")
    print(f"differ by design: {_split(total.by_design)}")
    not_covered = f", {total.not_covered.total()} not covered" if total.not_covered else ""
    print(f"{total.passed} passed, {total.failed} failed{not_covered}")
    return 1 if total.failed or total.not_covered else 0


def _counts(tally: Tally) -> str:
    parts = [f"{tally.passed} passed, {tally.failed} failed"]
    if tally.by_design:
        parts.append(f"differ by design: {_split(tally.by_design)}")
    if tally.not_covered:
        parts.append(f"not covered: {_split(tally.not_covered)}")
    if tally.topologies:
        parts.append(f"{tally.topologies} topologies")
    return "; ".join(parts)


def _split(counts: Counter[str]) -> str:
    kinds = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return f"{counts.total()} ({kinds})" if kinds else "0"


def _print_failures(total: Tally, show: int) -> None:
    for where, detail in total.failures[:show]:
        shown = detail if len(detail) <= _WIDTH else detail[:_WIDTH] + " ..."
        print(f"FAILED {where}: {shown}")
    if len(total.failures) > show:
        print(f"... and {len(total.failures) - show} more")


if __name__ == "__main__":
    sys.exit(main())

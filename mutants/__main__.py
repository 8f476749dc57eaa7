"""The command: ``python -m mutants [FOLDER...] [--sample N] [--seed S] [--only TEXT]``.

Draws a sample of the small changes that can be made to the code, makes each of them in a copy of
the tree, and runs the tests: the nearest by their imports first, all others if it survives those.
One line for each mutant says who has killed it, or that it SURVIVED.  A kill counts when the same
test fails again with the mutant and passes without it; a run that does not end is a kill, too.  The
exit status is 1 when less than 95 % are killed.

Why no library: mutmut 3 changes functions only (no defaults of records, no tables), runs the tests
in forks of one pytest process that has imported everything, and draws no sample; the operators of
Cosmic Ray drop no statement and return no None, and it runs one command for each mutant, in the
working tree or behind HTTP servers; mutatest is no longer kept.  None of them stops a mutant from
killing the wrong process, or clears away what its daemons leave behind.
"""

from __future__ import annotations

import argparse
import queue
import random
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from mutants.hunt import Hunt, Placed, equivalents, population
from mutants.nearest import Imports
from mutants.workspace import Outcome, Workspace

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = (
    "core",
    "state",
    "admission",
    "node",
    "adapters/cgroup",
    "adapters/nri",
    "adapters/process",
)
ITS_OWN_TESTS: Final = "test_mutants.py"
"""Never asked: they make mutants themselves, and know nothing of the package."""
WANTED: Final = 0.95


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, run and tell; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help=", ".join(FOLDERS))
    parser.add_argument("--sample", type=int, default=50, metavar="N", help="how many (50)")
    parser.add_argument("--seed", type=int, help="draw the same ones again")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose line has this text")
    parser.add_argument("--near", action="store_true", help="ask the nearest tests only: sooner")
    parser.add_argument("--jobs", type=int, default=2, help="how many at the same time (2)")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another project than this one")
    given = parser.parse_args(arguments)
    tree: Path = given.tree
    try:
        everyone = population(tree, given.folders or FOLDERS)
    except FileNotFoundError as error:
        parser.error(str(error))
    known = equivalents(tree)
    everyone = [
        placed for placed in everyone if placed.key not in known and given.only in str(placed)
    ]
    seed = random.randrange(1 << 16) if given.seed is None else given.seed  # noqa: S311 - a sample
    sample = random.Random(seed).sample(everyone, min(given.sample, len(everyone)))  # noqa: S311 - the same
    if not sample:
        parser.error("no mutant is left to draw from")
    print(f"seed {seed}: {len(sample)} of {len(everyone)} mutants", flush=True)
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    elsewhere = project["tool"]["pytest"]["ini_options"]["norecursedirs"]
    hunt = Hunt(Imports(tree, frozenset([*elsewhere, ITS_OWN_TESTS])), near_only=given.near)
    killed = 0
    for placed, outcome, seconds in _outcomes(hunt, sample, tree, given.jobs):
        killed += outcome.culprit is not None
        if outcome.culprit is None:
            verdict, who = "SURVIVED", ""
        else:
            verdict, who = "killed  ", f" by {outcome.culprit}"
        how = ", which did not end" if outcome.silent else ""
        print(f"{verdict} {placed}{who}{how} ({seconds:.0f} s)", flush=True)
    for test in sorted(hunt.unfit):
        print(f"not asked, as it fails without a mutant: {test}")
    for test in sorted(hunt.unsteady - hunt.unfit):
        print(f"not believed, as it fails now and then: {test}")
    share = killed / len(sample)
    print(f"{killed} of {len(sample)} killed: {share:.0%}")
    return 0 if share >= WANTED else 1


def _outcomes(
    hunt: Hunt, sample: Sequence[Placed], tree: Path, jobs: int
) -> Iterator[tuple[Placed, Outcome, float]]:
    """Who notices each, in the order in which that is known, and after how many seconds."""
    idle: queue.SimpleQueue[Workspace] = queue.SimpleQueue()

    def hunted(placed: Placed) -> tuple[Placed, Outcome, float]:
        workspace = idle.get()
        start = time.monotonic()
        try:
            return placed, hunt.killer(placed, workspace), time.monotonic() - start
        finally:
            idle.put(workspace)

    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        # Tests that run something as nobody have to get in.
        Path(folder).chmod(0o755)
        workspaces = []
        for number in range(jobs):
            own = Path(folder) / str(number)
            own.mkdir()
            workspaces.append(Workspace(tree, own))
            idle.put(workspaces[-1])
        with ThreadPoolExecutor(jobs) as workers:
            futures = [workers.submit(hunted, placed) for placed in sample]
            try:
                for future in as_completed(futures):
                    yield future.result()
            finally:
                for workspace in workspaces:
                    workspace.stop()
                workers.shutdown(cancel_futures=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())

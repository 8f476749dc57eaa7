"""The command: ``python -m fuzz [TARGET...] [--seconds N] [--corpus DIR]``.

``--reproduce FILE`` runs one saved input of one target and shows the traceback.  The exit status
is 1 when something was found.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fuzz.engine import Report, attempt, fuzz
from fuzz.targets import TARGETS

_MEMORY_BYTES = 4 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz the chosen targets one after the other; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--corpus", type=Path, help="where inputs are kept between runs")
    parser.add_argument("--seed", type=int, help="repeat a run (with the same Python)")
    parser.add_argument("--reproduce", type=Path, metavar="FILE", help="run one saved input")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.targets if name not in TARGETS]
    if unknown:
        parser.error(f"unknown target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    chosen = [TARGETS[name] for name in given.targets or TARGETS]
    # An input that makes the parser ask for all memory shall be a MemoryError, not a dead machine.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    if given.reproduce:
        if len(chosen) != 1:
            parser.error("--reproduce needs the name of one target")
        failure = attempt(chosen[0], given.reproduce.read_bytes())
        print(failure.trace if failure else "nothing happens")
        return 1 if failure else 0
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}")
    failed = False
    for target in chosen:
        corpus = given.corpus / target.name if given.corpus else None
        report = fuzz(target, seconds=given.seconds, seed=seed, corpus=corpus)
        _print(report, given.corpus or Path("build/fuzz"))
        failed = failed or bool(report.failures)
    return 1 if failed else 0


def _print(report: Report, folder: Path) -> None:
    rate = report.inputs / max(report.seconds, 0.001)
    print(
        f"{time.strftime('%H:%M:%S')} {report.target}: {report.inputs} inputs in "
        f"{report.seconds:.0f} s ({rate:,.0f}/s), corpus {report.corpus}, "
        f"{len(report.failures)} failures",
        flush=True,
    )
    for failure in report.failures.values():
        path = folder / "failures" / report.target / failure.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(failure.data)
        print(f"  {failure.place}: {failure.error}\n  saved as {path}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

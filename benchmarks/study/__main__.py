"""The study of what a policy costs, made anew: ``python -m benchmarks.study TRACES``.

Each experiment beside the page is run by ``pinfold simulate``, with its report, pictures and JSON
in ``build/study``; what has run is kept there, and not run again.  Then the tables of the page are
written between their marks, and the pictures that it shows are copied beside it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.study.tables import PICTURES, TABLES, experiments, with_tables
from pinfold.documents.simulation.results import Simulation

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "studies" / "what-a-policy-costs" / "README.md"
_PROGRAM: Final = Path(sysconfig.get_path("scripts")) / "pinfold"


def simulated(name: str, folder: Path, traces: Path, build: Path, *options: str) -> Simulation:
    """Run one experiment, and keep its report, its pictures and its JSON.

    Args:
        name: of its file in ``folder``, without ending.
        folder: where the experiments are.
        traces: where the traces are.
        build: where the files go.
        options: more ones of ``pinfold simulate``.

    Raises:
        subprocess.CalledProcessError: it did not end well; it has told why.
    """
    build.mkdir(parents=True, exist_ok=True)
    files = {
        "--traces": traces,
        "--report": build / f"{name}.html",
        "--svg": build / name,
        "--resume": build / "runs",
    }
    command = [str(_PROGRAM), "simulate", str(folder / f"{name}.yaml"), "-o", "json", *options]
    for option, file in files.items():
        command += [option, str(file)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    (build / f"{name}.json").write_bytes(told)
    return msgspec.json.decode(told, type=Simulation)


def written(page: Path, traces: Path, build: Path, *options: str) -> None:
    """Make the page and its pictures anew; see :func:`simulated`."""
    found: dict[str, Simulation] = {}
    for name in experiments(TABLES):
        print(f"{name}:", file=sys.stderr, flush=True)
        found[name] = simulated(name, page.parent, traces, build, *options)
    page.write_text(with_tables(page.read_text(), found))
    for picture, (name, plot) in PICTURES.items():
        drawn = (build / name / f"{plot}.svg").read_bytes()
        (page.parent / picture).write_bytes(drawn)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.study", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("traces", type=Path, metavar="TRACES", help="the folder of the traces")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "study", metavar="FOLDER")
    parser.add_argument("--workers", metavar="N", help="runs beside one another")
    given = parser.parse_args(arguments)
    options = () if given.workers is None else ("--workers", given.workers)
    try:
        written(PAGE, given.traces, given.build, *options)
    except subprocess.CalledProcessError as error:
        return int(error.returncode)
    print(f"written: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

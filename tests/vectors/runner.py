"""Offers every line of vector files to the families and counts what came of it.

A line that describes a topology (``id``, ``cpus``, ``num_cpus``, ``num_cores``) is no case: other
lines name it by ``topo``.  A name is looked up in the case's own file, in the other files given,
in ``topologies.jsonl`` beside the file and in the folder above, in the whole recording where it is
at hand, and at last in the sample in this repository.
"""

from __future__ import annotations

import gzip
import importlib
import json
import pkgutil
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pinfold.core.machine.topology import CPUTopology, TopologyError
from tests.roots import SHARED
from tests.vectors import Case, Outcome

RECORDINGS: Final = SHARED / "vectors"
SAMPLES: Final = Path(__file__).parent.parent / "data" / "vectors"
CASE_SECONDS: Final = 20.0
_TOPOLOGY_FIELDS: Final = frozenset({"id", "cpus", "num_cpus", "num_cores"})
_NOT_FAMILIES: Final = frozenset({"__main__", "runner"})


class VectorFileError(ValueError):
    """A vector file that cannot be read; the message names the file, the line and the remedy."""


class CaseTimeoutError(BaseException):
    """A case took too long; no ordinary exception, so that no ``except Exception`` eats it."""


class UnknownTopologyError(KeyError):
    """A case names a topology that none of the files has."""

    def __str__(self) -> str:
        return f"no topology {self.args[0]!r} in the files given or beside them"


@dataclass(frozen=True, slots=True)
class Family:
    """One module of this package: which cases are its own, and how to replay them."""

    name: str
    claims: Callable[[Case], bool]
    replay: Callable[[Case, Mapping[str, CPUTopology]], Outcome]


@dataclass(frozen=True, slots=True)
class VectorFile:
    """The lines of one file, cases and topologies apart."""

    path: Path
    cases: list[tuple[int, Case]]
    topologies: dict[str, Case]


@dataclass(slots=True)
class Tally:
    """What became of the cases of one file, or of all."""

    passed: int = 0
    failed: int = 0
    topologies: int = 0
    by_design: Counter[str] = field(default_factory=Counter)
    not_covered: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count the other's cases too."""
        self.passed += other.passed
        self.failed += other.failed
        self.topologies += other.topologies
        self.by_design += other.by_design
        self.not_covered += other.not_covered
        self.failures += other.failures


class LazyTopologies(Mapping[str, CPUTopology]):
    """Topologies by id, built when first asked for, from the first source that has the id."""

    def __init__(self, sources: Iterable[Mapping[str, Case]]) -> None:
        self._sources = list(sources)
        self._built: dict[str, CPUTopology] = {}

    def __getitem__(self, key: str) -> CPUTopology:
        if key not in self._built:
            for source in self._sources:
                if key in source:
                    self._built[key] = build_topology(source[key])
                    break
            else:
                raise UnknownTopologyError(key)
        return self._built[key]

    def __iter__(self) -> Iterator[str]:
        return iter({key for source in self._sources for key in source})

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def discover_families() -> tuple[Family, ...]:
    """Every family module of this package, by name; packages in it are what families share."""
    families = []
    for found in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if found.ispkg or found.name in _NOT_FAMILIES:
            continue
        module = importlib.import_module(f"tests.vectors.{found.name}")
        families.append(Family(found.name, module.claims, module.replay))
    return tuple(families)


def build_topology(fields: Case) -> CPUTopology:
    """The kubelet's view of a recorded machine, with the recorded counts.

    Raises:
        VectorFileError: the fields do not describe a machine.
    """
    try:
        counts = {
            "num_cpus": fields["num_cpus"],
            "num_cores": fields["num_cores"],
            "num_sockets": fields["num_sockets"],
            "num_uncore_caches": fields["num_uncore"],
        }
        return CPUTopology.from_rows((tuple(row) for row in fields["cpus"]), **counts)
    except (KeyError, TypeError, ValueError, TopologyError) as error:
        raise VectorFileError(f"topology {fields.get('id')!r} is incomplete: {error!r}") from error


def vector_files(given: Iterable[Path]) -> list[Path]:
    """The files that are meant: those given, and all below the folders that are given, once each.

    Raises:
        VectorFileError: a folder has none.
    """
    found: dict[Path, None] = {}
    for path in given:
        if not path.is_dir():
            found[path] = None
            continue
        below = sorted(p for p in path.rglob("*") if p.name.endswith((".jsonl", ".jsonl.gz")))
        if not below:
            raise VectorFileError(f"{path}: no .jsonl or .jsonl.gz file is in this folder")
        found.update(dict.fromkeys(below))
    return list(found)


def read_vector_file(path: Path) -> VectorFile:
    """Read a file of JSON lines, gzipped or not (told by its first bytes, not by its name).

    Raises:
        VectorFileError: it cannot be read, or a line of it is no JSON object.
    """
    file = VectorFile(path, [], {})
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            case: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise VectorFileError(
                f"{path}, line {number}: not JSON ({error}); one JSON object a line is expected"
            ) from None
        if not isinstance(case, dict):
            raise VectorFileError(
                f"{path}, line {number}: a {type(case).__name__}; "
                "one JSON object a line is expected"
            )
        if case.keys() >= _TOPOLOGY_FIELDS:
            file.topologies[str(case["id"])] = case
        else:
            file.cases.append((number, case))
    return file


def as_version(file: VectorFile, version: str) -> VectorFile:
    """The same cases, as if those that name no version were another kubelet's."""
    cases = [(number, {"version": version, **case}) for number, case in file.cases]
    return VectorFile(file.path, cases, file.topologies)


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise VectorFileError(
            f"{path}: broken gzip ({error}); fetch or unpack the file again"
        ) from None
    except UnicodeDecodeError as error:
        raise VectorFileError(
            f"{path}: not UTF-8 (byte {error.start}); is it a .jsonl or .jsonl.gz file?"
        ) from None
    except OSError as error:
        raise VectorFileError(
            f"{path}: cannot be read ({error.strerror}); give an existing .jsonl or .jsonl.gz file"
        ) from None


def topologies_for(file: VectorFile, given: Sequence[VectorFile]) -> LazyTopologies:
    """The topologies that the cases of ``file`` may name, nearest first."""
    others = [other for other in given if other is not file]
    others.sort(key=lambda other: other.path.parent != file.path.parent)
    return LazyTopologies(
        [
            file.topologies,
            *(other.topologies for other in others),
            *(
                read_vector_file(path).topologies
                for path in (
                    file.path.parent / "topologies.jsonl",
                    file.path.parent.parent / "topologies.jsonl",
                    RECORDINGS / "topologies.jsonl",
                    SAMPLES / "topologies.sample.jsonl",
                )
                if path.is_file()
            ),
        ]
    )


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`CaseTimeoutError` in the main thread when the body takes longer."""

    def expire(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        raise CaseTimeoutError(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def replay_case(
    case: Case,
    topologies: Mapping[str, CPUTopology],
    families: Sequence[Family],
    seconds: float = CASE_SECONDS,
) -> Outcome | None:
    """Replay one case in every family that claims it; ``None`` when none does.

    Whatever is raised makes a failed case, never a stopped run.
    """
    outcome: Outcome | None = None
    try:
        with time_limit(seconds):
            for family in families:
                if family.claims(case):
                    outcome = family.replay(case, topologies)
                    if not outcome.passed:
                        break
    except CaseTimeoutError as error:
        return Outcome(passed=False, detail=str(error))
    except Exception as error:  # noqa: BLE001 - any error is this case's failure
        return Outcome(passed=False, detail=f"{type(error).__name__}: {error}")
    return outcome


def replay_file(
    file: VectorFile,
    topologies: Mapping[str, CPUTopology],
    families: Sequence[Family],
    seconds: float = CASE_SECONDS,
) -> Tally:
    """Replay all cases of one file."""
    tally = Tally(topologies=len(file.topologies))
    for number, case in file.cases:
        outcome = replay_case(case, topologies, families, seconds)
        if outcome is None:
            tally.not_covered[str(case.get("kind", "no kind"))] += 1
        elif outcome.passed:
            tally.passed += 1
            if outcome.fault:
                tally.by_design[outcome.fault] += 1
        else:
            tally.failed += 1
            where = f"{file.path.name}:{number}: {case.get('id', 'no id')}"
            tally.failures.append((where, outcome.detail))
    return tally

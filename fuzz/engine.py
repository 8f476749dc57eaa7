"""The loop: choose an input, mutate it, run the target, keep what is new, save what fails."""

from __future__ import annotations

import hashlib
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from fuzz.coverage import best_coverage
from fuzz.mutator import MAX_BYTES, Mutator

INPUT_SECONDS: Final = 5.0
"""An input that takes longer is a failure: no file that is small may hang a command."""
_MAX_CORPUS: Final = 2000


class InputTimeoutError(BaseException):
    """The target took too long; no ordinary exception, so that no target can swallow it."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser under test.

    ``run`` takes any bytes, swallows the errors that the parser declares, and checks what has to
    hold of a result.  ``seeds`` are valid inputs, ``dictionary`` the words of the format.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    dictionary: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """An input and what it did."""

    data: bytes
    error: str
    place: str
    trace: str

    @property
    def name(self) -> str:
        """A file name for the input."""
        return hashlib.sha256(self.data).hexdigest()[:16]


@dataclass(slots=True)
class Report:
    """What a run did."""

    target: str
    inputs: int = 0
    corpus: int = 0
    seconds: float = 0.0
    failures: dict[tuple[str, str], Failure] = field(default_factory=dict)


def attempt(target: Target, data: bytes, seconds: float = INPUT_SECONDS) -> Failure | None:
    """Run one input; None when the target behaved."""
    try:
        with _time_limit(seconds):
            target.run(data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - every undeclared exception is the find
        frames = traceback.extract_tb(error.__traceback__)
        inside = [frame for frame in frames if "/pinfold/" in frame.filename] or list(frames)
        place = f"{Path(inside[-1].filename).name}:{inside[-1].lineno}" if inside else "?"
        trace = "".join(traceback.format_exception(error, limit=-12))
        return Failure(data, f"{type(error).__name__}: {error}"[:300], place, trace)
    return None


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def expire(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        raise InputTimeoutError(f"no answer within {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fuzz(
    target: Target,
    *,
    seconds: float,
    seed: int,
    corpus: Path | None = None,
    inputs: int | None = None,
) -> Report:
    """Fuzz one target for some seconds (or a number of inputs), beginning with its corpus."""
    rng = random.Random(f"{target.name} {seed}")
    mutator = Mutator(rng, target.dictionary)
    coverage = best_coverage("pinfold", rng)
    report = Report(target.name)
    start = time.monotonic()
    pool = [data[:MAX_BYTES] for data in target.seeds()] or [b""]
    if corpus is not None:
        corpus.mkdir(parents=True, exist_ok=True)
        pool += [path.read_bytes() for path in sorted(corpus.iterdir()) if path.is_file()]
    fresh = list(pool)
    while True:
        report.seconds = time.monotonic() - start
        if not fresh and (
            report.seconds >= seconds or (inputs is not None and report.inputs >= inputs)
        ):
            break
        first_time = bool(fresh)
        data = fresh.pop() if first_time else mutator.mutate(rng.choice(pool), rng.choice(pool))
        found: list[Failure] = []
        is_new = coverage.reaches_new(
            lambda data=data, found=found: _note(attempt(target, data), found)  # type: ignore[misc]  # the defaults bind this turn's values
        )
        report.inputs += 1
        for failure in found:
            report.failures.setdefault((failure.error.split(":")[0], failure.place), failure)
        if is_new and not first_time and not found and len(pool) < _MAX_CORPUS:
            pool.append(data)
            if corpus is not None:
                (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    report.corpus = len(pool)
    return report


def _note(failure: Failure | None, found: list[Failure]) -> None:
    if failure is not None:
        found.append(failure)

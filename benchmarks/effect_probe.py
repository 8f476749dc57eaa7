"""The probe without a compiler: the same words as ``effect_probe.c``, in Python.

Started as a program (``python -I -S effect_probe.py wake SECONDS FILE``) it measures; imported, it
builds the one or the other.  Python's own cost is in its figures: its start (some 10 ms) in a
stamp, some 20 us in every wake-up; a busy loop's share is that of the CPU clock, not of gaps.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PERIOD: Final = 0.001
_HERE: Final = Path(__file__)


@dataclass(frozen=True, slots=True)
class Probe:
    """How the probe is started, and in which language it is."""

    command: tuple[str, ...]
    language: str


def build_probe(folder: Path) -> Probe:
    """Compile the probe into a folder; in Python where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return Probe((sys.executable, "-I", "-S", str(_HERE)), "Python")
    program = folder / "probe"
    source = _HERE.with_suffix(".c")
    subprocess.run([compiler, "-O2", "-o", program, source], check=True, capture_output=True)
    return Probe((str(program),), "C")


def _answer(file: str, document: dict[str, float]) -> None:
    beside = Path(file + ".new")
    beside.write_text(json.dumps(document) + "\n", encoding="ascii")
    beside.rename(file)


def _wake(seconds: float, file: str) -> None:
    late: list[float] = []
    start = due = time.monotonic()
    while due - start < seconds:
        due += _PERIOD
        before = time.monotonic()
        if due <= before:
            due = before + _PERIOD
        time.sleep(due - before)
        late.append((time.monotonic() - due) * 1e6)
    late.sort()
    count = len(late)
    names = {"p50_us": 500, "p99_us": 990, "p999_us": 999}
    _answer(
        file,
        {"samples": count}
        | {name: late[count * share // 1000] for name, share in names.items()}
        | {"max_us": late[-1], "cpu_s": time.process_time()},
    )


def _spin(seconds: float, file: str) -> None:
    start = last = time.monotonic()
    used = time.process_time()
    longest = 0.0
    while last - start < seconds:
        at = time.monotonic()
        longest = max(longest, at - last)
        last = at
    share = 100 * (time.process_time() - used) / (last - start)
    gap = longest * 1e6
    _answer(file, {"share_percent": share, "longest_gap_us": gap, "cpu_s": time.process_time()})


def _main(words: list[str]) -> int:
    began = time.monotonic_ns()
    match words:
        case ["hog"]:
            while True:
                pass
        case ["stamp", file]:
            _answer(file, {"at_ns": began})
            while True:
                time.sleep(1000)
        case ["wake", seconds, file]:
            _wake(float(seconds), file)
        case ["spin", seconds, file]:
            _spin(float(seconds), file)
        case _:
            sys.stderr.write("usage: stamp FILE | wake SECONDS FILE | spin SECONDS FILE | hog\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))

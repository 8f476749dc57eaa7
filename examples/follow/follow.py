"""Pins its threads to the exclusive CPUs of its container, and follows when these change.

    python3 follow.py [THREADS]

Linux, Python 3.11, no other packages.  docs/how-to/follow-your-cpus.md says what the files are.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("PINFOLD_ASSIGNMENT_DIR", "/run/pinfold"))
IN_MOVED_TO = 0x80


def cpus_of(text: str) -> Iterator[int]:
    """The CPUs in the kernel's list format, such as ``2-3,8``."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def assignment() -> dict[str, Any] | None:
    """What is told now; None while it is being replaced: the next event is on its way."""
    try:
        told: dict[str, Any] = json.loads((FOLDER / "assignment.json").read_bytes())
    except FileNotFoundError:
        return None
    return told


def follow() -> None:
    """Move all threads to what is coming, then agree to lose the rest."""
    told = assignment()
    if told is None:
        return
    cpus = list(cpus_of(told["coming"]["cpus"]))
    threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    for thread, cpu in zip(threads, itertools.cycle(cpus)):
        try:
            os.sched_setaffinity(thread, {cpu})
        except ProcessLookupError:
            pass  # it has ended
        except OSError as error:
            sys.stderr.write(f"CPU {cpu}: {error}\n")
    sys.stdout.write(f"generation {told['generation']}: CPUs {told['coming']['cpus']}\n")
    sys.stdout.flush()
    # In place: the file is the agent's.
    (FOLDER / "ack" / "generation").write_text(f"{told['generation']}\n")


def work() -> None:
    """The application's own work."""
    while True:
        sum(range(10_000))
        time.sleep(0)


def main() -> None:
    """Watch first, so that nothing is missed."""
    threads = sys.argv[1] if len(sys.argv) > 1 else "2"
    if len(sys.argv) > 2 or not threads.isdecimal():
        sys.stderr.write(f"usage: {sys.argv[0]} [THREADS]\n")
        sys.exit(2)
    if not (FOLDER / "..data").exists():
        sys.exit(f"no exclusive CPUs here: no folder {FOLDER / '..data'}")
    libc = ctypes.CDLL(None, use_errno=True)
    news = libc.inotify_init1(os.O_CLOEXEC)
    if news < 0 or libc.inotify_add_watch(news, os.fsencode(FOLDER), IN_MOVED_TO) < 0:
        sys.exit(f"{FOLDER}: {os.strerror(ctypes.get_errno())}")
    for _ in range(int(threads)):
        threading.Thread(target=work, daemon=True).start()
    while True:
        follow()
        os.read(news, 4096)


if __name__ == "__main__":
    main()

"""How long threads have waited for a CPU, of which the kernel keeps a count for each.

Source: the kernel's ``scheduler/sched-stats.rst`` (``/proc/PID/schedstat``: time on a CPU, time
spent waiting on a run queue, in nanoseconds, and the number of times it was given a CPU).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pinfold.linux.descriptors import gone_or_raise
from pinfold.linux.kept_file import KeptFile
from pinfold.linux.processes import PROC


def schedstat_works(proc: Path | str = PROC) -> bool:
    """Whether this kernel counts it: there is no such file without, or only zeros in it."""
    try:
        text = Path(proc, "self/schedstat").read_text(encoding="ascii")
    except OSError as error:
        gone_or_raise(error.filename, error)
        return False
    # Whoever asks has run.
    return not text.startswith("0 ")


class ThreadWaits:
    """The waits of a changing set of threads, as one number that only grows.

    A thread counts from the look that sees it first to the last that sees it: what it waited before
    and after is not in it, nor is who came and went between two looks.  So it is a lower bound.  A
    thread is known by its open file, as its number may soon be another's.
    """

    def __init__(self, proc: Path | str = PROC) -> None:
        self._proc = proc
        self._seen: dict[int, tuple[KeptFile, int]] = {}
        self._total = 0
        self.unseen = 0
        """Threads of the last look that were not followed, since too many files are open."""

    def look(self, tids: Iterable[int]) -> int:
        """Nanoseconds that these threads were seen to wait, and those before them.

        Raises:
            NoRoomError: the kernel is short of files or memory.
        """
        before, self._seen, self.unseen = self._seen, {}, 0
        for tid in tids:
            known = before.pop(tid, None)
            now = None if known is None else _waited(known[0])
            if known is not None and now is not None:
                self._total += max(0, now - known[1])
                self._seen[tid] = known[0], now
                continue
            file = KeptFile(f"{self._proc}/{tid}/schedstat", 128)
            if (now := _waited(file)) is None:
                continue  # it has ended
            if file.is_kept:
                self._seen[tid] = file, now
            else:
                self.unseen += 1
        for file, _ in before.values():
            file.close()
        return self._total

    def look_again(self) -> int | None:
        """The same of those that were followed; None where one of them has ended."""
        for tid, (file, before) in self._seen.items():
            now = _waited(file)
            if now is None:
                del self._seen[tid]
                return None
            if now != before:
                self._total += max(0, now - before)
                self._seen[tid] = file, now
        return self._total

    @property
    def followed(self) -> int:
        """How many threads are followed."""
        return len(self._seen)

    def close(self) -> None:
        """Follow nobody any more."""
        self.look(())


def _waited(file: KeptFile) -> int | None:
    """Nanoseconds; None once the thread has ended."""
    try:
        return int(file.read().split(b" ", 2)[1])
    except OSError as error:
        gone_or_raise("schedstat", error)
    except (IndexError, ValueError):
        file.close()
    return None

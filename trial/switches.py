"""The scheduler's own word on who ran where: ``sched_switch`` of the kernel's tracing.

A thread that has not executed its program yet is still of whoever forked it, and one that is on
its way out executes nothing of its own and is passed over by the kernel when a cpuset changes
(``kernel/cgroup/cgroup.c``: an iteration leaves the dying ones out); ``sched_process_exec`` and
``sched_process_exit`` say when these were.

Source: the kernel's ``Documentation/trace/ftrace.rst``.  It is an instance of its own, so that
nobody else's tracing is disturbed.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trial.patience import PATIENCE

_PLACES: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_EVENTS: Final = tuple(
    f"sched_{name}" for name in ("switch", "process_fork", "process_exec", "process_exit")
)
_LINE: Final = re.compile(
    rb"\[(\d+)\].*? (\d+\.\d+): (?:sched_switch: .*next_pid=(\d+)"
    rb"|sched_process_fork: .* child_pid=(\d+)|sched_process_exec: .* pid=(\d+) "
    rb"|sched_process_exit: .* pid=(\d+) )"
)
_LOST: Final = re.compile(rb"\[LOST \d+ EVENTS\]")
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Switch:
    """A CPU that was given to a thread; ``at`` is the kernel's monotonic clock, in seconds."""

    at: float
    cpu: int
    tid: int


class Told:
    """What the lines of a trace tell, in their order."""

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        self._ended: dict[int, float] = {}
        self._has_lost = False
        self.certain_since = 0.0
        """Nothing of what was before is known for certain: the kernel has lost events then."""

    def take(self, line: bytes) -> Switch | None:
        """The next line; the switch that it is, if it is one."""
        if _LOST.search(line) is not None:
            self._has_lost = True
            return None
        if (match := _LINE.search(line)) is None:
            return None
        cpu, at, switched, forked, executed, ended = match.groups()
        if self._has_lost:
            self._has_lost, self.certain_since = False, float(at)
        if switched:
            return Switch(float(at), int(cpu), int(switched))
        if forked:
            # The number may have been somebody's who has ended.
            self._began.pop(int(forked), None)
            self._ended.pop(int(forked), None)
        elif executed:
            self._began[int(executed)] = float(at)
        else:
            self._ended[int(ended)] = float(at)
        return None

    def was_itself(self, switch: Switch) -> bool:
        """Whether the thread is known to have had its own program to execute then.

        Nothing is known of what came before events that were lost: one of them may have been what
        it executed.
        """
        began, ended = self._began.get(switch.tid), self._ended.get(switch.tid)
        return (
            switch.at >= self.certain_since
            and (began is None or began <= switch.at)
            and (ended is None or switch.at <= ended)
        )


class Switches:
    """A tracing instance that is open; :meth:`close` removes it."""

    def __init__(self, name: str) -> None:
        self.told = Told()
        self._instance = _place() / "instances" / f"trial-{name}"
        self._instance.mkdir()
        self._pipe = -1
        try:
            self._write("trace_clock", "mono")
            self._write("buffer_size_kb", "4096")
            for event in _EVENTS:
                self._write(f"events/sched/{event}/enable", "1")
            self._pipe = os.open(self._instance / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        except BaseException:
            self.close()
            raise
        self._rest = b""

    @classmethod
    def open(cls, name: str) -> Switches | None:
        """Begin to trace; None where this kernel, or this user, cannot.

        Nor on a slow machine: it has no time for it, and an emulated CPU may trip over the kernel
        that patches itself for it.
        """
        if PATIENCE > 1:
            return None
        try:
            return cls(name)
        except OSError:
            return None

    def read(self) -> Iterator[Switch]:
        """What has happened since the last time."""
        while True:
            try:
                data = os.read(self._pipe, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                if (switch := self.told.take(line)) is not None:
                    yield switch

    def was_itself(self, switch: Switch) -> bool:
        """See :meth:`Told.was_itself`; of events read until now."""
        return self.told.was_itself(switch)

    def close(self) -> None:
        """Trace no more."""
        with suppress(OSError):
            for event in _EVENTS:
                self._write(f"events/sched/{event}/enable", "0")
        if self._pipe >= 0:
            os.close(self._pipe)
        with suppress(OSError):
            self._instance.rmdir()

    def _write(self, name: str, text: str) -> None:
        (self._instance / name).write_text(text, encoding="ascii")


def _place() -> Path:
    for place in _PLACES:
        if (place / "instances").is_dir():
            return place
    # Nobody has looked there since the boot; it stays mounted, as with every other tool.
    subprocess.run(
        ["mount", "-t", "tracefs", "nodev", str(_PLACES[0])],
        check=False,
        capture_output=True,
    )
    return _PLACES[0]

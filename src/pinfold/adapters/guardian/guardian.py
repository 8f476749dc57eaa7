"""A lease, and the process that guards it; see :mod:`.program`."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.adapters.guardian.program import (
    ENDED,
    LEASE_FILE,
    LOOKED,
    NUMBER,
    RENEWED,
    SECOND,
)
from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.linux.descriptors import gone_or_raise
from pinfold.linux.kernel_files import read_ids
from pinfold.ports.guardian import LEASE, LOOK, LeaseError, Undoing, Undone

LOG: Final = "guardian.log"
"""What guardians have done, in the state directory, until an agent has told it."""

GUARD: Final = (
    f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import program; program.main()"
)
"""Imported, it is read as bytecode; compiled as a script, it would take a megabyte more."""

_PROGRAM: Final = b"program.main()"
_OPTIONS: Final = [b"-I", b"-S", b"-c"]
_LOADER: Final = ("LD_LIBRARY_PATH",)
_ANSWER: Final = 4096
_MISSED: Final = 3
"""Looks that a guardian may have missed, as on a machine that is busy."""


class _Running(Struct):
    """A guardian that this process has started."""

    pid: int
    process: int
    """Its pidfd."""
    lifeline: int
    """It ends when this is closed."""
    lease: int
    renewed: int = 0


class GuardianProcess:
    """The :class:`pinfold.ports.guardian.Guardian` that is a process.

    It and its lease are one: a guardian that has ended a lease, or has not looked in time, goes.

    Args:
        folder: where it writes down what it did.
        undoing: what it is to undo.
        lease: seconds for which a lease holds.
        look: seconds between two looks.
        patience: seconds that its start, and its end, may take.
    """

    def __init__(
        self,
        folder: Path,
        undoing: Undoing,
        *,
        lease: float = LEASE,
        look: float = LOOK,
        patience: float = 10.0,
    ) -> None:
        self._log = folder / LOG
        self._undoing = undoing
        self._lease, self._look, self._patience = lease, look, patience
        self._running: _Running | None = None

    @property
    def pid(self) -> int | None:
        """The process that guards; None where none does."""
        return None if self._running is None else self._running.pid

    async def begin(self) -> None:
        """See :class:`pinfold.ports.guardian.Guardian`."""
        if self._running is not None:
            self.check()
            return
        for home in self._undoing.homes:
            # A guardian of an agent before this one has no lease of this one's.
            if others := guardians_in(home):
                raise LeaseError(f"{home}: guardian {others[0]} has not ended", "end it")
        with contextlib.ExitStack() as undo:
            running, answer = self._spawn(undo)
            text = await self._answer(answer)
            if text != "ok":
                raise LeaseError(f"the guardian did not start: {text or 'it has ended'}")
            os.close(answer)
            running.renewed = _number(running.lease, RENEWED)
            undo.pop_all()
            self._running = running

    def _spawn(self, undo: contextlib.ExitStack) -> tuple[_Running, int]:
        """Run the program; the process, and the end of its answer, both closed by ``undo``."""
        for home in self._undoing.homes:
            with contextlib.suppress(OSError):  # the program says what is in the way
                Path(home).mkdir()
        with contextlib.ExitStack() as theirs:
            try:
                lease = os.memfd_create("pinfold-lease")
                undo.callback(os.close, lease)
                end, lifeline = os.pipe()
                undo.callback(os.close, lifeline)
                theirs.callback(os.close, end)
                answer, say = os.pipe()
                undo.callback(os.close, answer)
                theirs.callback(os.close, say)
                os.set_blocking(answer, False)
                for place in (RENEWED, LOOKED, ENDED):
                    os.pwrite(lease, bytes(NUMBER), place)
                given = {0: end, 1: say, 2: say, LEASE_FILE: lease}
                actions = []
                for place, file in given.items():
                    # What is put at its place later may not lie where another is put before.
                    aside = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, LEASE_FILE + 1)
                    theirs.callback(os.close, aside)
                    actions.append((os.POSIX_SPAWN_DUP2, aside, place))
                pid = os.posix_spawn(
                    sys.executable,
                    self._command(),
                    {name: os.environ[name] for name in _LOADER if name in os.environ},
                    file_actions=actions,
                    setsid=True,
                )
                undo.callback(_end_child, pid)
                process = os.pidfd_open(pid)
                undo.callback(os.close, process)
            except OSError as error:
                raise LeaseError(
                    f"cannot start a guardian ({sys.executable}): {error.strerror}",
                    "raise the limits on processes and open files (LimitNPROC, LimitNOFILE)",
                ) from None
        return _Running(pid, process, lifeline, lease), answer

    def _command(self) -> list[str]:
        what = self._undoing
        caps = [text for pair in what.uncapped.items() for text in pair]
        return [
            *(sys.executable, "-I", "-S", "-c", GUARD),
            *(str(self._log), str(self._lease), str(self._look)),
            *(what.pool, what.idle, what.threads),
            *(str(len(what.uncapped)), *caps, *what.homes),
        ]

    async def _answer(self, answer: int) -> str:
        """What the guardian says when it has begun."""
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    try:
                        return os.read(answer, _ANSWER).decode(errors="replace").strip()
                    except BlockingIOError:
                        await _readable(answer)
        except TimeoutError:
            raise LeaseError(f"no guardian came up within {self._patience:g} s") from None

    def renew(self) -> None:
        """See :class:`pinfold.ports.guardian.Guardian`."""
        running = self._held()
        running.renewed = time.monotonic_ns()
        os.pwrite(running.lease, running.renewed.to_bytes(NUMBER, "little"), RENEWED)

    def check(self) -> None:
        """See :class:`pinfold.ports.guardian.Guardian`."""
        self._held()

    def _held(self) -> _Running:
        running = self._running
        if running is None:
            raise LeaseError("there is no lease: nothing is guarded")
        looked, ended = _number(running.lease, LOOKED), _number(running.lease, ENDED)
        now = time.monotonic_ns()
        if ended:
            raise LeaseError(f"guardian {running.pid} has ended the lease")
        if _has_ended(running.process):
            raise LeaseError(f"guardian {running.pid} has ended, and nothing is guarded")
        if now - looked > _MISSED * self._look * SECOND:
            raise LeaseError(
                f"guardian {running.pid} has not looked for {(now - looked) / SECOND:.1f} s"
            )
        if now - running.renewed > self._lease * SECOND:
            # It is about to end the lease, if it has not just done so.
            raise LeaseError(
                f"the lease has not been renewed for {(now - running.renewed) / SECOND:.1f} s"
            )
        return running

    async def end(self) -> tuple[Undone, ...]:
        """See :class:`pinfold.ports.guardian.Guardian`."""
        if (running := self._running) is not None:
            _kill(running.process)
            await self._gone(running.pid, running.process)
            self._running = None
            for descriptor in (running.process, running.lifeline, running.lease):
                os.close(descriptor)
        for home in self._undoing.homes:
            for pid in guardians_in(home):
                with contextlib.suppress(ProcessLookupError):
                    process = os.pidfd_open(pid)
                    try:
                        if pid in guardians_in(home):
                            _kill(process)
                            await self._gone(pid, process)
                    finally:
                        os.close(process)
            _leave(home)
        return self._told()

    async def _gone(self, pid: int, process: int) -> None:
        """Wait for the end of a guardian that was killed; it changes nothing any more."""
        if not _has_ended(process):
            try:
                async with asyncio.timeout(self._patience):
                    await _readable(process)
            except TimeoutError:
                raise LeaseError(f"guardian {pid} does not end after SIGKILL") from None
        _reap(process)

    def _told(self) -> tuple[Undone, ...]:
        """What they have written down, which nobody writes now."""
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError:
            return ()
        self._log.unlink(missing_ok=True)
        return tuple(undone for line in lines if (undone := _undone(line)) is not None)


def _number(lease: int, place: int) -> int:
    return int.from_bytes(os.pread(lease, NUMBER, place), "little")


def guardians_in(home: str) -> list[int]:
    """The guardians in a cgroup of theirs."""
    return [pid for pid in read_ids(f"{home}/cgroup.procs") if _guards(pid)]


def _guards(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError as error:
        gone_or_raise(f"/proc/{pid}", error)
        return False
    return command[1:4] == _OPTIONS and any(_PROGRAM in text for text in command[4:5])


def _undone(line: str) -> Undone | None:
    """A line of the log; None where it is damaged."""
    try:
        at, cpus, uncapped, why = line.split("\t")
        return Undone(float(at), CPUSet.parse(cpus), uncapped == "1", why)
    except (ValueError, CPUSetError):
        return None


def _has_ended(process: int) -> bool:
    looked = select.poll()
    looked.register(process, select.POLLIN)
    return bool(looked.poll(0))


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)


def _reap(process: int) -> None:
    """Take the status of one that has ended, if it is a child of this process."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, process, os.WEXITED | os.WNOHANG)


def _leave(home: str) -> None:
    with contextlib.suppress(OSError):  # a process of somebody else's is in there
        Path(home).rmdir()


def _end_child(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


async def _readable(descriptor: int) -> None:
    """Return when something can be read, or a process has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)

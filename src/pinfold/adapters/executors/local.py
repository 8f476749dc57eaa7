"""Executors on this machine: this process itself, or processes of our own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Final, ParamSpec, TypeVar

from pinfold.adapters.executors.pool import WorkerPool

_P = ParamSpec("_P")
_T = TypeVar("_T")
_KEYS: Final = {signal.SIGINT}
"""What a terminal sends to all processes of a job."""


def usable_cpus() -> int:
    """On how many CPUs this process may run."""
    return len(os.sched_getaffinity(0))


def local_pool(workers: int) -> WorkerPool:
    """So many workers: this process where it is one, else processes of our own."""
    if workers == 1:
        return WorkerPool(InProcess(), at_once=1, same_process=True)
    return _ProcessPool(_Processes(workers), workers)


class InProcess(Executor):
    """Makes each call at once, before the future is returned."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Make the call."""
        future: Future[_T] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whatever it is, the future has it
            future.set_exception(error)
        return future


class _Processes(ProcessPoolExecutor):
    """Processes that a terminal's keys do not end, and that end with this one.

    They are new programs, not copies of this one (``fork`` would copy locks that threads hold).
    """

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        super().__init__(workers, mp_context=context, initializer=_begin)
        self.known: dict[int, BaseProcess] = {}

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Give a call to the next process that has nothing to do."""
        # A process that is just being made must not be ended by a key, either.
        with blocked_keys():
            future = super().submit(fn, *args, **kwargs)
        self.known.update(self._processes or {})
        return future


class _ProcessPool(WorkerPool):
    """Our own processes; one call more than there are, so that none waits for its next one.

    That is what the executor puts into its queue, where nothing can be cancelled any more: until
    Python 3.12 the death of its processes, beside a call that was cancelled, is a traceback.
    """

    def __init__(self, processes: _Processes, workers: int) -> None:
        super().__init__(processes, at_once=workers + 1)
        self._processes = processes

    def give_up(self) -> None:
        """Kill the processes."""
        for process in self._processes.known.values():
            process.kill()
        self._processes.shutdown(wait=True, cancel_futures=True)

    def deaths(self) -> Mapping[int, str]:
        """Those that the executor did not end itself, which it does with SIGTERM."""
        found = {}
        for pid, process in self._processes.known.items():
            code = _exit_code(process)
            if code is not None and code not in {0, -signal.SIGTERM}:
                found[pid] = f"exited with {code}" if code > 0 else f"got {_signal_name(-code)}"
        return found


def _exit_code(process: BaseProcess, patience: float = 1.0) -> int | None:
    """How a process ended; None: it has not.

    The executor waits for it, too, and for a moment only who was first knows how it ended.
    """
    until = time.monotonic() + patience
    process.join(timeout=patience)
    while process.exitcode is None and time.monotonic() < until:
        time.sleep(0.01)
    return process.exitcode


@contextlib.contextmanager
def blocked_keys() -> Iterator[None]:
    """Have what is started meanwhile not be ended by a terminal's keys."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _KEYS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """What a process does first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _KEYS)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """End this process when the one that started it has ended, however that was."""
    wait([sentinel])
    os._exit(1)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""Runs on the workers of any executor, as many at once as there is room for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future
from queue import Empty, SimpleQueue
from typing import Final

from msgspec import Struct

from pinfold.adapters.executors.pool import WorkerPool
from pinfold.admission.model import NodeError
from pinfold.core.machine.machine import MachineError
from pinfold.core.values.errors import PinfoldError
from pinfold.planning.simulation.campaign.parcel import ParcelError, packed
from pinfold.planning.simulation.campaign.watch import Stage, Watch
from pinfold.planning.simulation.campaign.worker import (
    EventsOf,
    Order,
    OtherVersionError,
    carry_out,
)
from pinfold.planning.simulation.experiment.specification import RunSpec
from pinfold.ports.arrivals import TraceError
from pinfold.ports.events import EventsError

MOST_AT_ONCE: Final = 1024
"""Runs that an executor is given at once, however many workers it has."""
_LOOK: Final = 0.2
"""Seconds between two looks at whether to stop."""
_GRACE: Final = 15.0
"""Seconds for a run to end that was told to: it may be reading a trace."""
_TOLD: Final = (
    EventsError,
    MachineError,
    NodeError,
    OtherVersionError,
    ParcelError,
)
"""Errors whose text is for people as it is."""


class RunError(PinfoldError):
    """A run came to no result; the message names the run, the cause and the remedy."""


class Stop:
    """Asks all runs to end; a signal's handler may call it."""

    def __init__(self) -> None:
        self.asked = False
        self._heard: list[Callable[[], None]] = []

    def ask(self) -> None:
        """Have them end."""
        self.asked = True
        for told in self._heard:
            told()

    def then(self, told: Callable[[], None]) -> None:
        """Have somebody told when it is asked."""
        self._heard.append(told)
        if self.asked:
            told()

    def forget(self, told: Callable[[], None]) -> None:
        """Have him told no more."""
        self._heard.remove(told)


class Task(Struct, frozen=True, eq=False):
    """A run to be carried out; ``identity`` is what decides it.

    Of one that ``is_tried``, in a search for a fleet, only the fates are wanted.
    """

    spec: RunSpec
    identity: str
    arrivals: str
    is_tried: bool
    events: EventsOf | None = None

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.spec.configuration}, seed {self.spec.seed}"


class Running:
    """Has tasks carried out; ``flying`` are those that a worker has: cell -> task."""

    def __init__(self, pool: WorkerPool, watch: Watch, stop: Stop) -> None:
        self._pool, self._watch, self._stop = pool, watch, stop
        self._free = list(range(min(watch.cells, pool.at_once)))
        self._done: SimpleQueue[Future[bytes | None]] = SimpleQueue()
        self._futures: dict[Future[bytes | None], int] = {}
        self.flying: dict[int, Task] = {}

    def results(self, tasks: deque[Task]) -> Iterator[tuple[Task, bytes]]:
        """Yield each run as it ends; who reads them may add more tasks meanwhile.

        Those that were not begun when all shall end, or do not hear of it, are left out.

        Raises:
            RunError: one came to no result, or a worker died; the others are told to end.
            TraceError: the arrivals cannot be read; they end as well.
        """
        deadline: float | None = None
        try:
            while tasks or self._futures:
                if self._stop.asked:
                    deadline = deadline or self._ending(tasks)
                while tasks and self._free and not self._stop.asked:
                    self._begin(tasks.popleft())
                if not self._futures or (deadline and time.monotonic() > deadline):
                    break
                try:
                    future = self._done.get(timeout=_LOOK)
                except Empty:
                    continue
                task, data = self._ended(future)
                if data is not None:
                    yield task, data
        except BaseException:
            self._watch.stop()
            raise
        finally:
            if self._futures:
                for future in self._futures:
                    future.cancel()
                self._pool.give_up()

    def _ending(self, tasks: deque[Task]) -> float:
        """Take back what was not begun; until when to wait for the rest."""
        tasks.clear()
        for future in self._futures:
            future.cancel()
        reached = any(self._watch.see(cell).stage is not Stage.FREE for cell in self.flying)
        return time.monotonic() + (_GRACE if reached else _LOOK)

    def _begin(self, task: Task) -> None:
        cell = self._free.pop()
        self._watch.clear(cell)
        run = task.spec if self._pool.same_process else packed(task.spec)
        order = Order(run, task.arrivals, task.is_tried, self._watch.place, cell, task.events)
        self.flying[cell] = task
        try:
            future = self._pool.executor.submit(carry_out, order)
            future.add_done_callback(self._done.put)
        except BrokenExecutor as error:
            raise self._broken(error) from error
        except Exception as error:
            # Whoever's executor it is: it may be out of files, or be none at all.
            raise RunError(
                f"{task.name}: the executor did not take it: {type(error).__name__}: {error}"
            ) from error
        self._futures[future] = cell

    def _ended(self, future: Future[bytes | None]) -> tuple[Task, bytes | None]:
        cell = self._futures[future]
        task = self.flying[cell]
        try:
            data = future.result()
        except CancelledError:
            data = None
        except BrokenExecutor as error:
            if not self._stop.asked:
                raise self._broken(error) from error
            data = None
        except TraceError:
            # Of the arrivals, which are those of all runs.
            raise
        except _TOLD as error:
            raise RunError(f"{task.name}: {error}") from error
        except Exception as error:
            raise RunError(f"{task.name}: {type(error).__name__}: {error}") from error
        if data is None and not self._stop.asked:
            raise RunError(f"{task.name}: the executor gave no result of it, but was not told to")
        del self._futures[future], self.flying[cell]
        self._free.append(cell)
        return task, data

    def _broken(self, error: Exception) -> RunError:
        """A worker has died; which run it was at, as far as that can be known."""
        self._futures.clear()
        deaths = self._pool.deaths()
        begun = {
            cell: task
            for cell, task in self.flying.items()
            if self._watch.see(cell).stage is Stage.BEGUN
        }
        names = [
            f"{task.name} (its worker {how})"
            for cell, task in begun.items()
            if (how := deaths.get(self._watch.see(cell).process))
        ]
        if not names:
            names = [task.name for task in begun.values()] or ["no run had begun"]
        return RunError(
            f"a worker died during {'; or '.join(names)}: {error} "
            "Fewer --workers need less memory; with --resume DIR what has ended is kept."
        )

"""How far all runs together are, for people who wait; read by another thread than counts it."""

from __future__ import annotations

from msgspec import Struct

from pinfold.documents.simulation.results import Run
from pinfold.planning.simulation.campaign.running import Running
from pinfold.planning.simulation.campaign.watch import Stage, Watch


class Far(Struct, frozen=True):
    """How far they are.

    Attributes:
        runs: those that have ended, without those that were there before.
        expected: all that there will be; of searches that have not ended an estimate.
        done: runs and parts of runs.
        placed: pods that were placed in these.
        kept: those that were there before.
        now: the name of a run that is going on; "" where there is none.
    """

    runs: int
    expected: int
    done: float
    placed: int
    kept: int
    now: str


class Tally:
    """Counts runs."""

    def __init__(self) -> None:
        self.runs = self.kept = self.placed = 0
        self.expected = 0
        self._of: tuple[Running, Watch] | None = None

    def ended(self, run: Run) -> None:
        """Count a run."""
        self.runs += 1
        self.placed += int(sum(run.series["placed"][-1:]))

    def begin(self, running: Running, watch: Watch) -> None:
        """Look at what is going on, too."""
        self._of = running, watch

    def end(self) -> None:
        """Look at it no more."""
        self._of = None

    def far(self) -> Far:
        """How far they are."""
        share, placed, now = 0.0, 0, ""
        if self._of is not None:
            running, watch = self._of
            for number, task in running.flying.copy().items():
                cell = watch.see(number)
                if cell.stage is Stage.FREE:
                    continue
                share, placed, now = share + cell.share, placed + cell.placed, task.name
        done = self.runs + share
        expected = max(self.expected, self.runs)
        return Far(self.runs, expected, done, self.placed + placed, self.kept, now)

"""A simulated node of one owner and best-effort work that takes all that it is given.

What the owner uses of each of its CPUs is a function of the time; a borrower is pushed aside by it
at once, as ``cpu.idle`` has it, and fills what is left of a CPU that is lent.  The controller is
the one that runs live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pinfold.core.controllers.lending import Lend, Lending, LendingMemory, Return
from pinfold.core.controllers.quick_look import QuickLook, holdings
from pinfold.core.controllers.seen import Seen, SeenContainer
from pinfold.core.kubelet.own_policies import LendingOptions
from pinfold.core.machine.topology import CPUInfo, CPUTopology
from pinfold.core.moves.owners import Owner
from pinfold.core.observation.rates import Load
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet

OWNER: Final = Owner("owner", "main")
BORROWER: Final = Owner("borrower", "main")
STEP: Final = 0.005
"""Seconds that the simulation is made of."""

Use = Callable[[float, int], float]
"""How much of a CPU the owner wants at a moment, 0 to 1."""


def topology(count: int, threads: int = 1) -> CPUTopology:
    """CPUs of one socket; the threads of a core are next to each other."""
    return CPUTopology(CPUInfo(cpu, cpu - cpu % threads, 0, 0, 0) for cpu in range(count))


class LendingNode:
    """The node; the pool is CPU 0 (with its siblings), the owner has all others.

    ``apart`` is how much longer each CPU has been idle at first than the one before, in seconds: so
    their ticks fall otherwise.

    Attributes:
        lent: what is lent now.
        events: what was lent and taken back: when, how, which, and why.
        given: CPU seconds that borrowers had of it.
        unused: CPU seconds of its CPUs that the owner did not use.
    """

    def __init__(
        self,
        use: Use,
        count: int = 2,
        *,
        threads: int = 1,
        options: LendingOptions | None = None,
        says: str | None = "true",
        apart: float = 0.0,
        **container: bool,
    ) -> None:
        self.controller = Lending(LendingOptions(use=True) if options is None else options)
        self.topology = topology(count, threads)
        self.pool = CPUSet(range(threads))
        self.own = CPUSet(range(count)) - self.pool
        self.use = use
        self.annotations = {} if says is None else {"lend-cpus.pinfold.dev/pod": says}
        self.container = container
        self.borrows = True
        self.wait: float | None = 0.0
        self.is_known = True
        self.is_shown = True
        self.jump = 0.0
        self.at = 0.0
        self.lent = CPUSet()
        self.events: list[tuple[float, type, CPUSet, str]] = []
        self.given = self.unused = 0.0
        self.memory = LendingMemory()
        self._looks: tuple[QuickLook, ...] = ()
        self._used = 0.0
        self._idle = {cpu: cpu * apart for cpu in range(count)}
        self._last = (0.0, 0.0, dict(self._idle))

    def run(self, seconds: float) -> None:
        """Let time pass; looks come as often as they do live."""
        end = self.at + seconds
        slow = quick = self.at
        while self.at < end:
            self._pass()
            if self.at >= quick + self.controller.options.look_period - STEP / 2:
                quick = self.at
                self.look_quickly()
            if self.at >= slow + 1.0 - STEP / 2:
                slow = self.at
                self.look()

    def _pass(self) -> None:
        self.at += STEP
        for cpu in self._idle:
            wanted = self.use(self.at, cpu) if cpu in self.own else 0.0
            self._used += wanted * STEP
            self.unused += (1.0 - wanted) * STEP if cpu in self.own else 0.0
            if cpu in self.lent and self.borrows:
                self.given += (1.0 - wanted) * STEP
            else:
                self._idle[cpu] += (1.0 - wanted) * STEP

    def seen(self) -> Seen:
        """What a slow look shows of the time since the one before."""
        then, used, idle = self._last
        passed = self.at - then
        self._last = self.at, self._used, dict(self._idle)
        load = Load(seconds=passed, usage=(self._used - used) / passed, wait=self.wait)
        containers = {
            OWNER: SeenContainer(
                self.own,
                QOSClass.GUARANTEED,
                load if self.is_known else None,
                self.annotations,
                **self.container,
            )
        }
        if not self.is_shown:
            del containers[OWNER]
        if self.borrows:
            containers[BORROWER] = SeenContainer(CPUSet(), QOSClass.BEST_EFFORT, borrows=True)
        shares = {cpu: min(1.0, (self._idle[cpu] - idle[cpu]) / passed) for cpu in idle}
        return Seen(
            self.at + self.jump,
            CPUSet(self._idle),
            self.pool,
            shares if self.is_known else {},
            containers,
            lent=self.lent,
            topology=self.topology,
            wait_source="cpu.pressure",
        )

    def look(self) -> None:
        """The slow look, and what comes of it."""
        self.memory, proposals = self.controller.step(self.memory, self.seen())
        for proposal in proposals:
            self._carry_out(type(proposal), proposal.cpus, proposal.why)

    def look_quickly(self) -> None:
        """The quick look; idle times are counted in ticks of 10 ms."""
        if not self.lent:
            self._looks = ()
            return
        used: Mapping[Owner, int] = {OWNER: round(self._used * 1e6)} if self.is_known else {}
        idle = {cpu: int(idle * 100) * 10_000 for cpu, idle in self._idle.items()}
        look = QuickLook(self.at + self.jump, used, idle)
        self._looks = self.controller.remembered(self._looks, look)
        found = holdings([(OWNER, self.own)], self.lent, self.topology)
        for proposal in self.controller.returns(self._looks, found):
            self._carry_out(Return, proposal.cpus, proposal.why)
            self.memory = self.controller.taken_back(self.memory, OWNER, proposal.why, look.at)

    def _carry_out(self, kind: type, cpus: CPUSet, why: str) -> None:
        self.events.append((self.at, kind, cpus, why))
        self.lent = self.lent | cpus if kind is Lend else self.lent - cpus
        if kind is Lend:
            self._looks = ()

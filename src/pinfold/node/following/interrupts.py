"""Interrupts keep off the CPUs of owners, as these come, move and go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from pinfold.core.kubelet.own_policies import InterruptOptions
from pinfold.core.pod.annotations import IRQS, KEEP_OFF
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.history import InterruptsKeptOff
from pinfold.node.books import Books
from pinfold.node.view import View
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.interrupts import Interrupt, Interrupts, KeptOff

_SHOWN: Final = 3


class Wish(Struct, frozen=True):
    """What is to be so: no interrupts for ``cpus``, those of ``owners``; all others to ``others``.

    ``problem`` says why that cannot be, "" where it can.
    """

    owners: frozenset[ContainerKey] = frozenset()
    cpus: CPUSet = CPUSet()
    others: CPUSet = CPUSet()
    problem: str = ""


def wish_of(view: View, options: InterruptOptions) -> Wish:
    """Which CPUs are to have no interrupts; what an owner leaves and gets in a move counts."""
    owners, cpus = set(), CPUSet()
    ledger = view.state.ledger
    for key, (pod, container) in view.pods.containers().items():
        own = view.where(pod, container).own
        if own is None or not keeps_off(pod.workload.pod.annotations, container.name, options):
            continue
        idle = ledger.idle_of(pod.uid, container.name) or CPUSet()
        owners.add(key)
        cpus |= own | (ledger.cpus_of(pod.uid, container.name) or own) | idle
    online = view.machine - view.state.offline
    cpus &= online
    wanted = options.housekeeping_cpus or view.pool | view.settings.reserved_system_cpus
    others = (wanted & online) - cpus or online - view.state.ledger.exclusive - cpus
    if cpus and not others:
        return Wish(frozenset(owners), problem="no CPU is left that could have the interrupts")
    return Wish(frozenset(owners), cpus, others)


def keeps_off(annotations: Mapping[str, str], container: str, options: InterruptOptions) -> bool:
    """Whether a container that owns CPUs is to have no interrupts."""
    said = IRQS.of(annotations, container)
    return options.use if said is None else said == KEEP_OFF


class InterruptFollower:
    """Keeps interrupts off; looks again whenever the books change, and each period.

    Args:
        books: who owns which CPUs, and the history.
        interrupts: the machine's.
        options: what the configuration says.
        period: seconds after which is looked for new ones, and for those that somebody moved.
    """

    def __init__(
        self, books: Books, interrupts: Interrupts, options: InterruptOptions, period: float
    ) -> None:
        self._books = books
        self._interrupts = interrupts
        self._options = options
        self._period = period
        self._known: tuple[CPUSet, frozenset[Interrupt]] = (CPUSet(), frozenset())
        self._fought: frozenset[str] = frozenset()
        self._rests = False
        self.wish = Wish()
        self.last = KeptOff()
        self.problem = ""
        """Why interrupts are not kept off as somebody asks for; "" where they are."""
        self.moved = 0
        """How many were moved since the agent started."""
        self.contested = 0
        """How many of these since somebody else had moved them back."""

    async def follow(self) -> None:
        """Look once, and do what is to be done; raises InterruptError."""
        wish = wish_of(self._books.view, self._options)
        look, problem = self.last, wish.problem
        if self._rests and not wish.owners and not problem:
            return  # nobody wishes it, and nothing of an agent before is left
        if not problem:
            self._rests = False
            try:
                look = await self._interrupts.keep_off(wish.cpus, wish.others)
            except PortError as error:
                if not wish.owners:
                    raise
                problem = str(error)
            else:
                problem = "; ".join(_problems(look))
                self.moved += len(look.moved)
                self.contested += len(look.contested)
                self._rests = not (wish.owners or look.kept or problem)
        self._say(problem)
        # Whoever asks is told what is done, not what is about to be.
        self.wish, self.last, before = wish, look, self.last
        if look is not before:
            await self._remember(wish)

    def _say(self, problem: str) -> None:
        if problem and problem != self.problem:
            self._books.observers.report(None, f"interrupts: {problem}")
        self.problem = problem

    async def _remember(self, wish: Wish) -> None:
        """Write into the history what has changed; who fights for an interrupt is told once."""
        look, known = self.last, self._known
        fighting = frozenset(one.number for one in look.contested)
        fixed = frozenset(look.fixed)
        news = [one for one in look.moved if one.number not in self._fought]
        self._fought = (self._fought | fighting) if wish.cpus == known[0] else fighting
        self._known = wish.cpus, fixed
        if not news and known == self._known:
            return
        async with self._books.change() as draft:
            document = InterruptsKeptOff(
                cpus=str(wish.cpus),
                others=str(wish.others),
                kept=look.kept,
                moved=[str(one) for one in news],
                contested=[str(one) for one in look.contested],
                fixed=[str(one) for one in look.fixed],
            )
            await draft.tell(draft.entry("interrupts", (None, None), document))

    async def go_on(self) -> None:
        """Follow, for ever; raises InterruptError."""
        while True:
            view = self._books.view
            await self.follow()
            await self._books.until_news(view, self._period)

    async def close(self) -> None:
        """Give back all that was moved; raises InterruptError."""
        for note in await self._interrupts.restore():
            self._books.observers.report(None, note)


def _problems(look: KeptOff) -> Iterator[str]:
    for balancer in look.balancers:
        if balancer.problem:
            yield balancer.problem
    yield from look.refused
    if look.contested:
        names = ", ".join(str(one) for one in look.contested[:_SHOWN])
        yield f"somebody moves interrupts back to exclusive CPUs: {names}"

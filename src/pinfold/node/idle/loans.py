"""The CPUs that owners lend to the idle side, now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from pinfold.core.moves.owners import Owner
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.leases.lease import Lease
from pinfold.node.node_containers import NodeContainers
from pinfold.node.view import Reader, View
from pinfold.ports.errors import CgroupError, ContainerKey


class Loans:
    """Lends CPUs and takes them back.

    Args:
        books: are asked what holds.
        lease: under which it is lent.
        see: is told what holds from now on, without being on record.
        containers: the node's.
        report: takes a problem for the operator.
    """

    def __init__(
        self,
        books: Reader,
        lease: Lease,
        see: Callable[[View], None],
        containers: NodeContainers,
        report: Callable[[str | None, str], None],
    ) -> None:
        self._books = books
        self._lease = lease
        self._see = see
        self._containers = containers
        self._report = report
        # What is lent is asked and told in one: CPUs come back while others are lent.
        self._asking = asyncio.Lock()

    @property
    def are_changing(self) -> bool:
        """Whether what the kernel has may be something else than the books say."""
        return self._asking.locked()

    def begin(self) -> None:
        """The cgroups were opened, and nothing is lent.

        Raises:
            CgroupError: the configuration asks for an idle side, and there can be none.
        """
        self.lost()
        problem = self._containers.cgroups.no_idle_side
        if problem and self._books.view.settings.idle_side:
            raise CgroupError(
                f"best-effort containers cannot be on an idle side: {problem}",
                "switch lending and suppression off, or let the agent run the containers (runtime: "
                "process)",
            )

    def lost(self) -> None:
        """Take note that nothing is lent any more."""
        self._see(replace(self._books.view, lent=CPUSet()))

    async def lend(self, more: CPUSet) -> None:
        """Lend these CPUs, too; nobody else changes the books meanwhile.

        Raises:
            CgroupError: nobody may have them lent just now, or the kernel refuses.
        """
        async with self._asking:
            view = self._books.view
            if not view.settings.idle_side:
                raise CgroupError("nothing is lent on this node: its configuration does not say so")
            busy = map(_owner, self._containers.seen.busy)
            held = CPUSet.union_of(_claim(view, one) for one in busy)
            if wrong := more - (view.lendable_of(more) - held):
                raise CgroupError(
                    f"CPUs {wrong} cannot be lent: nobody owns them who has them for a while"
                )
            await self._tell(view.lent | more)

    async def give_back(self, cpus: CPUSet) -> None:
        """Take these CPUs back, confirmed; whoever changes the books is not waited for.

        Raises:
            CgroupError: somebody may still run there; they count as lent until he does not.
        """
        async with self._asking:
            await self._tell(self._books.view.lent - cpus)

    async def give_back_before(self, now: View) -> None:
        """Take back what cannot stay lent once ``now`` holds.

        Raises:
            CgroupError: somebody borrows CPUs that another owner is to have, or that are to move,
                or their sibling threads.
        """
        before = self._books.view
        if not before.lent:
            return
        kept = CPUSet.union_of(_claim(before, one) & _claim(now, one) for one in _owners(now))
        leaving = before.lent - (now.lendable & kept)
        if not leaving:
            return
        try:
            await self.give_back(leaving)
        except CgroupError as error:
            if leaving & now.whole_cores(_taken(before, now)):
                raise
            self._report(None, f"CPUs that were lent: {error}")

    async def give_back_unowned(self) -> None:
        """Take back what may not be lent any more, as CPUs that are offline."""
        view = self._books.view
        if gone := view.lent - view.lendable:
            try:
                await self.give_back(gone)
            except CgroupError as error:
                self._report(None, f"CPUs that were lent: {error}")

    async def _tell(self, lent: CPUSet) -> None:
        await self._lease.lend(lent)
        self._see(replace(self._books.view, lent=lent))


def _owner(key: ContainerKey) -> Owner:
    return Owner(key.pod_uid, key.name)


def _owners(view: View) -> list[Owner]:
    return [Owner(uid, name) for uid, of in view.state.ledger.assignments.items() for name in of]


def _claim(view: View, owner: Owner) -> CPUSet:
    return view.state.ledger.assignments.get(owner.pod_uid, {}).get(owner.container) or CPUSet()


def _taken(before: View, now: View) -> CPUSet:
    """The CPUs that somebody gets, or that are to move, when ``now`` holds."""
    new = CPUSet.union_of(_claim(now, one) - _claim(before, one) for one in _owners(now))
    moving = () if now.move is before.move else now.moving
    return new | CPUSet.union_of(_claim(now, one) for one in moving)

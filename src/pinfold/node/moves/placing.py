"""Owners that are put where the books say, in the middle of a plan of moves."""

from __future__ import annotations

from pinfold.core.moves.gone import is_gone
from pinfold.core.moves.owners import Owner
from pinfold.node.books import Books
from pinfold.node.moves.runs import key_of
from pinfold.node.node_containers import may_live
from pinfold.node.offline_owners import BUSY
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.runtime import ContainerState, ContainerStatus


class RefusedError(Exception):
    """Step number ``at`` was refused: it was made in part, or not at all."""

    def __init__(self, problem: str, at: int) -> None:
        super().__init__(problem)
        self.at = at


class AtWorkError(Exception):
    """A container is being started or ended, and would not be where it was put."""

    def __init__(self, key: ContainerKey) -> None:
        super().__init__(BUSY)
        self.key = key


class Placing:
    """The containers of owners, as the books have them."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def expect_idle(self, key: ContainerKey) -> None:
        """See that nobody is starting or ending a container; raises AtWorkError."""
        if key in self._books.containers.seen.busy:
            raise AtWorkError(key)

    async def place(self, owner: Owner) -> None:
        """See an owner where the books say; who does not run is put there when it is started.

        Raises:
            PortError: it is not there.
            AtWorkError: somebody is starting or ending it, who may have looked before.
        """
        books = self._books
        status, pod = self.running(owner), books.view.pods.active.get(owner.pod_uid)
        if pod is None:
            return
        placement, cgroups = books.placement(key_of(owner)), books.containers.cgroups
        if status is not None:
            try:
                await books.containers.adopt(status, placement)
            except PortError:
                if may_live(cgroups, status):
                    raise
            else:
                return
        # What a main process has left behind runs there until it is ended.
        if await self._is_populated(key_of(owner)):
            await cgroups.place(key_of(owner), placement)

    async def _is_populated(self, key: ContainerKey) -> bool:
        observed = await self._books.containers.cgroups.observe()
        found = observed.containers.get(key)
        return found is not None and (found.populated or bool(found.strays))

    def running(self, owner: Owner) -> ContainerStatus | None:
        """An owner that has a container now; None: nobody is there, and its claim is all there is.

        Raises:
            AtWorkError: somebody is starting or ending it.
        """
        key = key_of(owner)
        if is_gone(owner):
            return None
        self.expect_idle(key)
        status = self._books.containers.seen.statuses.get(key)
        return None if status is None or status.state is ContainerState.EXITED else status

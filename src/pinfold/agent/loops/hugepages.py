"""Lets an agent follow the machine's huge pages, whoever changes them."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.memory.memory import Assignments
from pinfold.node.books import Books
from pinfold.node.hugepage_changes import PageCounts, follow_pages, pages_of, with_pages
from pinfold.planning.planner import Planner
from pinfold.ports.errors import PortError

log = structlog.get_logger("pinfold")


class HugepageFollower:
    """Keeps planner and books at the numbers of pages that the kernel keeps.

    ``read`` gives the pages now, or raises :class:`PortError`.
    """

    def __init__(self, planner: Planner, books: Books, read: Callable[[], PageCounts]) -> None:
        self._planner = planner
        self._books = books
        self._read = read
        self._seen = pages_of(planner.machine)
        self._overdrawn_by: Assignments | None = None
        self.problem = ""
        """What was given and is not there any more; "" if all is well."""

    async def look(self) -> None:
        """Follow, if anything has changed; a look takes some 20 us for each pool."""
        try:
            counts = self._read()
        except PortError as error:
            self._tell(str(error))
            return
        memory = self._books.view.state.memory
        # What was overdrawn may fit once a container has given something back.
        retry = self._overdrawn_by is not None and (
            memory is None or memory.assignments is not self._overdrawn_by
        )
        if counts != self._seen or retry:
            await self._follow(counts)

    async def _follow(self, counts: PageCounts) -> None:
        planner, books = self._planner, self._books
        machine = with_pages(planner.machine, counts)
        changed = machine is not planner.machine
        if not changed and self._overdrawn_by is None:
            self._seen = counts
            return
        view = kubelet_view(machine) if changed else planner.view
        async with books.change() as draft:
            followed = follow_pages(draft.node, draft.state, machine, view, planner.config)
            draft.node, draft.state = followed.node, followed.state
        # Who was cancelled before this looks again.
        self._seen = counts
        planner.follow(machine, view, followed.node)
        memory = followed.state.memory
        self._overdrawn_by = memory.assignments if followed.problem and memory else None
        if changed:
            log.info("hugepages", pages={str(n): dict(c) for n, c in counts.items() if c})
        problem = followed.problem
        for uid, pod in books.view.pods.active.items():
            problem = problem.replace(f"pod {uid},", f"pod {pod.name},")
        self._tell(problem)

    def _tell(self, problem: str) -> None:
        if problem and problem != self.problem:
            self._books.observers.report(None, problem)
        self.problem = problem

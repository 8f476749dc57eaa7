"""Owners of CPUs have their parts of the caches, as they come, move and go (resctrl)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.cache_classes import CacheRoom, class_of
from pinfold.core.cache.offers import Offer
from pinfold.core.cache.options import CacheOptions
from pinfold.core.cache.plan import CachePlan, Now, Refusal, Why, Wish, plan_groups
from pinfold.core.cache.schemata import format_schemata
from pinfold.core.cache.steps import Assign, Make, steps
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.history import CacheGiven
from pinfold.node.books import Books
from pinfold.node.view import View
from pinfold.ports.cache_groups import CacheGroups, NoCacheGroupsError, NoGroupLeftError
from pinfold.ports.errors import ContainerKey
from pinfold.ports.runtime import ContainerState, ContainerStatus

_EMPTY: Final = CachePlan({}, {}, {}, {})


class InForce(Struct, frozen=True):
    """What was found and done at one look; ``offer`` is None where nothing can be divided."""

    offer: Offer | None = None
    now: Now | None = None
    plan: CachePlan = _EMPTY


def wishes_of(
    view: View, statuses: Mapping[ContainerKey, ContainerStatus], options: CacheOptions
) -> Iterator[Wish]:
    """The containers that have a class, with their CPUs, old and new ones while they move.

    CPUs that an init container uses before those that come after it are its own while it runs.
    """
    found: list[tuple[bool, ContainerKey, str, CPUSet]] = []
    for key, (pod, container) in view.pods.containers().items():
        where = view.where(pod, container)
        own = CPUSet() if where.cpus is None else where.cpus - where.offline
        annotations = pod.workload.pod.annotations
        if name := class_of(annotations, container.name, options, owns=bool(own)):
            status = statuses.get(key)
            runs = status is not None and status.state is ContainerState.RUNNING
            found.append((not runs, key, name, own))
    taken = CPUSet()
    for _, key, name, own in sorted(found, key=lambda one: one[0]):
        if not own or own - taken:
            yield Wish(str(key), name, own - taken)
            taken |= own


class CacheFollower:
    """Keeps the groups in step; looks again whenever the books change, and each period.

    Args:
        books: who owns which CPUs, and the history.
        groups: the machine's.
        options: what the configuration says.
        period: seconds after which is looked whether somebody else has changed something.
    """

    def __init__(
        self, books: Books, groups: CacheGroups, options: CacheOptions, period: float
    ) -> None:
        self._books = books
        self._groups = groups
        self._options = options
        self._period = period
        self.last = InForce()
        self.problem = ""
        """Why nothing is divided; "" where it is."""
        self.changes = 0
        """Steps that were carried out since the agent started."""

    async def follow(self) -> None:
        """Look once, and do what is to be done; raises CacheError."""
        books, options = self._books, self._options
        wishes = list(wishes_of(books.view, books.statuses, options)) if options.use else []
        try:
            offer, now = self._groups.read()
        except NoCacheGroupsError as error:
            self._say(str(error) if options.use else "")
            none = Refusal(Why.NOT_OFFERED, error.problem)
            plan = CachePlan({}, {}, {}, {wish.owner: none for wish in wishes})
            await self._see(InForce(plan=plan))
            await self._tell(CacheRoom(options, wishes=tuple(wishes), problem=error.problem))
            return
        plan = plan_groups(offer, options.classes, wishes, now)
        refused = dict(plan.refused)
        left_out: set[str] = set()
        before = self.changes
        for step in steps(offer, now, plan):
            if isinstance(step, Assign) and step.group in left_out:
                continue
            try:
                self._groups.carry_out(step)
            except NoGroupLeftError as error:
                if not isinstance(step, Make):
                    raise
                left_out.add(step.group)
                owners = [owner for owner, name in plan.placed.items() if name == step.group]
                refused |= dict.fromkeys(owners, Refusal(Why.OUT_OF_IDS, error.problem))
            else:
                self.changes += 1
            # Each is a few calls of the kernel: others get their turn.
            await asyncio.sleep(0)
        if self.changes != before:
            offer, now = self._groups.read()
        placed = {owner: name for owner, name in plan.placed.items() if name not in left_out}
        self._say("")
        await self._see(InForce(offer, now, CachePlan(plan.groups, plan.rest, placed, refused)))
        await self._tell(CacheRoom(options, offer, now, tuple(wishes)))

    async def _tell(self, room: CacheRoom) -> None:
        """Let those who are admitted be asked whether there is room, where that is configured."""
        books = self._books
        if not (self._options.use and self._options.when_full == "reject"):
            return
        if books.view.node.cache != room:
            async with books.change() as draft:
                draft.node = replace(draft.node, cache=room)

    def _say(self, problem: str) -> None:
        if problem and problem != self.problem:
            self._books.observers.report(None, f"cache: {problem}")
        self.problem = problem

    async def _see(self, found: InForce) -> None:
        """Know it, and write into the history what is new of whom."""
        before, self.last = self.last, found
        news: list[tuple[str, CacheGiven]] = []
        for owner in {**found.plan.placed, **found.plan.refused}:
            given = _given(found, owner)
            if given is not None and given != _given(before, owner):
                news.append(given)
        if not news:
            return
        async with self._books.change() as draft:
            pods = self._books.view.pods.active
            entries = [
                draft.entry("cache", (uid, pods[uid].name if uid in pods else None), given)
                for uid, given in news
            ]
            await draft.tell(*entries)

    async def go_on(self) -> None:
        """Follow, for ever; raises CacheError."""
        while True:
            view = self._books.view
            await self.follow()
            await self._books.until_news(view, self._period)

    async def close(self) -> None:
        """Let go: the groups of those who run on stay; raises CacheError."""
        self._groups.close()


def _given(found: InForce, owner: str) -> tuple[str, CacheGiven] | None:
    """What a container has, or why it has nothing; with the uid of its pod."""
    uid, _, name = owner.rpartition("/")
    refusal = found.plan.refused.get(owner)
    if refusal is not None:
        return uid, CacheGiven(
            container=name, schemata="", reason=refusal.why.value, message=refusal.message
        )
    if owner not in found.plan.placed:
        return None
    group = found.plan.groups[found.plan.placed[owner]]
    return uid, CacheGiven(
        container=name,
        schemata=one_line(format_schemata(group.schemata)),
        reason=None,
        message=None,
    )


def one_line(schemata: str) -> str:
    """A schemata as people read it beside other things."""
    return " ".join(schemata.split())

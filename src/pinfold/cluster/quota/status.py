"""Keeps what the status of each quota says of exclusive CPUs: one replica at a time.

It counts anew what there is, from watches; nothing is polled, and where nothing changes nothing is
done.  Beside it the API server's own quota controller writes the same status: it keeps the names
that it does not know, and this one writes no other name, each by compare-and-swap.  So both come to
the same end, whoever is first.

What was charged beforehand (:mod:`pinfold.cluster.quota.charging`) counts until its pod is seen, or
its time is over and the server says that there is no such pod.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from msgspec import Struct

from pinfold.cluster.hearing import PATIENCE, Hearing
from pinfold.cluster.quota.counted import CLAIMS, PODS, TEMPLATES, Counted, SeenPod
from pinfold.cluster.quota.known import (
    RESERVED_SECONDS,
    Held,
    Key,
    KnownQuota,
    Quotas,
    Reservations,
    swap,
)
from pinfold.core.pod.api import PodError
from pinfold.core.quota.claims import ClaimRules
from pinfold.core.quota.counted_pod import counted_pod_from_api
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.quota.scopes import ScopeError, matches
from pinfold.core.quota.usage import usage_of
from pinfold.core.values.quantity import Quantity
from pinfold.ports.kubernetes import PODS as POD_RESOURCE
from pinfold.ports.kubernetes import (
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Kubernetes,
    KubernetesError,
    NotFoundError,
    Resource,
)
from pinfold.retry.backoff import pause_after

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 30.0
_A_MOMENT: Final = 0.05
_SOURCES: Final = {PODS: POD_RESOURCE, CLAIMS: RESOURCE_CLAIMS}
_ZERO: Final = Quantity(0)


class _HistoryError(Exception):
    """The API server is at an earlier time than before."""


class _Look(Struct):
    """When a reservation is asked about, ``since`` tells it from the next one for the same object.

    ``asked`` is how often its object was at the server and not seen here.
    """

    since: float
    at: float
    asked: int = 0


class QuotaStatus:
    """Keeps the status of all quotas that limit exclusive CPUs.

    Args:
        client: the API server.
        quotas: those that are known; somebody follows them.
        claims: which claims are for CPUs; None: the cluster has none.
        now: seconds since 1970.
        report: told each problem.
        patience: seconds after which a watch that fails is a problem of the replica.
        heeds_opt_out: whether ``exclusive-cpus: "false"`` counts 0.
    """

    def __init__(  # noqa: PLR0913 - its surroundings, one each
        self,
        client: Kubernetes,
        quotas: Quotas,
        *,
        claims: ClaimRules | None = None,
        now: Callable[[], float] = time.time,
        report: Callable[[str], None] = lambda _problem: None,
        patience: float = PATIENCE,
        heeds_opt_out: bool = True,
    ) -> None:
        self._client = client
        self._quotas = quotas
        self._claims = claims
        self._now = now
        self._report = report
        self._patience = patience
        self._heeds_opt_out = heeds_opt_out
        self._counted = Counted()
        self._hearings: tuple[Hearing, ...] = ()
        self._due: dict[Key, None] = {}
        self._news = asyncio.Event()
        self._failures: dict[Key, int] = {}
        self._looks: dict[Key, dict[str, _Look]] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self.written = 0
        """How often a status was written."""

    async def run(self) -> None:
        """Keep them, for ever; for the one that leads."""
        while True:
            try:
                await self._run()
            except* _HistoryError:
                self._report("the API server was restored to an earlier time: all is counted anew")

    async def _run(self) -> None:
        went_back = asyncio.Event()
        self._counted = Counted(
            self._claims or ClaimRules(), self._report, heeds_opt_out=self._heeds_opt_out
        )
        self._hearings = ()
        works: list[Coroutine[Any, Any, None]] = [self._follow_pods(), self._work()]
        works.append(_end_after(went_back))
        if self._claims is not None:
            works.append(self._follow_claims(RESOURCE_CLAIMS, CLAIMS))
            works.append(self._follow_claims(RESOURCE_CLAIM_TEMPLATES, TEMPLATES))
        self._quotas.tell = self._mark
        self._quotas.went_back = went_back.set
        try:
            async with asyncio.TaskGroup() as tasks:
                for work in works:
                    tasks.create_task(work)
        finally:
            self._quotas.tell = lambda _key: None
            self._quotas.went_back = lambda: None
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            self._due.clear()
            self._hearings = ()
            # Who does not lead keeps nothing in memory.
            self._counted = Counted()

    # ------------------------------------------------------------------------------ what comes

    def problems(self) -> list[str]:
        """What is not followed; none where all is well, or another one keeps the status."""
        return [problem for hearing in self._hearings for problem in hearing.problems()]

    async def _follow_pods(self) -> None:
        told = self._heard_as("the pods")
        async for change in self._client.changes(POD_RESOURCE, SeenPod, report=told):
            self._touch(self._counted.pods(change))

    async def _follow_claims(self, resource: Resource, of: str) -> None:
        told = self._heard_as(f"the {of}")
        async for change in self._client.changes(resource, report=told):
            self._touch(self._counted.claims(change, of))

    def _heard_as(self, what: str) -> Callable[[str], None]:
        hearing = Hearing(what, self._report, self._patience)
        self._hearings = (*self._hearings, hearing)
        return hearing.told

    @property
    def _is_synced(self) -> bool:
        wanted = {PODS} if self._claims is None else {PODS, CLAIMS, TEMPLATES}
        return wanted <= self._counted.versions.keys()

    def _touch(self, namespaces: set[str]) -> None:
        for namespace in namespaces:
            for known in self._quotas.of(namespace):
                self._mark(known.key)
        self._news.set()

    def _mark(self, key: Key) -> None:
        self._due[key] = None
        self._news.set()

    def _mark_later(self, key: Key, seconds: float) -> None:
        if (before := self._timers.pop(key, None)) is not None:
            before.cancel()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(seconds, self._mark, key)

    # ------------------------------------------------------------------------------ what is done

    async def _work(self) -> None:
        await self._quotas.synced.wait()
        while not self._is_synced:
            await self._until_news()
        for known in self._quotas:
            self._mark(known.key)
        while True:
            self._news.clear()
            waits = set()
            while self._due:
                key = next(iter(self._due))
                del self._due[key]
                if not await self._keep(key):
                    waits.add(key)
            await self._news.wait()
            # What was counted meanwhile may have come as far as somebody else had.
            for key in waits:
                self._due[key] = None

    async def _until_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    async def _keep(self, key: Key) -> bool:
        """Bring one up to date; False where more has to be known before."""
        known = self._quotas.get(key)
        if known is None:
            self._failures.pop(key, None)
            self._looks.pop(key, None)
            return True
        if not self._has_seen_enough(known):
            return False
        try:
            await self._settle(known)
        except (ScopeError, PodError) as error:
            self._report(f"quota {known.quota.full_name}: {error}")
        except KubernetesError as error:
            await self._again(key, error)
        else:
            self._failures.pop(key, None)
        return True

    async def _again(self, key: Key, error: KubernetesError) -> None:
        if error.status == 409:
            try:
                await self._quotas.read_one_again(key)
            except KubernetesError as worse:
                error = worse
            else:
                self._mark(key)
                return
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._report(f"quota {'/'.join(key)}: {error}")
        self._mark_later(key, pause_after(failures, _FIRST_PAUSE, _LONGEST_PAUSE))

    def _has_seen_enough(self, known: KnownQuota) -> bool:
        """Whether here is known what somebody knew who removed reservations."""
        versions = self._counted.versions
        return all(versions.get(of, seen) >= seen for of, seen in known.reservations.seen.items())

    async def _settle(self, known: KnownQuota) -> None:
        now, hard = self._now(), known.quota.hard[EXCLUSIVE_CPUS]
        # As it will be in force, also where it is new.
        quota = known.quota.with_status(known.quota.used)
        kept, seen = {}, dict(known.reservations.seen)
        for uid, held in known.reservations.held.items():
            there = self._counted.of_object(quota, uid, now)
            has_come = there is not None and (there >= held.cpus or not held.grows)
            if has_come or self._counted.has_gone(uid):
                # Who counts next has to know of it as well.
                seen[held.of] = self._counted.versions.get(held.of, 0)
            elif await self._counts_on(quota, uid, held, there, now):
                kept[uid] = held
        # From here on nothing is waited for: what came meanwhile is counted, too.
        used = self._counted.total(quota, now) + sum(
            max(0, held.cpus - (self._counted.of_object(quota, uid, now) or 0))
            for uid, held in kept.items()
        )
        self._plan(known, kept, now)
        reservations = known.reservations
        if len(kept) < len(reservations.held):
            reservations = Reservations(kept, seen)
        is_in_force = known.quota.status_hard.get(EXCLUSIVE_CPUS) == hard
        is_kept = reservations is known.reservations and not known.problem
        if used == known.used and is_in_force and is_kept:
            return
        written = await swap(self._client, known, used, reservations, hard=str(hard))
        self.written += 1
        self._quotas.saw(written.object)

    async def _counts_on(
        self, quota: ResourceQuota, uid: str, held: Held, there: int | None, now: float
    ) -> bool:
        """Whether a reservation counts: its time is not over, or its object comes all the same."""
        looks = self._looks.setdefault((quota.namespace, quota.name), {})
        look = looks.get(uid)
        if look is None or look.since != held.since:
            # One from a clock that is ahead ends as if it were of now.
            look = looks[uid] = _Look(held.since, min(held.since, now) + RESERVED_SECONDS)
        if now < look.at:
            return True
        if not await self._comes(quota, uid, held, there):
            return False
        # A watch that is behind may take long.
        look.asked += 1
        look.at = now + pause_after(look.asked, _FIRST_PAUSE, _LONGEST_PAUSE)
        return True

    async def _comes(self, quota: ResourceQuota, uid: str, held: Held, there: int | None) -> bool:
        """Whether the server has an object that is known here only as it was before."""
        try:
            found = await self._client.get(_SOURCES[held.of], held.name, quota.namespace)
        except NotFoundError:
            return False
        if found["metadata"]["uid"] != uid:
            return False
        if held.of == CLAIMS:
            return there is None
        try:
            pod = counted_pod_from_api(found, may_decline=self._heeds_opt_out)
        except PodError:
            return False  # it counts for nothing once it is seen, too
        claims = self._counted.claims_of(quota.namespace)
        cpus = usage_of(quota, pod, self._now(), claims).get(EXCLUSIVE_CPUS, _ZERO).value()
        return matches(quota, pod) and cpus > (there or 0)

    def _plan(self, known: KnownQuota, kept: Collection[str], now: float) -> None:
        """Look again when a reservation or a pod ends by itself."""
        looks = self._looks.pop(known.key, {})
        if kept:
            self._looks[known.key] = {uid: looks[uid] for uid in kept}
        ends = [looks[uid].at for uid in kept]
        if (end := self._counted.next_end(known.quota.namespace, now)) is not None:
            ends.append(end + _A_MOMENT)
        if ends:
            self._mark_later(known.key, max(_A_MOMENT, min(ends) - now))


async def _end_after(went_back: asyncio.Event) -> None:
    await went_back.wait()
    raise _HistoryError

"""Who of several replicas does the work: the one that holds a Lease.

As client-go's leader election does it: a candidate takes a lease that it has seen unchanged for its
whole duration, by its own clock; a leader stops well before that.  Nobody compares clocks, so what
time it is anywhere, and clocks that jump, are of no matter; only how fast they run is, and a third
too fast or too slow is still safe.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

from msgspec import Struct

from pinfold.ports.kubernetes import (
    LEASES,
    AlreadyExistsError,
    ConflictError,
    Kubernetes,
    KubernetesError,
    NotFoundError,
    Object,
)
from pinfold.retry.backoff import pause_after

DURATION: Final = 15.0
"""Seconds that a lease holds; all replicas have the same."""

RENEWAL: Final = 10.0
"""Seconds after which a leader that could not renew stops."""

RETRY: Final = 2.0
"""Seconds between two looks, and between two renewals."""

LONGEST_PAUSE: Final = 30.0
"""Seconds after which work that always ends is begun again at the latest."""


class Times(Struct, frozen=True):
    """How long what takes, in seconds: ``retry`` < ``renewal`` < ``duration``."""

    duration: float = DURATION
    renewal: float = RENEWAL
    retry: float = RETRY


def _wall() -> datetime:
    return datetime.now(UTC)


class Election:
    """One replica that wants to lead.

    Args:
        client: the API server.
        namespace: where the Lease is.
        name: what it is called.
        identity: who this is; no other replica, nor an earlier life of this one, has the same.
        times: how long what takes.
        clock: seconds that always go on, however the time of day is set.
        sleep: waits for so many of these seconds.
        wall: the time of day, for those who read the Lease; nothing is decided by it.
        report: told each problem when it begins or becomes another one; "" when all is well.
    """

    def __init__(  # noqa: PLR0913 - collaborators
        self,
        client: Kubernetes,
        namespace: str,
        name: str,
        identity: str,
        *,
        times: Times = Times(),  # noqa: B008 - frozen
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        wall: Callable[[], datetime] = _wall,
        report: Callable[[str], None] = lambda _problem: None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self.identity = identity
        self._times = times
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._sleep = sleep
        self._wall = wall
        self._report = report
        self._problem = ""
        self._seen: Object | None = None
        self._seen_at = 0.0
        self._leads_until = -inf

    @property
    def leads(self) -> bool:
        """Whether it leads now; no more once a renewal is overdue, noticed or not."""
        return self._clock() < self._leads_until

    @property
    def leader(self) -> str:
        """Who leads, as far as this replica has seen; "" for nobody."""
        return _holder(self._seen or {})

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the work whenever this one leads, for ever.

        The work is cancelled at once when the lead is lost; when it ends by itself, or fails, the
        lead is given up, and wanted again: later each time, if it does not last.  Whoever
        cancels this gives up the lead, too.
        """
        failures = 0
        while True:
            renewed = await self._acquired()
            try:
                has_ended = await self._lead(work, renewed)
            finally:
                await self._give_up()
            if self._clock() - renewed > LONGEST_PAUSE:
                failures = 0
            if has_ended:
                failures += 1
                await self._sleep(pause_after(failures, self._times.retry, LONGEST_PAUSE))

    async def _acquired(self) -> float:
        """Wait until this one leads; when it began to say so."""
        while True:
            began = self._clock()
            if await self._try():
                return began
            # Not all at the same time.
            await self._sleep(self._times.retry * (1 + 0.2 * random.random()))  # noqa: S311 - no secret

    async def _lead(self, work: Callable[[], Coroutine[Any, Any, None]], renewed: float) -> bool:
        """Do it until it ends or the lead is lost; whether it has ended by itself."""
        self._leads_until = renewed + self._times.renewal
        doing = asyncio.create_task(work())
        renewing = asyncio.create_task(self._renew(renewed))
        try:
            done, _ = await asyncio.wait((doing, renewing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._leads_until = -inf
            for task in (doing, renewing):
                task.cancel()
            ended = await asyncio.gather(doing, renewing, return_exceptions=True)
        for one in ended:
            if isinstance(one, Exception):
                self._tell(f"the work of the leader has failed: {_cause(one)}")
        return doing in done

    async def _renew(self, renewed: float) -> None:
        """Renew until it is too late."""
        while True:
            left = renewed + self._times.renewal - self._clock()
            if left <= 0:
                self._tell("the lease could not be renewed in time")
                return
            await self._sleep(min(left, self._times.retry))
            began = self._clock()
            trying = asyncio.create_task(self._try())
            late = asyncio.ensure_future(
                self._sleep(max(0.0, renewed + self._times.renewal - began))
            )
            try:
                await asyncio.wait((trying, late), return_when=asyncio.FIRST_COMPLETED)
            finally:
                is_late = not trying.done()
                for task in (trying, late):
                    task.cancel()
                await asyncio.gather(trying, late, return_exceptions=True)
            if is_late:
                self._tell("the lease could not be renewed in time")
                return
            if trying.result():
                renewed = began
                self._leads_until = began + self._times.renewal
            elif self.leader != self.identity:
                self._tell(f"{self.leader or 'nobody'} leads now")
                return

    async def _try(self) -> bool:
        """Acquire or renew; whether this one holds the lease now."""
        try:
            held = await self._swap()
        except (ConflictError, AlreadyExistsError):
            return False  # somebody else was quicker: look again
        except KubernetesError as error:
            self._tell(str(error))
            return False
        self._tell("")
        return held

    async def _swap(self) -> bool:
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
        except NotFoundError:
            metadata = {"name": self._name, "namespace": self._namespace}
            fresh = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}
            self._saw(await self._client.create(LEASES, fresh | {"spec": self._spec({})}))
            return True
        self._saw(lease)
        spec = lease.get("spec") or {}
        holder = _holder(lease)
        # What it says of its duration counts: its holder may be of another version.
        duration = spec.get("leaseDurationSeconds") or 0
        duration = max(self._times.duration, duration if isinstance(duration, int | float) else 0)
        is_mine = holder == self.identity
        if holder and not is_mine and self._clock() < self._seen_at + duration:
            return False
        self._saw(await self._client.update(LEASES, lease | {"spec": self._spec(spec)}))
        return True

    def _saw(self, lease: Object) -> None:
        """Note when it has changed last, by the clock here."""
        before = self._seen
        if before is None or _version(before) != _version(lease):
            self._seen, self._seen_at = lease, self._clock()

    def _spec(self, before: Object) -> Object:
        now = self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {
            **before,
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, int(self._times.duration)),
            "renewTime": now,
        }
        if before.get("holderIdentity") != self.identity:
            transitions = before.get("leaseTransitions")
            spec["acquireTime"] = now
            spec["leaseTransitions"] = (
                transitions + 1 if isinstance(transitions, int) and before else 0
            )
        return spec

    async def _give_up(self) -> None:
        """Let another one lead at once; what fails is no matter, as the lease ends by itself."""
        if self.leader != self.identity or self._seen is None:
            return
        spec = {**self._seen["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        lease, self._seen = self._seen, None
        try:
            await self._client.update(LEASES, lease | {"spec": spec})
        except KubernetesError as error:
            self._tell(str(error))

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._report(problem)


def _cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _holder(lease: Object) -> str:
    holder = (lease.get("spec") or {}).get("holderIdentity")
    return holder if isinstance(holder, str) else ""


def _version(lease: Object) -> object:
    return lease["metadata"].get("resourceVersion"), lease["metadata"].get("uid")

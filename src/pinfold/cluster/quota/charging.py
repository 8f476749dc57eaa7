"""Charges what is to be created or resized to the quotas of its namespace, before it is let in.

As the API server's own quota admission does it: those who ask at the same time are charged one
after the other on a draft, which is then one compare-and-swap for each quota; who lost the race
looks again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.cluster.quota.counted import CLAIMS, PODS, TEMPLATES, Counted
from pinfold.cluster.quota.known import (
    MOST_BYTES,
    Held,
    KnownQuota,
    Quotas,
    Reservations,
    swap,
)
from pinfold.core.pod.pod import Resources
from pinfold.core.quota.charge import UPDATE, Charged, Refused, Request, Rules, charge, charge_claim
from pinfold.core.quota.claims import NO_CLAIMS, ClaimedCPUs, ClaimRules, Claims
from pinfold.core.quota.counted_pod import CountedPod
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.quota.resource_list import without_zeros
from pinfold.core.quota.scopes import ScopeError, matches
from pinfold.core.quota.usage import usage_of
from pinfold.core.values.quantity import Quantity
from pinfold.ports.kubernetes import (
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Kubernetes,
    KubernetesError,
    Listed,
)

PATIENCE: Final = 4.0
"""Seconds for an answer: an API server waits 5 s for it."""

_LONGEST_ENTRY: Final = 512
"""Bytes of a reservation: a uid, a name of at most 253, numbers; and the uid of the quota."""

_PAUSE: Final = 0.05
_RULES: Final = Rules(only_own=True)
_ZERO: Final = Quantity(0)


class _NewClaim(Struct, frozen=True):
    claimed: ClaimedCPUs
    capacity: str


class _Asked(Struct, frozen=True, kw_only=True):
    """An object (by its uid and name) that is to come or to grow."""

    namespace: str
    name: str
    uid: str
    request: Request | _NewClaim
    is_dry_run: bool


class _Draft:
    """A quota while those who ask are charged."""

    def __init__(self, known: KnownQuota) -> None:
        self.known = known
        self.used = known.quota.used
        self.held = dict(known.reservations.held)
        self.is_changed = False

    def shown_to(self, asked: _Asked, claims: Claims, now: float) -> ResourceQuota:
        """The quota without what is reserved for the same object beside what that counts for.

        How much that is changes as the object does: a resize that was let in is in what it counts
        for as soon as it is stored.
        """
        used, held = self.used.get(EXCLUSIVE_CPUS), self.held.get(asked.uid)
        if used is not None and held is not None:
            beside = held.cpus - _counts_already(self.known.quota, asked.request, claims, now)
            left = used - Quantity(max(0, beside))
            used = left if left.sign >= 0 else _ZERO
            return replace(self.known.quota, used={**self.used, EXCLUSIVE_CPUS: used})
        return replace(self.known.quota, used=self.used)

    def charge(self, asked: _Asked, used: Resources, more: int, cpus: int, now: float) -> None:
        """Take note of ``more`` CPUs beside those ``used``; ``cpus`` are all that it will have."""
        held = self.held.get(asked.uid)
        if held is not None and held.cpus >= cpus:
            return
        self.used = {**used, EXCLUSIVE_CPUS: used[EXCLUSIVE_CPUS] + Quantity(more)}
        request = asked.request
        is_pod = isinstance(request, Request)
        grows = isinstance(request, Request) and request.operation == UPDATE
        self.held[asked.uid] = Held(cpus, now, asked.name, PODS if is_pod else CLAIMS, grows=grows)
        self.is_changed = True

    def make_sure_of_room_for(self, uid: str) -> None:
        """Raise KubernetesError where one more would be too many to be written."""
        if uid not in self.held and len(self.reservations.text()) > MOST_BYTES - _LONGEST_ENTRY:
            raise KubernetesError(
                f"quota {self.known.quota.full_name}: too many pods are on their way",
                "create fewer at once",
                status=429,
            )

    @property
    def reservations(self) -> Reservations:
        return replace(self.known.reservations, held=self.held)


class _Waiting(Struct, frozen=True, eq=False):
    asked: _Asked
    claims: Claims
    answer: asyncio.Future[Charged | Refused]


class Charging:
    """Charges to the quotas of a cluster.

    Args:
        client: the API server.
        quotas: those that are known; somebody follows them.
        claims: which claims are for CPUs; None: the cluster has none.
        now: seconds since 1970.
        patience: seconds after which nobody waits for an answer any more.
    """

    def __init__(
        self,
        client: Kubernetes,
        quotas: Quotas,
        *,
        claims: ClaimRules | None = None,
        now: Callable[[], float] = time.time,
        patience: float = PATIENCE,
    ) -> None:
        self._client = client
        self._quotas = quotas
        self._claims = claims
        self._now = now
        self._patience = patience
        self._waiting: dict[str, list[_Waiting]] = {}
        self._working: dict[str, asyncio.Task[None]] = {}

    async def charge(self, namespace: str, request: Request, *, dry_run: bool) -> Charged | Refused:
        """Charge a pod, or what it is to have more; or say why not.

        Who asks again with the same uid is not charged twice.  What was charged and never appears
        is given back after :data:`~.known.RESERVED_SECONDS`.

        Returns:
            What the object counts for more, by the quotas' names.

        Raises:
            KubernetesError: it cannot be charged now: the server does not answer, or too many
                others are quicker.
        """
        pod = request.pod.pod
        return await self._admit(
            _Asked(
                namespace=namespace,
                name=pod.name,
                uid=pod.uid,
                request=request,
                is_dry_run=dry_run,
            )
        )

    async def charge_claim(
        self, namespace: str, uid: str, name: str, claimed: ClaimedCPUs, *, dry_run: bool
    ) -> Charged | Refused:
        """Charge a new ResourceClaim; as :meth:`charge`."""
        capacity = (self._claims or ClaimRules()).capacity
        return await self._admit(
            _Asked(
                namespace=namespace,
                name=name,
                uid=uid,
                request=_NewClaim(claimed, capacity),
                is_dry_run=dry_run,
            )
        )

    def problems(self) -> Sequence[str]:
        """Why nothing can be charged; none where all is well."""
        return self._quotas.problems()

    async def _admit(self, asked: _Asked) -> Charged | Refused:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._patience):
                await self._quotas.synced.wait()
                await self._quotas.be_sure_of(asked.namespace)
                if not self._quotas.of(asked.namespace):
                    return Charged(())
                claims = await self._claims_for(asked)
                waiting = _Waiting(asked, claims, loop.create_future())
                self._waiting.setdefault(asked.namespace, []).append(waiting)
                if asked.namespace not in self._working:
                    self._working[asked.namespace] = loop.create_task(self._work(asked.namespace))
                return await waiting.answer
        except TimeoutError:
            raise KubernetesError(
                f"the quotas of namespace {asked.namespace} could not be charged within "
                f"{self._patience:g} s"
            ) from None

    async def _work(self, namespace: str) -> None:
        """Answer all who wait, those who came together at once."""
        try:
            while batch := self._waiting.pop(namespace, []):
                try:
                    await self._charge(namespace, batch)
                except Exception as error:  # noqa: BLE001 - it is told to whoever waits
                    for one in batch:
                        if not one.answer.done():
                            one.answer.set_exception(error)
        finally:
            del self._working[namespace]

    async def _charge(self, namespace: str, batch: Sequence[_Waiting]) -> None:
        is_fresh = False
        while waiting := [one for one in batch if not one.answer.done()]:
            drafts = {one.quota.name: _Draft(one) for one in self._quotas.of(namespace)}
            answers = list(self._answers(drafts, waiting))
            if not is_fresh and any(isinstance(answer, Refused) for _, answer in answers):
                # Perhaps there is room by now: nobody is refused for what is only remembered.
                await self._quotas.read_again(namespace)
                is_fresh = True
                continue
            failed = await self._write([one for one in drafts.values() if one.is_changed])
            for one, answer in answers:
                done = isinstance(answer, Refused) or not failed & answer.charged.keys()
                if done and not one.answer.done():
                    one.answer.set_result(answer)
            if failed:
                await self._quotas.read_again(namespace)
                is_fresh = True

    async def _write(self, drafts: Sequence[_Draft]) -> set[str]:
        """Write all; the names of those that were not, as far as anybody knows."""
        done = await asyncio.gather(*map(self._swap, drafts), return_exceptions=True)
        failed = set()
        for draft, error in zip(drafts, done, strict=True):
            if isinstance(error, KubernetesError):
                failed.add(draft.known.quota.name)
                if error.status != 409:
                    await asyncio.sleep(_PAUSE)
            elif error is not None:
                raise error
        return failed

    async def _swap(self, draft: _Draft) -> None:
        used = draft.used[EXCLUSIVE_CPUS].value()
        written = await swap(self._client, draft.known, used, draft.reservations)
        self._quotas.saw(written.object)

    async def _claims_for(self, asked: _Asked) -> Claims:
        """The CPUs of the claims that a pod may name, as they are now."""
        request = asked.request
        if self._claims is None or not isinstance(request, Request) or not request.pod.claims:
            return NO_CLAIMS
        counted = Counted(self._claims)
        for of, resource in ((CLAIMS, RESOURCE_CLAIMS), (TEMPLATES, RESOURCE_CLAIM_TEMPLATES)):
            found = await self._client.list(resource, asked.namespace)
            counted.claims(Listed(found, "", is_first=True, is_last=True), of)
        return counted.claims_of(asked.namespace)

    def _answers(
        self, drafts: Mapping[str, _Draft], waiting: Sequence[_Waiting]
    ) -> Iterator[tuple[_Waiting, Charged | Refused]]:
        """What each is answered; one that cannot be counted fails by itself."""
        for one in waiting:
            try:
                yield one, self._one(drafts, one)
            except Exception as error:  # noqa: BLE001 - it is told to whoever waits
                one.answer.set_exception(error)

    def _one(self, drafts: Mapping[str, _Draft], waiting: _Waiting) -> Charged | Refused:
        """Charge one to the drafts: to all that count it, or to none."""
        asked, claims, now = waiting.asked, waiting.claims, self._now()
        request = asked.request
        quotas = {name: draft.shown_to(asked, claims, now) for name, draft in drafts.items()}
        shown = tuple(quotas.values())
        if isinstance(request, Request):
            answer = charge(shown, request, now, _RULES, claims)
        else:
            answer = charge_claim(shown, asked.name, request.claimed, request.capacity)
        if isinstance(answer, Refused):
            return answer
        charged = {name: what for name, what in answer.charged.items() if without_zeros(what)}
        if not asked.is_dry_run:
            for name in charged:
                drafts[name].make_sure_of_room_for(asked.uid)
            for name, what in charged.items():
                quota, more = quotas[name], what[EXCLUSIVE_CPUS].value()
                if isinstance(request, Request):
                    total = _cpus(quota, request.pod, claims, now)
                else:
                    total = request.claimed.cpus
                drafts[name].charge(asked, quota.used, more, total, now)
        return Charged((), charged)


def _counts_already(
    quota: ResourceQuota, request: Request | _NewClaim, claims: Claims, now: float
) -> int:
    """The CPUs that a quota counts for the object as it is stored."""
    old = request.old_pod if isinstance(request, Request) else None
    if old is None or not old.resource_version:
        return 0
    try:
        return _cpus(quota, old, claims, now) if matches(quota, old) else 0
    except ScopeError:
        return 0  # nobody is charged to it: they are refused


def _cpus(quota: ResourceQuota, pod: CountedPod, claims: Claims, now: float) -> int:
    return usage_of(quota, pod, now, claims).get(EXCLUSIVE_CPUS, _ZERO).value()

"""The quotas that limit exclusive CPUs, as a cluster's API server has them, and how one is changed.

What is reserved for pods that were let in and are not there yet stands in an annotation of the
quota.  It and the status are one object, so both change in one compare-and-swap, all replicas see
the same, and nothing of it is lost when one of them ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.pod.api import PodError
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.core.quota.quota import ResourceQuota, quota_from_api
from pinfold.ports.kubernetes import (
    RESOURCE_QUOTAS,
    Changed,
    Kind,
    Kubernetes,
    Listed,
    NotFoundError,
    Object,
)

ANNOTATION: Final = "quota.pinfold.dev/reservations"
RESERVED_SECONDS: Final = 60.0
"""How long who was let in may take to appear: whoever is asked after us may refuse it."""

MOST_BYTES: Final = 128 << 10
"""How long the annotation may be: half of what an object may have in all of them."""

Key = tuple[str, str]
"""Namespace and name of a quota."""


class Held(Struct, frozen=True, omit_defaults=True):
    """CPUs that are reserved for one object, which may not be there yet.

    ``cpus`` are all that it will count for, those that it counts for already among them; ``grows``:
    it is there, and is to be changed.  ``of`` is its resource (``pods``, ``resourceclaims``),
    ``since`` seconds since 1970.
    """

    cpus: int
    since: float
    name: str
    of: str = "pods"
    grows: bool = False


class Reservations(Struct, frozen=True, omit_defaults=True):
    """What a quota's annotation says.

    ``held`` is by uid.  ``seen`` is, by resource, the version up to which somebody had looked when
    he removed what had appeared: who has not come as far must not count.  ``quota`` is the uid of
    the quota that it was written for: versions and uids of another cluster mean nothing in this.
    """

    held: Mapping[str, Held] = {}
    seen: Mapping[str, int] = {}
    quota: str = ""

    def text(self) -> str:
        """As it is written."""
        return msgspec.json.encode(self).decode()


_READER: Final = msgspec.json.Decoder(Reservations)


class KnownQuota(Struct, frozen=True):
    """A quota as the server had it: the object, what it means, and what is reserved."""

    object: Object
    quota: ResourceQuota
    reservations: Reservations

    @property
    def key(self) -> Key:
        """Which it is."""
        return self.quota.namespace, self.quota.name

    @property
    def limits_cpus(self) -> bool:
        """Whether its spec says how many exclusive CPUs there may be."""
        return EXCLUSIVE_CPUS in self.quota.hard

    @property
    def used(self) -> int | None:
        """The CPUs in use by its status; None where that does not say."""
        used = self.quota.used.get(EXCLUSIVE_CPUS)
        return None if used is None else used.value()


def known_quota(found: Object) -> KnownQuota:
    """Read one; raises PodError.

    An annotation that nobody can read reserves nothing, nor one that was copied from elsewhere.
    """
    quota = quota_from_api(found)
    try:
        reservations = _READER.decode(quota.annotations.get(ANNOTATION, "{}"))
    except msgspec.MsgspecError:
        reservations = Reservations()
    if reservations.quota != quota.uid:
        reservations = Reservations()
    return KnownQuota(found, quota, reservations)


async def swap(
    client: Kubernetes,
    known: KnownQuota,
    used: int,
    reservations: Reservations,
    *,
    hard: str | None = None,
) -> KnownQuota:
    """Write what is in use and reserved, if the quota is still as it is known.

    Args:
        client: the API server.
        known: as it was read.
        used: CPUs.
        reservations: those that count from now on.
        hard: what the status says is enforced; None: as before.

    Raises:
        ConflictError: somebody else has changed it; nothing was written.
        KubernetesError: where it has no status, nobody knows whether it was written.
    """
    metadata = dict(known.object["metadata"])
    annotations = dict(metadata.get("annotations") or {})
    annotations.pop(ANNOTATION, None)
    if reservations.held or reservations.seen:
        annotations[ANNOTATION] = replace(reservations, quota=known.quota.uid).text()
    metadata["annotations"] = annotations
    status = dict(known.object.get("status") or {})
    status["used"] = (status.get("used") or {}) | {EXCLUSIVE_CPUS: str(used)}
    if hard is not None:
        status["hard"] = (status.get("hard") or {}) | {EXCLUSIVE_CPUS: hard}
    written = known.object | {"metadata": metadata, "status": status}
    return known_quota(await client.update(RESOURCE_QUOTAS, written, "status"))


class Quotas:
    """All quotas that limit exclusive CPUs, as far as they are known here.

    Args:
        client: the API server.
        report: told each problem.
    """

    def __init__(
        self, client: Kubernetes, report: Callable[[str], None] = lambda _problem: None
    ) -> None:
        self._client = client
        self._report = report
        self._known: dict[str, dict[str, KnownQuota]] = {}
        self.synced = asyncio.Event()
        """Set once all have been listed."""
        self.tell: Callable[[Key], None] = lambda _key: None
        """Told which one has become another."""

    async def follow(self) -> None:
        """Know what changes, for ever."""
        listed: set[Key] = set()
        async for change in self._client.changes(RESOURCE_QUOTAS, report=self._report):
            match change:
                case Listed():
                    if change.is_first:
                        listed = set()
                    for one in change.objects:
                        self.saw(one)
                        listed.add(_key(one))
                    if change.is_last:
                        for known in list(self):
                            if known.key not in listed:
                                self._forget(known.key)
                        self.synced.set()
                case Changed(kind=Kind.DELETED):
                    self._forget(_key(change.object))
                case Changed():
                    self.saw(change.object)

    def of(self, namespace: str) -> list[KnownQuota]:
        """Those of a namespace."""
        return list(self._known.get(namespace, {}).values())

    def get(self, key: Key) -> KnownQuota | None:
        """One of them."""
        return self._known.get(key[0], {}).get(key[1])

    def __iter__(self) -> Iterator[KnownQuota]:
        for quotas in self._known.values():
            yield from quotas.values()

    def saw(self, found: Object) -> None:
        """Know a quota as it was read, unless a later one is known."""
        key = _key(found)
        before = self.get(key)
        if before is not None and _version(found) <= _version(before.object):
            return
        try:
            known = known_quota(found)
        except PodError as error:
            self._report(f"quota {key[0]}/{key[1]}: {error}")
            return
        if known.limits_cpus:
            self._known.setdefault(key[0], {})[key[1]] = known
            self.tell(key)
        elif before is not None:
            self._forget(key)

    async def read_again(self, namespace: str) -> None:
        """Know those of a namespace as they are now; raises KubernetesError."""
        before = self.of(namespace)
        found = {_key(one): one for one in await self._client.list(RESOURCE_QUOTAS, namespace)}
        for one in found.values():
            self.saw(one)
        for known in before:
            if known.key not in found and self.get(known.key) is known:
                self._forget(known.key)

    async def read_one_again(self, key: Key) -> None:
        """Know one of them as it is now; raises KubernetesError."""
        try:
            self.saw(await self._client.get(RESOURCE_QUOTAS, key[1], key[0]))
        except NotFoundError:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        quotas = self._known.get(key[0], {})
        quotas.pop(key[1], None)
        if not quotas:
            self._known.pop(key[0], None)
        self.tell(key)


def _key(found: Mapping[str, Any]) -> Key:
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


def version_of(text: str) -> int:
    """A resourceVersion as a number: since Kubernetes 1.35 it is one by definition."""
    return int(text) if text.isascii() and text.isdecimal() else 0


def _version(found: Mapping[str, Any]) -> int:
    return version_of(found["metadata"].get("resourceVersion", ""))

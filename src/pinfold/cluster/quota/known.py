"""The quotas that limit exclusive CPUs, as a cluster's API server has them, and how one is changed.

What is reserved for pods that were let in and are not there yet stands in an annotation of the
quota.  It and the status are one object, so both change in one compare-and-swap, all replicas see
the same, and nothing of it is lost when one of them ends.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from pinfold.cluster.hearing import PATIENCE, Hearing
from pinfold.core.pod.api import PodError
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.core.quota.quota import ResourceQuota, quota_from_api
from pinfold.ports.kubernetes import PODS as POD_RESOURCE
from pinfold.ports.kubernetes import (
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    Changed,
    Kind,
    Kubernetes,
    Listed,
    NotFoundError,
    Object,
    object_version,
    version_of,
)

ANNOTATION: Final = "quota.pinfold.dev/reservations"
RESERVED_SECONDS: Final = 60.0
"""How long who was let in may take to appear: whoever is asked after us may refuse it."""

MOST_BYTES: Final = 128 << 10
"""How long the annotation may be: half of what an object may have in all of them."""

Key = tuple[str, str]
"""Namespace and name of a quota."""

_IDENTITY: Final = ("uid", "resourceVersion")
_MOST_READ: Final = 10_000
"""Namespaces of which is kept when somebody looked."""

_Text = Annotated[str, Meta(min_length=1, max_length=253)]
_Reserved = Annotated[str, Meta(pattern=f"^({POD_RESOURCE.plural}|{RESOURCE_CLAIMS.plural})\\Z")]
_CPUs = Annotated[int, Meta(ge=0, le=1 << 40)]
_Version = Annotated[int, Meta(ge=0)]


class Held(Struct, frozen=True, omit_defaults=True):
    """CPUs that are reserved for one object, which may not be there yet.

    ``cpus`` are all that it will count for, those that it counts for already among them; ``grows``:
    it is there, and is to be changed.  ``of`` is its resource (``pods``, ``resourceclaims``),
    ``since`` seconds since 1970.
    """

    cpus: _CPUs
    since: float
    name: _Text
    of: _Reserved = POD_RESOURCE.plural
    grows: bool = False


class Reservations(Struct, frozen=True, omit_defaults=True):
    """What a quota's annotation says.

    ``held`` is by uid.  ``seen`` is, by resource, the version up to which somebody had looked when
    he removed what had appeared: who has not come as far must not count.  ``quota`` is the uid of
    the quota that it was written for: versions and uids of another cluster mean nothing in this.
    """

    held: Mapping[_Text, Held] = {}
    seen: Mapping[str, _Version] = {}
    quota: str = ""

    def text(self) -> str:
        """As it is written."""
        return msgspec.json.encode(self).decode()


class _Read(Struct, frozen=True):
    """As :class:`Reservations`; an entry that is wrong is not to cost the others."""

    held: Mapping[str, msgspec.Raw] = {}
    seen: Mapping[str, _Version] = {}
    quota: str = ""


_READER: Final = msgspec.json.Decoder(_Read)
_ENTRY: Final = msgspec.json.Decoder(dict[_Text, Held])


class KnownQuota(Struct, frozen=True):
    """A quota as the server had it: the object, what it means, and what is reserved.

    ``problem``: what of its annotation counts for nothing, so that it is written anew; or "".
    """

    object: Object
    quota: ResourceQuota
    reservations: Reservations
    problem: str = ""

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

    An entry of the annotation that nobody can read reserves nothing, nor does an annotation that
    was copied from elsewhere: what it says of versions may be more than this server will ever come
    to, and it would be waited for.
    """
    quota = quota_from_api(found)
    text = quota.annotations.get(ANNOTATION)
    if text is None:
        return KnownQuota(found, quota, Reservations())
    problem = ""
    try:
        read = _READER.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        problem = f"cannot be read: {error}"
    else:
        if not quota.uid or read.quota != quota.uid:
            problem = f"is of another quota (uid {read.quota[:64]!r})"
        # It was written after what it says was seen.
        elif max(read.seen.values(), default=0) > object_version(found):
            problem = "says that versions were seen to which this API server has not come"
    if problem:
        problem = f"annotation {ANNOTATION} {problem}; it counts for nothing"
        return KnownQuota(found, quota, Reservations(), problem)
    held, wrong = _readable(read.held)
    if wrong:
        problem = f"annotation {ANNOTATION} has entries that count for nothing: {wrong}"
    return KnownQuota(found, quota, Reservations(held, read.seen, read.quota), problem)


def _readable(found: Mapping[str, msgspec.Raw]) -> tuple[dict[str, Held], str]:
    """The entries that can be read, and what is wrong with the first that cannot."""
    held: dict[str, Held] = {}
    wrong = ""
    for uid, raw in found.items():
        try:
            held |= _ENTRY.decode(b"{%b:%b}" % (msgspec.json.encode(uid), raw))
        except (msgspec.MsgspecError, RecursionError) as error:
            wrong = wrong or f"{uid[:64]!r}: {error}"
    return held, wrong


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
        patience: seconds for which what the watch has told is taken for what is.
    """

    def __init__(
        self,
        client: Kubernetes,
        report: Callable[[str], None] = lambda _problem: None,
        patience: float = PATIENCE,
    ) -> None:
        self._client = client
        self._report = report
        self._hearing = Hearing("the quotas", report, patience)
        self._known: dict[str, dict[str, KnownQuota]] = {}
        self._version = 0
        self._read: OrderedDict[str, float] = OrderedDict()
        self._reading: dict[str, asyncio.Task[None]] = {}
        self.synced = asyncio.Event()
        """Set once all have been listed."""
        self.tell: Callable[[Key], None] = lambda _key: None
        """Told which one has become another."""
        self.went_back: Callable[[], None] = lambda: None
        """Told when the server is found to be at an earlier time: nothing that was seen holds."""

    async def follow(self) -> None:
        """Know what changes, for ever."""
        listed: set[Key] = set()
        async for change in self._client.changes(RESOURCE_QUOTAS, report=self._hearing.told):
            version = version_of(change.version)
            match change:
                case Listed():
                    if change.is_first:
                        listed = set()
                    # A list is never older than what was known before, but in another history.
                    is_anew = version < self._version
                    if is_anew and change.is_first:
                        self.went_back()
                    for one in change.objects:
                        key = _key(one)
                        self.saw(one, self.get(key) if is_anew else None)
                        listed.add(key)
                    if not change.is_last:
                        continue
                    for known in list(self):
                        if known.key not in listed:
                            self._forget(known.key, None if is_anew else version)
                    self.synced.set()
                case Changed(kind=Kind.DELETED):
                    self._forget(_key(change.object), version)
                case Changed():
                    self.saw(change.object)
            self._version = version
            self._hearing.heard()

    def problems(self) -> tuple[str, ...]:
        """Why they are not known as they are; none where all is well."""
        if not self.synced.is_set():
            return ("the quotas are not known yet",)
        return self._hearing.problems()

    async def be_sure_of(self, namespace: str) -> None:
        """Look which a namespace has, unless the watch, or somebody here, has told just now.

        However many ask, it is looked once at a time, and seldom.

        Raises:
            KubernetesError: the server does not tell.
        """
        if self._hearing.is_fresh(self._read.get(namespace, float("-inf"))):
            return
        reading = self._reading.get(namespace)
        if reading is None:
            reading = asyncio.create_task(self._look_at(namespace))
            self._reading[namespace] = reading
            reading.add_done_callback(lambda done: self._looked(namespace, done))
        await asyncio.shield(reading)

    async def _look_at(self, namespace: str) -> None:
        began = asyncio.get_running_loop().time()
        await self.read_again(namespace)
        self._read[namespace] = began
        self._read.move_to_end(namespace)
        if len(self._read) > _MOST_READ:
            self._read.popitem(last=False)

    def _looked(self, namespace: str, done: asyncio.Task[None]) -> None:
        del self._reading[namespace]
        if not done.cancelled():
            done.exception()  # those who wait have it; perhaps nobody does any more

    def of(self, namespace: str) -> list[KnownQuota]:
        """Those of a namespace."""
        return list(self._known.get(namespace, {}).values())

    def get(self, key: Key) -> KnownQuota | None:
        """One of them."""
        return self._known.get(key[0], {}).get(key[1])

    def __iter__(self) -> Iterator[KnownQuota]:
        for quotas in self._known.values():
            yield from quotas.values()

    def saw(self, found: Object, before_it: KnownQuota | None = None) -> None:
        """Know a quota as it was read, unless a later one is known.

        ``before_it`` was known already when the server was asked: whatever its version is, that of
        the answer is later, as a server may have been restored from a backup.
        """
        key = _key(found)
        before = self.get(key)
        if before is not None:
            is_later = before is before_it or object_version(found) > object_version(before.object)
            if not is_later or _is_same(found, before.object):
                return
            if object_version(found) < object_version(before.object):
                self.went_back()
        try:
            known = known_quota(found)
        except PodError as error:
            self._report(f"quota {key[0]}/{key[1]}: {error}")
            return
        if known.limits_cpus:
            if known.problem:
                self._report(f"quota {key[0]}/{key[1]}: {known.problem}")
            self._known.setdefault(key[0], {})[key[1]] = known
            self.tell(key)
        elif before is not None:
            self._forget(key)

    async def read_again(self, namespace: str) -> None:
        """Know those of a namespace as they are now; raises KubernetesError."""
        before = {known.key: known for known in self.of(namespace)}
        found = {_key(one): one for one in await self._client.list(RESOURCE_QUOTAS, namespace)}
        for key, one in found.items():
            self.saw(one, before.get(key))
        for key, known in before.items():
            if key not in found and self.get(key) is known:
                self._forget(key)

    async def read_one_again(self, key: Key) -> None:
        """Know one of them as it is now; raises KubernetesError."""
        before = self.get(key)
        try:
            self.saw(await self._client.get(RESOURCE_QUOTAS, key[1], key[0]), before)
        except NotFoundError:
            self._forget(key)

    def _forget(self, key: Key, version: int | None = None) -> None:
        """It is there no more, as of a version; None: as of now."""
        quotas = self._known.get(key[0], {})
        known = quotas.get(key[1])
        if known is not None and version is not None and object_version(known.object) > version:
            return  # there is another one since
        quotas.pop(key[1], None)
        if not quotas:
            self._known.pop(key[0], None)
        self.tell(key)


def _key(found: Mapping[str, Any]) -> Key:
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one["metadata"].get(name) == other["metadata"].get(name) for name in _IDENTITY)

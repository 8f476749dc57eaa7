"""Any objects of an API server: read, written, listed in chunks and watched."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw, Struct

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.connection import MERGE, Asked, Connection
from pinfold.ports.kubernetes import (
    NO_LABELS,
    NODES,
    Change,
    Changed,
    GoneError,
    Kind,
    KubernetesError,
    Listed,
    Metadata,
    Object,
    Progress,
    Resource,
    has_gone_back,
    refusal,
)
from pinfold.retry.backoff import Backoff

TIMEOUT: Final = 10.0
"""Seconds for a request, all in all."""

CHUNK: Final = 500
"""Objects in one part of a list; as other clients ask."""

_MOST_IN_A_CHUNK: Final = 256 << 20
_MOST_PARTS: Final = 200
_MOST_EMPTY: Final = 10
"""Parts of a list with nothing in them, one after another."""
_WHOSE: Final = "is it an API server?"
_WATCH: Final = 240.0
"""Seconds after which a server ends a watch; up to twice as many, so that not all end at once."""
_LATE: Final = 15.0
"""How many more seconds it may take to do so."""
SILENCE: Final = 90.0
"""Seconds without a bookmark after which a watch fails that has had one: they come each minute
then.  Before the first none is due: a server sends none for a kind that has not changed since it
was started."""
_FIRST_RETRY: Final = 0.25
_LONGEST_RETRY: Final = 30.0
_GONE: Final = 410

T = TypeVar("T")


class _ListMeta(Struct):
    resourceVersion: str = ""  # noqa: N815 - the API's name
    continued: str = msgspec.field(default="", name="continue")


class _List(Struct, Generic[T]):
    metadata: _ListMeta
    items: list[T] | None = None


class _Event(Struct):
    type: str
    object: Raw


class _Bare(Struct):
    metadata: Metadata


class _Status(Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


def _nobody(_problem: object) -> None: ...


class KubeObjects:
    """A :class:`pinfold.ports.kubernetes.Kubernetes` over HTTP; to be closed.

    Args:
        access: the server.
        timeout: seconds for a request, all in all; a watch may last.
        connections: how many there are at the most; each watch keeps one.
        chunk: objects in one part of a list.
        silence: seconds without a bookmark after which a watch fails that has had one.
        heard: told of each request when it is over.
    """

    def __init__(  # noqa: PLR0913 - bounds, and who hears
        self,
        access: Access,
        *,
        timeout: float = TIMEOUT,
        connections: int = 16,
        chunk: int = CHUNK,
        silence: float = SILENCE,
        heard: Callable[[Asked], None] = _nobody,
    ) -> None:
        self._silence = silence
        self._chunk = chunk
        self._connection = Connection(access, timeout=timeout, connections=connections, heard=heard)

    @property
    def server(self) -> str:
        """The address."""
        return self._connection.server

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        return await self._connection.ask("GET", _path_of_one(resource, namespace, name))

    async def create(
        self,
        resource: Resource,
        created: Mapping[str, Any],
        subresource: str = "",
        *,
        within: float | None = None,
    ) -> Object:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        metadata = created["metadata"]
        namespace = metadata.get("namespace", "")
        if subresource:
            path = _path_of_one(resource, namespace, metadata["name"], subresource)
        else:
            path = _path(resource, namespace)
        if within is None:
            return await self._connection.ask("POST", path, created)
        try:
            async with asyncio.timeout(within):
                return await self._connection.ask("POST", f"{path}?timeout={within:g}s", created)
        except TimeoutError:
            problem = f"{self.server}: POST {path}: no answer within {within:g} s"
            raise KubernetesError(problem) from None

    async def update(
        self, resource: Resource, changed: Mapping[str, Any], subresource: str = ""
    ) -> Object:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        metadata = changed["metadata"]
        namespace = metadata.get("namespace", "")
        path = _path_of_one(resource, namespace, metadata["name"], subresource)
        return await self._connection.ask("PUT", path, changed)

    async def patch(
        self,
        resource: Resource,
        name: str,
        changes: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        path = _path_of_one(resource, namespace, name, subresource)
        return await self._connection.ask("PATCH", path, changes, MERGE)

    async def delete(self, resource: Resource, name: str, namespace: str = "") -> None:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        await self._connection.ask("DELETE", _path_of_one(resource, namespace, name))

    async def list(self, resource: Resource, namespace: str = "") -> Sequence[Object]:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        found: list[Object] = []
        async for part in self._listed(resource, dict, namespace):
            if part.is_first:
                found.clear()
            found += part.objects
        return found

    async def selected(self, resource: Resource, fields: str, most: int) -> Sequence[Object]:
        """All objects with these fields (a field selector), of all namespaces.

        Raises:
            KubernetesError: see the class; or there are more than ``most``.
        """
        found: list[Object] = []
        parts = 0
        async for part in self._listed(resource, dict, fields=fields):
            parts += 1
            if part.is_first:
                found.clear()
            found += part.objects
            what = f"{self.server}: GET {_path(resource)}"
            if len(found) > most:
                raise KubernetesError(f"{what}: more than {most:,} {resource.plural}")
            # Parts with next to nothing in them would have no end either.
            if parts > _MOST_PARTS:
                raise KubernetesError(f"{what}: a list of more than {_MOST_PARTS} parts", _WHOSE)
        return found

    async def proxied(self, node: str, path: str) -> Object:
        """What a node's kubelet answers through the API server (``nodes/proxy``)."""
        return await self._connection.ask("GET", f"{_path_of_one(NODES, '', node, 'proxy')}/{path}")

    async def changes(
        self,
        resource: Resource,
        of: Any = dict,  # noqa: ANN401 - a type
        *,
        labels: Mapping[str, str] = NO_LABELS,
        report: Callable[[str], None] = _nobody,
    ) -> AsyncIterator[Change[Any]]:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY, KubernetesError, report=report)
        version = ""
        while True:
            async with backoff:
                if version and (problem := has_gone_back(await self._newest(resource), version)):
                    version = ""
                    report(f"{self.server}: {problem}")
                    backoff.problem = problem
                if not version:
                    async for part in self._listed(resource, of, selector=selector):
                        yield part
                        version = part.version if part.is_last else ""
                try:
                    before = version
                    async for change in self._watched(resource, of, version, selector):
                        if change is None:
                            if backoff.problem:
                                backoff.problem = ""
                                report("")
                            continue
                        version = change.version
                        yield change
                        backoff.well()
                    if version == before:
                        # A server that ends each watch at once is not asked in a circle.
                        await asyncio.sleep(_FIRST_RETRY)
                except GoneError:
                    version = ""

    async def _listed(
        self,
        resource: Resource,
        of: type[T],
        namespace: str = "",
        selector: str = "",
        fields: str = "",
    ) -> AsyncIterator[Listed[T]]:
        decoder = msgspec.json.Decoder(_List[of])  # type: ignore[valid-type] # made for it
        path = _path(resource, namespace)
        what = f"{self.server}: GET {path}"
        limit, continued, is_first = self._chunk, "", True
        is_anew, empty, seen = False, 0, set[str]()
        while is_first or continued:
            said = {
                "limit": limit,
                "continue": continued,
                "labelSelector": selector,
                "fieldSelector": fields,
            }
            query = {name: value for name, value in said.items() if value}
            asked = f"{path}?{urlencode(query)}"
            try:
                raw = await self._connection.read("GET", asked, most=_MOST_IN_A_CHUNK)
            except GoneError:
                if is_first:
                    raise
                if is_anew:
                    raise GoneError(
                        f"{what}: the list has expired while it was read, and again when it was "
                        "begun anew",
                        status=_GONE,
                    ) from None
                # The rest of this list is forgotten: one of now, at once, as chunks take too long.
                limit, continued, is_first = 0, "", True
                is_anew, empty, seen = True, 0, set()
                continue
            found = self._decoded(decoder, raw, asked)
            continued = found.metadata.continued
            if continued in seen:
                raise KubernetesError(
                    f"{what}: a list that goes round in circles: a continue token came again",
                    _WHOSE,
                )
            seen.add(continued)
            empty = 0 if found.items else empty + 1
            if continued and empty >= _MOST_EMPTY:
                raise KubernetesError(
                    f"{what}: {empty} parts of a list with nothing in them", _WHOSE
                )
            version = found.metadata.resourceVersion
            yield Listed(found.items or (), version, is_first, not continued)
            is_first = False

    async def _newest(self, resource: Resource) -> str:
        """The version that the server is at."""
        path = f"{_path(resource)}?limit=1"
        raw = await self._connection.read("GET", path, most=_MOST_IN_A_CHUNK)
        return self._decoded(msgspec.json.Decoder(_List[Raw]), raw, path).metadata.resourceVersion

    async def _watched(
        self, resource: Resource, of: type[T], version: str, selector: str
    ) -> AsyncIterator[Changed[T] | Progress | None]:
        """What changes; first None, once the server has begun to tell."""
        seconds = _WATCH * (1 + random.random())  # noqa: S311 - only to spread them
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(int(seconds)),
        } | ({"labelSelector": selector} if selector else {})
        path = f"{_path(resource)}?{urlencode(query)}"
        events, bare = msgspec.json.Decoder(_Event), msgspec.json.Decoder(_Bare)
        objects = msgspec.json.Decoder(of)
        lines, due = self._connection.lines(path, seconds + _LATE), None
        while True:
            try:
                async with asyncio.timeout(due):
                    line = await anext(lines, None)
            except TimeoutError:
                what = f"{self.server}: watch {_path(resource)}"
                raise KubernetesError(f"{what}: nothing was heard for {due:g} s") from None
            if line is None:
                return
            if not line:
                yield None
                continue
            event = self._decoded(events, line, path)
            if event.type == "ERROR":
                status = self._decoded(msgspec.json.Decoder(_Status), event.object, path)
                raise refusal(
                    status.code,
                    status.reason,
                    f"{self.server}: watch {_path(resource)}: {status.message}",
                )
            seen = self._decoded(bare, event.object, path).metadata.resourceVersion
            if event.type == "BOOKMARK":
                due = self._silence
                yield Progress(seen)
            elif event.type in Kind.__members__:
                changed = self._decoded(objects, event.object, path)
                yield Changed(Kind(event.type), changed, seen)

    def _decoded(self, decoder: msgspec.json.Decoder[T], raw: bytes | Raw, path: str) -> T:
        try:
            return decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise KubernetesError(
                f"{self.server}: GET {path.partition('?')[0]}: {error}", _WHOSE
            ) from None


def _path_of_one(resource: Resource, namespace: str, name: str, subresource: str = "") -> str:
    """Of one object; a name without which, or with which, it would be another path is refused."""
    if not name or (resource.is_namespaced and not namespace):
        raise KubernetesError(f"{resource.plural}: an object has to have a name", status=400)
    path = f"{_path(resource, namespace)}/{_segment(name)}"
    return f"{path}/{subresource}" if subresource else path


def _path(resource: Resource, namespace: str = "") -> str:
    """Of all objects there."""
    root = f"/apis/{resource.group}" if resource.group else "/api"
    parts = [root, resource.version]
    if namespace and resource.is_namespaced:
        parts += ["namespaces", _segment(namespace)]
    return "/".join((*parts, resource.plural))


def _segment(name: str) -> str:
    if name in {".", ".."}:
        raise KubernetesError(f"{name!r} is not a name", status=400)
    return quote(name, safe="")

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
from pinfold.adapters.kubernetes.connection import MERGE, Connection
from pinfold.ports.kubernetes import (
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
    refusal,
)
from pinfold.retry.backoff import Backoff

TIMEOUT: Final = 10.0
"""Seconds for a request, all in all."""

CHUNK: Final = 500
"""Objects in one part of a list; as other clients ask."""

_MOST_IN_A_CHUNK: Final = 256 << 20
_WATCH: Final = 240.0
"""Seconds after which a server ends a watch; up to twice as many, so that not all end at once."""
_SILENCE: Final = 15.0
"""How many more seconds it may take to do so."""
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


def _nobody(_problem: str) -> None: ...


class KubeObjects:
    """A :class:`pinfold.ports.kubernetes.Kubernetes` over HTTP; to be closed.

    Args:
        access: the server.
        timeout: seconds for a request, all in all; a watch may last.
        connections: how many there are at the most; each watch keeps one.
        chunk: objects in one part of a list.
    """

    def __init__(
        self,
        access: Access,
        *,
        timeout: float = TIMEOUT,
        connections: int = 16,
        chunk: int = CHUNK,
    ) -> None:
        self._chunk = chunk
        self._connection = Connection(access, timeout=timeout, connections=connections)

    @property
    def server(self) -> str:
        """The address."""
        return self._connection.server

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        return await self._connection.ask("GET", _path(resource, namespace, name))

    async def create(self, resource: Resource, created: Mapping[str, Any]) -> Object:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        namespace = created["metadata"].get("namespace", "")
        return await self._connection.ask("POST", _path(resource, namespace), created)

    async def update(
        self, resource: Resource, changed: Mapping[str, Any], subresource: str = ""
    ) -> Object:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        metadata = changed["metadata"]
        path = _path(resource, metadata.get("namespace", ""), metadata["name"], subresource)
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
        path = _path(resource, namespace, name, subresource)
        return await self._connection.ask("PATCH", path, changes, MERGE)

    async def delete(self, resource: Resource, name: str, namespace: str = "") -> None:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        await self._connection.ask("DELETE", _path(resource, namespace, name))

    async def list(self, resource: Resource, namespace: str = "") -> Sequence[Object]:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        found: list[Object] = []
        async for part in self._listed(resource, dict, namespace):
            if part.is_first:
                found.clear()
            found += part.objects
        return found

    async def changes(
        self,
        resource: Resource,
        of: Any = dict,  # noqa: ANN401 - a type
        *,
        report: Callable[[str], None] = _nobody,
    ) -> AsyncIterator[Change[Any]]:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        backoff = Backoff(_FIRST_RETRY, _LONGEST_RETRY, KubernetesError, report=report)
        version = ""
        while True:
            async with backoff:
                if not version:
                    async for part in self._listed(resource, of):
                        yield part
                        version = part.version if part.is_last else ""
                try:
                    before = version
                    async for change in self._watched(resource, of, version):
                        version = change.version
                        yield change
                        backoff.well()
                    if version == before:
                        # A server that ends each watch at once is not asked in a circle.
                        await asyncio.sleep(_FIRST_RETRY)
                except GoneError:
                    version = ""

    async def _listed(
        self, resource: Resource, of: type[T], namespace: str = ""
    ) -> AsyncIterator[Listed[T]]:
        decoder = msgspec.json.Decoder(_List[of])  # type: ignore[valid-type] # made for it
        path = _path(resource, namespace)
        limit, continued, is_first = self._chunk, "", True
        while is_first or continued:
            query = ({"limit": limit} if limit else {}) | (
                {"continue": continued} if continued else {}
            )
            asked = f"{path}?{urlencode(query)}"
            try:
                raw = await self._connection.read("GET", asked, most=_MOST_IN_A_CHUNK)
            except GoneError:
                if is_first:
                    raise
                # The rest of this list is forgotten: one of now, at once, as chunks take too long.
                limit, continued, is_first = 0, "", True
                continue
            found = self._decoded(decoder, raw, asked)
            continued = found.metadata.continued
            version = found.metadata.resourceVersion
            yield Listed(found.items or (), version, is_first, not continued)
            is_first = False

    async def _watched(
        self, resource: Resource, of: type[T], version: str
    ) -> AsyncIterator[Changed[T] | Progress]:
        seconds = _WATCH * (1 + random.random())  # noqa: S311 - only to spread them
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(int(seconds)),
        }
        path = f"{_path(resource)}?{urlencode(query)}"
        events, bare = msgspec.json.Decoder(_Event), msgspec.json.Decoder(_Bare)
        objects = msgspec.json.Decoder(of)
        async for line in self._connection.lines(path, seconds + _SILENCE):
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
                yield Progress(seen)
            elif event.type in Kind.__members__:
                changed = self._decoded(objects, event.object, path)
                yield Changed(Kind(event.type), changed, seen)

    def _decoded(self, decoder: msgspec.json.Decoder[T], raw: bytes | Raw, path: str) -> T:
        try:
            return decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise KubernetesError(
                f"{self.server}: GET {path.partition('?')[0]}: {error}", "is it an API server?"
            ) from None


def _path(resource: Resource, namespace: str = "", name: str = "", subresource: str = "") -> str:
    root = f"/apis/{resource.group}" if resource.group else "/api"
    parts = [root, resource.version]
    if namespace and resource.is_namespaced:
        parts += ["namespaces", quote(namespace, safe="")]
    parts += [resource.plural, quote(name, safe=""), subresource]
    return "/".join(part for part in parts if part)

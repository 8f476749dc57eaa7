"""HTTP with an API server: one request and its answer, or the lines of a watch."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from pinfold.adapters.kubernetes.access import Access
from pinfold.ports.kubernetes import KubernetesError, refusal

if TYPE_CHECKING:
    import httpx

JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"

_MAX_ANSWER: Final = 16 << 20
_REMEDIES: Final = {
    401: "the token or certificate is not known or has expired",
    403: "give this account the rights of deploy/kubernetes",
}
_TOO_MANY: Final = 429
_SHORT: Final = frozenset(map(str, range(6)))
"""Seconds that are waited where a server says so; who says more is not waited for."""
_TRIES: Final = 4
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    # A watch may be silent for minutes: a server that is gone is noticed within 30 s all the same.
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class _BusyError(KubernetesError):
    """A server has too much to do, and says in how many seconds to ask again."""

    def __init__(self, refused: KubernetesError, seconds: int) -> None:
        super().__init__(refused.problem, refused.remedy, status=refused.status)
        self.seconds = seconds


class Asked(Struct, frozen=True):
    """A request that is over; ``status`` is 0 where no server answered, ``path`` has its query."""

    method: str
    path: str
    status: int
    seconds: float


def _nobody(_asked: Asked) -> None: ...


class Connection:
    """Requests to one API server; to be closed.

    Every method raises :class:`KubernetesError` where the server cannot be reached or refuses.

    Args:
        access: the server.
        timeout: seconds for a request, all in all.
        connections: how many there are at the most, watches included.
        heard: told of each request when it is over.
    """

    def __init__(
        self,
        access: Access,
        *,
        timeout: float,
        connections: int = 2,
        heard: Callable[[Asked], None] = _nobody,
    ) -> None:
        self._access = access
        self._heard = heard
        self._timeout = timeout
        # Not at the first request: loading it takes some 80 ms, and a runtime may wait.
        import httpx  # noqa: PLC0415 - 63 ms: only where there is an API server

        try:
            _ = httpx.URL(access.server).host
        except (httpx.InvalidURL, UnicodeError):
            # Which letters names have is another matter to it than to who has read the address.
            raise KubernetesError(f"{access.server}: no name that a host has") from None
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                verify=access.tls or False,
                # Proxies and passwords of whoever started the agent are not meant for it.
                trust_env=False,
                limits=httpx.Limits(
                    max_connections=connections, max_keepalive_connections=max(1, connections // 2)
                ),
                socket_options=_KEEPALIVE,
            ),
            timeout=timeout,
            trust_env=False,
        )

    @property
    def server(self) -> str:
        """The address."""
        return self._access.server

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        """The JSON object that is the answer."""
        content = await self.read(method, path, body, content_type)
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            what = self._what(method, path)
            raise KubernetesError(f"{what}: the answer is no JSON object", "is it an API server?")
        return document

    async def read(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        *,
        most: int = _MAX_ANSWER,
    ) -> bytes:
        """The answer as it came, of ``most`` bytes at the most.

        A server that has too much to do says when to ask again: what only reads is, a few times.
        """
        what = self._what(method, path)
        until = time.monotonic() + self._timeout
        tries = _TRIES if method == "GET" else 1
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    tries -= 1
                    try:
                        async with self._begun(
                            what, method, path, body, content_type, most=most
                        ) as answer:
                            return await _body(what, answer, most)
                    except _BusyError as busy:
                        if not tries or time.monotonic() + busy.seconds >= until:
                            raise
                        seconds = busy.seconds
                    await asyncio.sleep(seconds)
        except TimeoutError:
            raise KubernetesError(f"{what}: no answer within {self._timeout:g} s") from None

    async def lines(self, path: str, silence: float) -> AsyncIterator[bytes]:
        """The lines of an answer as they come, until the server ends it; first an empty one.

        That comes once the server has begun to answer.

        Args:
            path: what is watched.
            silence: seconds after which a server that says nothing counts as gone.
        """
        what = self._what("GET", path)
        async with self._begun(what, "GET", path, None, JSON, silence=silence) as answer:
            yield b""
            rest = bytearray()
            async for part in answer.aiter_bytes():
                rest += part
                if len(rest) > _MAX_ANSWER:
                    raise KubernetesError(f"{what}: a line of more than {_MAX_ANSWER >> 20} MiB")
                if b"\n" in part:
                    *whole, last = rest.split(b"\n")
                    rest = last
                    for line in whole:
                        if line:
                            yield bytes(line)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _what(self, method: str, path: str) -> str:
        return f"{self.server}: {method} {path.partition('?')[0]}"

    @asynccontextmanager
    async def _begun(  # noqa: PLR0913 - a request
        self,
        what: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        content_type: str,
        *,
        most: int = _MAX_ANSWER,
        silence: float = 0.0,
    ) -> AsyncIterator[httpx.Response]:
        import httpx  # noqa: PLC0415 - 63 ms: only where there is an API server

        headers = {"Accept": JSON}
        if token := self._access.bearer():
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = content_type
        name = self._access.tls_name
        status, began = 0, time.monotonic()
        try:
            async with self._http.stream(
                method,
                self.server + path,
                headers=headers,
                content=None if body is None else msgspec.json.encode(body),
                extensions={"sni_hostname": name} if name else None,
                timeout=httpx.Timeout(self._timeout, read=silence or self._timeout),
            ) as answer:
                status = answer.status_code
                if answer.status_code >= 300:
                    refused = _refused(what, answer.status_code, await _body(what, answer, most))
                    after = answer.headers.get("Retry-After", "")
                    if answer.status_code == _TOO_MANY and after in _SHORT:
                        raise _BusyError(refused, int(after))
                    raise refused
                yield answer
        except httpx.ReadTimeout:
            waited = silence or self._timeout
            raise KubernetesError(f"{what}: nothing was heard for {waited:g} s") from None
        except httpx.ConnectError as error:
            remedy = "is this its address, and does it run?"
            raise KubernetesError(f"{what}: {error or 'no connection'}", remedy) from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            text = str(error) or type(error).__name__
            raise KubernetesError(f"{what}: {text}") from None
        finally:
            self._heard(Asked(method, path, status, time.monotonic() - began))


async def _body(what: str, answer: httpx.Response, most: int) -> bytes:
    parts, size = [], 0
    async for part in answer.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > most:
            raise KubernetesError(f"{what}: an answer of more than {most >> 20} MiB")
    return b"".join(parts)


def _refused(what: str, status: int, content: bytes) -> KubernetesError:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        document = {}
    message, reason = document.get("message"), document.get("reason")
    said = message if isinstance(message, str) else content[:200].decode(errors="replace")
    return refusal(
        status,
        reason if isinstance(reason, str) else "",
        f"{what}: status {status}: {said[:500]!r}",
        _REMEDIES.get(status, ""),
    )

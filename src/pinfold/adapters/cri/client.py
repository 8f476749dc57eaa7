"""Calls to a container runtime: none hangs for ever, and each failure names method and socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.ports.errors import RuntimeFailedError
from pinfold.retry.backoff import Backoff

QUICK: Final = 10.0
"""Seconds for what only reads, and for changes that start nothing."""
LONG: Final = 120.0
"""Seconds for what starts or ends processes; what the kubelet gives them, too."""
PULL: Final = 1800.0
"""Seconds for an image to come."""

_RUNTIME: Final = "/runtime.v1.RuntimeService/"
_IMAGES: Final = "/runtime.v1.ImageService/"
_LARGEST: Final = 16 << 20
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_AWAY: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
_NEVER_SENT: Final = ("failed to connect", "connections to all backends failing")
"""How gRPC words that a request has not left this process."""
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _LARGEST),
    ("grpc.max_send_message_length", _LARGEST),
    # A runtime that restarts is back within a second; the default waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # So long may one attempt take: a busy machine answers late.
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Servers refuse an authority with the slashes of a socket's path in it.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # Channels to the same address would share a connection, and its state, otherwise.
    ("grpc.use_local_subchannel_pool", 1),
)

M = TypeVar("M", bound=Message)


class Retry(Enum):
    """When a call that failed is made again."""

    SAFE = "SAFE"
    """It may happen twice: whenever the runtime was not there."""
    ONCE = "ONCE"
    """Only when the request cannot have reached the runtime."""


class CriError(RuntimeFailedError):
    """A call failed; ``code`` is gRPC's word, such as ``NOT_FOUND``."""

    def __init__(self, problem: str, remedy: str = "", *, code: str = "UNKNOWN") -> None:
        super().__init__(problem, remedy, is_away=code in _AWAY)
        self.code = code


class CriClient:
    """One runtime at ``address`` (``unix:///...``), for one event loop.

    A runtime that restarts is waited for within each call's own time; the connection comes back
    by itself.  ``quick`` and ``long`` are the times in seconds.
    """

    def __init__(self, address: str, *, quick: float = QUICK, long: float = LONG) -> None:
        self.address = address
        self.quick = quick
        self.long = long
        self._channel: grpc.aio.Channel | None = None

    async def call(
        self,
        method: str,
        request: Message,
        answer: type[M],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the runtime is told it, too
        retry: Retry = Retry.SAFE,
    ) -> M:
        """Call a method once, or until it is answered.

        Args:
            method: its name; that of the image service with ``Image`` in it.
            request: its message.
            answer: the class of its answer.
            timeout: seconds for everything together; ``quick`` if none is given.
            retry: whether it may happen twice.

        Raises:
            CriError: it failed, was not answered in time, or was not understood.
        """
        ends = time.monotonic() + (self.quick if timeout is None else timeout)
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                data = await self._once(method, request, max(ends - time.monotonic(), 0.001))
            except grpc.aio.AioRpcError as error:
                left = ends - time.monotonic()
                if not _again(error, retry) or left < backoff.pause:
                    raise self._failure(method, error) from None
                await asyncio.sleep(backoff.failed())
            else:
                return self._parsed(method, data, answer)

    async def events(self) -> AsyncIterator[pb.ContainerEventResponse]:
        """What happens to containers, from now on, until the stream breaks.

        Raises:
            CriError: it broke, or is not offered (``UNIMPLEMENTED``).
        """
        method = "GetContainerEvents"
        stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._open().unary_stream(
            f"{_RUNTIME}{method}"
        )
        call = stream(pb.GetEventsRequest().SerializeToString())
        try:
            async for data in call:
                yield self._parsed(method, data, pb.ContainerEventResponse)
        except grpc.aio.AioRpcError as error:
            raise self._failure(method, error) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close the connection."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)

    async def _once(self, method: str, request: Message, seconds: float) -> bytes:
        service = _IMAGES if "Image" in method else _RUNTIME
        # Bytes in, bytes out: so that an answer that is none is an error of ours.
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._open().unary_unary(
            f"{service}{method}"
        )
        return await ask(request.SerializeToString(), timeout=seconds)

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(
                self.address.replace("unix://", "unix:", 1), options=_OPTIONS
            )
        return self._channel

    def _parsed(self, method: str, data: bytes, answer: type[M]) -> M:
        try:
            return answer.FromString(data)
        except DecodeError:
            raise self.garbage(method, f"{len(data)} bytes that are no {answer.__name__}") from None

    def garbage(self, method: str, what: str) -> CriError:
        """An answer that makes no sense."""
        return CriError(
            f"{method} at {self.address} was answered with {what}",
            "see that a container runtime listens there",
            code="DATA_LOSS",
        )

    def _failure(self, method: str, error: grpc.aio.AioRpcError) -> CriError:
        code = error.code().name
        details = " ".join((error.details() or "").split())[:500] or "no reason"
        where = f"{method} at {self.address}"
        if code == "DEADLINE_EXCEEDED":
            return CriError(
                f"{where} was not answered in time", "see what the runtime's log says", code=code
            )
        if code == "UNAVAILABLE":
            return CriError(
                f"{where} failed, the runtime is not reachable: {details}",
                "see that it runs and that its socket may be opened",
                code=code,
            )
        if code == "UNIMPLEMENTED":
            return CriError(
                f"{where} is not offered: {details}",
                "runtime.v1 is spoken by containerd 1.6 and CRI-O 1.23 or newer; containerd's"
                ' disabled_plugins must not have "cri" in it',
                code=code,
            )
        return CriError(f"{where} failed: {details}", code=code)


@contextmanager
def gone_is_fine() -> Iterator[None]:
    """What is to be ended or removed, and is not there, is no error."""
    try:
        yield
    except CriError as error:
        if error.code != "NOT_FOUND":
            raise


def _again(error: grpc.aio.AioRpcError, retry: Retry) -> bool:
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    details = (error.details() or "").lower()
    return retry is Retry.SAFE or any(text in details for text in _NEVER_SENT)

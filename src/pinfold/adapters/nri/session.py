"""One connection to a runtime's NRI socket: ttrpc in both directions at once.

Requests are answered one at a time, in the order in which they come; while one is worked on, few
more are taken off the socket, so that a runtime that asks faster than is answered has to wait.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from pinfold.adapters.nri import ttrpc_pb2 as envelope
from pinfold.adapters.nri.frames import (
    FramingError,
    Message,
    MessageReader,
    MessageType,
    Splitter,
    encode_message,
)
from pinfold.ports.errors import RuntimeFailedError

PLUGIN_CONNECTION: Final = 1
"""The logical connection on which the runtime asks."""
RUNTIME_CONNECTION: Final = 2
"""The logical connection on which the plugin asks."""

UNKNOWN: Final = 2
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
"""gRPC's status codes, which ttrpc uses as well."""

_READ: Final = 1 << 16
_WAITING_REQUESTS: Final = 8
_GRACE: Final = 2.0


class Request(Struct, frozen=True):
    """A call of the runtime; ``arrived`` is on the monotonic clock.

    ``timeout`` is how long its caller waits for the answer, in seconds, None where it does not say.
    """

    service: str
    method: str
    payload: bytes
    arrived: float
    timeout: float | None

    @property
    def expired(self) -> bool:
        """Whether the caller no longer waits."""
        return self.timeout is not None and time.monotonic() - self.arrived > self.timeout


class CallFailedError(Exception):
    """An answer that is an error: a gRPC status code and what it says."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Server:
    """What answers a session's requests."""

    def arrived(self, request: Request) -> None:
        """A request was taken off the socket; it is answered in its turn."""

    async def answer(self, request: Request) -> bytes:
        """Make an answer; raises CallFailedError."""
        raise CallFailedError(UNIMPLEMENTED, f"no method {request.method}")

    def answered(self, request: Request) -> None:
        """The answer to a request is out, or the connection is gone."""


class Session:
    """A connection, from :meth:`connect` to :meth:`close`.

    ``socket`` names it in errors; a peer that takes nothing for ``write_timeout`` seconds is left.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        socket: str,
        write_timeout: float = 10.0,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._socket = socket
        self._write_timeout = write_timeout
        # Nothing is left in a buffer when a write is over: then the answer really is out.
        writer.transport.set_write_buffer_limits(high=0)
        self._writing = asyncio.Lock()
        self._stream = -1
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._requests: asyncio.Queue[tuple[int, Request]] = asyncio.Queue(_WAITING_REQUESTS)
        self._resting = asyncio.Event()
        self._resting.set()
        self._why = ""

    @classmethod
    async def connect(cls, path: Path, *, write_timeout: float = 10.0) -> Session:
        """Connect to a unix socket; raises OSError."""
        reader, writer = await asyncio.open_unix_connection(path)
        return cls(reader, writer, socket=str(path), write_timeout=write_timeout)

    # ------------------------------------------------------------------------------- as a client

    async def call(self, service: str, method: str, payload: bytes, timeout: float) -> bytes:  # noqa: ASYNC109 - the peer is told it too
        """Ask the runtime; the answer's payload.

        Raises:
            RuntimeFailedError: it answers with an error, with garbage, not in time, or is gone.
        """
        self._stream += 2
        stream = self._stream
        body = envelope.Request(
            service=service, method=method, payload=payload, timeout_nano=int(timeout * 1e9)
        ).SerializeToString()
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._why:
            raise self._gone(method)
        self._calls[stream] = future
        try:
            async with asyncio.timeout(timeout):
                await self._send(RUNTIME_CONNECTION, Message(stream, MessageType.REQUEST, body))
                answer = envelope.Response.FromString(await future)
        except TimeoutError:
            raise RuntimeFailedError(
                f"{self._socket}: {method}: no answer within {timeout:g} s",
                "see whether the runtime hangs, and restart it if it does",
            ) from None
        except (DecodeError, ValueError) as error:
            raise RuntimeFailedError(f"{self._socket}: {method}: {error}") from error
        except ConnectionError as error:
            raise self._gone(method) from error
        finally:
            self._calls.pop(stream, None)
        if answer.status.code:
            raise RuntimeFailedError(
                f"{self._socket}: {method}: {answer.status.message} (code {answer.status.code})"
            )
        return answer.payload

    def _gone(self, method: str) -> RuntimeFailedError:
        return RuntimeFailedError(f"{self._socket}: {method}: {self._why or 'connection lost'}")

    # ------------------------------------------------------------------------------- as a server

    async def serve(self, server: Server) -> str:
        """Answer until the connection ends.

        Returns:
            Why it ended.
        """
        worker = asyncio.create_task(self._work(server))
        reading = asyncio.create_task(self._read(server))
        try:
            await asyncio.wait({worker, reading}, return_when=asyncio.FIRST_COMPLETED)
            self._end("the runtime closed the connection")
            # What is being worked on comes to its end: half a decision is worse than a late one.
            await self._resting.wait()
        except asyncio.CancelledError:
            reading.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE):
                    await self._resting.wait()
            raise
        finally:
            self._end("the plugin closed the connection")
            reading.cancel()
            worker.cancel()
            await asyncio.gather(reading, worker, return_exceptions=True)
        for task in (reading, worker):
            if not task.cancelled():
                task.result()
        return self._why

    @property
    def busy(self) -> bool:
        """Whether the runtime waits for an answer."""
        return not self._resting.is_set() or not self._requests.empty()

    def leave(self, why: str) -> None:
        """Hang up; :meth:`serve` then ends with ``why``."""
        self._end(why)

    async def close(self) -> None:
        """Hang up."""
        self._end("the plugin closed the connection")
        with suppress(OSError):
            await self._writer.wait_closed()

    def _end(self, why: str) -> None:
        """Hang up; the first to say why is right."""
        self._why = self._why or why
        self._writer.transport.abort()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(ConnectionError(self._why))

    async def _read(self, server: Server) -> None:
        splitter = Splitter()
        readers = {PLUGIN_CONNECTION: MessageReader(), RUNTIME_CONNECTION: MessageReader()}
        try:
            while data := await self._reader.read(_READ):
                for connection, piece in splitter.feed(data):
                    # Other connections are dropped, as the runtime drops those it does not know.
                    if connection in readers:
                        for message in readers[connection].feed(piece):
                            await self._take(connection, message, server)
            if splitter.in_frame:
                self._end("the runtime closed the connection in the middle of a frame")
        except FramingError as error:
            self._end(f"the peer speaks no NRI: {error}")
        except OSError as error:
            self._end(f"connection lost: {error}")

    async def _take(self, connection: int, message: Message, server: Server) -> None:
        if connection == RUNTIME_CONNECTION:
            future = self._calls.get(message.stream)
            if message.kind == MessageType.RESPONSE and future is not None and not future.done():
                if message.oversized:
                    future.set_exception(ValueError(f"an answer of {message.oversized} bytes"))
                else:
                    future.set_result(message.body)
            return
        if message.kind != MessageType.REQUEST:
            return
        if message.stream % 2 == 0:
            await self._refuse(message, INVALID_ARGUMENT, "a client's stream ids are odd")
        elif message.oversized:
            await self._refuse(
                message, RESOURCE_EXHAUSTED, f"a request of {message.oversized} bytes is too long"
            )
        else:
            try:
                body = envelope.Request.FromString(message.body)
            except DecodeError as error:
                await self._refuse(message, INVALID_ARGUMENT, f"no ttrpc request: {error}")
                return
            timeout = body.timeout_nano / 1e9 if body.timeout_nano > 0 else None
            request = Request(body.service, body.method, body.payload, time.monotonic(), timeout)
            server.arrived(request)
            await self._requests.put((message.stream, request))

    async def _refuse(self, message: Message, code: int, text: str) -> None:
        status = envelope.Status(code=code, message=text)
        await self._respond(message.stream, envelope.Response(status=status))

    async def _work(self, server: Server) -> None:
        while not self._why:
            stream, request = await self._requests.get()
            self._resting.clear()
            try:
                try:
                    response = envelope.Response(payload=await server.answer(request))
                except CallFailedError as error:
                    text = str(error).encode("utf-8", "replace").decode()
                    response = envelope.Response(
                        status=envelope.Status(code=error.code, message=text)
                    )
                await self._respond(stream, response)
            finally:
                self._resting.set()
                server.answered(request)

    async def _respond(self, stream: int, response: envelope.Response) -> None:
        with suppress(ConnectionError, TimeoutError):  # _send has ended the connection
            message = Message(stream, MessageType.RESPONSE, response.SerializeToString())
            try:
                await self._send(PLUGIN_CONNECTION, message)
            except ValueError as error:
                status = envelope.Status(code=RESOURCE_EXHAUSTED, message=f"the answer: {error}")
                body = envelope.Response(status=status).SerializeToString()
                await self._send(PLUGIN_CONNECTION, Message(stream, MessageType.RESPONSE, body))

    async def _send(self, connection: int, message: Message) -> None:
        data = encode_message(connection, message)
        async with self._writing:
            if self._why:
                raise ConnectionError(self._why)
            self._writer.write(data)
            try:
                async with asyncio.timeout(self._write_timeout):
                    await self._writer.drain()
            except TimeoutError:
                self._end(f"the runtime took nothing for {self._write_timeout:g} s")
                raise
            except OSError as error:
                self._end(f"connection lost: {error}")
                raise ConnectionError(self._why) from error

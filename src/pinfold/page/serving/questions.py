"""What the page asks of the agent: a closed list, and all of it only reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Struct

from pinfold.documents.api import Error, History
from pinfold.documents.explanation import Explanation
from pinfold.documents.live.event import Event
from pinfold.formats.event_stream import SILENCE, EventStream, StreamError
from pinfold.ports.errors import PortError

_T = TypeVar("_T")

ANSWERED: Final = 20.0
"""Seconds in which an agent has answered, or refused, whatever it is asked."""

LARGEST: Final = 64 << 20
"""Bytes of an answer, unpacked; a history of all entries has a tenth of that."""

CONNECTED: Final = 5.0

_NOT_FOUND: Final = 404
_STATUS: Final = 400


class Question(Struct, Generic[_T], frozen=True):
    """One thing that the agent is asked: always a ``GET``.

    Attributes:
        path: with a place for each name that is put in.
        form: what is understood of the answer; what else it holds goes no further.
    """

    path: str
    form: type[_T]


EVENTS: Final = Question("/v1/events", Event)
HISTORY: Final = Question("/v1/history", History)
EXPLANATION: Final = Question("/v1/explain/{namespace}/{name}", Explanation)

QUESTIONS: Final[tuple[Question[Any], ...]] = (EVENTS, HISTORY, EXPLANATION)
"""All of them."""


class AwayError(PortError):
    """The agent does not answer, or not in words that are understood here."""


class RefusedError(PortError):
    """The agent has answered with an error.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, status: int, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.status = status


class AskedAgent:
    """The agent at a socket.

    Args:
        socket: its path.
        patience: seconds in which a question is answered, however much comes.
    """

    def __init__(self, socket: Path, patience: float = ANSWERED) -> None:
        self._socket = socket
        self._patience = patience
        # Nothing of the environment: neither a proxy nor a certificate has a part in this.
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(socket)),
            base_url="http://pinfold",
            timeout=httpx.Timeout(patience, connect=CONNECTED),
            trust_env=False,
        )

    async def close(self) -> None:
        """Hang up."""
        await self._client.aclose()

    async def ask(
        self,
        question: Question[_T],
        *names: str,
        query: Mapping[str, str | int] = MappingProxyType({}),
    ) -> _T:
        """The answer, as a document of the question's form.

        Args:
            question: what is asked.
            names: what is put into the path, in its order.
            query: its parameters.

        Raises:
            AwayError: the agent does not answer.
            RefusedError: it refuses.
        """
        path = filled(question.path, names)
        with self._failures():
            async with (
                asyncio.timeout(self._patience),
                self._client.stream("GET", path, params=dict(query)) as answer,
            ):
                content = await self._content(answer)
        try:
            return msgspec.json.decode(content, type=question.form)
        except msgspec.DecodeError as error:
            raise _other_version(error) from None

    async def events(self) -> AsyncGenerator[Event, None]:
        """All that there is, and then what changes, until the agent is away; never just ends.

        Raises:
            AwayError: it does not answer, has ended, or says nothing any more.
            RefusedError: it refuses.
        """
        timeout = httpx.Timeout(SILENCE, connect=CONNECTED)
        stream, decode = EventStream(), msgspec.json.Decoder(Event).decode
        with self._failures():
            async with self._client.stream("GET", EVENTS.path, timeout=timeout) as answer:
                if answer.status_code == _NOT_FOUND:
                    raise AwayError(
                        f"the agent at {self._socket} tells no events: it is of an older version",
                        "restart it with this one",
                    )
                if answer.status_code >= _STATUS:
                    await self._content(answer)
                async for piece in answer.aiter_raw():
                    try:
                        for message in stream.feed(piece):
                            yield decode(message.data)
                    except (StreamError, msgspec.DecodeError) as error:
                        raise _other_version(error) from None
        raise AwayError(f"the agent at {self._socket} has ended", "it is stopped, or restarted")

    async def _content(self, answer: httpx.Response) -> bytes:
        """The whole of an answer that is not an error's."""
        content = bytearray()
        async for piece in answer.aiter_bytes():
            content += piece
            if len(content) > LARGEST:
                raise AwayError(
                    f"the agent at {self._socket} answers with more than {LARGEST} bytes",
                    "see its log",
                )
        if answer.status_code >= _STATUS:
            raise _refusal(answer.status_code, bytes(content))
        return bytes(content)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError:
            raise AwayError(
                f"no agent listens on {self._socket}",
                "start one with: pinfold agent (or systemctl start pinfold)",
            ) from None
        except (httpx.TimeoutException, TimeoutError):
            raise AwayError(f"the agent at {self._socket} does not answer", "see its log") from None
        except httpx.TransportError as error:
            # Also where it lets nobody in but its own user and root.
            raise AwayError(
                f"the agent at {self._socket} has hung up: {str(error) or type(error).__name__}",
                "it has ended; or only its own user and root may ask it, and this is another",
            ) from None


def filled(path: str, names: tuple[str, ...]) -> str:
    """A path with a name in each of its places, which stays one segment whatever the name is.

    Dots are escaped, too: ``..`` would lead out of the path (RFC 3986, 5.2.4) and so to whatever
    else the agent may be asked.
    """
    told = ""
    for name in names:
        before, _, path = path.partition("{")
        told += before + quote(name, safe="").replace(".", "%2E")
        path = path.partition("}")[2]
    return told + path


def _refusal(status: int, content: bytes) -> RefusedError:
    try:
        fault = msgspec.json.decode(content, type=Error).error
    except msgspec.DecodeError:
        return RefusedError(status, f"the agent answered with status {status}")
    return RefusedError(status, fault.message, fault.remedy)


def _other_version(error: Exception) -> AwayError:
    return AwayError(
        f"the agent says what is not understood here: {error}",
        "agent and page are of different versions: restart both",
    )

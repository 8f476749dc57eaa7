"""What the page's server answers those who are let in."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pinfold.page.files_of_page import page_files
from pinfold.page.serving.answers import POLICY
from pinfold.page.serving.compression import STREAM_BEGINS, block, compressed, wants_gzip
from pinfold.page.serving.door import ADMITTED
from pinfold.page.serving.feed import Feed
from pinfold.page.serving.past import Past
from pinfold.page.serving.questions import EXPLANATION, AskedAgent
from pinfold.views.explain import explained_lines
from pinfold.web.answers import Document, Refusal
from pinfold.web.events.answer import EventsAnswer, events_head, known_id
from pinfold.web.requests import limit, seconds

MOST_STREAMS: Final = 64
"""Pages that are open at the same time."""

_GZIP: Final = {"Content-Encoding": "gzip"}

_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class PageHandlers:
    """One coroutine for each operation, named as in :mod:`pinfold.page.serving.operations`."""

    def __init__(self, agent: AskedAgent, feed: Feed) -> None:
        self._agent = agent
        self._feed = feed
        self._past = Past(agent)
        self._streams = 0
        self._tags: dict[str, str] = {}

    async def page(self, request: Request) -> Response:
        """The page itself, which is going to ask for the node."""
        self._feed.expect()
        return self._file(request, "index.html")

    async def file(self, request: Request) -> Response:
        """One of its files."""
        name = request.path_params["name"]
        if name == "index.html":
            raise Refusal(404, "this is the page itself", "it is at /")
        return self._file(request, name)

    def _file(self, request: Request, name: str) -> Response:
        content = page_files().get(name)
        if content is None:
            raise Refusal(404, f"the page has no file {name!r}")
        tag = self._tags.get(name)
        if tag is None:
            tag = self._tags[name] = f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'
        # To be asked for each time: another version of the program has others.
        headers = {
            **POLICY,
            "Cache-Control": "private, no-cache",
            "ETag": tag,
            "Vary": "Accept-Encoding",
        }
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        if wants_gzip(request):
            content, headers = compressed(content), {**headers, **_GZIP}
        return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)

    async def events(self, request: Request) -> Response:
        """The node from now on."""
        if request.method == "HEAD":
            self._expect_room()
            return events_head(POLICY)
        messages, headers = self._messages(request), POLICY
        if wants_gzip(request):
            messages, headers = _compressed(messages), {**headers, **_GZIP}
        return EventsAnswer(messages, self._one_more(), headers)

    def _expect_room(self) -> None:
        if self._streams >= MOST_STREAMS:
            raise Refusal(503, f"{MOST_STREAMS} pages are open already", "close one of them")

    @contextmanager
    def _one_more(self) -> Iterator[None]:
        self._expect_room()
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    async def _messages(self, request: Request) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._feed.messages(known_id(request))) as messages:
            async for message in messages:
                if not request.scope[ADMITTED]():
                    return
                if message:
                    yield message

    async def scene(self, request: Request) -> Response:
        """How the node is drawn."""
        at = seconds(request, "at")
        whole, scene = await self._feed.now()
        if at is not None:
            scene = await self._past.scene(whole, at)
        return _document(scene)

    async def history(self, request: Request) -> Response:
        """What was decided, and what is in nobody's way to be seen."""
        query: dict[str, str | int] = {"limit": limit(request)}
        for name in ("pod", "kind"):
            if name in request.query_params:
                query[name] = request.query_params[name]
        return _document(await self._past.history(query))

    async def explain(self, request: Request) -> Response:
        """Why a pod has what it has, in the words of ``pinfold explain``."""
        names = request.path_params["namespace"], request.path_params["name"]
        told = await self._agent.ask(EXPLANATION, *names)
        return _document({"version": 1, "lines": explained_lines(told)})


async def _compressed(messages: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    yield STREAM_BEGINS
    async with aclosing(messages):
        async for message in messages:
            yield block(message)


def _document(content: Any) -> Response:  # noqa: ANN401 - any document
    return Document(content, headers=POLICY)

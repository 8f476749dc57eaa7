"""Serves the page until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable

from msgspec import Struct

from pinfold.linux.descriptors import raise_file_limit
from pinfold.page.serving.app import make_page
from pinfold.page.serving.connection import PageConnection
from pinfold.page.serving.door import Door
from pinfold.page.serving.feed import Feed
from pinfold.page.serving.handlers import PageHandlers
from pinfold.page.serving.questions import AskedAgent
from pinfold.page.serving.settings import PageSettings
from pinfold.page.serving.token_file import TokenFile
from pinfold.ports.errors import PortError
from pinfold.web.addresses import listen
from pinfold.web.server import Service, serve_on


class Begun(Struct, frozen=True):
    """What is told when the page can be opened.

    Attributes:
        address: without a secret, such as ``http://127.0.0.1:7468/``.
        token: lets in, as ``?token=``, as often as it is used; "" while there is none.
        problem: why there is none.
        ticket: makes another secret that lets in once, soon.
    """

    address: str
    token: str
    problem: str
    ticket: Callable[[], str]


async def serve_page(settings: PageSettings, begun: Callable[[Begun], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        settings: the options.
        begun: called once, when the page can be opened.

    Raises:
        PortError: the address or the token's file cannot be used.
    """
    raise_file_limit()
    token = TokenFile(settings.token_file, makes=settings.makes_token)
    token.prepare()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    agent = AskedAgent(settings.socket)
    feed = Feed(agent)
    door = make_page(PageHandlers(agent, feed), token, settings.host_names)
    with listen(settings.listen) as sock:
        served = serve_on(door, sock, stop=stop, service=Service(PageConnection))
        serving = asyncio.create_task(served, name="the page")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            begun(_begun(sock, token, door))
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await feed.close()
            await serving
        finally:
            stop.set()
            stopping.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await agent.close()


def _begun(sock: socket.socket, token: TokenFile, door: Door) -> Begun:
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    try:
        known, problem = token.token(), ""
    except PortError as error:
        known, problem = "", str(error)
    return Begun(f"http://{shown}:{port}/", known, problem, door.ticket)

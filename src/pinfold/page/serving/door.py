"""Who is let in to the page: by which name, from where, and with which secret.

Anybody on this machine, and any web page in a browser on it, can send requests to the port.  So:

- ``Host`` has to be a name of this machine itself, or one that was given: a page elsewhere that has
  its own name point here (DNS rebinding) has another one.  The port is not looked at: that of a
  forwarded one (``kubectl port-forward``, ``ssh -L``) is the other end's.
- what a page of another origin sends is refused, by ``Sec-Fetch-Site`` and ``Origin``.
- there are only requests that read, but for the form that brings the token.
- the token opens a session, which a cookie stands for: ``EventSource`` sends no headers of its own.
  The cookie is never the token.  Cookies know no ports: another server of this machine that is
  opened in the same browser is sent it, too, and by its name does not take it for its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from pinfold.page.serving.answers import POLICY, refused, sign_in
from pinfold.page.serving.sessions import Sessions, tickets
from pinfold.page.serving.token_file import LONGEST, TokenFile
from pinfold.ports.errors import PortError
from pinfold.web.answers import Refusal
from pinfold.web.bodies import read_body

OWN_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
"""What this machine calls itself, whatever its name."""

ADMITTED: Final = "pinfold.admitted"
"""In the scope of a request that was let in: a function that says whether it still would be."""

HEALTH: Final = "/healthz"
"""The one path for which no secret is needed."""

PAUSE: Final = 0.5
"""Seconds for which the answer to a wrong token waits, for each that waits already."""

LONGEST_PAUSE: Final = 10.0

MOST_WAITING: Final = 20
"""Wrong tokens that wait; from then on they are refused at once, so that they keep nobody out."""

_UNCLEAR: Final = 400
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_.\-]+)(?::(?P<port>\d{1,5}))?")
_MOST_FORM: Final = LONGEST * 3 + 64
"""Bytes: each of the token's may be written with a percent sign."""


class Door:
    """Stands before the application.

    Args:
        app: who answers those who are let in.
        token: the token as it is now.
        host_names: how the page may be called beside :data:`OWN_NAMES`.
        now: seconds, on a clock that never goes back.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: TokenFile,
        host_names: tuple[str, ...] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._token = token
        self._names = frozenset({*OWN_NAMES, *(name.lower() for name in host_names)})
        self._sessions = Sessions(now)
        self._tickets = tickets(now)
        self._of_token = ""
        self._waiting = 0

    def ticket(self) -> str:
        """A secret that lets in once, soon, and only while the token is what it is now."""
        with contextlib.suppress(Refusal):  # Nobody is let in by anything.
            self._now()
        return self._tickets.begin()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or have it answered."""
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except Refusal as refusal:
            answer = refused(refusal)
            if refusal.status == _UNCLEAR:
                answer.headers["Connection"] = "close"
        await (self._app if answer is None else answer)(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        """What is answered here; None: it is let in.

        Raises:
            Refusal: it is not.
        """
        _check_length(request)
        host = self._host(request)
        _check_origin(request)
        signs_in = request.method == "POST" and request.scope["path"] == "/"
        if not signs_in and request.method not in ("GET", "HEAD"):
            raise Refusal(
                405, f"{request.method} is no method of the page", "it only reads: GET, HEAD"
            )
        if request.scope["path"] == HEALTH:
            return PlainTextResponse("ok", headers=POLICY)
        token = self._now()
        cookie = f"pinfold-{host['port'] or 80}"
        offered = await self._offered(request, signs_in=signs_in)
        if offered is not None:
            if self._is_right(offered, token):
                return self._let_in(cookie)
            await self._slow_down()
            return self._not_let_in(request, "This is not the token.")
        secret = request.cookies.get(cookie, "")
        if secret and self._sessions.knows(secret):
            request.scope[ADMITTED] = lambda: self._is_now(token) and self._sessions.knows(secret)
            return None
        if bearer := _bearer(request):
            if hmac.compare_digest(bearer.encode(), token.encode()):
                request.scope[ADMITTED] = lambda: self._is_now(token)
                return None
            await self._slow_down()
            return self._not_let_in(request, "This is not the token.")
        return self._not_let_in(request, "")

    def _host(self, request: Request) -> re.Match[str]:
        hosts = request.headers.getlist("host")
        found = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if found is None or found["name"] not in self._names:
            shown = ", ".join(hosts)[:80]
            raise Refusal(
                403,
                f"this page is not called {shown!r}",
                "open it as localhost, or start it with --host-name and that name",
            )
        return found

    def _now(self) -> str:
        """The token; sessions that another one has opened are over."""
        try:
            token = self._token.token()
        except PortError as error:
            self._end_all()
            raise Refusal(503, f"nobody is let in: {error.problem}", error.remedy) from None
        if token != self._of_token:
            self._end_all()
            self._of_token = token
        return token

    def _end_all(self) -> None:
        self._sessions.end_all()
        self._tickets.end_all()

    def _is_now(self, token: str) -> bool:
        try:
            return self._now() == token
        except Refusal:
            return False

    async def _offered(self, request: Request, *, signs_in: bool) -> str | None:
        """The token that a browser brings; None: it brings none."""
        if signs_in:
            try:
                body = await read_body(request, _MOST_FORM)
            except HTTPException as error:
                raise Refusal(error.status_code, error.detail, "send a token") from None
            form = parse_qs(body.decode(errors="replace"))
            return form.get("token", [""])[0].strip()
        if request.scope["path"] == "/":
            return request.query_params.get("token")
        return None

    def _is_right(self, offered: str, token: str) -> bool:
        told = offered.encode(errors="surrogateescape")
        return hmac.compare_digest(told, token.encode()) or self._tickets.takes(offered)

    def _let_in(self, cookie: str) -> Response:
        """A session, and the page without the token in its address."""
        answer = RedirectResponse("/", 303, headers=POLICY)
        answer.set_cookie(
            cookie, self._sessions.begin(), path="/", httponly=True, samesite="strict"
        )
        return answer

    async def _slow_down(self) -> None:
        if self._waiting >= MOST_WAITING:
            raise Refusal(429, "too many wrong tokens", "wait a little")
        self._waiting += 1
        try:
            await asyncio.sleep(min(LONGEST_PAUSE, PAUSE * self._waiting))
        finally:
            self._waiting -= 1

    def _not_let_in(self, request: Request, problem: str) -> Response:
        if request.scope["path"] == "/":
            return sign_in(problem, self._token.path)
        answer = refused(
            Refusal(
                401,
                problem or "this needs the token",
                "open the address that pinfold serve has printed, or send Authorization: Bearer",
            )
        )
        answer.headers["WWW-Authenticate"] = 'Bearer realm="pinfold"'
        return answer


def _check_length(request: Request) -> None:
    """Refuse a body that ends in two ways: a proxy before this may see another request in it.

    RFC 9112, 6.3; the connection is closed.
    """
    if not {"content-length", "transfer-encoding"} - {*request.headers.keys()}:
        raise Refusal(_UNCLEAR, "the request has both a length and chunks", "send one of both")


def _check_origin(request: Request) -> None:
    """Refuse what a page of another origin has its browser send.

    A browser says so in ``Sec-Fetch-Site``; an older one has ``Origin`` only.  ``null`` is what a
    form of our own has, since its page gives no referrer.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    is_own = origin is None or origin == f"http://{request.headers['host']}"
    if site is not None:
        is_own = site in ("same-origin", "none") and (is_own or origin == "null")
    if not is_own:
        raise Refusal(
            403,
            "another page has sent this request",
            "open the page by its address, in a tab of its own",
        )


def _bearer(request: Request) -> str:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""

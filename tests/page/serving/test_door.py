"""Who is let in to the page, and who is not; by real requests to the real command."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.page.serving.operations import OPERATIONS
from tests.scenes.served_page import ServedPage, served_page
from tests.scenes.web_world import Served, read_all, served

PATHS = tuple(one.path.format(name="page.css", namespace="default") for one in OPERATIONS)

NOBODY = {"Cookie": ""}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("agent") / "a.sock", observes=True) as found:
        yield found


@pytest.fixture(scope="module")
def page(node: Served) -> Iterator[ServedPage]:
    with served_page(node.path, "--host-name", "node-7.example") as found:
        yield found


def raw(page: ServedPage, text: bytes) -> bytes:
    """What is answered to anything that is sent."""
    with socket.create_connection(("127.0.0.1", page.port), timeout=20) as sock:
        sock.sendall(text)
        sock.shutdown(socket.SHUT_WR)
        return read_all(sock)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_answered_without_the_token(page: ServedPage, path: str) -> None:
    for cookie in ("", f"pinfold-{page.port}=", f"pinfold-{page.port}={secrets.token_urlsafe()}"):
        answer = page.ask("GET", path, {"Cookie": cookie})
        assert answer.status == 401
        assert "page-token" in answer.text if path == "/" else answer.error["remedy"]
        assert "set-cookie" not in answer.headers


def test_health_is_nobodys_secret(page: ServedPage) -> None:
    assert page.ask("GET", "/healthz", NOBODY).text == "ok"


def test_the_token_is_exchanged_for_a_cookie_and_is_in_no_address_after_that(
    page: ServedPage,
) -> None:
    answer = page.ask("GET", f"/?token={page.token}", NOBODY)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    name, _, rest = answer.headers["set-cookie"].partition("=")
    value, _, attributes = rest.partition("; ")
    assert name == f"pinfold-{page.port}"
    assert value != page.token
    assert attributes == "HttpOnly; Path=/; SameSite=strict"
    assert page.token not in answer.text + str(answer.headers)
    answer = page.ask("GET", "/", {"Cookie": f"other=1; {name}={value}"})
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_a_form_brings_the_token_too(page: ServedPage) -> None:
    form = {
        "Cookie": "",
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": "null",
        "Sec-Fetch-Site": "same-origin",
    }
    answer = page.ask("POST", "/", form, f"token=++{page.token}%0A")
    assert answer.status == 303
    assert answer.headers["set-cookie"]
    assert page.ask("POST", "/", form, "token=").status == 401
    assert page.ask("POST", "/", form, f"token={'x' * 5000}").status == 413


def test_curl_sends_the_token_itself(page: ServedPage) -> None:
    answer = page.ask(
        "GET", "/v1/history", {"Cookie": "", "Authorization": f"bearer  {page.token} "}
    )
    assert answer.json["entries"] == []
    answer = page.ask("GET", "/v1/history", {"Cookie": "", "Authorization": "Bearer wrong"})
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="pinfold"'
    answer = page.ask("GET", "/v1/history", {"Cookie": "", "Authorization": f"Basic {page.token}"})
    assert answer.status == 401


def test_no_other_page_finds_the_token_where_it_is_no_secret(page: ServedPage) -> None:
    """Only ``/`` takes it in an address: all others would keep it there."""
    assert page.ask("GET", f"/v1/scene?token={page.token}", NOBODY).status == 401


def test_wrong_tokens_wait(page: ServedPage) -> None:
    before = time.monotonic()
    answer = page.ask("GET", "/?token=" + "x" * 43, NOBODY)
    assert answer.status == 401
    assert "This is not the token." in answer.text
    assert time.monotonic() - before >= 0.5


def test_the_cookie_of_another_port_is_none(page: ServedPage) -> None:
    value = page.cookie.partition("=")[2]
    assert page.ask("GET", "/v1/history", {"Cookie": f"pinfold-1={value}"}).status == 401
    # A forwarded port is that of the other end, whose cookie has its name.
    host = {"Host": "localhost:1", "Cookie": ""}
    answer = page.ask("GET", f"/?token={page.token}", host)
    cookie = answer.headers["set-cookie"].partition(";")[0]
    assert cookie.startswith("pinfold-1=")
    assert page.ask("GET", "/v1/history", {"Host": "localhost:1", "Cookie": cookie}).status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("127.0.0.1:65535", 200),
        ("[::1]:7468", 200),
        ("node-7.example:7468", 200),
        ("evil.example", 403),
        ("localhost.evil.example:7468", 403),
        ("127.0.0.1.nip.example", 403),
        ("127.0.0.2:7468", 403),
        ("localhost:7468@evil.example", 403),
        ("localhost:999999", 403),
        ("a b", 403),
    ],
)
def test_the_page_is_called_by_its_names_only(page: ServedPage, host: str, status: int) -> None:
    """A page elsewhere that has its own name point here has another one."""
    authorized = {"Host": host, "Authorization": f"Bearer {page.token}", "Cookie": ""}
    assert page.ask("GET", "/v1/history", authorized).status == status
    assert page.ask("GET", "/healthz", {**NOBODY, "Host": host}).status == status
    answer = page.ask("GET", f"/?token={page.token}", {**NOBODY, "Host": host})
    assert answer.status == (303 if status == 200 else 403)
    if status == 403:
        assert "--host-name" in answer.error["remedy"]


def test_a_request_has_one_host(page: ServedPage) -> None:
    head = f"GET /v1/history HTTP/1.1\r\nAuthorization: Bearer {page.token}\r\n".encode()
    assert raw(page, head + b"\r\n").startswith(b"HTTP/1.1 400 ")
    twice = raw(page, head + b"Host: localhost\r\nHost: evil\r\n\r\n")
    assert twice.startswith(b"HTTP/1.1 400 ")
    old = head.replace(b"1.1", b"1.0")
    assert raw(page, old + b"\r\n").startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine
        ({"Sec-Fetch-Site": ""}, 200),
        ({"Sec-Fetch-Site": "anything"}, 403),
        ({"Origin": "http://localhost:7"}, 200),
        ({"Origin": "http://localhost:8"}, 403),
        ({"Origin": "https://localhost:7"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Origin": "null", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_what_another_page_has_sent_is_refused(
    page: ServedPage, headers: dict[str, str], status: int
) -> None:
    token = {"Host": "localhost:7", "Authorization": f"Bearer {page.token}", "Cookie": ""}
    assert page.ask("GET", "/v1/history", {**token, **headers}).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize("path", [*PATHS, "/healthz", "/v1/pods", "/v1/reconcile"])
def test_nothing_can_be_changed(page: ServedPage, node: Served, method: str, path: str) -> None:
    before = len(node.backend.applied)
    answer = page.ask(method, path, body='{"kind": "Pod"}')
    assert answer.status == (401 if (method, path) == ("POST", "/") else 405)
    assert len(node.backend.applied) == before


@pytest.mark.parametrize(
    "path",
    ["/v1/pods", "/v1/status", "/v1/pods/default/web/log", "/metrics", "/openapi.json", "/readyz"],
)
def test_the_agents_other_answers_are_not_there(page: ServedPage, path: str) -> None:
    assert page.ask("GET", path).status == 404


@pytest.mark.parametrize(
    "name",
    [
        "../serving/door.py",
        "..%2fserving%2fdoor.py",
        "%2e%2e/files_of_page.py",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "index.html",
        "main.js%00",
        "",
    ],
)
def test_no_other_file_is_served(page: ServedPage, name: str) -> None:
    assert page.ask("GET", f"/files/{name}").status == 404
    assert raw(page, f"GET /files/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()).startswith(
        (b"HTTP/1.1 401 ", b"HTTP/1.1 400 ")
    )


@pytest.mark.parametrize("path", [*PATHS, "/healthz", "/nowhere"])
@pytest.mark.parametrize("is_in", [False, True])
def test_every_answer_has_its_policy(page: ServedPage, path: str, *, is_in: bool) -> None:
    answer = page.ask("HEAD", path, {} if is_in else NOBODY)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'") or (
        not is_in and path == "/" and "style-src 'sha256-" in policy
    )
    for part in ("base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'"):
        assert part in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in answer.headers
    is_file = answer.status == 200 and path in ("/", "/files/page.css")
    assert answer.headers["cache-control"] == ("private, no-cache" if is_file else "no-store")


def test_a_file_that_a_browser_has_is_not_sent_again(page: ServedPage) -> None:
    tag = page.ask("GET", "/files/page.css").headers["etag"]
    answer = page.ask("GET", "/files/page.css", {"If-None-Match": tag})
    assert (answer.status, answer.text) == (304, "")
    assert page.ask("GET", "/files/page.css", {"If-None-Match": tag, "Cookie": ""}).status == 401


def test_a_head_without_an_end_is_refused(page: ServedPage) -> None:
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000
    assert raw(page, head).startswith(b"HTTP/1.1 400 ")


def test_a_request_that_ends_in_two_ways_is_refused_and_the_connection_with_it(
    page: ServedPage,
) -> None:
    head = f"Host: localhost:{page.port}\r\n"
    body = f"0\r\n\r\nGET /healthz HTTP/1.1\r\n{head}\r\n"
    lengths = f"Content-Length: {len(body)}\r\nTransfer-Encoding: chunked\r\n"
    told = raw(page, f"POST / HTTP/1.1\r\n{head}{lengths}\r\n{body}".encode())
    assert told.startswith(b"HTTP/1.1 400 ")
    assert told.count(b"HTTP/1.1 ") == 1


def test_a_session_is_one_of_so_many(page: ServedPage) -> None:
    """Whoever has the token and comes again and again takes no more memory."""
    cookies = []
    for _ in range(65):
        answer = page.ask("GET", f"/?token={page.token}", NOBODY)
        cookies.append(answer.headers["set-cookie"].partition(";")[0])
    assert page.ask("GET", "/v1/history", {"Cookie": cookies[0]}).status == 401
    assert page.ask("GET", "/v1/history", {"Cookie": cookies[-1]}).status == 200
    page.enter(page.token)  # for those after this one


def test_unknown_parameters_are_refused(page: ServedPage) -> None:
    assert page.ask("GET", "/v1/history?when=1").status == 400
    for at in ("x", "1_0", "%D9%A3", "nan", "-1", "inf"):
        assert page.ask("GET", f"/v1/scene?at={at}").status == 400
    assert page.ask("GET", "/v1/history?limit=100000").status == 400


def test_a_token_that_is_another_of_the_same_age_is_seen(node: Served, page: ServedPage) -> None:
    file = Path(node.path).parent / "page-token"
    content, found = file.read_text(), file.stat()
    assert page.ask("GET", "/v1/history").status == 200
    try:
        file.write_text("n" * 43 + "\n")
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert page.ask("GET", "/v1/history").status == 401
    finally:
        file.write_text(content)
        page.enter(content.strip())


def test_the_token_is_in_a_file_of_its_users(node: Served, page: ServedPage) -> None:
    file = Path(node.path).parent / "page-token"
    assert file.stat().st_mode & 0o777 == 0o600
    assert page.token not in page.text

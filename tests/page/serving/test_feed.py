"""What browsers hear of a real agent's API, through the real command."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from pinfold.documents.live.event import Event
from tests.scenes.served_page import ServedPage, served_page
from tests.scenes.waiting import PATIENCE, eventually
from tests.scenes.web_world import Served, served


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "a.sock", observes=True) as found:
        yield found


@pytest.fixture
def page(node: Served) -> Iterator[ServedPage]:
    with served_page(node.path) as found:
        yield found


def manifest(name: str, cpus: int = 1) -> dict[str, Any]:
    amount = {"cpu": str(cpus), "memory": "1Gi"}
    container = {
        "name": "c0",
        "image": "image",
        "command": ["sh"],
        "resources": {"requests": amount, "limits": amount},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"containers": [container]},
    }


def owners(event: Event) -> dict[str, str]:
    assert event.scene is not UNSET
    return {one.label: one.cpus for one in event.scene.owners}


def until_owner(events: Iterator[Event], label: str) -> Event:
    return next(one for one in events if one.scene is not UNSET and label in owners(one))


def test_a_browser_is_told_the_whole_and_then_each_change(node: Served, page: ServedPage) -> None:
    with page.events() as events:
        first = next(events)
        assert (first.kind, first.whole, first.changed) == ("whole", UNSET, UNSET)
        assert first.scene is not UNSET
        assert first.scene.root is not UNSET
        assert first.scene.live
        node.ask("POST", "/v1/pods", manifest("web", 2))
        event = until_owner(events, "default/web c0")
        assert (event.kind, event.whole, event.changed) == ("changed", UNSET, UNSET)
        assert event.scene is not UNSET
        assert event.scene.root is UNSET, "the boxes are as before"
        assert owners(event) == {"default/web c0": "2-3"}
        assert page.get("/v1/scene")["owners"][0]["cpus"] == "2-3"


def test_a_change_is_seen_soon(node: Served, page: ServedPage) -> None:
    took = []
    with page.events() as events:
        next(events)
        for number in range(5):
            begun = time.monotonic()
            node.ask("POST", "/v1/pods", manifest(f"p{number}"))
            until_owner(events, f"default/p{number} c0")
            took.append(time.monotonic() - begun)
    print(f"seen after {max(took):.3f} s at most")  # noqa: T201 - a figure for who asks
    assert min(took) < 0.5 * PATIENCE


def test_many_browsers_are_told_the_same_by_one_reader_of_the_agent(
    node: Served, page: ServedPage
) -> None:
    with page.events() as one, page.events() as two, page.events() as three:
        begin = [next(events).id for events in (one, two, three)]
        assert len(set(begin)) == 1
        assert len(node.do(node.connections)) == 1
        node.ask("POST", "/v1/pods", manifest("web"))
        told = [until_owner(events, "default/web c0").id for events in (one, two, three)]
        assert len(set(told)) == 1


def test_who_comes_back_is_told_what_he_has_missed(node: Served, page: ServedPage) -> None:
    with page.events() as events:
        known = next(events).id
        node.ask("POST", "/v1/pods", manifest("web"))
        newest = until_owner(events, "default/web c0").id
        # What follows a start, such as that it runs now.
        time.sleep(0.5)
    with page.events(known) as events:
        assert owners(next(events))
    with page.events("another-7") as events:
        event = next(events)
        assert event.kind == "whole"
        assert event.scene is not UNSET
        assert event.scene.root is not UNSET
        newest = event.id
    with page.events(newest) as events:
        node.ask("POST", "/v1/pods", manifest("next"))
        event = next(events)
        assert event.kind == "changed", "nothing before it was told again"


def test_an_agent_that_goes_is_told_and_so_is_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with served(path) as node, served_page(path) as page, page.events() as events:
        node.ask("POST", "/v1/pods", manifest("web"))
        until_owner(events, "default/web c0")
        node.end()
        event = next(one for one in events if one.kind == "away")
        assert event.problem is not UNSET
        assert str(path) in event.problem
        assert page.ask("GET", "/v1/scene").status == 503
        assert page.ask("GET", "/v1/history").error["message"] == f"no agent listens on {path}"
        with page.events() as late:
            kinds = [next(late).kind, next(late).kind]
            assert kinds == ["whole", "away"]
        with served(path):
            event = next(one for one in events if one.kind != "away")
            assert (event.kind, owners(event)) == ("whole", {}), (
                "another agent, which knows nothing"
            )
            assert page.get("/v1/scene")["live"]


def test_the_page_may_be_there_before_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with served_page(path) as page, page.events() as events:
        event = next(events)
        assert event.kind == "away"
        assert page.ask("GET", "/").status == 200
        with served(path):
            assert next(one for one in events if one.kind != "away").kind == "whole"


def test_nothing_is_read_while_nobody_looks(node: Served, page: ServedPage) -> None:
    assert page.ask("GET", "/healthz").status == 200
    assert node.do(node.connections) == []


def test_a_slow_reader_gets_the_newest_and_holds_up_nobody(node: Served, page: ServedPage) -> None:
    with socket.create_connection(("127.0.0.1", page.port)) as slow, page.events() as events:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = (
            f"GET /v1/events HTTP/1.1\r\nHost: localhost:{page.port}\r\nCookie: {page.cookie}\r\n"
        )
        slow.sendall(f"{head}\r\n".encode())
        next(events)
        for number in range(40):
            name = f"p{number % 3}"
            node.ask("POST", "/v1/pods", manifest(name))
            until_owner(events, f"default/{name} c0")
            node.ask("DELETE", f"/v1/pods/default/{name}?grace=0")
        status = Path(f"/proc/{page.process.pid}/status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0])
        assert resident < 150_000


def test_so_many_pages_and_no_more(page: ServedPage) -> None:
    with page.events() as first:
        next(first)
        streams = [page.connection() for _ in range(63)]
        try:
            for one in streams:
                one.request("GET", "/v1/events", headers={"Cookie": page.cookie})
                assert one.getresponse().status == 200
            answer = page.ask("GET", "/v1/events")
            assert (answer.status, answer.error["remedy"]) == (503, "close one of them")
        finally:
            for one in streams:
                one.close()
        eventually(lambda: page.ask("HEAD", "/v1/events").status, 200)


def test_those_who_say_nothing_keep_nobody_out(page: ServedPage) -> None:
    silent = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(500)]
    try:
        assert page.get("/v1/history")["entries"] == []
    finally:
        for one in silent:
            one.close()


def test_an_agent_that_hangs_is_waited_for_by_nobody_else(node: Served, page: ServedPage) -> None:
    """The page itself is there, whatever the agent does."""
    with page.events() as events:
        next(events)
        node.end()
        assert page.ask("GET", "/").status == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_with_pages_open(page: ServedPage, number: signal.Signals) -> None:
    with page.events() as events:
        next(events)
        begun = time.monotonic()
        assert page.stop(number) == 0
        assert time.monotonic() - begun < 3 * PATIENCE
        assert [one.kind for one in events] == []


def test_a_new_token_ends_what_the_old_one_has_opened(node: Served, page: ServedPage) -> None:
    file = node.path.parent / "page-token"
    with page.events() as events:
        next(events)
        new = "n" * 43
        other = file.with_name("other")
        other.write_text(new)
        other.chmod(0o600)
        other.replace(file)
        node.ask("POST", "/v1/pods", manifest("web"))
        assert list(events) == []
    assert page.ask("GET", "/v1/history").status == 401
    assert page.ask("GET", f"/?token={page.token}").status == 401
    page.enter(new)
    assert page.ask("GET", "/v1/history").status == 200


def test_a_token_that_is_gone_lets_nobody_in(node: Served, page: ServedPage) -> None:
    file = node.path.parent / "page-token"
    content = file.read_bytes()
    file.unlink()
    assert page.ask("GET", "/").status == 503
    assert page.ask("GET", "/healthz").status == 200
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, content)
    os.close(descriptor)
    assert "others may read the token" in page.ask("GET", "/").error["message"]
    file.chmod(0o600)
    page.enter(page.token)


def test_what_containers_do_is_told_too(node: Served, page: ServedPage) -> None:
    watched = node.backend.observation
    assert watched is not None
    with page.events() as events:
        next(events)

        for _ in range(3):
            node.backend.clock += 1
            node.call(watched.observe())
        event = next(one for one in events if one.kind == "observed")
        assert event.observed is not UNSET
        assert event.scene is UNSET

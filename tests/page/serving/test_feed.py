"""What browsers hear of a real agent's API, through the real command."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pinfold.documents.live.event import Event
from pinfold.formats.event_stream import Message, written
from pinfold.web.answers import encoded
from tests.scenes.manager_harness import manifest as shared_pod
from tests.scenes.scripted_agent import HEAD, Send, scripted_agent
from tests.scenes.served_page import ServedPage, read_events, served_page
from tests.scenes.waiting import PATIENCE, eventually, wait_until
from tests.scenes.web_world import Served, served, whole_of

EVENTS_HEAD = HEAD % b"text/event-stream"


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


def test_a_slow_reader_gets_the_newest_and_holds_up_nobody(tmp_path: Path) -> None:
    """Each scene is more than a connection takes from who sends before somebody reads."""
    path = tmp_path / "a.sock"
    with (
        served(path, machine="2s128c2t", observes=True) as node,
        served_page(path) as page,
        socket.socket() as slow,
        page.events() as events,
    ):
        for number in range(80):
            node.ask("POST", "/v1/pods", shared_pod(f"s{number}", *[""] * 20))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", page.port))
        head = f"GET /v1/events HTTP/1.1\r\nHost: localhost:{page.port}"
        slow.sendall(f"{head}\r\nCookie: {page.cookie}\r\n\r\n".encode())
        for number in range(20):
            name = f"p{number}"
            node.ask("POST", "/v1/pods", manifest(name))
            until_owner(events, f"default/{name} c0")
            node.ask("DELETE", f"/v1/pods/default/{name}?grace=0")
        node.ask("POST", "/v1/pods", manifest("last"))
        until_owner(events, "default/last c0")
        status = Path(f"/proc/{page.process.pid}/status").read_text()
        resident = int(status.partition("VmRSS:")[2].split()[0])
        assert resident < 150_000
        slow.settimeout(10 * PATIENCE)
        answer = http.client.HTTPResponse(slow)
        answer.begin()
        until_owner(read_events(answer), "default/last c0")


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


def test_no_more_than_so_many_also_where_all_come_at_once(page: ServedPage) -> None:
    streams = [page.connection() for _ in range(100)]
    try:
        for one in streams:
            one.connect()
        for one in streams:
            one.request("GET", "/v1/events", headers={"Cookie": page.cookie})
        answers = Counter(one.getresponse().status for one in streams)
        assert answers == {200: 64, 503: 36}
    finally:
        for one in streams:
            one.close()


def test_those_who_say_nothing_keep_nobody_out(page: ServedPage) -> None:
    silent = [socket.create_connection(("127.0.0.1", page.port)) for _ in range(500)]
    try:
        assert page.get("/v1/history")["entries"] == []
    finally:
        for one in silent:
            one.close()


def test_an_agent_that_hangs_is_waited_for_by_nobody_else(tmp_path: Path) -> None:
    """The page itself is there, whatever the agent does."""
    told = threading.Event()

    def answer(_target: str, _send: Send) -> None:
        told.wait(60)

    with (
        scripted_agent(tmp_path / "a.sock", answer) as agent,
        served_page(tmp_path / "a.sock") as page,
    ):
        waiting = page.connection()
        waiting.request("GET", "/v1/history", headers={"Cookie": page.cookie})
        wait_until(lambda: "/v1/history" in str(agent.open))
        for target in ("/", "/files/page.js", "/healthz"):
            assert page.ask("GET", target).status == 200
        assert agent.open, "it still hangs"
        told.set()
        assert waiting.getresponse().status == 503
        waiting.close()


def test_a_fault_of_the_page_is_told_to_who_looks_and_it_goes_on(tmp_path: Path) -> None:
    """An agent sends what this page cannot draw, and then what it can."""
    path = tmp_path / "a.sock"
    with served(tmp_path / "real.sock") as node:
        node.ask("POST", "/v1/pods", manifest("web"))
        whole = whole_of(node)
    (pod,) = whole.status.pods
    (container,) = pod.containers
    strange = replace(pod, containers=[replace(container, cpus="zero")])
    bad = replace(whole, status=replace(whole.status, pods=[strange]))
    good = threading.Event()

    def answer(_target: str, send: Send) -> None:
        told = whole if good.is_set() else bad
        event = Event(id="a-1", at=1.0, kind="whole", whole=told)
        send(EVENTS_HEAD + written(Message("a-1", "whole", encoded(event))))
        time.sleep(0.5 if told is bad else 30)

    with scripted_agent(path, answer), served_page(path) as page, page.events() as events:
        event = next(events)
        assert (event.kind, event.problem) == (
            "away",
            "the page failed at what the agent tells (the output of pinfold serve says why)",
        )
        assert page.ask("GET", "/v1/scene").status == 503
        time.sleep(1)
        with page.events() as late:
            assert next(late).problem == event.problem, "told also to who comes later"
        assert "events failed" in page.text
        good.set()
        assert next(one for one in events if one.kind != "away").kind == "whole"


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

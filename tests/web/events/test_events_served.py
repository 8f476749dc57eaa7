"""``GET /v1/events`` on a real socket: what comes first, what comes then, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.core.observation.rates import Counters
from pinfold.ports.errors import ContainerKey
from pinfold.web.events.telling import Pace, Telling
from pinfold.web.handlers import Handlers
from pinfold.web.limited_connection import Limits
from tests.scenes.event_follower import Follower
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, phase, plain, read_all, served

KEY = ContainerKey("uid-one", "c0")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "s", observes=True) as server:
        yield server


def telling(api: Served) -> Telling:
    handlers: Handlers = api.app.state.handlers
    return handlers.telling


def test_a_reader_begins_with_all_and_hears_of_changes_at_once(api: Served) -> None:
    with Follower(api.path) as reader:
        assert reader.answer.headers["content-type"] == "text/event-stream"
        assert reader.answer.headers["cache-control"] == "no-store"
        first = reader.next()
        assert first.kind == "whole"
        assert reader.stream.pause == 1.0
        api.ask("POST", "/v1/pods", manifest("one", "2"))
        change = reader.until("changed")
        assert change.changed
        assert [pod.name for pod in change.changed.pods] == ["one"]
        while reader.whole is None or reader.whole.status.pods[0].phase != "Running":
            reader.until("changed")
        asked = api.ask("GET", "/v1/status").json
        assert reader.whole.status.shared == asked["shared"]
        assert (
            reader.whole.status.pods[0].containers[0].cpus
            == asked["pods"][0]["containers"][0]["cpus"]
        )
        api.ask("DELETE", "/v1/pods/default/one?grace=0")
        while reader.whole.status.pods:
            reader.until("changed")
        assert reader.whole.status.shared == first.whole.status.shared  # type: ignore[union-attr] # a whole


def test_who_comes_later_is_told_of_that_time(api: Served) -> None:
    with Follower(api.path) as reader:
        first = reader.next()
    wait_until(lambda: not api.do(lambda: telling(api).readers))
    api.do(lambda: setattr(api.backend, "clock", api.backend.clock + 5.0))
    with Follower(api.path) as reader:
        later = reader.next()
    assert (later.kind, later.id) == (first.kind, first.id)
    assert later.at > first.at


def test_a_problem_that_nobody_tells_of_is_seen(api: Served) -> None:
    with Follower(api.path) as reader:
        reader.next()
        api.do(lambda: api.backend.told_problems.append("nothing works"))
        change = reader.until("changed", within=1.0).changed
        assert change
        assert change.agent
        assert list(change.agent.problems) == ["nothing works"]
        assert not change.pods


def test_what_is_observed_is_told(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("one", "2"))
    wait_until(lambda: phase(api, "one") == "Running")
    with Follower(api.path) as reader:
        reader.until("whole")
        for second in range(3):
            api.backend.meters.counted[KEY] = Counters(1, second * 1_500_000, 0, 0, 0, 0)
            api.backend.clock += 1.0
            api.call(api.backend.observation.observe())  # type: ignore[union-attr] # it observes
            event = reader.until("observed")
        assert event.observed
        assert event.observed.containers[0].last.usage == 1.5
        assert reader.whole
        load = reader.whole.status.pods[0].containers[0].load
        assert load
        assert load.usage == 1.5


@pytest.mark.parametrize("by_header", [True, False])
def test_who_was_away_goes_on_from_where_he_was(api: Served, by_header: bool) -> None:
    with Follower(api.path) as reader:
        last = reader.next().id
    wait_until(lambda: not telling(api).readers)
    made = dict(telling(api).made)
    for name in ("one", "two"):
        api.ask("POST", "/v1/pods", manifest(name, "1"))
    time.sleep(0.2)
    assert telling(api).made == made, "nothing is made while nobody listens"
    headers = {"Last-Event-ID": last} if by_header else {}
    target = "/v1/events" if by_header else f"/v1/events?lastEventId={last}"
    with Follower(api.path, target, headers) as reader:
        event = reader.next()
        assert event.kind == "changed"
        assert event.changed
        assert {pod.name for pod in event.changed.pods} == {"one", "two"}


@pytest.mark.parametrize(
    "last",
    [
        "x",
        "-",
        "-0",
        "0",
        "{run}-99",
        "{run}--1",
        "{run}-1e3",
        "{run}-" + "9" * 99,
        "\xe9-1",
        "{run}-²",
    ],
)
def test_whoever_knows_what_is_not_known_here_begins_anew(api: Served, last: str) -> None:
    with Follower(api.path) as reader:
        run = reader.next().id.partition("-")[0]
        headers = {"Last-Event-ID": last.format(run=run).encode().decode("latin-1")}
        with Follower(api.path, headers=headers) as other:
            assert other.next().kind == "whole"


def test_each_event_is_made_once_for_all(api: Served) -> None:
    readers = [Follower(api.path) for _ in range(10)]
    assert len({reader.next().id for reader in readers}) == 1
    before = dict(telling(api).made)
    api.ask("POST", "/v1/pods", manifest("one", "1"))
    seen = [reader.until("changed").id for reader in readers]
    assert len(set(seen)) == 1
    assert telling(api).made["whole"] == before["whole"] == 1
    for reader in readers:
        reader.close()


def test_there_is_room_for_so_many(api: Served) -> None:
    most = Pace().readers
    readers = [Follower(api.path) for _ in range(most)]
    for reader in readers:
        reader.next()
    answer = api.ask("GET", "/v1/events")
    assert answer.status == 503
    assert answer.error["message"] == f"{most} readers follow the events already"
    assert "pinfold serve" in answer.error["remedy"]
    readers.pop().close()
    wait_until(lambda: telling(api).readers == most - 1)
    with Follower(api.path) as reader:
        assert reader.next().kind == "whole"
    for reader in readers:
        reader.close()
    wait_until(lambda: telling(api).readers == 0)


def test_head_is_answered_and_nobody_listens(api: Served) -> None:
    answer = api.ask("HEAD", "/v1/events")
    assert (answer.status, answer.text) == (200, "")
    assert answer.headers["content-type"] == "text/event-stream"
    assert telling(api).readers == 0
    assert api.ask("GET", "/v1/events?since=1").status == 400


def test_the_agents_end_is_a_goodbye_and_waits_for_nobody(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api, Follower(api.path) as reader:
        reader.next()
        api.end()
        with pytest.raises(EOFError):
            reader.until("changed")
        assert reader.text.endswith(b": the agent is stopping\n\n")


def test_who_does_not_read_is_left_and_holds_up_nobody(tmp_path: Path) -> None:
    world = served(tmp_path / "s", observes=True, limits=Limits(answer=1.0))
    with world as api, plain(api.path) as lazy:
        lazy.sendall(b"GET /v1/events HTTP/1.1\r\nHost: a\r\n\r\n")
        wait_until(lambda: telling(api).readers == 1)
        with Follower(api.path) as reader:
            reader.next()
            for number in range(60):
                api.ask("POST", "/v1/pods", manifest(f"p{number}", *[""] * 20))
                reader.until("changed")
            wait_until(lambda: telling(api).readers == 1, 20)
            assert reader.whole
        assert b"event: whole" in read_all(lazy)

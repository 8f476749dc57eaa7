"""The local API: every request ends, and nothing is carried out in silence."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pinfold.web.changes import Patience
from tests.scenes.manager_harness import manifest
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, phase, plain, served

SHORT = Patience(change=0.2, reading=0.2)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "agent.sock", patience=SHORT) as server:
        yield server


@contextlib.contextmanager
def locked(api: Served) -> Iterator[None]:
    """As if something held the manager up."""
    holding = api.backend.books.change()
    api.call(holding.__aenter__())
    try:
        yield
    finally:
        api.call(holding.__aexit__(None, None, None))


@contextlib.contextmanager
def stuck_disk(api: Served) -> Iterator[None]:
    """The disk neither writes nor fails."""
    store = api.node.store
    original, go = store.commit, api.do(asyncio.Event)

    async def commit(batch: object) -> None:
        await go.wait()
        await original(batch)  # type: ignore[arg-type] # as it came

    store.commit = commit  # type: ignore[method-assign] # the next agent's store is whole
    try:
        yield
    finally:
        store.commit = original  # type: ignore[method-assign] # as above
        api.do(go.set)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/pods", manifest("other", "1")),
        ("DELETE", "/v1/pods/default/web?grace=0", None),
    ],
)
def test_what_has_not_begun_in_time_is_not_done(
    api: Served, method: str, path: str, body: object
) -> None:
    api.ask("POST", "/v1/pods", manifest("web", "1"))
    with capture_logs() as logs:
        with locked(api):
            answer = api.ask(method, path, body)
        assert answer.status == 503
        assert "it has taken more than 0.2 s" in answer.error["message"]
        assert "nothing was changed" in answer.error["message"]
        names = [pod["name"] for pod in api.ask("GET", "/v1/pods").json["pods"]]
        assert names == ["web"]
    assert [entry["outcome"] for entry in logs if entry["event"] == "abandoned"] == [
        "nothing was changed"
    ]


def test_what_has_begun_goes_on_and_is_told(api: Served) -> None:
    with capture_logs() as logs:
        with stuck_disk(api):
            answer = api.ask("POST", "/v1/pods", manifest("web", "1"))
            assert answer.status == 503
            assert "it goes on" in answer.error["message"]
            # Whoever comes meanwhile is answered, too.
            assert api.ask("POST", "/v1/pods", manifest("other", "1")).status == 503
            assert api.ask("GET", "/healthz").status == 200
        wait_until(lambda: phase(api, "web") == "Running")
        outcomes = [entry["outcome"] for entry in logs if entry["event"] == "abandoned"]
        assert outcomes == ["it goes on", "nothing was changed", "it was carried out"]
    (entry,) = api.ask("GET", "/v1/history").json["entries"]
    assert (entry["kind"], entry["pod"]) == ("admitted", "default/web")


def test_a_client_that_goes_away_takes_its_wish_along(tmp_path: Path) -> None:
    body = json.dumps(manifest("web", "1")).encode()
    with served(tmp_path / "s") as api, capture_logs() as logs:
        with locked(api), plain(api.path) as connection:
            connection.sendall(
                b"POST /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            )
            connection.sendall(body)
            wait_until(lambda: api.do(lambda: api.backend.applied))
            connection.close()
            wait_until(lambda: [entry for entry in logs if entry["event"] == "abandoned"])
        assert api.ask("GET", "/v1/pods").json["pods"] == []
    (entry,) = (entry for entry in logs if entry["event"] == "abandoned")
    assert (entry["why"], entry["outcome"]) == ("the client has gone", "nothing was changed")


def test_the_grace_period_comes_on_top(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("web", "1", terminationGracePeriodSeconds=1))
    wait_until(lambda: phase(api, "web") == "Running")
    (status,) = api.node.runtime.known()
    api.do(lambda: api.node.runtime.ignores_sigterm.add(status.id))
    assert api.ask("DELETE", "/v1/pods/default/web").status == 204


def test_an_answer_that_does_not_come_is_one(api: Served) -> None:
    """A disk that hangs holds up who reads the history, for a while."""

    async def history(**_: object) -> None:
        await asyncio.Event().wait()

    store = api.node.store
    original, store.history = store.history, history  # type: ignore[method-assign,assignment] # a disk
    try:
        answer = api.ask("GET", "/v1/history")
        assert answer.status == 503
        assert answer.error["message"] == "there was no answer within 0.2 s"
    finally:
        store.history = original  # type: ignore[method-assign] # as above


def test_a_full_disk_refuses_at_once_and_is_no_readiness(api: Served) -> None:
    api.ask("POST", "/v1/pods", manifest("web", "1"))
    wait_until(lambda: phase(api, "web") == "Running")
    api.node.store.problem = "/state: there is hardly any room"
    answer = api.ask("POST", "/v1/pods", manifest("other", "1"))
    assert (answer.status, answer.error["message"]) == (503, "/state: there is hardly any room")
    assert api.ask("DELETE", "/v1/pods/default/web?grace=0").status == 204


def test_a_record_that_cannot_be_written_holds_up_nobody_else(api: Served) -> None:
    """A pod's end waits for the disk; everybody else gets an answer meanwhile."""
    for name in ("one", "two"):
        api.ask("POST", "/v1/pods", manifest(name, "1"))
        wait_until(lambda name=name: phase(api, name) == "Running")  # type: ignore[misc] # a default
    one = next(s for s in api.node.runtime.known() if s.key.pod_uid == "uid-one")
    api.node.store.faults.fail_all = True
    api.do(lambda: api.node.runtime.exit(one.id, 0))
    wait_until(lambda: any("trying again in" in problem for problem in api.node.problems))
    for method, path, body in (
        ("POST", "/v1/pods", manifest("three", "1")),
        ("DELETE", "/v1/pods/default/two?grace=0", None),
    ):
        answer = api.ask(method, path, body)
        assert answer.status == 503
        assert "no space left on device" in answer.error["message"]
    assert api.ask("POST", "/v1/reconcile").status == 200
    # Its CPUs stay taken as long as the record has them.
    assert api.do(lambda: str(api.backend.books.view.state.ledger.cpus_of_pod("uid-one"))) != ""
    api.node.store.faults.fail_all = False
    wait_until(
        lambda: api.ask("GET", "/v1/pods/default/one").json["containers"][0]["restarts"] == 1
    )
    assert api.ask("DELETE", "/v1/pods/default/two?grace=0").status == 204
    api.do(api.node.check)

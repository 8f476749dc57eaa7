"""What the page asks of an agent, and how much of an answer it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.documents.live.event import Event
from pinfold.formats.event_stream import Message, written
from pinfold.page.serving.questions import EXPLANATION, HISTORY, AskedAgent, AwayError, filled
from pinfold.web.answers import encoded
from tests.scenes.scripted_agent import HEAD, ScriptedAgent, Send, scripted_agent
from tests.scenes.served_page import served_page
from tests.scenes.waiting import PATIENCE, eventually
from tests.scenes.web_world import served, whole_of

JSON, EVENTS = HEAD % b"application/json", HEAD % b"text/event-stream"


def says_nothing_more(_target: str, send: Send) -> None:
    """A head, and then now and then a space, for ever."""
    send(JSON)
    while True:
        send(b" ")
        time.sleep(0.02)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    with scripted_agent(tmp_path / "a.sock", says_nothing_more) as found:
        yield found


@example(("..", "status"))
@example((".", "events"))
@example(("..", ".."))
@example(("{name}", "%2e%2e"))
@given(st.tuples(*[st.text(st.characters(codec="utf-8"), min_size=1)] * 2))
def test_a_name_is_one_segment_of_the_path(names: tuple[str, str]) -> None:
    """By httpx's rules, which takes ``..`` out of a path."""
    url = httpx.AsyncClient(base_url="http://pinfold").build_request(
        "GET", filled(EXPLANATION.path, names)
    )
    told = url.url.raw_path.decode().split("/")
    assert told[:3] == ["", "v1", "explain"]
    assert tuple(map(unquote, told[3:])) == names


@pytest.mark.parametrize(
    "target",
    [
        "/v1/explain/../status",
        "/v1/explain/../events",
        "/v1/explain/%2e%2e/events",
        "/v1/explain/%2E%2E/%2E%2E",
        "/v1/explain/../../healthz",
        "/v1/explain/./status",
        "/v1/explain/a/../../status",
        "/v1/explain/..%2fstatus/x",
        "/v1/explain/x/..%3Fstatus",
        "/v1/explain/%252e%252e/status",
    ],
)
def test_nothing_else_is_asked(tmp_path: Path, target: str) -> None:
    def answer(_target: str, send: Send) -> None:
        send(JSON + b"{}")

    with (
        scripted_agent(tmp_path / "a.sock", answer) as agent,
        served_page(tmp_path / "a.sock") as page,
    ):
        assert page.ask("GET", target).status in (404, 503)
        for asked in agent.asked:
            assert asked.startswith("/v1/explain/")
            assert not {".", ".."} & set(asked.split("/"))


def test_an_agent_that_does_not_come_to_an_end_is_away(tmp_path: Path) -> None:
    """However much it says meanwhile."""

    async def ask() -> None:
        agent = AskedAgent(tmp_path / "a.sock", patience=0.5)
        try:
            with pytest.raises(AwayError, match="does not answer"):
                await agent.ask(HISTORY)
        finally:
            await agent.close()

    with scripted_agent(tmp_path / "a.sock", says_nothing_more) as agent:
        asyncio.run(asyncio.wait_for(ask(), 10 * PATIENCE))
        agent.has_hung_up()


def test_so_much_is_taken_and_no_more(tmp_path: Path) -> None:
    def answer(_target: str, send: Send) -> None:
        send(JSON)
        while True:
            send(b" " * (1 << 20))

    with (
        scripted_agent(tmp_path / "a.sock", answer) as agent,
        served_page(tmp_path / "a.sock") as page,
    ):
        answered = page.ask("GET", "/v1/history")
        assert answered.status == 503
        assert "answers with more than" in answered.error["message"]
        agent.has_hung_up()
        peak = Path(f"/proc/{page.process.pid}/status").read_text().partition("VmHWM:")[2]
        assert int(peak.split()[0]) * 1024 < 400 << 20


def test_an_answer_that_nobody_waits_for_is_given_up(agent: ScriptedAgent, tmp_path: Path) -> None:
    with served_page(tmp_path / "a.sock") as page:
        for _ in range(3):
            connection = page.connection()
            connection.request("GET", "/v1/explain/default/a", headers={"Cookie": page.cookie})
            eventually(lambda: agent.open, ["/v1/explain/default/a"])
            connection.close()
            agent.has_hung_up()
        assert page.ask("GET", "/healthz").status == 200
        assert "Traceback" not in page.text


def test_an_agent_of_another_version_is_not_asked_without_a_pause(tmp_path: Path) -> None:
    """Its events are those of an agent, and its machine is none that is known here."""
    with served(tmp_path / "real.sock") as real:
        whole = whole_of(real)
    unknown = replace(whole, machine=replace(whole.machine, cpus=[*whole.machine.cpus] * 2))
    text = encoded(Event(id="a-1", at=1.0, kind="whole", whole=unknown))

    def answer(_target: str, send: Send) -> None:
        send(EVENTS + written(Message("a-1", "whole", text)))
        time.sleep(5)

    with (
        scripted_agent(tmp_path / "a.sock", answer) as agent,
        served_page(tmp_path / "a.sock") as page,
        page.events() as events,
    ):
        assert "appears twice" in str(next(events).problem)
        time.sleep(3)
        assert 2 <= len(agent.asked) <= 8, "0.1 s, 0.2 s, ... and then 2 s between two"

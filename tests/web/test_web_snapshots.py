"""Many who ask for everything at once get one answer, none of which is older than his question."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest

from pinfold.web.snapshots import FOR_EACH, LEFT_FOR_OTHERS, Snapshots
from tests.scenes.manager_harness import manifest, run_virtually
from tests.scenes.web_world import UnixConnection, plain, read_all, served


class State:
    """Something that is told."""

    def __init__(self) -> None:
        self.value = 0
        self.makes = 0
        self.fault: Exception | None = None

    def make(self) -> bytes:
        self.makes += 1
        if self.fault is not None:
            raise self.fault
        return str(self.value).encode()


def test_who_asks_meanwhile_gets_what_holds_after_he_asked() -> None:
    async def work() -> None:
        snapshots, state = Snapshots(), State()
        assert await snapshots.get("a", state.make) == b"0"
        asked = []
        for value in range(1, 100):
            state.value = value
            asked.append((value, asyncio.create_task(snapshots.get("a", state.make))))
            if value % 30 == 0:
                await asyncio.sleep(0)
        for value, answer in asked:
            assert int(await answer) >= value
        assert state.makes <= 5
        assert snapshots.made == {"a": state.makes}

    run_virtually(work())


def test_there_is_time_for_others_between_two() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        snapshots, state = Snapshots(), State()
        began = loop.time()
        stop = began + 10

        async def until_then() -> None:
            while loop.time() < stop:
                await snapshots.get("a", state.make)

        await asyncio.gather(*(until_then() for _ in range(64)))
        # 64 at a time, each with its millisecond: virtual time passes nowhere else.
        assert state.makes <= 10 / (64 * FOR_EACH) + 2
        assert LEFT_FOR_OTHERS >= 1

    run_virtually(work())


def test_a_failure_is_everybodys_and_the_next_is_made_anew() -> None:
    async def work() -> None:
        snapshots, state = Snapshots(), State()
        state.fault = ValueError("no")
        asked = [asyncio.create_task(snapshots.get("a", state.make)) for _ in range(3)]
        other = asyncio.create_task(snapshots.get("b", lambda: b"b"))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(answer) for answer in answers] == ["no"] * 3
        assert await other == b"b"
        state.fault = None
        assert await snapshots.get("a", state.make) == b"0"

    run_virtually(work())


def test_one_who_gives_up_spoils_nothing() -> None:
    async def work() -> None:
        snapshots, state = Snapshots(), State()
        await snapshots.get("a", state.make)
        gone = asyncio.create_task(snapshots.get("a", state.make))
        stays = asyncio.create_task(snapshots.get("a", state.make))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays == b"0"
        gone = asyncio.create_task(snapshots.get("a", state.make))
        await asyncio.sleep(0)
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        before = state.makes
        await asyncio.sleep(1)
        assert state.makes == before, "nobody waits for it"

    run_virtually(work())


# --------------------------------------------------------------------------------- over sockets


@pytest.mark.parametrize("path", ["/v1/status", "/v1/pods", "/v1/node", "/metrics", "/v1/machine"])
def test_those_who_wait_share_an_answer(tmp_path: Path, path: str) -> None:
    with served(tmp_path / "s") as api, contextlib.ExitStack() as stack:
        assert api.ask("GET", path).status == 200
        socks = [stack.enter_context(plain(api.path)) for _ in range(64)]
        # The loop is held up until all have asked.
        held, go = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            go.wait(20)

        api.loop.call_soon_threadsafe(hold)
        assert held.wait(20)
        made = dict(api.snapshots().made)
        text = f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode()
        for sock in socks:
            sock.sendall(text)
        go.set()
        bodies = {read_all(sock).partition(b"\r\n\r\n")[2] for sock in socks}
        assert b"" not in bodies
        more = {name: count - made[name] for name, count in api.snapshots().made.items()}
        (count,) = (count for count in more.values() if count)
        assert count <= 3
        assert len(bodies) <= count


def test_a_flood_shows_everybody_what_he_was_told(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api, contextlib.ExitStack() as stack:
        done = threading.Event()
        answered = [0] * 16

        def flood(number: int) -> None:
            connection = UnixConnection(api.path)
            while not done.is_set():
                connection.request("GET", "/v1/status")
                connection.getresponse().read()
                answered[number] += 1
            connection.close()

        threads = [threading.Thread(target=flood, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        stack.callback(_join, threads, done)
        for number in range(20):
            name = f"pod-{number}"
            assert api.ask("POST", "/v1/pods", manifest(name, "")).status == 201
            assert name in {pod["name"] for pod in api.ask("GET", "/v1/status").json["pods"]}
            assert api.ask("DELETE", f"/v1/pods/default/{name}?grace=0").status == 204
            assert api.ask("GET", "/v1/pods").json["pods"] == []
        done.set()
        for thread in threads:
            thread.join(20)
        assert all(answered)
        assert api.snapshots().made["status"] < sum(answered)


def _join(threads: list[threading.Thread], done: threading.Event) -> None:
    done.set()
    for thread in threads:
        thread.join(20)

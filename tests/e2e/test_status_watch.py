"""``pinfold status --watch`` in a real terminal: calm, quick, and gone without a trace."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenes.manager_harness import manifest
from tests.scenes.tmux import Terminal, pinfold, terminal
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, served

WATCH = pinfold("status", "--watch")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "s") as server:
        server.ask("POST", "/v1/pods", manifest("one", "2"))
        yield server


@pytest.fixture
def tty(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal in which something was done before."""
    env = {"PINFOLD_SOCKET": str(tmp_path / "s"), "TERM": "tmux-256color"}
    with terminal(100, 30, env) as found:
        found.run(["echo", "before"])
        found.until(lambda text: "\nbefore" in text)
        yield found


def watched(tty: Terminal) -> None:
    tty.run(WATCH)
    tty.until(lambda text: "q quit" in text)
    assert tty.asked("#{alternate_on} #{cursor_flag}") == "1 0"


def left(tty: Terminal, status: int) -> None:
    """It is over, and the screen is as it was."""
    wait_until(lambda: tty.asked("#{alternate_on} #{cursor_flag}") == "0 1")
    tty.run(["sh", "-c", "exit 0"])
    tty.press("Up")
    screen = tty.until(lambda text: text.count("$") >= 3)
    rows = screen.splitlines()
    assert rows[0] == "$ echo before"
    assert rows[1] == "before"
    assert "status --watch" in rows[2]
    assert "Socket" not in screen
    del status


def test_it_shows_what_changes_as_it_changes(api: Served, tty: Terminal) -> None:
    watched(tty)
    assert "default/one" in tty.screen()
    began = time.monotonic()
    api.ask("POST", "/v1/pods", manifest("two", "1"))
    tty.until(lambda text: "default/two" in text)
    assert time.monotonic() - began < 1.0
    api.ask("DELETE", "/v1/pods/default/one?grace=0")
    screen = tty.until(lambda text: "default/one" not in text)
    assert "Pods  1 admitted" in screen
    tty.press("q")
    left(tty, 0)


def test_it_fits_any_size_and_scrolls(api: Served, tty: Terminal) -> None:
    for number in range(20):
        api.ask("POST", "/v1/pods", manifest(f"p{number}", ""))
    watched(tty)
    tty.resize(60, 12)
    screen = tty.until(lambda text: "lines 1-11 of" in text)
    assert screen.splitlines()[0] == "1s4c2t"
    assert len(screen.splitlines()) == 12
    tty.press("j")
    tty.until(lambda text: "lines 2-12 of" in text)
    tty.press("Space")
    tty.until(lambda text: "lines 12-22 of" in text)
    tty.press("Up", "Up")
    tty.until(lambda text: "lines 10-20 of" in text)
    tty.press("G")
    tty.until(lambda text: "shared containers run on" in text)
    tty.press("g", "p")
    screen = tty.until(lambda text: "Socket" not in text)
    assert "Pods  " in screen
    tty.press("m")
    screen = tty.until(lambda text: "Socket" in text)
    assert "Pods  " not in screen
    tty.resize(120, 50)
    tty.press("m")
    screen = tty.until(lambda text: "default/one" in text and "Socket" in text)
    assert "lines" not in screen.splitlines()[-1]
    tty.press("q")
    left(tty, 0)


@pytest.mark.parametrize(("key", "status"), [("C-c", 130), ("q", 0)])
def test_a_key_ends_it_and_the_screen_is_as_it_was(
    api: Served, tty: Terminal, key: str, status: int
) -> None:
    del api
    tty.run(["sh", "-c", 'trap : INT; "$@"; echo "ended: $?"', "sh", *WATCH])
    tty.until(lambda text: "q quit" in text)
    tty.press(key)
    screen = tty.until(lambda text: f"ended: {status}" in text)
    assert screen.splitlines()[0] == "$ echo before"
    assert "Traceback" not in screen
    assert tty.asked("#{alternate_on} #{cursor_flag}") == "0 1"


def test_sigterm_ends_it_so_too(api: Served, tty: Terminal) -> None:
    del api
    watched(tty)
    pid = int(tty.asked("#{pane_pid}"))
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGTERM)
    left(tty, 143)


def test_who_suspends_it_has_his_terminal_meanwhile(api: Served, tty: Terminal) -> None:
    tty.run(["set", "-m"])
    watched(tty)
    tty.press("C-z")
    wait_until(lambda: tty.asked("#{alternate_on} #{cursor_flag}") == "0 1")
    tty.run(["echo", "meanwhile"])
    tty.until(lambda text: "\nmeanwhile" in text)
    api.ask("POST", "/v1/pods", manifest("two", "1"))
    tty.run(["fg"])
    tty.until(lambda text: "default/two" in text and "q quit" in text)
    assert tty.asked("#{alternate_on} #{cursor_flag}") == "1 0"
    tty.press("q")
    wait_until(lambda: tty.asked("#{alternate_on} #{cursor_flag}") == "0 1")


def test_an_agent_may_go_and_come_again(tmp_path: Path, tty: Terminal) -> None:
    with served(tmp_path / "s") as api:
        api.ask("POST", "/v1/pods", manifest("one", "2"))
        watched(tty)
    screen = tty.until(lambda text: "the agent is away since" in text)
    assert "default/one" in screen, "what was known last stays"
    with served(tmp_path / "s") as api:
        api.ask("POST", "/v1/pods", manifest("two", "1"))
        screen = tty.until(lambda text: "default/two" in text)
        assert "away" not in screen
        assert "default/one" not in screen
        tty.press("q")
        left(tty, 0)


def test_an_agent_without_events_is_asked_each_second(api: Served, tty: Terminal) -> None:
    routes = api.app.router.routes
    api.do(lambda: routes.remove(next(r for r in routes if r.path == "/v1/events")))  # type: ignore[attr-defined] # routes all
    watched(tty)
    api.ask("POST", "/v1/pods", manifest("two", "1"))
    tty.until(lambda text: "default/two" in text, 3.0)
    tty.press("q")
    left(tty, 0)


def test_without_an_agent_it_says_so_and_takes_no_screen(tty: Terminal) -> None:
    tty.run(WATCH)
    tty.until(lambda text: "no agent listens" in text)
    assert tty.asked("#{alternate_on} #{cursor_flag}") == "0 1"


def test_nothing_is_written_again_that_is_on_the_screen(api: Served) -> None:
    """At rest no more than the line with the clock, once a second; after a change its lines."""
    master, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    env = {**os.environ, "PINFOLD_SOCKET": str(api.path), "TERM": "xterm-256color"}
    with subprocess.Popen(WATCH, stdin=end, stdout=end, stderr=end, env=env) as program:
        os.close(end)
        try:
            written = b""
            while b"q quit" not in written:
                written += os.read(master, 65536)
            assert written.count(b"\033[2J") == 1
            time.sleep(2.2)
            at_rest = os.read(master, 65536)
            assert b"1s4c2t" not in at_rest
            assert b"\033[2J" not in at_rest
            assert len(at_rest) < 3 * 200
            api.ask("POST", "/v1/pods", manifest("two", "1"))
            changed = b""
            while b"default/two" not in changed:
                changed += os.read(master, 65536)
            assert b"1s4c2t" not in changed
            assert b"default/one" not in changed
            os.write(master, b"q")
            while b"\033[?1049l" not in changed:
                changed += os.read(master, 65536)
            assert program.wait(10) == 0
        finally:
            program.kill()
            os.close(master)

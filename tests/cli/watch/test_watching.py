"""``pinfold status --watch`` where there is no terminal: a text for each change, or events."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinfold.cli.client import Client
from pinfold.cli.watch.feed import follow
from pinfold.core.observation.rates import Counters
from pinfold.ports.errors import ContainerKey
from tests.scenes.manager_harness import manifest
from tests.scenes.tmux import pinfold
from tests.scenes.waiting import wait_until
from tests.scenes.web_world import Served, served


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "s") as server:
        server.ask("POST", "/v1/pods", manifest("one", "2"))
        yield server


@contextmanager
def watching(api: Served, *words: str) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "PINFOLD_SOCKET": str(api.path)}
    line = pinfold("status", "--watch", *words)
    pipe = subprocess.PIPE
    with subprocess.Popen(line, env=env, stdout=pipe, stderr=pipe, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


def test_json_is_an_event_in_each_line(api: Served) -> None:
    with watching(api, "-o", "json", "-n", "default") as program:
        assert program.stdout
        assert json.loads(program.stdout.readline())["kind"] == "whole"
        other = manifest("two", "1")
        other["metadata"]["namespace"] = "other"
        api.ask("POST", "/v1/pods", other)
        event = json.loads(program.stdout.readline())
        assert event["kind"] == "changed"
        assert event["changed"].get("pods", []) == []
        api.ask("DELETE", "/v1/pods/default/one?grace=0")
        while not event["changed"].get("gone"):
            event = json.loads(program.stdout.readline())
        assert event["changed"]["gone"] == ["uid-one"]


def test_text_comes_again_when_it_is_another(api: Served) -> None:
    with watching(api, "--no-color") as program:
        assert program.stdout
        rows = iter(program.stdout.readline, "")
        assert next(rows) == "1s4c2t\n"
        api.ask("POST", "/v1/pods", manifest("two", "1"))
        before = list(iter(lambda: next(rows), "1s4c2t\n"))
        assert any("default/one" in row for row in before)
        assert not any("\033" in row for row in before)
        while "default/two" not in next(rows):
            pass


def test_the_agents_end_is_its_end(tmp_path: Path) -> None:
    with served(tmp_path / "s") as api, watching(api) as program:
        assert program.stdout
        program.stdout.readline()
        api.end()
        _, err = program.communicate(timeout=20)
    assert program.returncode == 1
    assert err == "Error: the agent has stopped\n"


def test_without_an_agent_it_is_as_without_watch(tmp_path: Path) -> None:
    line = pinfold("status", "--socket", str(tmp_path / "none"))
    once = subprocess.run(line, check=False, capture_output=True, text=True)
    watched = subprocess.run([*line, "--watch"], check=False, capture_output=True, text=True)
    assert (watched.returncode, watched.stderr) == (once.returncode, once.stderr)
    assert watched.returncode == 2


def test_other_forms_come_again_when_they_are_another(api: Served) -> None:
    with watching(api, "-o", "name") as program:
        assert program.stdout
        assert program.stdout.readline() == "pod/one\n"
        api.ask("POST", "/v1/pods", manifest("two", "1"))
        assert [program.stdout.readline() for _ in range(2)] == ["pod/one\n", "pod/two\n"]
        time.sleep(0.5)
        api.ask("DELETE", "/v1/pods/default/one?grace=0")
        assert program.stdout.readline() == "pod/two\n", "what else changes is not in the names"


def test_after_an_interruption_everything_is_told_also_where_nothing_has_changed(
    api: Served,
) -> None:
    events = follow(Client(str(api.path), timeout=10.0))
    first = next(events)

    def interrupt() -> None:
        for one in api.connections():
            one.transport.abort()

    api.do(interrupt)
    told = [next(events), next(events)]
    assert [one.kind for one in (first, *told)] == ["whole", "away", "whole"]
    assert told[1].whole.status.pods == first.whole.status.pods  # type: ignore[union-attr] # both are whole


def test_of_another_namespace_nothing_is_told_neither_what_its_containers_do(
    tmp_path: Path,
) -> None:
    with served(tmp_path / "s", observes=True) as api:
        for name, namespace in (("one", "default"), ("two", "other")):
            pod = manifest(name, "1")
            pod["metadata"]["namespace"] = namespace
            api.ask("POST", "/v1/pods", pod)
        wait_until(lambda: len(api.node.runtime.known()) == 2)
        with watching(api, "-o", "json", "-n", "default") as program:
            assert program.stdout
            program.stdout.readline()
            for second in range(2):
                for uid in ("uid-one", "uid-two"):
                    used = Counters(1, second * 1_500_000, 0, 0, 0, 0)
                    api.backend.meters.counted[ContainerKey(uid, "c0")] = used
                api.backend.clock += 1.0
                api.call(api.backend.observation.observe())  # type: ignore[union-attr] # it observes
            event = json.loads(program.stdout.readline())
            while not event.get("observed", {}).get("containers"):
                event = json.loads(program.stdout.readline())
    assert [one["pod"] for one in event["observed"]["containers"]] == ["default/one"]


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT],
    ids=lambda one: one.name,
)
def test_whatever_ends_it_the_terminal_is_as_it_was(api: Served, number: signal.Signals) -> None:
    terminal, end = pty.openpty()
    before = termios.tcgetattr(end)
    program = subprocess.Popen(
        pinfold("status", "--watch", "--socket", str(api.path)),
        env={**os.environ, "TERM": "xterm"},
        stdin=end,
        stdout=end,
        stderr=end,
    )
    shown = b""
    while b"q quit" not in shown:
        shown += os.read(terminal, 65536)
    program.send_signal(number)
    # What waits to be read would keep its last words from being written.
    while b"\033[?1049l" not in shown:
        assert select.select([terminal], (), (), 15)[0], shown[-200:]
        shown += os.read(terminal, 65536)
    assert program.wait(15) == 128 + number
    assert shown.endswith(b"\033[?7h\033[?25h\033[?1049l")
    assert termios.tcgetattr(end) == before
    os.close(end)
    os.close(terminal)

"""What a command is at: on a terminal of its own, as who waits sees it."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

_SLOW = """
import sys, time
from pinfold.cli.progress_line import progress_line
with progress_line("placing pods", 3) as count:
    for one in count.each(range(3)):
        time.sleep(float(sys.argv[1]) / 3)
print("done", file=sys.stderr)
"""


def seen(*command: str, term: str = "xterm", together: bool = False, **environment: str) -> str:
    """What stands on the terminal that is a command's standard error, with all that moves it.

    ``together``: standard output is on the same one.
    """
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=theirs if together else subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": term, **environment},
    ) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:
                # The last one who had the terminal open has closed it.
                break
            text += piece
        assert process.wait() == 0
    os.close(ours)
    return text.decode()


def test_what_takes_longer_than_a_second_is_told_and_taken_back() -> None:
    text = seen("-c", _SLOW, "2.4")
    assert "placing pods 1 of 3 ... 1 s" in text
    assert "\n" not in text.removesuffix("done\r\n")
    assert text.endswith("\r\x1b[Kdone\r\n")


@pytest.mark.parametrize(("seconds", "term"), [("0.1", "xterm"), ("1.4", "dumb")])
def test_nothing_is_told_of_what_is_quick_and_where_no_line_can_be_taken_back(
    seconds: str, term: str
) -> None:
    assert seen("-c", _SLOW, seconds, term=term) == "done\r\n"


@pytest.mark.parametrize("words", [("history",), ("delete", "pod/web")], ids=" ".join)
def test_an_agent_that_takes_its_time_is_waited_for_in_words(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    path = str(tmp_path / "s")
    body = b'{"version": 1, "entries": []}'
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def answer_late() -> None:
            with server.accept()[0] as connection:
                connection.recv(1 << 16)
                time.sleep(1.8)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\n" + body)

        thread = threading.Thread(target=answer_late)
        thread.start()
        text = seen("-m", "pinfold", *words, PINFOLD_SOCKET=path)
        thread.join()
    assert "waiting for the agent ... 1 s" in text
    # Taken back before anything else is said.
    assert "waiting" not in text.rpartition("\r\x1b[K")[2]


def test_pods_that_end_one_after_the_other_are_counted_in_one_line(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def answer_each_late() -> None:
            for _ in range(3):
                with server.accept()[0] as connection:
                    connection.recv(1 << 16)
                    time.sleep(0.8)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=answer_each_late)
        thread.start()
        pods = ("pod/a", "pod/b", "pod/c")
        text = seen("-m", "pinfold", "delete", *pods, together=True, PINFOLD_SOCKET=path)
        thread.join()
    assert "waiting for the agent 1 of 3 ... 1 s" in text
    lines = [line.rpartition("\x1b[K")[2] for line in text.splitlines() if "deleted" in line]
    assert sorted(lines) == ["pod/a deleted", "pod/b deleted", "pod/c deleted"]


def test_what_is_done_beside_is_not_told() -> None:
    beside = (
        "import threading\n"
        "thread = threading.Thread(target=lambda: exec(program))\n"
        "thread.start()\nthread.join()\n"
    )
    assert seen("-c", f"program = {_SLOW!r}\n{beside}", "1.4") == "done\r\n"


def test_nothing_is_told_where_standard_error_is_no_terminal() -> None:
    command = [sys.executable, "-c", _SLOW, "1.4"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stderr == "done\n"


def test_a_plan_says_what_it_is_at(tmp_path: Path) -> None:
    """With no second of silence before that, however fast it is."""
    pod = tmp_path / "pod.yaml"
    pod.write_text("kind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: app}]}\n")
    program = (
        "import pinfold.cli.progress_line\npinfold.cli.progress_line._SILENCE = 0\n"
        "from pinfold.__main__ import start\nstart()\n"
    )
    text = seen("-c", program, "plan", "--machine", "2s8c2t", str(pod))
    assert {"reading the manifests", "placing pods"} & {
        line.partition(" ...")[0].removeprefix("\x1b[K").partition(" 0 of")[0]
        for line in text.split("\r")
    }
    assert text.endswith("\r\x1b[K")

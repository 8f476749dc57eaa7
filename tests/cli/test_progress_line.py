"""What a command is at: on a terminal of its own, as who waits sees it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
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


def seen(*command: str, term: str = "xterm") -> str:
    """What stands on the terminal that is a command's standard error, with all that moves it."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": term},
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

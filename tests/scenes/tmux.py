"""A real terminal that a test can press keys in and look at: tmux, on a server of its own."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from tests.roots import ROOT
from tests.scenes.waiting import wait_until


class Terminal:
    """A shell in a terminal of some size."""

    def __init__(self, columns: int, lines: int, env: Mapping[str, str]) -> None:
        self._server = f"pinfold-{secrets.token_hex(4)}"
        size = ["-x", str(columns), "-y", str(lines)]
        told = {**env, "PATH": os.environ["PATH"], "PS1": "$ ", "LC_ALL": "C.UTF-8"}
        shell = ["env", *(f"{name}={value}" for name, value in told.items()), "sh"]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(ROOT), *shell)
        self._tmux("set", "-g", "status", "off")
        self._tmux("resize-window", *size)
        wait_until(lambda: "$" in self.screen())

    def _tmux(self, *words: str) -> str:
        line = ["tmux", "-L", self._server, *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout

    def screen(self, *, colors: bool = False) -> str:
        """What is on it."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colors else []))

    def asked(self, form: str) -> str:
        """What tmux knows of it, such as ``#{alternate_on}``."""
        return self._tmux("display-message", "-p", form).strip()

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names of them."""
        self._tmux("send-keys", *keys)

    def run(self, words: Sequence[str]) -> None:
        """Type a command."""
        self._tmux("send-keys", "-l", shlex.join(words))
        self.press("Enter")

    def resize(self, columns: int, lines: int) -> None:
        """Make it as large."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def until(self, is_so: Callable[[str], bool], seconds: float = 15.0) -> str:
        """What is on it once it is so."""
        wait_until(lambda: is_so(self.screen()), seconds)
        return self.screen()

    def close(self) -> None:
        """It is gone, with what runs in it."""
        self._tmux("kill-server")


@contextmanager
def terminal(columns: int, lines: int, env: Mapping[str, str]) -> Iterator[Terminal]:
    """A terminal; without tmux the test is skipped."""
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux: tests/e2e/install.sh installs it")
    found = Terminal(columns, lines, env)
    try:
        yield found
    finally:
        found.close()


def pinfold(*words: str) -> list[str]:
    """A command line of this program."""
    return [sys.executable, "-m", "pinfold", *words]

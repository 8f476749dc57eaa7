"""A shell on a terminal of its own, at which somebody types."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ

COMMANDS: dict[str, list[str]] = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
_MOVES = re.compile(
    r"\x1b(?:\[[0-9;?<>=]*[a-zA-Z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>])"
)


class ShellTerminal:
    """What is typed, and what stands there since."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self.text = ""

    def type(self, keys: str) -> None:
        """Press keys, one after the other; what stood there before is forgotten."""
        self.text = ""
        os.write(self._terminal, keys.encode())

    def wait(self, pattern: str, seconds: float = 20) -> float:
        """Wait until that stands there, without what moves the cursor; how long it took."""
        began = time.monotonic()
        while not re.search(pattern, self.plain):
            left = began + seconds - time.monotonic()
            assert left > 0, f"{pattern!r} is not in {self.plain!r}"
            if select.select([self._terminal], [], [], left)[0]:
                self.text += os.read(self._terminal, 1 << 16).decode(errors="replace")
                self._answer()
        return time.monotonic() - began

    def settle(self, seconds: float = 0.3) -> str:
        """Wait until nothing comes any more; what stands there then."""
        while select.select([self._terminal], [], [], seconds)[0]:
            self.text += os.read(self._terminal, 1 << 16).decode(errors="replace")
            self._answer()
        return self.plain

    @property
    def plain(self) -> str:
        return _MOVES.sub("", self.text)

    def _answer(self) -> None:
        """A shell that asks who the terminal is waits for an answer."""
        if self.text.endswith("\x1b[0c") or self.text.endswith("\x1b[c"):
            os.write(self._terminal, b"\x1b[?1;2c")


@contextmanager
def shell_terminal(
    shell: str, folder: Path, environment: Mapping[str, str]
) -> Iterator[ShellTerminal]:
    """A shell without anybody's settings, in a folder that is its home."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, pack("HHHH", 50, 160, 0, 0))
    with subprocess.Popen(
        # Only of a session of its own a terminal is the one that controls it.
        ["setsid", "--ctty", *COMMANDS[shell]],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TERM": "xterm",
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "PS1": "> ",
            **environment,
        },
    ) as process:
        os.close(theirs)
        try:
            yield ShellTerminal(ours)
        finally:
            process.kill()
            os.close(ours)

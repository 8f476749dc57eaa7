"""The whole screen of a terminal for a while, left as it was; by xterm's control sequences."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Final, Self

from pinfold.linux.endings import ended_by
from pinfold.render.terminal import cell_width

_ENTER: Final = "\033[?1049h\033[?25l\033[?7l\033[2J"
"""The alternate screen, no cursor, no wrapping at the right side, and nothing on it."""
_LEAVE: Final = "\033[?7h\033[?25h\033[?1049l"
_SGR: Final = re.compile(r"\033\[[0-9;]*m")
_KEY: Final = re.compile(rb"\033(?:\[|O)[0-9;]*[A-Za-z~]|.", re.DOTALL)
_KEYS: Final = {
    "up": (b"\033[A", b"\033OA", b"k"),
    "down": (b"\033[B", b"\033OB", b"j", b"\r", b"\n"),
    "page up": (b"\033[5~", b"b"),
    "page down": (b"\033[6~", b" ", b"f"),
    "top": (b"\033[H", b"\033[1~", b"\033OH", b"g"),
    "end": (b"\033[F", b"\033[4~", b"\033OF", b"G"),
}
_NAMES: Final = {key: name for name, keys in _KEYS.items() for key in keys}
_ENDING: Final = (signal.SIGHUP, signal.SIGQUIT)
"""Those that would end the program without a word to the terminal."""
_SIGNALS: Final = (signal.SIGWINCH, signal.SIGTSTP, *_ENDING)


class Screen:
    """The screen, while it is entered as a context.

    Keys are read where standard input is a terminal, too.  SIGTSTP leaves the screen until the
    program goes on.
    """

    def __init__(self) -> None:
        self._out = sys.stdout.fileno()
        self._in: int | None = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None
        self._shown: list[str] = []
        self._is_moved = False
        self._wake, self._woken = os.pipe()
        self._before: list[object] | None = None
        self._handlers: dict[signal.Signals, object] = {}

    @property
    def has_keys(self) -> bool:
        """Whether somebody can press any."""
        return self._in is not None

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines now; 80 and 24 where the terminal does not tell."""
        found = os.get_terminal_size(self._out)
        return found if all(found) else os.terminal_size((80, 24))

    def __enter__(self) -> Self:
        """Take the screen."""
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        for number in _SIGNALS:
            self._handlers[number] = signal.getsignal(number)
        try:
            signal.signal(signal.SIGWINCH, self._resized)
            if self._handlers[signal.SIGTSTP] is not signal.SIG_IGN:
                signal.signal(signal.SIGTSTP, self._stopped)
            for number in _ENDING:
                if self._handlers[number] is not signal.SIG_IGN:
                    signal.signal(number, ended_by)
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it as it was; no signal comes in between."""
        ending = (signal.SIGINT, signal.SIGTERM, *_ENDING)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
        try:
            self._give_back()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)  # type: ignore[arg-type] # as it was got
            os.close(self._wake)
            os.close(self._woken)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def wake(self) -> None:
        """Have :meth:`keys` return; may be called by any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._woken, b"!")

    def keys(self, within: float) -> Iterator[str]:
        """The names of the keys that are pressed; none after so many seconds, or when woken.

        ``up``, ``down``, ``page up``, ``page down``, ``top``, ``end``, or the character itself.
        Raises EOFError when the terminal is gone.
        """
        readers = [self._wake] + ([] if self._in is None else [self._in])
        ready, _, _ = select.select(readers, (), (), max(within, 0.0))
        if self._wake in ready:
            os.read(self._wake, 4096)
        if self._in is None or self._in not in ready:
            return
        try:
            pressed = os.read(self._in, 4096)
        except OSError:
            raise EOFError from None
        if not pressed:
            raise EOFError
        for key in _KEY.findall(pressed):
            yield _NAMES.get(key) or key.decode("latin-1")

    def show(self, lines: Sequence[str]) -> None:
        """Have just these lines on the screen; what is as before is not written again."""
        parts = []
        columns = self.size.columns
        if self._is_moved:
            self._is_moved, self._shown = False, []
            parts.append("\033[2J")
        for row in range(max(len(lines), len(self._shown))):
            line = lines[row] if row < len(lines) else ""
            if row < len(self._shown) and self._shown[row] == line:
                continue
            # At the last column there is nothing left to clear, and the cursor is still in it.
            full = cell_width(_SGR.sub("", line)) >= columns
            parts.append(f"\033[{row + 1};1H{line}" + ("" if full else "\033[K"))
        self._shown = list(lines)
        if parts:
            self._write("".join(parts))

    def _write(self, text: str) -> None:
        rest = memoryview(text.encode(sys.stdout.encoding, "replace"))
        while rest:
            rest = rest[os.write(self._out, rest) :]

    def _take(self) -> None:
        sys.stdout.flush()
        if self._in is not None:
            self._before = termios.tcgetattr(self._in)
            mode = termios.tcgetattr(self._in)
            mode[3] &= ~(termios.ICANON | termios.ECHO)
            # It would end the program without a word to the terminal.
            mode[6][termios.VQUIT] = b"\0"
            mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._in, termios.TCSADRAIN, mode)
        self._write(_ENTER)

    def _give_back(self) -> None:
        # A terminal that is gone needs nothing.
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        if self._in is not None and self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._in, termios.TCSAFLUSH, self._before)  # type: ignore[arg-type] # as it was got

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        # A terminal moves what is on it about: all of it is written again, once it is drawn.
        self._is_moved = True
        self.wake()

    def _stopped(self, _number: int, _frame: FrameType | None) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self._is_moved = True
        self.wake()

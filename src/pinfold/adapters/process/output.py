"""What a container writes: out of its FIFO and into its log, which has a bound.

The FIFO ``output`` is the container's standard output and error.  The container has it open both
ways, so that whoever reads may die without the container getting SIGPIPE; what it writes meanwhile
waits in the pipe.  One process at a time reads, and holds a lock on the FIFO: the supervisor, or
where that was killed a successor that the agent starts with :func:`succeed`.

A disk that is full costs output and nothing else: what could not be written is counted, and said
in the log as soon as there is room.  It imports next to nothing, as the supervisor does.
"""

import fcntl
import os
import select
import sys
from _signal import SIG_IGN, SIGHUP, SIGINT, SIGTERM, signal  # type: ignore[import-not-found]  # no stub; ``signal`` is too big
from errno import ENOSPC
from termios import FIONREAD
from time import gmtime, strftime, time_ns

OUTPUT = b"/output"
LOG = b"/log"

CHUNK = 1 << 16
"""Bytes that are read at once: a line is taken apart where it is longer."""

PIPE_SIZE = 1 << 20
"""Bytes that the container may be ahead: what Linux gives to anybody (fs.pipe-max-size)."""


class Log:
    """The files of one attempt's log: ``count`` of ``size`` bytes, the one written to included."""

    def __init__(self, path: bytes, size: int, count: int) -> None:
        self.path = path
        self.size = size
        self.count = count
        self.file = -1
        self.used = 0
        self.lost = 0
        self.problem = ""

    def take(self, chunk: bytes) -> None:
        """Append what the container has written; never fails."""
        now = time_ns()
        stamp = b"%s.%09dZ" % (
            strftime("%Y-%m-%dT%H:%M:%S", gmtime(now // 10**9)).encode(),
            now % 10**9,
        )
        lines = as_lines(chunk, stamp)
        if self.lost:
            # Only together: there may be room for the one line again and again.
            text = f"{self.lost} bytes of output were lost: {self.problem}"
            lines = b"%s stderr F %s\n%s" % (stamp, text.encode(), lines)
        try:
            self.append(lines)
            self.lost = 0
        except OSError as error:
            self.lost += len(chunk)
            self.problem = error.strerror or str(error)

    def close(self) -> str:
        """Say what was lost, if there is room for that; else return it."""
        if self.lost:
            self.take(b"")
        return f"{self.lost} bytes of its output were lost: {self.problem}" if self.lost else ""

    def append(self, lines: bytes) -> None:
        """Write whole lines; a file that would become larger than it may is put aside before."""
        if self.file >= 0 and not os.fstat(self.file).st_nlink:
            # Somebody has removed it, to make room: what follows is read by nobody in there.
            os.close(self.file)
            self.file = -1
        while lines:
            if self.file < 0:
                self.open()
            cut = len(lines)
            if cut > self.size - self.used:
                cut = lines.rfind(b"\n", 0, max(self.size - self.used, 0)) + 1
                if not cut and self.used:
                    self.rotate()
                    continue
                # A line that is longer than a file may be has one of its own.
                cut = cut or lines.index(b"\n") + 1
            self.write(lines[:cut])
            lines = lines[cut:]

    def open(self) -> None:
        """Open the file that is written to, where somebody may have written before."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        try:
            self.file = os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            folder = self.path.rpartition(b"/")[0]
            os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103 - pathlib is big
            self.file = os.open(self.path, flags, 0o600)
        self.used = os.fstat(self.file).st_size

    def write(self, lines: bytes) -> None:
        """Write all of it or nothing."""
        written = os.write(self.file, lines)
        if written < len(lines):
            os.ftruncate(self.file, os.fstat(self.file).st_size - written)
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        self.used += written

    def rotate(self) -> None:
        """Put the file aside under the next number, and remove the oldest before that."""
        folder, _, name = self.path.rpartition(b"/")
        start = len(name) + 1
        old = sorted(
            entry
            for entry in os.listdir(folder)  # noqa: PTH208 - pathlib is big
            if entry.startswith(name + b".") and entry[start:].isdigit()
        )
        for entry in old[: max(len(old) - (self.count - 2), 0)]:
            os.unlink(folder + b"/" + entry)  # noqa: PTH108 - pathlib is big
        number = int(old[-1][start:]) + 1 if old else 1
        try:  # noqa: SIM105 - contextlib is big
            os.rename(self.path, b"%s.%08d" % (self.path, number))  # noqa: PTH104 - pathlib is big
        except FileNotFoundError:
            pass  # somebody has removed it
        os.close(self.file)
        self.file = -1


def as_lines(chunk: bytes, stamp: bytes) -> bytes:
    """What was written, as the CRI's lines; a line without an end is marked as such."""
    whole = stamp + b" stdout F "
    lines, end, rest = chunk.rpartition(b"\n")
    text = whole + lines.replace(b"\n", b"\n" + whole) + b"\n" if end else b""
    return text + stamp + b" stdout P " + rest + b"\n" if rest else text


def open_output(folder: bytes) -> int:
    """Open a container's FIFO to read it, and be the one who does.

    Raises:
        OSError: it is not there, or somebody reads it (BlockingIOError).
    """
    # Both ways, so that its end is never seen: a process of the container's may open it again.
    reader = os.open(folder + OUTPUT, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.flock(reader, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:  # noqa: SIM105 - contextlib is big
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        except OSError:
            pass  # a smaller one will do
    except OSError:
        os.close(reader)
        raise
    return reader


def copy(reader: int, log: Log, main: int) -> str:
    """Copy until the main process (a pidfd) ends; then what it has left in the pipe, and no more.

    A daemon that it leaves behind may go on writing, and nobody waits for that.

    Returns:
        What was lost, where the log could not take even that; else "".
    """
    gate = select.poll()
    gate.register(reader, select.POLLIN)
    gate.register(main, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in gate.poll()]
        if main in ready:
            break
        log.take(read(reader, CHUNK))
    return drain(reader, log)


def drain(reader: int, log: Log) -> str:
    """Copy what is in the pipe now; see :func:`copy`."""
    left = int.from_bytes(fcntl.ioctl(reader, FIONREAD, bytes(4)), sys.byteorder)
    while left > 0 and (chunk := read(reader, min(left, CHUNK))):
        log.take(chunk)
        left -= len(chunk)
    return log.close()


def read(reader: int, most: int) -> bytes:
    """What is in the pipe; nothing is no error."""
    try:
        return os.read(reader, most)
    except BlockingIOError:
        return b""


def log_of(folder: bytes, size: bytes, count: bytes) -> Log:
    """The log of the container with this folder."""
    return Log(os.readlink(folder + LOG), int(size), int(count))  # noqa: PTH115 - pathlib is big


def succeed() -> None:
    """Go on for a supervisor that was killed: the program of a process of its own.

    Its standard input is the FIFO, opened and locked; its arguments are the folder, the log's size
    and count, and the main process with its start time.
    """
    for number in (SIGHUP, SIGINT, SIGTERM):
        signal(number, SIG_IGN)
    folder, size, count, pid, start = map(os.fsencode, sys.argv[1:])
    log = log_of(folder, size, count)
    os.chdir("/")
    try:
        main = os.pidfd_open(int(pid))
        is_it = start_time(pid) == start
    except OSError:
        is_it = False
    if is_it:
        copy(0, log, main)
    else:
        drain(0, log)


def start_time(pid: bytes) -> bytes:
    """Field 22 of ``/proc/PID/stat``, clock ticks since the boot."""
    with open(b"/proc/%s/stat" % pid, "rb", 0) as file:  # noqa: PTH123 - pathlib is big
        stat = file.read(4096)
    return stat[stat.rindex(b")") :].split()[20]

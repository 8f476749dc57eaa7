"""The program that stands over one container, so that the container outlives the agent.

``launch.py`` runs it with a container's folder and whose it is as its arguments and the order on
its standard input, by a Python without site-packages (``-I -S``).  It forks the main process, which
gets ready and waits, writes ``FOLDER/state``, answers ``ok`` on its standard output and closes it;
from then on it copies what the container writes into its log (``output.py``).  When the main
process ends it writes ``FOLDER/exit`` and ends as well.

The main process waits for a byte in the FIFO ``go``.  It holds the FIFO ``outcome`` open until it
executes the command: whoever reads there finds the end of the file when the command runs, or else
why it could not be executed.  Should the supervisor die, a main process that waits ends too.

There is a supervisor for each container, so it imports next to nothing: ``signal``, ``json`` and
``ctypes`` would cost a megabyte and up to 8 ms each.  For the same reason it is no child
subreaper, which takes ``prctl``: what a container's daemons leave behind belongs to init, and is
found by its cgroup.
"""

import os
import resource
import select
import sys
from _signal import (  # type: ignore[import-not-found]  # no stub; ``signal`` is too big
    SIG_DFL,
    SIG_IGN,
    SIG_SETMASK,
    SIGHUP,
    SIGINT,
    SIGKILL,
    SIGSTOP,
    SIGTERM,
    pthread_sigmask,
    signal,
    valid_signals,
)
from binascii import crc32
from time import sleep, time

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from pinfold.adapters.process.output import OUTPUT, copy, log_of, open_output, start_time
else:
    from output import OUTPUT, copy, log_of, open_output, start_time

MAX_ANSWER = 4096
"""Bytes of a message between the processes; a pipe takes so many at once or none (PIPE_BUF)."""

MAX_CPUS = 8192
"""The kernel's greatest NR_CPUS; it ignores the CPUs that the machine does not have."""

CANNOT_EXECUTE, NOT_FOUND = 126, 127
"""The exit codes of a shell (POSIX, "Exit Status for Commands")."""

RETRIES = 10


class Order:
    """What to run, as the agent wrote it: fields that end in NUL, the last ones the environment."""

    def __init__(self, data: bytes) -> None:
        self.boot, open_files, self.oom_score_adj, self.rights, *rest = data.split(b"\0")[:-1]
        self.open_files = int(open_files)
        self.program, self.working_dir, count, *rest = rest
        self.argv = rest[: int(count)]
        self.env = dict(entry.split(b"=", 1) for entry in rest[int(count) :])


class Refused(Exception):  # noqa: N818 - the container was refused, the supervisor is all right
    """The container cannot be; says the problem, the remedy, and the exit code."""

    def __init__(self, problem: str, remedy: str, code: int = CANNOT_EXECUTE) -> None:
        super().__init__(problem)
        lines = (" ".join(text.split()) for text in (problem, remedy))
        self.text = "\n".join(lines).encode(errors="backslashreplace")[: MAX_ANSWER - 1]
        self.code = code


def main() -> None:
    """Make the container, tell the agent, wait for its end, write it down."""
    # What the agent itself has inherited, and hands on unknowingly.
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib is big
        if int(descriptor) > 2:
            try:  # noqa: SIM105 - contextlib is big
                os.close(int(descriptor))
            except OSError:
                pass  # the listing's own
    # Whoever ends the agent's process group or session does not mean the containers.
    for number in (SIGHUP, SIGINT, SIGTERM):
        signal(number, SIG_IGN)
    # Before the agent moves it: cgroup v1 refuses who is real-time where there is no budget for it.
    schedule_as_usual()
    folder, identity = os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2])
    order = Order(read_all(0))
    try:
        pid, lifeline, news, reader, note = fork_main(folder, order)
        try:
            log = log_of(folder, *map(os.fsencode, sys.argv[3:5]))
            state = b"pinfold-process 1\nboot %s\nsupervisor %d %s\nmain %d %s\n" % (
                *(order.boot, os.getpid(), start_time(b"self")),
                *(pid, start_time(b"%d" % pid)),
            )
            # The agent writes whose it is, too; that may be damaged, or not be there yet.
            state += b"note %s\nidentity %s\n" % (note, identity)
            write_file(folder, b"state", with_sum(state))
        except OSError as error:
            os.kill(pid, SIGKILL)
            os.waitpid(pid, 0)
            raise Refused(f"cannot write {show(folder)}/state: {reason(error)}", "") from None
    except Refused as refused:
        os.write(1, refused.text)
        os._exit(1)
    try:  # noqa: SIM105 - contextlib is big
        os.write(1, b"ok\n")
    except BrokenPipeError:
        pass  # the agent died meanwhile; the next one finds the container by its state
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    os.chdir("/")
    lost = copy(reader, log, os.pidfd_open(pid))
    # The main process stays a zombie, and its pid its own, until its end is on the disk.
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    finished = time()
    assert end is not None  # noqa: S101 - without WNOHANG there is always an answer
    code = end.si_status if end.si_code == os.CLD_EXITED else 128 + end.si_status
    # Nobody but the main process could write there, and it is gone: this never waits.
    problem, _, remedy = os.read(news, MAX_ANSWER)[1:].partition(b"\n")
    text = b"code %d\nat %.6f\nmessage %s\n" % (
        *(code, finished),
        problem + (b" (%s)" % remedy if remedy else b"") + lost.encode(),
    )
    record_exit(folder, with_sum(text))
    os.close(lifeline)
    os._exit(0)


def fork_main(folder: bytes, order: Order) -> "tuple[int, int, int, int, bytes]":
    """Fork the main process and wait until it is ready.

    Returns:
        Its pid, the pipe whose end tells it that the supervisor is gone, the pipe on which it
        says why the command could not be executed, the FIFO with its output, and a note about
        what was refused to it.
    """
    try:
        reader = open_output(folder)
        # Both ways: there is a reader as long as the container lives.
        output = os.open(folder + OUTPUT, os.O_RDWR)
        # Open both ways, so that a FIFO never looks closed only because no agent lives.
        go = os.open(folder + b"/go", os.O_RDWR | os.O_NONBLOCK)
        outcome = os.open(folder + b"/outcome", os.O_RDWR | os.O_NONBLOCK)
        death, lifeline = os.pipe()
        news, say = os.pipe()
        pid = os.fork()
    except OSError as error:
        raise Refused(f"cannot make the container in {show(folder)}: {reason(error)}", "") from None
    if pid == 0:
        for theirs in (lifeline, news, reader):
            os.close(theirs)
        try:
            become_main(folder, order, output, (go, outcome, death, say))
        finally:
            os._exit(CANNOT_EXECUTE)
    for ours in (output, go, outcome, death, say):
        os.close(ours)
    answer = os.read(news, MAX_ANSWER)
    if answer[:1] != b"+":
        os.waitpid(pid, 0)
        problem, _, remedy = answer[1:].decode().partition("\n")
        raise Refused(problem or "the process ended before it was ready", remedy)
    return pid, lifeline, news, reader, answer[1:]


def become_main(folder: bytes, order: Order, output: int, ends: "tuple[int, ...]") -> None:
    """The main process: get ready, wait for the word, execute the command.  Does not return."""
    go, outcome, death, say = ends
    try:
        note = get_ready(order, output)
    except Refused as refused:
        os.write(say, b"-" + refused.text)
        os._exit(refused.code)
    os.write(say, b"+" + note.encode())
    gate = select.poll()
    gate.register(go, select.POLLIN)
    gate.register(death, 0)  # only its end counts, which poll always tells
    if any(descriptor == death for descriptor, _ in gate.poll()):
        os._exit(128 + SIGKILL)
    try:
        execute(folder, order)
    except Refused as refused:
        os.write(outcome, refused.text)
        os.write(say, b"-" + refused.text)
        os._exit(refused.code)


def get_ready(order: Order, output: int) -> str:
    """Shed what was inherited of the agent; returns what the kernel refused, for the record."""
    notes = [schedule_as_usual()]
    os.setsid()
    for number in valid_signals() - {SIGKILL, SIGSTOP}:
        signal(number, SIG_DFL)
    pthread_sigmask(SIG_SETMASK, ())
    os.umask(0o022)
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    try:
        # An affinity of the agent's would still narrow the cpuset that the container gets.
        os.sched_setaffinity(0, range(MAX_CPUS))
    except OSError as error:
        notes.append(f"the agent's CPU affinity is inherited: {reason(error)}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (order.open_files, hard))
    if order.oom_score_adj:
        try:
            with open("/proc/self/oom_score_adj", "wb", 0) as file:  # noqa: PTH123 - pathlib is big
                file.write(order.oom_score_adj)
        except OSError as error:
            wish = order.oom_score_adj.decode()
            notes.append(f"oom_score_adj {wish} was refused (lowering takes root): {reason(error)}")
    try:
        os.chdir(order.working_dir)
    except OSError as error:
        raise Refused(
            f"cannot enter the working directory {show(order.working_dir)}: {reason(error)}",
            "make it, or correct workingDir",
            NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE,
        ) from None
    return "; ".join(note for note in notes if note)


def schedule_as_usual() -> str:
    """Shed the agent's policy and nice value; returns what the kernel refused, for the record."""
    try:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    except OSError as error:
        return f"the agent's scheduling policy or nice value is inherited: {reason(error)}"
    return ""


def execute(folder: bytes, order: Order) -> None:
    """Note the time of the start, for agents that are away; take rights; execute the command."""
    try:
        marker = os.open(folder + b"/started", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(marker, with_sum(b"at %.6f\n" % time()))
    except OSError as error:
        raise Refused(
            f"cannot write {show(folder)}/started: {reason(error)}", "make room on the disk"
        ) from None
    try:
        if order.rights:
            from privileges import take  # type: ignore[import-not-found]  # noqa: PLC0415 - 1.9 ms

            take(order.rights)
    except (ImportError, OSError) as error:
        raise Refused(f"cannot take on its securityContext: {error}", "") from None
    try:
        os.execve(order.program, order.argv, order.env)  # noqa: S606 - running commands is its purpose
    except FileNotFoundError:
        problem = "the file, or the interpreter that it names, does not exist"
        code = NOT_FOUND
    except OSError as error:
        problem = reason(error)
        code = CANNOT_EXECUTE
    raise Refused(f"cannot execute {show(order.program)}: {problem}", "", code)


def record_exit(folder: bytes, text: bytes) -> None:
    """Write down the end; an agent that finds no record knows that it was lost."""
    for _ in range(RETRIES):
        try:
            write_file(folder, b"exit", text)
        except FileNotFoundError:
            return  # the folder was removed; nobody wants to know
        except OSError:
            sleep(0.1)
        else:
            return


def read_all(descriptor: int) -> bytes:
    """Everything up to the end of the file."""
    parts = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    return b"".join(parts)


def show(path: bytes) -> str:
    """A path for a message, on one line."""
    return os.fsdecode(path)


def reason(error: OSError) -> str:
    """The system's words for an error."""
    return error.strerror or str(error)


def with_sum(text: bytes) -> bytes:
    """Lines with the checksum of :mod:`pinfold.adapters.process.records`."""
    return b"%ssum %08x\nend\n" % (text, crc32(text))


def write_file(folder: bytes, name: bytes, text: bytes) -> None:
    """Make a file that is complete or not there, and on the disk when this returns.

    ``NAME.new`` may be there: it is overwritten in place, so that the room it has is not lost.
    """
    path = folder + b"/" + name
    # Whatever lies there, this does not wait.
    file = os.open(path + b".new", os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.write(file, text) < len(text):
            raise OSError(None, "no room on the disk")
        os.ftruncate(file, len(text))
        os.fsync(file)
        os.rename(path + b".new", path)  # noqa: PTH104 - pathlib is big
        os.fsync(directory)
    finally:
        os.close(file)
        os.close(directory)

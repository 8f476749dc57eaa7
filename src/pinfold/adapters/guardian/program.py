"""The program that undoes what is lent and capped when the agent does not renew its lease.

``guardian.py`` runs it by a Python without site-packages (``-I -S``), in a session of its own, with
the order as its arguments.  It has open: 0, a pipe that ends with the agent; 1, a pipe on which it
answers ``ok``, or why it cannot be; 3, the lease, a file in memory of three numbers of eight bytes:
when the agent renewed it, when the guardian looked last, and when the guardian ended it (0: not
yet), in nanoseconds of CLOCK_MONOTONIC.

It ends the lease before it reads or changes anything: who finds it not ended after a change of his
can rely on that change being seen.  Ended, it stays ended; whatever an agent changes that was
stopped meanwhile is undone again, until that one has ended, or ends the guardian.  It only ever
takes CPUs away from the idle side, so nothing that it read too early can give one to a borrower.

It is to run when the machine is in need, so it is as small as a container's supervisor, and has
the same few lines of its own.
"""

import os
import select
import sys
from _signal import (  # type: ignore[import-not-found]  # no stub; ``signal`` is too big
    SIG_IGN,
    SIGHUP,
    SIGINT,
    SIGTERM,
    signal,
)
from errno import ENODEV, ENOENT
from time import monotonic_ns, sleep, time

CPUS = "cpuset.cpus"
MAX_CPUS = 8192
"""The kernel's greatest NR_CPUS."""

LEASE_FILE = 3
RENEWED, LOOKED, ENDED = 0, 8, 16
NUMBER = 8
SECOND = 1_000_000_000

LOOKS = 30
PAUSE = 0.001


class Order:
    """What to guard, see :class:`pinfold.ports.guardian.Undoing`; times are seconds."""

    def __init__(self, arguments: "list[str]") -> None:
        self.log, lease, look, self.pool, self.idle, self.threads, count, *rest = arguments
        self.lease, self.look = float(lease), float(look)
        caps = rest[: 2 * int(count)]
        self.uncapped = dict(zip(caps[::2], caps[1::2], strict=True))
        self.homes = rest[2 * int(count) :]


class Watch:
    """Whether the lease is over; once it is, it stays so.  ``lease`` is in nanoseconds."""

    def __init__(self, lease: int) -> None:
        self.lease = lease
        self.why = ""

    def look(self, now: int, renewed: int, *, closed: bool) -> bool:
        """Take note of the time, the last renewal and the agent's end; whether it is over."""
        if not self.why:
            if closed:
                self.why = "the agent has ended"
            elif now - renewed > self.lease:
                self.why = f"the agent has not renewed for {(now - renewed) / SECOND:.1f} s"
            elif renewed - now > self.lease:
                self.why = "the agent has renewed at a time that has not come"
        return bool(self.why)


def main() -> None:
    """Guard until the agent has ended and nothing is lent or capped."""
    order = Order(sys.argv[1:])
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib is big
        if int(descriptor) > LEASE_FILE:
            try:  # noqa: SIM105 - contextlib is big
                os.close(int(descriptor))
            except OSError:
                pass  # the listing's own
    # Whoever ends the agent's process group or session does not mean what is lent.
    for number in (SIGHUP, SIGINT, SIGTERM):
        signal(number, SIG_IGN)
    os.chdir("/")
    os.umask(0o077)
    # Before it enters a cgroup: cgroup v1 refuses who is real-time where there is no budget for it.
    schedule_as_usual()
    try:
        for home in order.homes:
            write(home + "/cgroup.procs", "0")
    except OSError as error:
        os.write(1, f"cannot enter {error.filename}: {error.strerror}".encode())
        os._exit(1)
    try:  # noqa: SIM105 - contextlib is big
        # When memory is short, this has to be the last to go.
        write("/proc/self/oom_score_adj", "-1000")
    except OSError:
        pass  # it takes root
    # Nothing is lent before the answer: the lease begins now, however long this start has taken.
    put_number(RENEWED, monotonic_ns())
    put_number(LOOKED, monotonic_ns())
    try:
        os.write(1, b"ok\n")
    except BrokenPipeError:
        os._exit(0)  # the agent has died: nothing was lent under this lease
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (1, 2):
        os.dup2(null, standard)
    os.close(null)
    guard(order)
    os._exit(0)


def schedule_as_usual() -> None:
    """Shed the agent's policy and rank, with which it would be starved, or starve others."""
    try:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, min(0, os.getpriority(os.PRIO_PROCESS, 0)))
    except OSError:
        pass  # it takes root


def run_on(order: Order, own: "set[int]") -> None:
    """Run on the pool, too: somebody else may have all the time of the CPUs that it began on."""
    try:  # noqa: SIM105 - contextlib is big
        os.sched_setaffinity(0, own | parse(read(f"{order.pool}/{CPUS}")))
    except OSError:
        pass  # the pool is gone, or its cpuset has none of them


class Done:
    """What was undone and is not written down yet."""

    def __init__(self) -> None:
        self.cpus: set[int] = set()
        self.uncapped = False


def guard(order: Order) -> None:
    """Look and undo, until the agent has ended and nothing is left to undo."""
    watch = Watch(int(order.lease * SECOND))
    end = select.poll()
    end.register(0, 0)  # only its end counts, which poll always tells
    told, own = "", os.sched_getaffinity(0)
    while True:
        schedule_as_usual()  # again: it may have been refused, or undone by somebody
        run_on(order, own)
        closed = bool(end.poll(0))
        now = monotonic_ns()
        if watch.look(now, number_at(RENEWED), closed=closed):
            if not number_at(ENDED):
                put_number(ENDED, now)
            done, problem = Done(), ""
            try:
                undo(order, done)
            except OSError as error:
                problem = f", and {error.filename}: {error.strerror or error}"
            if done.cpus or done.uncapped or problem not in ("", told):
                note(order, done, watch.why + problem)
            told = problem
            if closed and not problem:
                return
        put_number(LOOKED, monotonic_ns())
        if closed:
            sleep(order.look)
        else:
            end.poll(order.look * 1000)


def undo(order: Order, done: Done) -> None:
    """Take from the idle side what the pool has not, and take away caps.

    Raises:
        OSError: something could not be read or written, or is not in force.
    """
    for _ in range(LOOKS):
        narrow(order, done)
        if not stray(order):
            break
    else:
        raise OSError(None, "threads may still run on CPUs that were lent", order.idle)
    for file, text in order.uncapped.items():
        try:
            if read(file).split()[:1] != [text]:
                write(file, text)
                done.uncapped = True
        except OSError as error:
            if not is_gone(error):
                raise


def narrow(order: Order, done: Done) -> None:
    """Have the idle side and all below it on CPUs of the pool only.

    On cgroup v1 a cpuset has to be within the one above, and its own are within it.
    """
    for _ in range(LOOKS):
        try:
            had = parse(read(f"{order.idle}/{CPUS}"))
        except OSError as error:
            if is_gone(error):
                return
            raise
        pool = parse(read(f"{order.pool}/{CPUS}"))
        if not pool:
            raise OSError(None, "has no CPU", f"{order.pool}/{CPUS}")
        # On cgroup v2 none is all those of the cgroup above.
        if had and had <= pool:
            return
        folders = {one: parse(read(f"{one}/{CPUS}")) for one in below(order.idle)}
        if not had & pool:
            for folder, own in folders.items():
                folders[folder] = own | pool
                give(folder, own | pool)
        for folder, own in reversed(folders.items()):
            if not own <= pool or folder == order.idle:
                give(folder, own & pool or pool)
        done.cpus |= had - pool
    raise OSError(None, "does not stay as it is written", f"{order.idle}/{CPUS}")


def give(folder: str, cpus: "set[int]") -> None:
    """Write a cpuset."""
    write(f"{folder}/{CPUS}", ",".join(map(str, sorted(cpus))))


def stray(order: Order) -> bool:
    """Whether a thread may run elsewhere than the idle side; those that may are let go there.

    The kernel moves every thread before a write to a cpuset returns, but a child that is being born
    takes its parent's mask, and that may still be the old one: two looks have to find the same.
    """
    known: set[int] = set()
    for attempt in range(LOOKS):
        try:
            cpus = parse(read(f"{order.idle}/{CPUS}"))
            now = threads(order)
        except OSError as error:
            if is_gone(error):
                return False
            raise
        outside = False
        for tid in now:
            try:
                if not os.sched_getaffinity(tid) <= cpus:
                    outside = True
                    os.sched_setaffinity(tid, range(MAX_CPUS))
            except OSError:
                pass  # it has ended
        if not outside and now <= known:
            return False
        known |= now
        sleep(PAUSE if attempt else 0)
    return outside


def threads(order: Order) -> "set[int]":
    """The threads of the idle side."""
    found: set[int] = set()
    for folder in below(order.idle, file=order.threads):
        try:
            found.update(map(int, read(f"{folder}/{order.threads}").split()))
        except OSError as error:
            if not is_gone(error):
                raise
    return found


def below(folder: str, file: str = CPUS) -> "list[str]":
    """A cgroup and all in it that have a file, the upper ones first."""
    found = [folder]
    for one in found:
        try:
            with os.scandir(one) as entries:
                found += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if not is_gone(error):
                raise
    return [one for one in found if os.access(f"{one}/{file}", os.F_OK)]


def note(order: Order, done: Done, why: str) -> None:
    """Write down what was done, for the next agent; a full disk is no reason not to go on."""
    listed = ",".join(map(str, sorted(done.cpus)))
    line = f"{time():.3f}\t{listed}\t{done.uncapped:d}\t{' '.join(why.split())}\n"
    try:
        file = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            os.write(file, line.encode(errors="backslashreplace"))
        finally:
            os.close(file)
    except OSError:
        return


def number_at(place: int) -> int:
    """A number of the lease."""
    return int.from_bytes(os.pread(LEASE_FILE, NUMBER, place), "little")


def put_number(place: int, number: int) -> None:
    """Write a number of the lease."""
    os.pwrite(LEASE_FILE, number.to_bytes(NUMBER, "little"), place)


def parse(text: str) -> "set[int]":
    """The kernel's list of CPUs, such as ``0-3,8``."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first:
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def read(path: str) -> str:
    """Read a file of the kernel."""
    file = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(file, 1 << 16):
            parts.append(part)
    except OSError as error:
        raise named(error, path) from None
    finally:
        os.close(file)
    return b"".join(parts).decode()


def write(path: str, text: str) -> None:
    """Write one value into a file of the kernel, with one call."""
    file = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(file, f"{text}\n".encode())
    except OSError as error:
        raise named(error, path) from None
    finally:
        os.close(file)


def named(error: OSError, path: str) -> OSError:
    """What the kernel said, with the place."""
    return OSError(error.errno, error.strerror, path)


def is_gone(error: OSError) -> bool:
    """Whether the cgroup of a file has been removed."""
    return error.errno in (ENOENT, ENODEV)

"""Processes and threads of this machine: who they are, signals, and the CPUs they may use.

Source: proc_pid_stat(5), proc_stat(5), pidfd_open(2), sched_setaffinity(2).
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.linux.affinity import EVERY_CPU, affinity_of
from pinfold.linux.processes import Stat, pids, stat_of
from pinfold.linux.processes import threads as threads_of
from pinfold.linux.signals import send_signal
from pinfold.ports.errors import CgroupError, NoRoomError

_CPUS: Final = Path("/sys/devices/system/cpu")

_FOREIGN: Final = "it belongs to another user: run Pinfold as that user, or as root"


class Refusal(Struct, frozen=True):
    """What the kernel did not do, and what can be done about it."""

    problem: str
    remedy: str


class Snapshot(Struct, frozen=True):
    """Every process that can be seen; ``born`` counts the tasks since the boot, threads too.

    ``allowed`` is where their first threads might run, of those that had not ended.
    """

    processes: Mapping[int, Stat]
    born: int
    allowed: Mapping[int, frozenset[int]] = {}


def look() -> Snapshot:
    """Read all processes but this one.

    Raises:
        CgroupError: there is no ``/proc``, or the kernel was short of files to look.
    """
    own = os.getpid()
    processes, allowed = {}, {}
    try:
        born = _tasks_born()
        everybody = pids()
    except (OSError, ValueError) as error:
        raise CgroupError(f"cannot read /proc: {error}", "mount /proc") from None
    for pid in everybody:
        if pid != own and (process := stat_of(pid)) is not None:
            processes[pid] = process
            # At once: it may be gone before anybody knows whose it is.
            if (cpus := affinity_of(pid)) is not None:
                allowed[pid] = frozenset(cpus)
    return Snapshot(processes, born, allowed)


def pid_space() -> int:
    """How many pids there are before the kernel begins anew."""
    return int(Path("/proc/sys/kernel/pid_max").read_text())


def threads(process: Stat) -> list[int]:
    """The threads that run or may run; none when the process is gone; raises NoRoomError."""
    # The first thread of a defunct process is a zombie until the last one has ended.
    return [tid for tid in threads_of(process.pid) if tid != process.pid or not process.is_defunct]


def is_alive(process: Stat) -> bool:
    """Whether a process that was seen a moment ago can still execute anything."""
    return not process.is_defunct or bool(threads(process))


def time_on_cpu(tid: int) -> int:
    """How long a thread has run, in nanoseconds; 0 where the kernel does not tell, or it ended."""
    try:
        return int(Path(f"/proc/{tid}/schedstat").read_bytes().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def pin(process: Stat, tid: int, cpus: AbstractSet[int]) -> Refusal | None:
    """Set the CPUs of a thread, and read back what the kernel made of it.

    Returns:
        Why they are not in force; None when they are, or the thread has ended.
    """
    name = f"process {process.pid}" if tid == process.pid else f"thread {tid} of {process.pid}"
    reason = ""
    try:
        os.sched_setaffinity(tid, cpus)
    except ProcessLookupError:
        return None
    except PermissionError:
        return Refusal(f"{name} cannot be moved to CPUs {show(cpus)}: not permitted", _FOREIGN)
    except OSError as error:
        reason = f"{error.strerror}, "
    got = affinity_of(tid)
    # With others than were asked for, it has moved again by itself: that is seen at the next look.
    if got is None or got == cpus or not (reason or got <= cpus):
        return None
    return Refusal(
        f"{name} cannot be moved to CPUs {show(cpus)}: {reason}it may use {show(got)}, "
        f"in the cpuset {cpuset(process.pid)}",
        "choose CPUs of that cpuset, or move the process out of it",
    )


def cpuset(pid: int | str) -> str:
    """The path of a process's cpuset, for messages."""
    try:
        return Path(f"/proc/{pid}/cpuset").read_text().strip()
    except OSError:
        return "unknown"


def send(process: Stat, number: signal.Signals) -> Refusal | None:
    """Send a signal to exactly this process; why it was not sent, None also when it has ended."""
    problem = f"process {process.pid} cannot be sent {number.name}"
    try:
        send_signal(process.pid, process.start, number)
    except NoRoomError as error:
        return Refusal(f"{problem}: {error.problem}", error.remedy)
    except OSError as error:
        return Refusal(f"{problem}: {error.strerror}", _FOREIGN)
    return None


def send_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group that was seen a moment ago, as one: no fork escapes it."""
    # Those that it does not reach are told one by one, and then it shows why.
    with contextlib.suppress(OSError):
        os.killpg(group, number)


def forbid_children(process: Stat) -> None:
    """Let a process have no more children; the kernel does not heed this for root's."""
    with contextlib.suppress(OSError, ValueError, NoRoomError):
        if process.is_same(stat_of(process.pid)):
            resource.prlimit(process.pid, resource.RLIMIT_NPROC, (0, 0))


def own_cpuset() -> CPUSet:
    """The online CPUs of the cpuset that this process is in, whatever its own affinity is."""
    found: list[set[int]] = []

    def try_all() -> None:
        # This thread only, which ends then.
        os.sched_setaffinity(0, EVERY_CPU)
        found.append(os.sched_getaffinity(0))

    prober = threading.Thread(target=_quietly, args=(try_all,))
    with contextlib.suppress(RuntimeError):
        prober.start()
        prober.join()
    return CPUSet(found[0] if found else os.sched_getaffinity(0))


def offline_cpus() -> CPUSet:
    """CPUs that the machine has and that are offline."""
    try:
        present, online = (
            CPUSet.parse((_CPUS / name).read_text()) for name in ("present", "online")
        )
    except (OSError, CPUSetError):
        # A sandbox without /sys: what is offline shows when it is refused.
        return CPUSet()
    return present - online


def lineage() -> set[int]:
    """This process, its ancestors, and the leader of its session; raises NoRoomError."""
    pids = {os.getpid(), os.getsid(0)}
    pid = os.getppid()
    while pid and pid not in pids:
        pids.add(pid)
        process = stat_of(pid)
        pid = 0 if process is None else process.parent
    return pids


def show(cpus: AbstractSet[int]) -> str:
    """CPUs in the kernel's list format."""
    return str(CPUSet(cpus))


def _tasks_born() -> int:
    with contextlib.closing(Path("/proc/stat").open("rb")) as file:
        for line in file:
            if line.startswith(b"processes "):
                return int(line.split()[1])
    raise ValueError("/proc/stat does not count processes")


def _quietly(action: Callable[[], None]) -> None:
    # A sandbox may forbid the call; what one has must do then.
    with contextlib.suppress(OSError):
        action()

"""What of a machine's settings a profile of a node reads: the running kernel's, or a capture's.

A capture holds the files of :data:`FILES`, so far as the machine has them, and a side file of our
own, :data:`SIDE_FILE`, with the programs that ran and the kubelet's version; by that it is told
that what is not there was not there.  In a tree without it nothing is certain but what is there.

Sources: the kernel's ``admin-guide/sysctl``, ``admin-guide/pm/cpuidle.rst``,
``ABI/testing/sysfs-devices-power`` (``pm_qos_resume_latency_us``), proc(5), namespaces(7).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from pinfold.adapters.machines.discovery import open_tree
from pinfold.adapters.machines.kubelet_build import running_kubelet
from pinfold.adapters.machines.source import is_tree
from pinfold.adapters.machines.tree import CPU_DIRECTORY, LiveTree, Tree
from pinfold.core.machine.kernel import Kernel
from pinfold.core.profile.check import Fact
from pinfold.core.profile.profile import EXCLUSIVE, ONLINE, Read
from pinfold.core.values.cpuset import CPUSet

SIDE_FILE: Final = "proc/pinfold-node-facts"
PROGRAMS: Final = ("irqbalance",)
"""Of these a capture says whether they ran."""

PARAMETERS: Final = (
    r"isolcpus|nohz_full|rcu_nocbs|irqaffinity|kthread_cpus|maxcpus|nr_cpus|possible_cpus"
    r"|hugepages|hugepagesz|default_hugepagesz|numa|transparent_hugepage|mitigations"
    r"|nmi_watchdog|skew_tick|idle|intel_idle\.max_cstate|processor\.max_cstate"
    r"|cpufreq\.default_governor|intel_pstate|amd_pstate|workqueue\.unbound_cpus"
)
"""The parameters of the kernel's command line that a capture keeps."""

_CPU: Final = r"sys/devices/system/cpu/cpu\d+"
FILES: Final = (
    rf"{_CPU}/cpufreq/(?:scaling_governor|energy_performance_preference)",
    rf"{_CPU}/cpuidle/state\d+/(?:latency|disable)",
    rf"{_CPU}/power/pm_qos_resume_latency_us",
    r"sys/devices/system/cpu/smt/control",
    r"sys/devices/system/cpu/cpuidle/current_driver",
    r"sys/kernel/mm/transparent_hugepage/(?:enabled|defrag)",
    r"sys/kernel/mm/ksm/run",
    r"sys/devices/virtual/workqueue/cpumask",
    r"proc/irq/default_smp_affinity",
    r"proc/sys/kernel/(?:timer_migration|nmi_watchdog|watchdog|soft_watchdog|watchdog_cpumask)",
    r"proc/sys/kernel/(?:numa_balancing|sched_rt_runtime_us)",
    r"proc/sys/vm/(?:swappiness|stat_interval|zone_reclaim_mode|nr_hugepages)",
)
"""The files of a capture, as patterns of :mod:`pinfold.adapters.machines.capture`."""

VALUE: Final = re.compile(r"[\w,:+\-\[\] \t\n]*", re.ASCII)
"""What a file of these may hold; any other is not captured."""

_FIRST_NAMESPACE: Final = "pid:[4026531836]"
_SWAPS: Final = "proc/swaps"
_FORM: Final = "node-facts: 1"
"""The first line of the side file; its number grows with :data:`FILES` and ``PARAMETERS``."""
_KUBELET: Final = "kubelet: "
"""What stands before its version in the side file."""
_VERSION: Final = re.compile(
    r"v\d{1,4}\.\d{1,4}(?:\.\d{1,4})?(?:[-+][0-9A-Za-z.+_-]{1,60})?", re.ASCII
)
_MOST: Final = 80
"""Characters of what a capture tells as a version."""
RELEASE: Final = "proc/sys/kernel/osrelease"
CPUSETS_V1: Final = "sys/fs/cgroup/cpuset"
CONTROLLERS: Final = "sys/fs/cgroup/cgroup.controllers"
_RELEASE: Final = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)
_STATE: Final = re.compile(r"state\d{1,3}", re.ASCII)


def open_settings(source: str | None) -> Tree | None:
    """The files of a machine that comes from ``source``, this one's for None.

    None where it comes from something that has no files.

    Raises:
        MachineError: it cannot be read.
    """
    if source is None:
        return LiveTree()
    return open_tree(Path(source)) if is_tree(source) else None


def read_kernel(tree: Tree | None) -> Kernel:
    """What a machine's files tell of its kernel."""
    if tree is None:
        return Kernel()
    release = _RELEASE.match(tree.read(RELEASE) or "")
    cgroups = 1 if tree.is_directory(CPUSETS_V1) else 2 if tree.is_file(CONTROLLERS) else None
    return Kernel(None if release is None else (int(release[1]), int(release[2])), cgroups)


def read_kubelet_version(tree: Tree | None) -> str:
    """The version of the kubelet that runs on a machine, as it is told; "" where nobody tells.

    What somebody wrote into a capture by hand need not be a version.
    """
    if tree is None:
        return ""
    if tree.live:
        return running_kubelet()
    told = [
        line.removeprefix(_KUBELET)
        for line in (tree.read(SIDE_FILE) or "").splitlines()
        if line.startswith(_KUBELET)
    ]
    return told[-1].strip()[:_MOST] if told else ""


def kernel_files(tree: Tree) -> Iterator[tuple[str, str | None]]:
    """The same for a capture: the texts of files by path, None for a folder."""
    if (release := _RELEASE.match(tree.read(RELEASE) or "")) is not None:
        yield RELEASE, f"{release[0]}\n"
    if tree.is_directory(CPUSETS_V1):
        yield CPUSETS_V1, None
    elif tree.is_file(CONTROLLERS):
        yield CONTROLLERS, "cpuset\n"


def side_file(tree: Tree, kubelet_version: str = "") -> str | None:
    """The side file of a capture of this tree; None where nobody knows what it leaves out.

    ``kubelet_version`` is what the user says of it; without it, what the tree tells.
    """
    reader = _Reader(tree, {})
    told = read_kubelet_version(tree)
    version = kubelet_version or (told if _VERSION.fullmatch(told) else "")
    kubelet = f"{_KUBELET}{version}\n" if version else ""
    if not reader.is_complete:
        return kubelet or None
    known = [(name, reader.program(name)) for name in PROGRAMS]
    programs = [
        f"{name}: {'absent' if fact.absent else 'running'}\n"
        for name, fact in known
        if not fact.unknown
    ]
    return "".join([f"{_FORM}\n", *programs, kubelet])


def kernel_words(command_line: str) -> list[str]:
    """The words that are the kernel's own: what follows ``--`` is for the first program."""
    words = command_line.split()
    return words[: words.index("--")] if "--" in words else words


def reduce_swaps(text: str) -> str:
    """``/proc/swaps`` with the number of its lines, and no name of a file or a device."""
    head, *rows = text.splitlines() or [""]
    return "\n".join([head.strip(), *(f"swap{at}" for at, _ in enumerate(rows))]) + "\n"


def read_facts(
    tree: Tree | None, reads: Iterable[str], online: CPUSet, exclusive: CPUSet | None
) -> dict[str, Fact]:
    """What is at the places that the rows of a profile read, but for the kubelet's fields.

    Args:
        tree: the machine's files; None where its source has none.
        reads: see :meth:`pinfold.core.profile.profile.Read.parse`.
        online: its CPUs.
        exclusive: those that containers may own; None where that is not known.
    """
    if tree is None:
        return dict.fromkeys(reads, Fact(unknown="this source of a machine tells no settings"))
    reader = _Reader(tree, {EXCLUSIVE: exclusive or CPUSet(), ONLINE: online})
    return {text: reader.fact(Read.parse(text)) for text in reads}


class _Reader:
    def __init__(self, tree: Tree, groups: Mapping[str, CPUSet]) -> None:
        self._tree = tree
        self._groups = groups
        side = "" if tree.live else tree.read(SIDE_FILE) or ""
        self._side = side.splitlines()
        self.is_complete = tree.live or _FORM in self._side
        """Whether what is not in it, of what a capture keeps, is not on the machine."""
        self._untold = Fact(unknown=f"{tree.name} does not tell; a capture by this version may")

    def fact(self, read: Read) -> Fact:
        """What is there."""
        if read.kind == "parameter":
            return self._parameter(read.name)
        if read.kind == "program":
            return self.program(read.name)
        if read.kind == "swap":
            found = self._at(_SWAPS)
            return found if isinstance(found, Fact) else _said(str(len(found.splitlines()[1:])))
        if read.kind == "idle":
            return self._each(self._groups[EXCLUSIVE], self._idle_latency)
        path = read.name.lstrip("/")
        if group := read.cpus:
            before, after = path.split(f"{{{group}}}", 1)
            return self._each(self._groups[group], lambda cpu: self._at(f"{before}{cpu}{after}"))
        found = self._at(path)
        return found if isinstance(found, Fact) else _said(found)

    def program(self, name: str) -> Fact:
        """``running``, or absent; which programs run is private, so that a capture has a few."""
        if not self._tree.live:
            if f"{name}: absent" in self._side:
                return Fact(absent=True)
            return _said("running") if f"{name}: running" in self._side else self._untold
        if self._tree.real_path("proc/self/ns/pid").rpartition("/")[2] != _FIRST_NAMESPACE:
            return Fact(unknown="not all processes of this machine are to be seen from here")
        if self._tree.read("proc/1/comm") is None:
            return Fact(unknown="not all processes can be read; are you root?")
        pids = (pid for pid in self._tree.names("proc") if pid.isascii() and pid.isdigit())
        is_there = any((self._tree.read(f"proc/{pid}/comm") or "").strip() == name for pid in pids)
        return _said("running") if is_there else Fact(absent=True)

    def _parameter(self, name: str) -> Fact:
        line = self._at("proc/cmdline")
        if isinstance(line, Fact):
            return self._untold
        # Dashes and underscores are one to the kernel.
        said = [
            value
            for key, _, value in (word.partition("=") for word in kernel_words(line))
            if key.replace("-", "_") == name.replace("-", "_")
        ]
        if said:
            return _said(said[-1])
        kept = self.is_complete and re.fullmatch(PARAMETERS, name) is not None
        return Fact(absent=True) if self._tree.live or kept else self._untold

    def _at(self, path: str) -> str | Fact:
        """The text of a file, or why there is none."""
        text = self._tree.read(path)
        if text is not None:
            return text
        if self._tree.live:
            if self._tree.is_file(path):
                return Fact(unknown=f"/{path} cannot be read; are you root?")
            return Fact(absent=True)
        kept = any(re.fullmatch(pattern, path, re.ASCII) for pattern in FILES)
        return Fact(absent=True) if kept and self.is_complete else self._untold

    def _each(self, cpus: CPUSet, at: Callable[[int], str | Fact]) -> Fact:
        """What each of some CPUs has; all of them, or nothing is known."""
        texts: dict[int, str] = {}
        for cpu in cpus:
            found = at(cpu)
            if isinstance(found, str):
                texts[cpu] = found
            elif found.unknown:
                return found
        if texts and len(texts) < len(cpus):
            return Fact(unknown=f"only CPUs {CPUSet(texts)} of {cpus} have it")
        return Fact(texts, absent=not texts)

    def _idle_latency(self, cpu: int) -> str | Fact:
        """The slowest wake-up, in microseconds, of the idle states that a CPU may enter."""
        folder = f"{CPU_DIRECTORY}/cpu{cpu}"
        states = [n for n in self._tree.names(f"{folder}/cpuidle") if _STATE.fullmatch(n)]
        if not states:
            return self._at(f"{folder}/cpuidle/state0/latency")
        allowed = self._at(f"{folder}/power/pm_qos_resume_latency_us")
        limit = _number(allowed) if isinstance(allowed, str) else 0
        if isinstance(allowed, str) and allowed.strip() == "n/a":
            return "0"
        slowest = 0
        for state in states:
            told = [self._at(f"{folder}/cpuidle/{state}/{name}") for name in ("latency", "disable")]
            latency, disabled = (_number(one) if isinstance(one, str) else None for one in told)
            if latency is None or disabled is None:
                return Fact(unknown=f"{folder}/cpuidle/{state} cannot be read")
            if not disabled and (not limit or latency <= limit):
                slowest = max(slowest, latency)
        return str(slowest)


def _said(text: str) -> Fact:
    return Fact({-1: text})


def _number(text: str) -> int | None:
    stripped = text.strip()
    return (
        int(stripped) if stripped.isascii() and stripped.isdigit() and len(stripped) < 19 else None
    )

"""Every thread of the machine, from ``/proc/PID/task/TID``.

Threads vanish while they are read, and that is no error.  Source: proc(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Final

from pinfold.adapters.procfs.cgroups import Hierarchy
from pinfold.adapters.procfs.files import KernelFiles, parse_list
from pinfold.audit.snapshot import Task
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.processes import parse_cgroups, parse_stat

_KTHREADD: Final = 2


def parse_allowed(text: str) -> CPUSet:
    """``Cpus_allowed_list`` of a ``status`` file; raises ValueError."""
    for line in text.split("\n"):
        # The name, further up, has its ends of line escaped and cannot pass for this.
        if line.startswith("Cpus_allowed_list:"):
            return parse_list(line.partition(":")[2])
    raise ValueError("no Cpus_allowed_list in it")


def read_tasks(
    files: KernelFiles, cpusets: Hierarchy | None, quotas: Hierarchy | None
) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    """All threads that run or may run, and sentences about what could not be seen.

    Args:
        files: where ``/proc`` is.
        cpusets: the hierarchy of the cpusets, where there is one.
        quotas: that of the ``cpu`` controller.
    """
    refused = len(files.refused)
    reader = _Reader(files, cpusets, quotas)
    # Not this program itself: it is gone when somebody reads about it.
    own = os.getpid() if files.is_live else None
    for name in sorted((n for n in files.names("/proc") if n.isdigit()), key=int):
        if int(name) != own:
            reader.process(int(name))
    tasks = tuple(reader.tasks)
    unseen = []
    if reader.odd:
        unseen.append(
            f"{len(reader.odd)} thread(s) could not be understood, the first: {reader.odd[0]}"
        )
    if len(files.refused) > refused:
        unseen.append(
            f"{len(files.refused) - refused} file(s) of processes could not be read, the first: "
            f"{files.refused[refused]}"
        )
    if not tasks:
        unseen.append("no process can be seen in /proc")
    elif not any(task.pid == _KTHREADD and task.is_kernel for task in tasks):
        unseen.append(
            "/proc shows no kernel threads: this is a PID namespace of its own (a container), or "
            "processes are hidden (hidepid)"
        )
    return tasks, tuple(unseen)


def read_namespaces(files: KernelFiles, pids: Iterable[int]) -> dict[int, str]:
    """The mount namespaces of processes; one that has ended is left out.

    Processes 1 and 2 are always looked at, because they have the machine's own.  The other kinds
    may be shared by the containers of a pod, and do not tell which it is.  Source: namespaces(7).
    """
    found = ((pid, files.link(f"/proc/{pid}/ns/mnt")) for pid in {1, _KTHREADD, *pids})
    return {pid: name for pid, name in found if name is not None}


class _Reader:
    """Collects tasks; many share the text of an affinity or of a cgroup file."""

    def __init__(
        self, files: KernelFiles, cpusets: Hierarchy | None, quotas: Hierarchy | None
    ) -> None:
        self._files = files
        self._hierarchies = cpusets, quotas
        self._paths: dict[str, tuple[str, str]] = {}
        self.tasks: list[Task] = []
        self.odd: list[str] = []

    def process(self, pid: int) -> None:
        for name in self._files.names(f"/proc/{pid}/task"):
            if not name.isdigit():
                continue
            folder = f"/proc/{pid}/task/{name}"
            try:
                task = self._task(folder, pid, int(name))
            except ValueError as error:
                self.odd.append(f"{folder}: {error}")
                continue
            if task is not None:
                self.tasks.append(task)

    def _task(self, folder: str, pid: int, tid: int) -> Task | None:
        stat_text = self._files.text(f"{folder}/stat")
        # A thread that ends between opening and reading gives an empty file or none.
        if not stat_text:
            return None
        stat = parse_stat(stat_text)
        if stat.is_defunct:
            return None
        status = self._files.text(f"{folder}/status")
        cgroup = self._files.text(f"{folder}/cgroup")
        if not status or cgroup is None:
            return None
        path, cpu_path = self._places(cgroup)
        if path == "/" and not stat.is_kernel and self._has_ended(folder):
            # Cgroup v1 shows what ends in the root, where it never was.
            return None
        return Task(
            pid=pid,
            tid=tid,
            ppid=stat.parent,
            comm=stat.comm,
            cgroup=path,
            allowed=parse_allowed(status),
            last_cpu=stat.processor,
            start_time=stat.start,
            is_kernel=stat.is_kernel,
            is_bound=stat.is_bound,
            cpu_cgroup=cpu_path,
        )

    def _has_ended(self, folder: str) -> bool:
        text = self._files.text(f"{folder}/stat")
        return not text or parse_stat(text).is_over

    def _places(self, text: str) -> tuple[str, str]:
        """Where a task is in the hierarchies of the cpusets and of the ``cpu`` controller."""
        found = self._paths.get(text)
        if found is None:
            own = parse_cgroups(text)
            cpuset, cpu = (_place(own, one) for one in self._hierarchies)
            found = self._paths[text] = cpuset, cpu
        return found


def _place(own: Mapping[str, str], hierarchy: Hierarchy | None) -> str:
    if hierarchy is None:
        return own.get("", "/")
    return hierarchy.place(own.get(hierarchy.controller, "/"))

"""Who else may run on exclusive CPUs: foreign tasks, kernel threads, and owners' own strays."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

from pinfold.audit.containers import Namespaces, is_idle_sandbox, place_title
from pinfold.audit.findings import (
    EXEC_STRAY,
    FOREIGN_INSIDE,
    FOREIGN_TASK_ALLOWED,
    FOREIGN_TASK_RAN,
    KERNEL_THREAD,
    OWNER_OUTSIDE,
    SANDBOX_ALLOWED,
    Finding,
    first_few,
    write_command,
)
from pinfold.audit.owners import cpuset_commands
from pinfold.audit.record import AuditRecord, KnownContainer, Owner
from pinfold.audit.snapshot import KernelSnapshot, Task, is_within, lineage
from pinfold.core.values.cpuset import CPUSet

_UNITS = (".slice", ".service", ".scope")


def task_findings(snapshot: KernelSnapshot, record: AuditRecord) -> Iterator[Finding]:
    """What is wrong with the threads of the machine."""
    yield from _Tasks(snapshot, record).findings()


def affinity_commands(tasks: Iterable[tuple[Task, CPUSet]], all_tasks: Iterable[Task]) -> list[str]:
    """The ``taskset`` commands that give each task its CPUs; whole processes at once."""
    threads: dict[int, int] = {}
    for task in all_tasks:
        threads[task.pid] = threads.get(task.pid, 0) + 1
    wanted: dict[CPUSet, dict[int, list[int]]] = {}
    for task, cpus in tasks:
        wanted.setdefault(cpus, {}).setdefault(task.pid, []).append(task.tid)
    commands = []
    for cpus, processes in wanted.items():
        whole = [pid for pid, tids in processes.items() if 1 < threads.get(pid, 0) == len(tids)]
        single = [tid for pid, tids in processes.items() if pid not in whole for tid in tids]
        for option, numbers in (("-apc", whole), ("-pc", single)):
            if len(numbers) == 1:
                commands.append(f"taskset {option} {cpus} {numbers[0]}")
            elif numbers:
                listed = " ".join(str(number) for number in numbers)
                commands.append(f"for t in {listed}; do taskset {option} {cpus} $t; done")
    return commands


class _Tasks:
    """The tasks of a snapshot, and whose they are."""

    def __init__(self, snapshot: KernelSnapshot, record: AuditRecord) -> None:
        self._snapshot = snapshot
        self._record = record
        self._exclusive = record.exclusive & snapshot.online
        self._rest = snapshot.online - record.exclusive
        self._groups = {path: owner for owner in record.owners for path in owner.cgroups}
        self._above = {step for path in self._groups for step in lineage(path)}
        self._owner_of_path: dict[str, Owner | None] = {}
        self._shared = {path for path in record.shared_cgroups if self._is_reported(path)}
        self._namespaces = Namespaces.of(snapshot, record)
        self._parents = {task.pid: task.ppid for task in snapshot.tasks}
        # The leader's cgroup is the process's; on v1 a thread may be elsewhere.
        self._processes: dict[int, Owner] = {}
        for task in snapshot.tasks:
            owner = self._owner_at(task.cgroup)
            if owner is not None and task.pid == task.tid:
                self._processes[task.pid] = owner

    def _is_reported(self, path: str) -> bool:
        group = self._snapshot.cpuset_of(path)
        return group is not None and bool(group.effective & self._record.exclusive)

    def _owner_at(self, path: str) -> Owner | None:
        if path not in self._owner_of_path:
            self._owner_of_path[path] = next(
                (self._groups[step] for step in lineage(path) if step in self._groups), None
            )
        return self._owner_of_path[path]

    def _ancestor(self, pid: int) -> Owner | None:
        """The owner from one of whose processes a process descends."""
        seen: set[int] = set()
        while pid and pid not in seen:
            owner = self._processes.get(pid)
            if owner is not None:
                return owner
            seen.add(pid)
            pid = self._parents.get(pid, 0)
        return None

    def findings(self) -> Iterator[Finding]:
        """Every finding about a task."""
        kernel: list[Task] = []
        foreign: dict[tuple[str, KnownContainer | None], list[tuple[Task, CPUSet]]] = {}
        outside: dict[Owner, list[tuple[Task, bool]]] = {}
        for task in self._snapshot.tasks:
            owner = self._owner_at(task.cgroup)
            overlap = task.allowed & self._exclusive
            if owner is not None and not owner.is_pod:
                if self._is_wider(task, owner):
                    outside.setdefault(owner, []).append((task, True))
                continue
            if task.is_kernel:
                if overlap and not task.is_bound:
                    kernel.append(task)
                continue
            kin = owner if owner is not None else self._ancestor(task.ppid)
            if kin is not None:
                overlap -= kin.cpus
                if owner is None and task.allowed & self._snapshot.online - kin.usable:
                    outside.setdefault(kin, []).append((task, False))
            if self._on_idle_side(task) and self._is_ranked(task):
                overlap -= self._record.lent
            if overlap and not any(step in self._shared for step in lineage(task.cgroup)):
                entered = None if kin is not None else self._entered(task)
                key = (self._unit(task.cgroup), entered)
                foreign.setdefault(key, []).append((task, overlap))
        yield from self._all_foreign(foreign)
        if kernel:
            yield self._kernel(kernel)
        for owner, tasks in outside.items():
            yield self._outside(owner, tasks)
        yield from self._strays()

    def _on_idle_side(self, task: Task) -> bool:
        return any(is_within(task.cgroup, group) for group in self._record.idle_side)

    def _is_ranked(self, task: Task) -> bool:
        """Whether the kernel lets an owner push a task aside at once."""
        return not self._snapshot.idle.isdisjoint(lineage(task.cpu_cgroup))

    def _entered(self, task: Task) -> KnownContainer | None:
        """The container whose namespace a process is in without being in its cgroup."""
        found = self._namespaces.entered(task.pid)
        return None if found is None or is_within(task.cgroup, found.cgroup) else found

    def _all_foreign(
        self, foreign: Mapping[tuple[str, KnownContainer | None], list[tuple[Task, CPUSet]]]
    ) -> Iterator[Finding]:
        sandboxes: dict[str, list[Task]] = {}
        for (path, entered), found in sorted(
            foreign.items(), key=lambda item: (item[0][0], str(item[0][1] or ""))
        ):
            processes = len({task.pid for task, _ in found})
            if all(is_idle_sandbox(self._record, task, processes) for task, _ in found):
                sandboxes[path] = [task for task, _ in found]
            else:
                yield self._foreign(path, found, entered)
        if sandboxes:
            yield self._sandboxes(sandboxes)

    def _sandboxes(self, found: Mapping[str, list[Task]]) -> Finding:
        cpus = CPUSet.union_of(
            task.allowed & self._exclusive for tasks in found.values() for task in tasks
        )
        names = [place_title(self._record, path) for path in found]
        return Finding(
            SANDBOX_ALLOWED,
            f"{_count(len(found), 'sandbox', 'es')} may run on the exclusive CPUs {cpus}: "
            f"{', '.join(first_few(names))}{' ...' if len(names) > len(first_few(names)) else ''}",
            next(iter(found)),
            cpus,
            tuple(line for path, tasks in found.items() for line in self._banish(path, tasks)),
            owners=self._record.owners_of(cpus),
            examples=first_few([_name(task) for tasks in found.values() for task in tasks]),
            count=sum(len(tasks) for tasks in found.values()),
        )

    def _is_wider(self, task: Task, owner: Owner) -> bool:
        """Whether a task may leave the owner's CPUs although its cpuset is right."""
        if task.is_bound or task.allowed & self._snapshot.online <= owner.usable:
            return False
        group = self._snapshot.cpuset_of(task.cgroup)
        return group is not None and group.effective <= owner.usable

    def _unit(self, path: str) -> str:
        """The cgroup under which a foreign task is reported: its systemd slice, or its own."""
        for step in reversed([*lineage(path)]):
            name = step.rpartition("/")[2]
            if "kubepods" in name:
                # The kubelet's pods come and go: each is a place of its own.
                break
            if name.endswith(".slice") and step not in self._above:
                return step
        return path

    def _foreign(
        self, path: str, found: list[tuple[Task, CPUSet]], entered: KnownContainer | None
    ) -> Finding:
        ran = [task for task, overlap in found if task.last_cpu in overlap]
        cpus = CPUSet.union_of(overlap for _, overlap in found)
        processes = len({task.pid for task, _ in found})
        seen = f"{len(ran)} ran there last" if ran else "none has been seen there"
        shown = [*ran, *(task for task, _ in found if task not in ran[:5])] if ran else None
        tasks = [task for task, _ in found]
        title, where = place_title(self._record, path), ""
        fix = self._banish(path, tasks)
        if any(map(self._on_idle_side, tasks)):
            # What it may have and what not, for the same CPU set may be lent in part.
            unranked = not all(map(self._is_ranked, tasks))
            where = " that nobody can push aside (cpu.idle 0)" if unranked else " that borrow"
        if entered is not None:
            # Somebody has joined the container (nsenter), or has been moved out of its cgroup.
            title, where = str(entered), " in its namespace and not in its cgroup"
            group = self._snapshot.cpusets.get(entered.cgroup)
            if group is not None:
                fix = tuple(
                    write_command(str(pid), f"{group.folder}/cgroup.procs")
                    for pid in dict.fromkeys(task.pid for task in tasks)
                )
        return Finding(
            FOREIGN_TASK_RAN if ran else FOREIGN_TASK_ALLOWED,
            f"{title}: {_count(len(found), 'thread')} of {_count(processes, 'process', 'es')}"
            f"{where} may run on the exclusive CPUs {cpus}; {seen}",
            path,
            cpus,
            fix,
            owners=self._record.owners_of(cpus),
            examples=first_few([_name(task) for task in shown or tasks]),
            count=len(found),
        )

    def _banish(self, path: str, tasks: list[Task]) -> tuple[str, ...]:
        """The commands that take the exclusive CPUs away from a cgroup, or from single tasks."""
        if not self._rest:
            return ()
        unit = path.rpartition("/")[2]
        # systemd knows AllowedCPUs only on cgroup v2, and undoes what others write there.
        is_unit = unit.endswith(_UNITS) and self._snapshot.has_systemd
        if is_unit and self._snapshot.cgroup_version == 2:
            return (
                f"systemctl set-property --runtime {shlex.quote(unit)} AllowedCPUs={self._rest}",
            )
        group = self._snapshot.cpuset_of(path)
        if group is not None and group.path != "/" and group.path not in self._above:
            left = group.effective - self._exclusive
            return cpuset_commands(self._snapshot, group.path, left or self._rest)
        moved = ((task, task.allowed & self._rest or self._rest) for task in tasks)
        return tuple(affinity_commands(moved, self._snapshot.tasks))

    def _kernel(self, tasks: list[Task]) -> Finding:
        cpus = CPUSet.union_of(task.allowed & self._exclusive for task in tasks)
        ran = [task for task in tasks if task.last_cpu in self._exclusive]
        moved = ((task, task.allowed & self._rest or self._rest) for task in tasks)
        return Finding(
            KERNEL_THREAD,
            f"{_count(len(tasks), 'kernel thread')} that can be moved may run on the exclusive "
            f"CPUs {cpus}; {len(ran)} ran there last",
            "kernel",
            cpus,
            tuple(affinity_commands(moved, ())) if self._rest else (),
            owners=self._record.owners_of(cpus),
            examples=first_few([_name(task) for task in ran or tasks]),
            count=len(tasks),
        )

    def _outside(self, owner: Owner, tasks: list[tuple[Task, bool]]) -> Finding:
        group = self._snapshot.cpuset_of(owner.cgroups[0])
        inside = [(task, owner.usable & self._snapshot.online) for task, is_in in tasks if is_in]
        left = dict.fromkeys(task.pid for task, is_in in tasks if not is_in)
        fix = affinity_commands(inside, ())
        if group is not None:
            fix += [write_command(str(pid), f"{group.folder}/cgroup.procs") for pid in left]
        return Finding(
            OWNER_OUTSIDE,
            f"{owner}: {_count(len(tasks), 'thread')} of it may run outside of its CPUs "
            f"{owner.expected}, on "
            f"{CPUSet.union_of(task.allowed for task, _ in tasks) - owner.usable}",
            next((task.cgroup for task, _ in tasks), owner.cgroups[0]),
            CPUSet.union_of(task.allowed for task, _ in tasks)
            & self._snapshot.online - owner.usable,
            tuple(fix),
            owners=(str(owner),),
            examples=first_few([_name(task) for task, _ in tasks]),
            count=len(tasks),
        )

    def _strays(self) -> Iterator[Finding]:
        members: dict[Owner, list[Task]] = {}
        for task in self._snapshot.tasks:
            owner = self._processes.get(task.pid)
            if owner is not None and not owner.is_pod and task.pid == task.tid:
                members.setdefault(owner, []).append(task)
        for owner, tasks in members.items():
            main, strays = _not_of_the_main_process(tasks, self._parents, owner.pid)
            foreign = [task for task in strays if self._namespaces.are_apart(task.pid, main)]
            for kind, found, said in (
                (FOREIGN_INSIDE, foreign, "not of the container"),
                (EXEC_STRAY, [t for t in strays if t not in foreign], "not of its main process"),
            ):
                if not found:
                    continue
                pids = " ".join(str(task.pid) for task in found)
                yield Finding(
                    kind,
                    f"{owner}: {_count(len(found), 'process', 'es')} in its cgroup "
                    f"{'is' if len(found) == 1 else 'are'} {said}",
                    found[0].cgroup,
                    owner.cpus,
                    self._to_the_root(found) if kind is FOREIGN_INSIDE else (f"kill {pids}",),
                    owners=(str(owner),),
                    examples=first_few([_name(task) for task in found]),
                    count=len(found),
                )

    def _to_the_root(self, tasks: list[Task]) -> tuple[str, ...]:
        """The commands that move processes out of a container, onto what nobody owns."""
        root = self._snapshot.cpusets.get("/")
        if root is None or not self._rest:
            return ()
        return tuple(
            command
            for task in tasks
            for command in (
                write_command(str(task.pid), f"{root.folder}/cgroup.procs"),
                f"taskset -apc {self._rest} {task.pid}",
            )
        )


def _not_of_the_main_process(
    tasks: list[Task], parents: Mapping[int, int], told: int | None
) -> tuple[int, list[Task]]:
    """The main process, and those that do not descend from it.

    Where nobody has told which it is, it is the oldest one whose parent is not among them.
    """
    pids = {task.pid for task in tasks}
    roots = [task for task in tasks if task.ppid not in pids and not task.is_kernel]
    if len(roots) < 2:
        return 0, []
    main = min(roots, key=lambda task: (task.start_time, task.pid)).pid
    if told in pids and told is not None:
        main = told
    strays = []
    for task in tasks:
        pid = task.pid
        seen: set[int] = set()
        while pid in pids and pid != main and pid not in seen:
            seen.add(pid)
            pid = parents.get(pid, 0)
        if pid != main and not task.is_kernel:
            strays.append(task)
    return main, strays


def _name(task: Task) -> str:
    thread = "" if task.pid == task.tid else f" thread {task.tid}"
    return f"{task.pid}{thread} {task.comm} (allowed {task.allowed}, last on {task.last_cpu})"


def _count(number: int, word: str, plural: str = "s") -> str:
    return f"{number} {word}{'' if number == 1 else plural}"

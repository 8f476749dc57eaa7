"""What the kernel says at one moment: tasks, cgroups, interrupts, CPUs.

A :class:`KernelSnapshot` is data that an adapter has read from ``/proc`` and ``/sys``
(:mod:`pinfold.adapters.procfs`); the audit judges it and reads nothing itself.  Sources: proc(5),
cpuset(7), the kernel's ``cgroup-v2.rst``, ``core-api/irq/irq-affinity.rst``, ``workqueue.rst``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from pinfold.core.cache.offers import Group
from pinfold.core.values.cpuset import CPUSet


class Task(Struct, frozen=True):
    """One thread.

    ``pid`` is the process (the kernel's tgid) and ``tid`` the thread; ``cgroup`` is its path in
    the hierarchy of the cpusets; ``allowed`` is ``Cpus_allowed_list``; ``last_cpu`` the CPU that it
    ran on last (stat field 39); ``start_time`` is in clock ticks since boot.  ``is_bound`` tells
    that the kernel refuses to change its affinity (PF_NO_SETAFFINITY), as of per-CPU threads.
    ``cpu_cgroup`` is its path in the hierarchy of the ``cpu`` controller.
    """

    pid: int
    tid: int
    ppid: int
    comm: str
    cgroup: str
    allowed: CPUSet
    last_cpu: int
    start_time: int = 0
    is_kernel: bool = False
    is_bound: bool = False
    cpu_cgroup: str = "/"


class Irq(Struct, frozen=True):
    """An interrupt with a handler.

    ``affinity`` is ``smp_affinity_list``; ``effective`` the CPUs that get it now, None where the
    kernel does not tell; ``is_managed`` tells that user space cannot change the affinity.
    """

    number: int
    affinity: CPUSet
    effective: CPUSet | None = None
    actions: tuple[str, ...] = ()
    is_managed: bool = False


class Cpuset(Struct, frozen=True):
    """A cgroup in the hierarchy of the cpusets.

    ``path`` begins at the hierarchy's root (``/``), ``folder`` is where it lies in the file
    system.  ``cpus`` and ``mems`` are what was written (None: no such file, as in a v2 root);
    ``effective`` and ``effective_mems`` what is in force.  ``partition`` is the kernel's text of
    ``cpuset.cpus.partition``, None on cgroup v1.
    """

    path: str
    folder: str
    cpus: CPUSet | None
    effective: CPUSet
    mems: CPUSet | None = None
    effective_mems: CPUSet | None = None
    partition: str | None = None


class Quota(Struct, frozen=True):
    """The CPU quota of a cgroup in the hierarchy of the ``cpu`` controller.

    ``file`` is ``cpu.max`` (v2) or ``cpu.cfs_quota_us`` (v1); ``quota`` and ``period`` are
    microseconds, a quota of None is no cap.
    """

    path: str
    file: str
    quota: int | None
    period: int


class HugepageUser(Struct, frozen=True):
    """A process that its cgroup lets have huge pages.

    ``cgroup`` is its path in the hierarchy of the cpusets, ``groups`` are the machine's numbers of
    the groups that it is in, and ``may_lock`` tells whether it has CAP_IPC_LOCK over the machine.
    """

    pid: int
    comm: str
    cgroup: str
    groups: frozenset[int]
    may_lock: bool = False


class KernelSnapshot(Struct, frozen=True):
    """One reading of the kernel.

    ``siblings`` holds the hardware threads of a CPU's core by CPU (itself included), ``nodes`` the
    CPUs by NUMA node.  ``cgroup_version`` is that of the hierarchy of the cpusets, None where
    there is none.  ``namespaces`` are the mount namespaces (``mnt:[4026531841]``) of those
    processes of which they were read.  ``caches`` are the groups of resctrl by name, the default
    one's is ""; None where there is none, or it is not mounted.  ``limits`` is what cgroups are
    limited to, by folder and file.  ``hugepage_users`` are the processes that may have huge pages,
    ``shm_group`` is ``vm.hugetlb_shm_group`` (None: no such kernel, or not read).  ``unseen``
    names, in sentences, what could not be read.
    """

    online: CPUSet
    tasks: tuple[Task, ...] = ()
    cpusets: Mapping[str, Cpuset] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    irqs: tuple[Irq, ...] = ()
    siblings: Mapping[int, CPUSet] = field(default_factory=dict)
    nodes: Mapping[int, CPUSet] = field(default_factory=dict)
    isolated: CPUSet = CPUSet()
    nohz_full: CPUSet = CPUSet()
    rcu_nocbs: CPUSet = CPUSet()
    default_irq_affinity: CPUSet | None = None
    workqueue: CPUSet | None = None
    cgroup_version: int | None = None
    has_systemd: bool = False
    unseen: tuple[str, ...] = ()
    namespaces: Mapping[int, str] = field(default_factory=dict)
    caches: Mapping[str, Group] | None = None
    idle: frozenset[str] = frozenset()
    limits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    hugepage_users: tuple[HugepageUser, ...] = ()
    shm_group: int | None = None

    def cpuset_of(self, path: str) -> Cpuset | None:
        """The cpuset that is in force in a cgroup: its own, or the nearest one above."""
        for candidate in lineage(path):
            found = self.cpusets.get(candidate)
            if found is not None:
                return found
        return None


def lineage(path: str) -> Iterator[str]:
    """A cgroup's path and those above it, up to the root: ``/a/b``, ``/a``, ``/``."""
    while path not in ("", "/"):
        yield path
        path = path.rpartition("/")[0]
    yield "/"


def is_within(path: str, group: str) -> bool:
    """Whether the cgroup ``path`` is ``group`` or lies below it."""
    return group in ("/", path) or path.startswith(f"{group}/")

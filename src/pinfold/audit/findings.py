"""What an audit can find: the table of all kinds, and one finding."""

from __future__ import annotations

import shlex
from enum import Enum
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet

_EXAMPLES: Final = 5


class AuditSeverity(Enum):
    """How bad a finding is."""

    ERROR = "error"
    """The kernel contradicts the record, or somebody else was on an owner's CPU."""
    WARNING = "warning"
    """It can happen at any time, or the owner gets less than it is meant to."""
    INFO = "info"
    """Worth knowing; costs some microseconds, or cannot be changed."""


class Kind(Struct, frozen=True):
    """A kind of finding: ``slug`` is stable, ``why`` says what it costs, ``remedy`` what helps."""

    slug: str
    severity: AuditSeverity
    title: str
    why: str
    remedy: str


_E, _W, _I = AuditSeverity.ERROR, AuditSeverity.WARNING, AuditSeverity.INFO

CPUSET_DIFFERS: Final = Kind(
    "cpuset-differs",
    _E,
    "the cpuset of an owner is not what is recorded",
    "the container runs on other CPUs than it was given, perhaps on those of somebody else, and "
    "its own may be idle",
    "write the recorded CPUs into the cpuset; a kubelet or an agent that runs does so itself "
    "within a reconcile period",
)
CGROUP_MISSING: Final = Kind(
    "cgroup-missing",
    _W,
    "an owner has no cgroup",
    "CPUs are held for a container that does not run here: it has ended, was never started, or "
    "its cgroup cannot be told from the others of its pod",
    "drop the pod from the record once it is known to be gone",
)
CPU_OFFLINE: Final = Kind(
    "cpu-offline",
    _W,
    "CPUs that are offline are recorded for an owner",
    "the container has fewer CPUs than it was given; with none left the kernel lets it run on "
    "its parent's, until an agent has confined it to the shared pool or frozen it",
    "bring the CPUs online, or delete the pod and make it anew so that it gets others",
)
PARTITION_INVALID: Final = Kind(
    "partition-invalid",
    _W,
    "a cpuset partition is not valid",
    "the kernel has taken the isolation back: the CPUs are in the scheduler's common domain again",
    "remove what the kernel names as the reason and write the partition again, or make it a "
    "member, which is a cpuset without isolation",
)
QUOTA_CAPS: Final = Kind(
    "quota-caps",
    _W,
    "a CPU quota holds a pinned container back",
    "the container is stopped for the rest of each period when the quota is used up, although "
    "its CPUs are idle then; with a quota as large as the set that still happens now and then",
    "remove the quota; the cpuset is the limit",
)
QUOTA_TIGHT: Final = Kind(
    "quota-tight",
    _I,
    "a CPU quota is as large as the CPUs that it is for",
    "the kernel hands a quota out in slices, so that a container which is busy on all of its CPUs "
    "is stopped for a moment now and then; a kubelet whose own policy is none sets such a quota "
    "on the pod",
    "remove the quota; for good: cpuCFSQuota: false in the kubelet's configuration",
)
RAN_SHARED: Final = Kind(
    "ran-shared",
    _I,
    "an owner ran before its CPUs were its own",
    "it was created while no agent was there; until one was, it ran wherever the others run, and "
    "threads and memory that it had by then may have begun elsewhere",
    "restart the pod if its first seconds matter; what closes the window is in the how-to page on "
    "Kubernetes",
)
RUNTIME_RECORD: Final = Kind(
    "runtime-record",
    _W,
    "the runtime has other CPUs on record than the kernel has",
    "with the next change of the container's resources the runtime writes what it has on record, "
    "and the container runs on those CPUs",
    "tell the runtime; an agent that runs does so itself once the runtime is quiet",
)
SHARED_OVERLAPS: Final = Kind(
    "shared-overlaps",
    _E,
    "a container of the shared pool may run on exclusive CPUs",
    "it takes time from the owner without anything being out of order in the record",
    "write the shared pool into its cpuset",
)
FOREIGN_TASK_RAN: Final = Kind(
    "stranger-ran",
    _E,
    "a foreign task has run on exclusive CPUs",
    "it has taken time from the owner and pushed its data out of the caches, and may do so again",
    "take the exclusive CPUs away from it",
)
FOREIGN_TASK_ALLOWED: Final = Kind(
    "stranger-allowed",
    _W,
    "a foreign task is allowed on exclusive CPUs",
    "it has not been seen there, but the scheduler may put it there at any time",
    "take the exclusive CPUs away from it",
)
SANDBOX_ALLOWED: Final = Kind(
    "sandbox-allowed",
    _I,
    "sandboxes of pods are allowed on exclusive CPUs",
    "the process of a sandbox sleeps until its pod ends; nobody gives it CPUs of its own",
    "take the exclusive CPUs away from it",
)
KERNEL_THREAD: Final = Kind(
    "kernel-thread",
    _W,
    "kernel threads that can be moved are allowed on exclusive CPUs",
    "they interrupt the owner; those that are bound to a CPU cannot be moved and are not counted",
    "move them; for good: the kernel parameters isolcpus= or nohz_full=",
)
OWNER_OUTSIDE: Final = Kind(
    "owner-outside",
    _W,
    "a process of an owner runs outside of its CPUs",
    "it has left the container's cgroup (or its affinity is wider than the set), and takes part "
    "in the shared pool or in the CPUs of others",
    "put it back into the container's cgroup",
)
FOREIGN_INSIDE: Final = Kind(
    "foreign-inside",
    _W,
    "a process from outside the container is in an owner's cgroup",
    "it is in another mount namespace: somebody has moved it there, and it uses the owner's CPUs",
    "move it to the cgroup that it came from, or end it",
)
EXEC_STRAY: Final = Kind(
    "exec-stray",
    _I,
    "a process in an owner's cgroup is no descendant of its main process",
    "somebody has started it there (exec, a debugger) or its parent has ended; it uses the "
    "owner's CPUs beside the owner",
    "end it when it is not wanted",
)
SMT_SIBLING: Final = Kind(
    "smt-sibling",
    _W,
    "the other thread of an owner's core is not the owner's",
    "both hardware threads share the core's units and its caches: work on the sibling takes up to "
    "half of the owner's speed",
    "give whole cores (the policy option full-pcpus-only), or take the sibling offline",
)
CACHE_DIFFERS: Final = Kind(
    "cache-differs",
    _W,
    "a part of the caches is not what the agent has given",
    "the container shares with others what was to be its own, or is limited otherwise than its "
    "class says",
    "an agent that runs gives it again within a reconcile period; find out which other tool "
    "writes to resctrl",
)
LIMIT_DIFFERS: Final = Kind(
    "limit-differs",
    _W,
    "a limit, weight or protection of a container or pod is not what the agent has written",
    "it takes more from the others than it is to have, or gets less",
    "an agent that runs writes it again when its turn comes, at 256 files a reconcile period; find "
    "out who else writes to its cgroups",
)
IRQ_DELIVERED: Final = Kind(
    "irq-delivered",
    _W,
    "interrupts are delivered to exclusive CPUs",
    "each one stops the owner for some microseconds",
    "write another affinity, or have the agent keep them off (irqs.use: true); where irqbalance "
    "runs, also ban the CPUs there (IRQBALANCE_BANNED_CPULIST), or it moves them back",
)
IRQ_ALLOWED: Final = Kind(
    "irq-allowed",
    _I,
    "interrupts may be delivered to exclusive CPUs",
    "the kernel delivers them elsewhere now, and may choose these CPUs when it chooses again",
    "write another affinity",
)
IRQ_MANAGED: Final = Kind(
    "irq-managed",
    _I,
    "interrupts that cannot be moved belong to exclusive CPUs",
    "the kernel itself spreads the queues of a device over all CPUs and refuses to change that "
    "(a write gives an I/O error); they come only when the CPU itself has used the device",
    "the kernel parameter isolcpus=managed_irq,LIST, or fewer queues in the driver",
)
IRQ_DEFAULT: Final = Kind(
    "irq-default",
    _I,
    "new interrupts may be delivered to exclusive CPUs",
    "a device that is plugged in or restarted takes the default affinity",
    "write another default",
)
MEMS_DIFFER: Final = Kind(
    "mems-differ",
    _E,
    "the memory nodes of a container are not what is recorded",
    "the container takes memory that was kept for somebody else, or has none of its own: sooner or "
    "later one of them gets it from a distant node, or none",
    "write the recorded NUMA nodes into cpuset.mems; cgroup v2 moves the memory there, with v1 "
    "restart the container",
)
MEMS_REMOTE: Final = Kind(
    "mems-remote",
    _W,
    "an owner may not use the memory of its own NUMA nodes",
    "all of its memory is on other nodes than its CPUs: each access takes the long way",
    "write the nodes of its CPUs into cpuset.mems, and restart it (memory that it has does not "
    "always move)",
)
MEMS_WIDER: Final = Kind(
    "mems-wider",
    _I,
    "an owner may use the memory of other NUMA nodes",
    "the kernel takes memory from the nearest node first; when that is full, from others. The "
    "kubelet limits it only with the memory manager's Static policy",
    "write the nodes of its CPUs into cpuset.mems",
)
WORKQUEUE: Final = Kind(
    "workqueue",
    _I,
    "the kernel's unbound work may be done on exclusive CPUs",
    "writeback, network and file system work runs there when its workers are woken there",
    "write another mask",
)
SHM_HUGETLB: Final = Kind(
    "shm-hugetlb",
    _I,
    "processes that may have huge pages cannot have them by shmget",
    "shmget(2) with SHM_HUGETLB fails with EPERM; mmap(2), memfd_create(2) and the files of a "
    "hugetlbfs need no such right",
    "nothing where no program uses shmget; else name one group in vm.hugetlb_shm_group and in the "
    "pod's supplementalGroups, or add the capability IPC_LOCK to the container",
)
RECORD_BROKEN: Final = Kind(
    "record-broken",
    _E,
    "the record itself is broken",
    "what the kernel is compared with may be wrong",
    "repair the file (pinfold state repair)",
)
RECORD_DOUBTFUL: Final = Kind(
    "record-doubtful",
    _W,
    "something in the record is doubtful",
    "what the kernel is compared with may be wrong",
    "look at the file (pinfold state check)",
)
INCOMPLETE: Final = Kind(
    "incomplete",
    _W,
    "a part of the kernel could not be looked at",
    "what is not seen cannot be found: the audit says nothing about it",
    "run it as root in the host's own namespaces",
)

KINDS: Final = (
    CPUSET_DIFFERS,
    SHARED_OVERLAPS,
    FOREIGN_TASK_RAN,
    MEMS_DIFFER,
    RECORD_BROKEN,
    FOREIGN_TASK_ALLOWED,
    KERNEL_THREAD,
    OWNER_OUTSIDE,
    FOREIGN_INSIDE,
    RUNTIME_RECORD,
    CGROUP_MISSING,
    CPU_OFFLINE,
    PARTITION_INVALID,
    QUOTA_CAPS,
    SMT_SIBLING,
    IRQ_DELIVERED,
    CACHE_DIFFERS,
    LIMIT_DIFFERS,
    MEMS_REMOTE,
    RECORD_DOUBTFUL,
    INCOMPLETE,
    EXEC_STRAY,
    QUOTA_TIGHT,
    RAN_SHARED,
    SANDBOX_ALLOWED,
    IRQ_ALLOWED,
    IRQ_MANAGED,
    IRQ_DEFAULT,
    MEMS_WIDER,
    WORKQUEUE,
    SHM_HUGETLB,
)
"""Every kind, the worst first; findings are given in this order."""


class Finding(Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        kind: what it is.
        what: one sentence with the names and numbers.
        where: a cgroup's path, a file, or what else names the place.
        cpus: the CPUs that it is about.
        fix: commands for a shell, run as root in this order; empty where none can help.
        why: why it matters, where more is known than ``kind.why``.
        owners: the owners that it concerns.
        examples: tasks or interrupts, the first few of ``count``.
        count: how many tasks or interrupts there are.
    """

    kind: Kind
    what: str
    where: str
    cpus: CPUSet = CPUSet()
    fix: tuple[str, ...] = ()
    why: str = ""
    owners: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    count: int = 0

    @property
    def severity(self) -> AuditSeverity:
        """How bad it is."""
        return self.kind.severity


def first_few(names: list[str]) -> tuple[str, ...]:
    """The examples of a long list."""
    return tuple(names[:_EXAMPLES])


def write_command(value: str, file: str) -> str:
    """The command that writes a value into a kernel file."""
    return f"echo {shlex.quote(value)} > {shlex.quote(file)}"

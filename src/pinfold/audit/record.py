"""What is recorded: the owners of CPUs, and the cgroups in which they are thought to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from pinfold.audit.findings import Finding
from pinfold.core.cache.offers import Group
from pinfold.core.values.cpuset import CPUSet

SHORT_ID: Final = 12
"""Letters of a container's id that are shown, as crictl and ctr users know them."""


class KnownContainer(Struct, frozen=True):
    """A container, as far as somebody tells of it; "" and None where nobody does.

    Attributes:
        id: the runtime's id.
        pod_uid: the pod's uid.
        pod: the pod as ``namespace/name``.
        name: the container's name.
        cgroup: its path in the hierarchy of the cpusets.
        pid: its main process.
        recorded: the CPUs that the runtime has on record.
        shared: the CPUs of the shared pool that a mixed one uses besides its own.
        is_sandbox: it holds its pod's namespaces, and runs nothing else.
        has_ended: its process has ended; it may be started again.
        idle: siblings of its CPUs on which nothing runs, as it is SMT-isolated.
        lent: those of its CPUs on which others run while it does not want to.
    """

    id: str = ""
    pod_uid: str = ""
    pod: str = ""
    name: str = ""
    cgroup: str = ""
    pid: int | None = None
    recorded: CPUSet | None = None
    is_sandbox: bool = False
    has_ended: bool = False
    shared: CPUSet = CPUSet()
    idle: CPUSet = CPUSet()
    lent: CPUSet = CPUSet()

    def __str__(self) -> str:
        return container_title(self.pod or self.pod_uid, self._what(), self.id)

    def _what(self) -> str:
        return self.name or ("sandbox" if self.is_sandbox else "")


def container_title(pod: str, name: str, container_id: str) -> str:
    """``namespace/name/container (id)``, of which each part may be ""; not all of them."""
    words = "/".join(part for part in (pod, name) if part)
    short = container_id[:SHORT_ID]
    if not words:
        return f"container {short}"
    return f"{words} ({short})" if short else words


class Owner(Struct, frozen=True):
    """A container that owns CPUs.

    ``cgroups`` are its paths in the hierarchy of the cpusets, ``cpu_cgroups`` in that of the
    ``cpu`` controller (on cgroup v2 the same); both are empty where none was found.  With
    ``is_pod`` the whole pod owns the CPUs, and the cgroup is the pod's.  ``container`` is "" there
    and for an owner that is just a cgroup.

    ``mems`` are the NUMA nodes of which the memory manager has given it memory; empty where it has
    given none.  ``idle`` are those of its CPUs on which nothing runs, not even itself.

    ``pod`` is the pod's uid, ``pod_name`` its ``namespace/name`` and ``container_id`` the runtime's
    id ("" where nobody tells them), ``pid`` the main process (None likewise).  With ``has_ended``
    it is known to exist and not to run, so that a cgroup is not looked for.

    ``shared`` are the CPUs of the shared pool that a mixed one uses besides, ``lent`` those of its
    own on which who is on the idle side may run; only an agent tells.
    """

    pod: str
    container: str
    cpus: CPUSet
    cgroups: tuple[str, ...] = ()
    cpu_cgroups: tuple[str, ...] = ()
    is_pod: bool = False
    pod_name: str = ""
    container_id: str = ""
    pid: int | None = None
    has_ended: bool = False
    mems: CPUSet = CPUSet()
    shared: CPUSet = CPUSet()
    idle: CPUSet = CPUSet()
    lent: CPUSet = CPUSet()

    @property
    def used(self) -> CPUSet:
        """Those of its own that it runs on."""
        return self.cpus - self.idle

    @property
    def usable(self) -> CPUSet:
        """All CPUs that it is to run on: its own, and those of the pool where it is mixed."""
        return self.used | self.shared

    @property
    def expected(self) -> str:
        """The same in words."""
        return f"{self.used} and the shared pool {self.shared}" if self.shared else str(self.used)

    def __str__(self) -> str:
        return container_title(self.pod_name or self.pod, self.container, self.container_id)


class KeptInterrupts(Struct, frozen=True):
    """What an agent does about interrupts: the CPUs that it keeps free, and why not all are."""

    cpus: CPUSet
    problem: str = ""


class DividedCache(Struct, frozen=True):
    """A group of resctrl as an agent has made it; ``owners`` are those whose CPUs are in it."""

    group: Group
    owners: tuple[str, ...]


class LimitedGroup(Struct, frozen=True):
    """A cgroup as an agent has limited it, by file; ``title`` is whose it is."""

    title: str
    folder: str
    files: Mapping[str, str]


class AuditRecord(Struct, frozen=True):
    """Everything that the kernel is compared with.

    Attributes:
        source: where it is from: a file, or ``--owner``.
        owners: who owns CPUs.
        shared: the shared pool; None where it is not recorded.
        shared_cgroups: paths of the containers that run on the shared pool.
        repair: the command that drops a pod which is gone, with ``{pod}`` for its uid.
        faults: what is known to be wrong already, as with the record itself.
        containers: the containers of the machine, the owners' too, by their cgroups' paths.
        runtime: the address of the runtime that was asked about them; "" where none was.
        sharers: containers that have memory of NUMA nodes, and no CPUs of their own.
        interrupts: what an agent does about them; None: nothing, or none was asked.
        caches: the groups of resctrl that an agent has made; none, or none was asked.
        idle_side: paths of the cgroups of those who borrow what is lent.
        limits: the cgroups that an agent has limited; none, or none was asked.
    """

    source: str
    owners: tuple[Owner, ...] = ()
    shared: CPUSet | None = None
    shared_cgroups: tuple[str, ...] = ()
    repair: str = ""
    faults: tuple[Finding, ...] = ()
    containers: Mapping[str, KnownContainer] = field(default_factory=dict)
    runtime: str = ""
    sharers: tuple[Owner, ...] = ()
    interrupts: KeptInterrupts | None = None
    caches: tuple[DividedCache, ...] = ()
    idle_side: tuple[str, ...] = ()
    limits: tuple[LimitedGroup, ...] = ()

    @property
    def lent(self) -> CPUSet:
        """Every CPU that is lent."""
        return CPUSet.union_of(owner.lent for owner in self.owners)

    @property
    def exclusive(self) -> CPUSet:
        """Every CPU that somebody owns."""
        return CPUSet.union_of(owner.cpus for owner in self.owners)

    def owners_of(self, cpus: CPUSet) -> tuple[str, ...]:
        """Those who own some of these CPUs, as they are told of."""
        return tuple(str(owner) for owner in self.owners if owner.cpus & cpus)

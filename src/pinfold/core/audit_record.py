"""What is recorded: the owners of CPUs, and the cgroups in which they are thought to be."""

from __future__ import annotations

from dataclasses import dataclass

from pinfold.core.audit_findings import Finding
from pinfold.core.cpuset import CPUSet


@dataclass(frozen=True, slots=True)
class Owner:
    """A container that owns CPUs.

    ``cgroups`` are its paths in the hierarchy of the cpusets, ``cpu_cgroups`` in that of the
    ``cpu`` controller (on cgroup v2 the same); both are empty where none was found.  With
    ``is_pod`` the whole pod owns the CPUs, and the cgroup is the pod's.  ``container`` is "" there
    and for an owner that is just a cgroup.
    """

    pod: str
    container: str
    cpus: CPUSet
    cgroups: tuple[str, ...] = ()
    cpu_cgroups: tuple[str, ...] = ()
    is_pod: bool = False

    def __str__(self) -> str:
        return "/".join(part for part in (self.pod, self.container) if part)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Everything that the kernel is compared with.

    Attributes:
        source: where it is from: a file, or ``--owner``.
        owners: who owns CPUs.
        shared: the shared pool; None where it is not recorded.
        shared_cgroups: paths of the containers that run on the shared pool.
        repair: the command that drops a pod which is gone, with ``{pod}`` for its uid.
        faults: what is wrong with the record itself.
    """

    source: str
    owners: tuple[Owner, ...] = ()
    shared: CPUSet | None = None
    shared_cgroups: tuple[str, ...] = ()
    repair: str = ""
    faults: tuple[Finding, ...] = ()

    @property
    def exclusive(self) -> CPUSet:
        """Every CPU that somebody owns."""
        mask = 0
        for owner in self.owners:
            mask |= owner.cpus.mask
        return CPUSet.from_mask(mask)

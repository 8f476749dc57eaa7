"""Which way of allocating the policy options stand for, and which CPUs are reserved.

Source: upstream ``cpumanager/policy_static.go`` (kubelet 1.34).
"""

from __future__ import annotations

from pinfold.core.cpu.allocation import Step, take_packed
from pinfold.core.cpu.distribution import take_distributed
from pinfold.core.kubelet.faults import AllocationRules
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.topology_manager.hints import AllocationError
from pinfold.core.values.cpuset import CPUSet


class ReservationError(ValueError):
    """The reserved CPUs cannot be had; a kubelet does not start."""


def choose(  # noqa: PLR0913 - the policy and the request
    topology: CPUTopology,
    options: StaticPolicyOptions,
    free: int,
    count: int,
    *,
    rules: AllocationRules,
    steps: list[Step] | None = None,
) -> int:
    """Choose ``count`` CPUs of the bitmask ``free`` in the way that the options say.

    Raises:
        AllocationError: there are not enough.
        UpstreamFaultError: the kubelet would never return.
    """
    spread = options.distribute_cpus_across_cores
    if options.distribute_cpus_across_numa:
        group_size = topology.cpus_per_core if options.full_pcpus_only else 1
        return take_distributed(
            topology, free, count, group_size, spread=spread, rules=rules, steps=steps
        )
    align_uncore = options.prefer_align_cpus_by_uncorecache
    return take_packed(
        topology, free, count, spread=spread, align_uncore=align_uncore, rules=rules, steps=steps
    )


def choose_reserved(
    topology: CPUTopology, options: StaticPolicyOptions, count: int, rules: AllocationRules
) -> CPUSet:
    """The CPUs that are reserved where only their number is configured; none where it fails."""
    try:
        mask = choose(topology, options, topology.all, count, rules=rules)
    except AllocationError:
        # The kubelet drops this error too; the size check that follows names the problem.
        mask = 0
    return CPUSet.from_mask(mask)


def cores_of_reserved(topology: CPUTopology, reserved: CPUSet, count: int) -> CPUSet:
    """The reserved CPUs, which have to be ``count``, with their siblings; ReservationError."""
    if len(reserved) != count:
        raise ReservationError(
            "[cpumanager] unable to reserve the required amount of CPUs "
            f"(size of {reserved} did not equal {count})"
        )
    cores = 0
    for cpu in reserved:
        row = topology.by_cpu.get(cpu)
        if row is None:
            raise ReservationError(
                "[cpumanager] unable to build the reserved physical CPUs from the reserved "
                f"set: unknown CPU ID: {cpu}"
            )
        cores |= topology.cores[row.core]
    return CPUSet.from_mask(cores)

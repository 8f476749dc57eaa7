"""What affinities cannot do that cgroups can, in words for people."""

from __future__ import annotations

from collections.abc import Iterator

from pinfold.ports.cgroups import Limits, Partition, Placement


def limitations() -> tuple[str, ...]:
    """What is weaker here than with cgroups, a sentence each."""
    return (
        "other processes are not moved away: they may run on exclusive CPUs",
        (
            "a process can change its own CPU affinity: that is undone at the next reconciliation, "
            "but not prevented"
        ),
        "CPU shares, CPU quotas, memory limits and hugepage limits are not enforced",
        "memory is not bound to NUMA nodes",
        "CPUs cannot be made a partition: the kernel goes on balancing load over them",
        (
            "while programs fork without pause, a child may keep the CPUs that are taken away "
            "until the next reconciliation"
        ),
        (
            "a process that leaves its parent and its session between two looks is lost: it is "
            "neither moved nor ended with its container"
        ),
        "a program that changes its user (sudo, setuid) can be neither moved nor ended",
        (
            "after a restart of the agent, processes that had left the session of the main process "
            "are not found again, nor any of a container whose main process ended meanwhile"
        ),
        "only the CPUs that the agent itself may use can be given out",
    )


def not_granted(placement: Placement) -> Iterator[str]:
    """The wishes of a placement that cannot be granted."""
    if placement.frozen:
        yield "to be frozen while its CPUs are offline"
    if placement.partition is not Partition.MEMBER:
        yield f"partition {placement.partition.value}"
    if placement.mems is not None:
        yield f"memory nodes {placement.mems}"
    for owner, limits in (("container", placement.limits), ("pod", placement.pod_limits)):
        for limit in _limits(limits):
            yield f"{limit} of the {owner}"


def _limits(limits: Limits) -> Iterator[str]:
    if limits.cpu_shares is not None:
        yield f"{limits.cpu_shares} CPU shares"
    if limits.cpu_quota is not None and limits.cpu_quota > 0:
        yield f"CPU quota of {limits.cpu_quota} us"
    if limits.memory is not None:
        yield f"memory limit of {limits.memory} bytes"
    for size, limit in sorted(limits.hugepages.items()):
        if limit:
            yield f"limit of {limit} bytes on {size}-byte hugepages"

"""What would be in force of what is decided by load; see :mod:`.table`."""

from __future__ import annotations

from typing import Final

from pinfold.admission.in_force.wished import SHARES, PlacedContainer, PlannedNode, Wish, setting
from pinfold.admission.load_driven import load_driven_containers
from pinfold.core.kubelet.own_policies import DYNAMIC
from pinfold.core.pod.annotations import BORROW, LEND_CPUS, LOAD_DRIVEN
from pinfold.core.pod.pod import QOSClass, exclusive_requests

_IDLE_SIDE: Final = "cgroups that the agent may write, with cpu.idle (Linux 5.15)"


def load_driven(container: PlacedContainer) -> Wish | None:
    """Whether a container's CPUs come and go with its load."""
    said, config = container.said(LOAD_DRIVEN), container.node.config
    if said is None or not said[0]:
        return None
    if config.dynamic is None or config.own is None:
        reason = f"cpuManagerPolicy is {config.cpu_manager_policy}, not {DYNAMIC}"
        return Wish.refused(said[1], reason)
    if not config.own.load_driven.use:
        return Wish.refused(said[1], f"{setting('loadDriven.use')} is false")
    if container.name not in load_driven_containers(container.pod):
        return Wish.refused(said[1], "it would own no CPUs, or ends before others begin")
    count = exclusive_requests(container.pod)[container.name]
    return Wish.granted(f"starts shared, {count} CPUs are charged", said[1])


def gives_by_load(node: PlannedNode) -> Wish | None:
    """Whether a node gives CPUs by load."""
    own, source = node.config.own, setting("loadDriven.use")
    if own is None or not own.load_driven.use:
        return None
    if node.config.dynamic is None:
        return Wish.refused(
            source, f"cpuManagerPolicy is {node.config.cpu_manager_policy}, not {DYNAMIC}"
        )
    options = own.load_driven
    return Wish.granted(
        f"promoted from {options.promote_usage} for {options.promote_after}, demoted below "
        f"{options.demote_usage} for {options.demote_after}",
        source,
    )


def lends(node: PlannedNode) -> Wish | None:
    """Whether CPUs are lent on a node."""
    own, source = node.config.own, setting("lending.use")
    if own is None or not own.lending.use:
        return None
    if not node.config.gives_exclusive_cpus:
        return Wish.refused(source, f"cpuManagerPolicy {node.config.cpu_manager_policy} owns none")
    options = own.lending
    return Wish.granted(
        f"to best-effort containers, up to {options.lend_below} used, back from "
        f"{options.return_above}",
        source,
        _IDLE_SIDE,
    )


def lent_by(container: PlacedContainer) -> Wish | None:
    """Whether a container's CPUs are lent."""
    said, own = container.said(LEND_CPUS), container.node.config.own
    if said is None or not said[0]:
        return None
    if own is None or not own.lending.use:
        return Wish.refused(said[1], f"{setting('lending.use')} is false")
    if not container.may_own:
        return Wish.refused(said[1], SHARES)
    if container.mixed:
        return Wish.refused(said[1], "it uses the shared pool, too")
    if container.asks_partition:
        return Wish.refused(said[1], "its CPUs are to be a partition, in which nobody else can run")
    count = len(container.cpus) or exclusive_requests(container.pod)[container.name]
    most = min(said[0], own.lending.most_cpus, count)
    value = container.while_own(f"up to {most} of its CPUs while they are idle")
    return Wish.granted(value, said[1], _IDLE_SIDE)


def borrows(container: PlacedContainer) -> Wish | None:
    """Whether a best-effort container runs on what others lend, and is capped with the others."""
    said, own = container.said(BORROW), container.node.config.own
    is_told = said is not None and said[0] is not None
    source = said[1] if is_told and said is not None else ""
    if container.pod.qos is not QOSClass.BEST_EFFORT:
        reason = f"its pod is {container.pod.qos.value}, and only BestEffort ones borrow"
        return Wish.refused(source, reason) if is_told else None
    if own is None or not own.need_idle_side:
        neither = "neither lending.use nor suppression.use is set"
        return Wish.refused(source, neither) if is_told else None
    if said is not None and said[0] is False:
        return Wish.granted("keeps to the shared pool, and is not suppressed", source)
    parts = {"lending.use": own.lending.use, "suppression.use": own.suppression.use}
    names = [name for name, is_used in parts.items() if is_used]
    ways = {"lending.use": "runs on what others lend", "suppression.use": "is suppressed"}
    value = ", ".join(ways[name] for name in names)
    return Wish.granted(value, source or setting(" and ".join(names)), _IDLE_SIDE)


def parks(node: PlannedNode) -> Wish | None:
    """Whether work is gathered on few sockets."""
    own, source = node.config.own, setting("parking.use")
    if own is None or not own.parking.use:
        return None
    if node.config.dynamic is None:
        return Wish.refused(
            source, f"cpuManagerPolicy is {node.config.cpu_manager_policy}, not {DYNAMIC}"
        )
    if len(node.machine.sockets) == 1:
        return Wish.refused(source, "the machine has one socket: there is nothing to park")
    options = own.parking
    return Wish.granted(
        f"on few sockets below {options.park_below} for {options.park_after}, everywhere from "
        f"{options.unpark_from}",
        source,
    )

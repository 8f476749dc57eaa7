"""What a node does for its containers beyond their places, in one table: what would be in force.

A row says what is wished, by an annotation or a setting, and whether an agent with this
configuration on this machine carries it out.  What nobody wished is not told.  ``plan`` prints the
answers; whether what should be in force *is*, the audit says of a live node.  Which CPUs somebody
has, isolated or mixed or with idle siblings, is the admission's answer and not told here again.

To add a feature: a row in :data:`FEATURES`, with a function for a node, one for a container, or
both.  A function gives None where nothing is wished, :meth:`Wish.granted` where that is in force,
``Wish.granted(..., provided=...)`` where it hangs on what a plan cannot know, and
:meth:`Wish.refused` with the reason where it is not.  What the runtime has to do with it is in the
row: no function looks at that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from pinfold.admission.cache_classes import class_of, in_words
from pinfold.admission.in_force.by_load import (
    borrows,
    gives_by_load,
    lends,
    lent_by,
    load_driven,
    parks,
)
from pinfold.admission.in_force.wished import (
    SHARES,
    PlacedContainer,
    PlannedNode,
    Wish,
    own_cpus_only,
    setting,
)
from pinfold.core.cache.options import CacheOptions
from pinfold.core.kubelet.own_policies import DYNAMIC
from pinfold.core.machine.kernel import has_all, lacks
from pinfold.core.memory.protection import Reservation, memory_qos
from pinfold.core.pod.annotations import (
    CACHE,
    CPU_BURST,
    IRQS,
    KEEP_OFF,
    LOAD_BALANCE,
    MEMORY_LIMIT,
    REBALANCE,
    SCALE_DOWN_GRACE_PERIOD,
)
from pinfold.core.pod.cgroup_values import container_cgroup
from pinfold.core.pod.pod import QOSClass

_ALL: Final = ("process", "cri", "nri")
_ISOLATED: Final = "isolated"
_ON_V2: Final = "cgroup v2 and Linux 6.7"
_V1: Final = 1


class Feature(Struct, frozen=True, kw_only=True):
    """A row: what it is called in documents, with which runtimes agents carry it out, who says."""

    name: str
    runtimes: tuple[str, ...] = _ALL
    of_node: Callable[[PlannedNode], Wish | None] | None = None
    of_container: Callable[[PlacedContainer], Wish | None] | None = None

    def answer(self, wish: Wish | None, node: PlannedNode) -> Wish | None:
        """The wish, as an agent with this node's runtime and kernel answers it."""
        if wish is None or wish.value is None:
            return wish
        if self.name in node.config.not_with_runtime:
            wrong = f"an agent with runtime {node.config.runtime} does not start with it"
            return Wish.refused(wish.source, wrong)
        if node.config.runtime not in self.runtimes:
            with_others = f"is carried out with runtime {' or '.join(self.runtimes)} only"
            return Wish.refused(wish.source, with_others)
        if not wish.provided:
            return wish
        if reason := lacks(wish.provided, node.kernel):
            return Wish.refused(wish.source, reason)
        provided = None if has_all(wish.provided, node.kernel) else wish.provided
        return Wish.granted(wish.value, wish.source, provided)


def _partition(node: PlannedNode) -> Wish | None:
    wished, source = node.config.partition, setting("partition")
    if wished == "member":
        return None
    if not node.config.gives_exclusive_cpus:
        return Wish.refused(source, f"cpuManagerPolicy {node.config.cpu_manager_policy} owns none")
    return _partitioned(node, wished, source)


def _partitioned(node: PlannedNode, value: str, source: str) -> Wish:
    """A partition, on cgroup v1 where the agent may switch the root's flag off."""
    allowed = not node.config.root_load_balance
    if node.kernel.cgroups == _V1:
        if allowed:
            return Wish.granted(value, source)
        return Wish.refused(source, "on cgroup v1 it needs the setting rootLoadBalance: false")
    if node.kernel.cgroups is not None:
        return Wish.granted(value, source, _ON_V2)
    on_v1 = "cgroup v1" if allowed else "cgroup v1 with rootLoadBalance: false"
    return Wish.granted(value, source, f"{_ON_V2}, or {on_v1}")


def _partition_of(container: PlacedContainer) -> Wish | None:
    wished, source = container.node.config.partition, setting("partition")
    said = container.said(LOAD_BALANCE)
    if said is not None and not said[0]:
        source = said[1]
        if wished != _ISOLATED:
            return Wish.refused(source, f"setting partition is {wished}, not {_ISOLATED}")
        if not container.may_own:
            return Wish.refused(source, SHARES)
    elif wished == _ISOLATED or not container.may_own:
        return None
    wish = _partition(container.node)
    if wish is None or wish.reason is not None:
        return None if wish is None else Wish.refused(source, wish.reason or "")
    if container.mixed:
        return Wish.refused(source, "it uses the shared pool, too")
    return _partitioned(container.node, container.while_own(wished), source)


def _owner_offline(container: PlacedContainer) -> Wish | None:
    wished = container.node.config.owner_offline
    if not container.may_own or wished == "share":
        return None
    return Wish.granted(container.while_own(wished), setting("ownerOffline"))


def _confine_system(node: PlannedNode) -> Wish | None:
    source = setting("confineSystem")
    if not node.config.confine_system:
        return None
    if not (cpus := node.config.reserved_system_cpus):
        return Wish.refused(source, "reservedSystemCPUs is not set")
    return Wish.granted(f"everything else on CPUs {cpus}", source)


def _grace_period(container: PlacedContainer) -> Wish | None:
    said, seconds = container.said(SCALE_DOWN_GRACE_PERIOD), container.pod.scale_down_grace_period
    if seconds is not None:
        said = (seconds, "field spec.scaleDownGracePeriodSeconds")
    if said is None and container.may_own and container.node.config.scale_down_grace_period:
        said = (container.node.config.scale_down_grace_period, setting("scaleDownGracePeriod"))
    if said is None or said[0] is None:
        return None
    return own_cpus_only(container, f"{said[0]:g} s", said[1])


def _rebalance(container: PlacedContainer) -> Wish | None:
    said, config = container.said(REBALANCE), container.node.config
    if said is None or said[0] is None:
        return None
    moves, source = said
    if not moves:
        return own_cpus_only(container, "stays where it is", source)
    if config.dynamic is None:
        return Wish.refused(
            source, f"cpuManagerPolicy is {config.cpu_manager_policy}, not {DYNAMIC}"
        )
    return own_cpus_only(container, "may be moved", source)


def _rebalances(node: PlannedNode) -> Wish | None:
    dynamic = node.config.dynamic
    if dynamic is None or not dynamic.period_seconds:
        return None
    return Wish.granted(
        f"every {dynamic.rebalance_period}, at most {dynamic.moves_per_hour} moves an hour",
        setting("dynamic.rebalancePeriod"),
    )


def _irqs(container: PlacedContainer) -> Wish | None:
    said = container.said(IRQS)
    if said is None or said[0] is None:
        own = container.node.config.own
        if own is None or not own.irqs.use or not container.may_own:
            return None
        said = (KEEP_OFF, setting("irqs.use"))
    if said[0] != KEEP_OFF:
        return own_cpus_only(container, "interrupts may come", said[1])
    return own_cpus_only(
        container,
        "kept off",
        said[1],
        "an agent as root; those that the kernel lets nobody move stay",
    )


def _cache(container: PlacedContainer) -> Wish | None:
    own, said = container.node.config.own, container.said(CACHE)
    options = CacheOptions() if own is None else own.cache
    name = class_of(container.pod.annotations, container.name, options, owns=container.may_own)
    if said is None or said[0] is None:
        said = (name, setting("cache.exclusive"))
    if not name:
        return Wish.granted("what all others have", said[1]) if said[0] else None
    if not options.use:
        return Wish.refused(said[1], "cache.use is not set")
    if (asks := options.classes.get(name)) is None:
        return Wish.refused(said[1], f"the setting cache has no class {name}")
    return own_cpus_only(
        container, in_words(name, asks), said[1], "resctrl, with ids and ways that are left"
    )


def _memory_qos(container: PlacedContainer) -> Wish | None:
    config = container.node.config
    if (rules := memory_qos(config, container.node.allocatable_memory)) is None:
        return None
    source = "featureGates.MemoryQoS"
    if rules.reservation is Reservation.TIERED:
        source = "memoryReservationPolicy"
    one = next(one for one in container.pod.all_containers if one.name == container.name)
    limited = not MEMORY_LIMIT.of(container.pod.annotations, "")
    files = rules.of_container(container.pod, one, limited=limited).unified
    values = [
        f"{file} {value}{' bytes' * value.isdigit()}"
        for file, value in files.items()
        if value != "0"
    ]
    if not values:
        return None
    return Wish.granted(", ".join(values), setting(source), "cgroup v2")


def _cpu_burst(container: PlacedContainer) -> Wish | None:
    said, config = container.said(CPU_BURST), container.node.config
    if said is None or not said[0]:
        return None
    percent, source = said
    if container.cpus or not config.cpu_cfs_quota:
        return Wish.refused(source, "it has no CPU quota")
    one = next(one for one in container.pod.all_containers if one.name == container.name)
    cgroup = container_cgroup(
        container.pod,
        one,
        memory_capacity=1,
        period=round(config.cpu_cfs_quota_period * 1_000_000),
    )
    if cgroup.cpu_quota <= 0:
        return Wish.refused(source, "it has no CPU limit")
    saved = cgroup.cpu_quota * percent // 100
    return Wish.granted(f"{saved} us of {cgroup.cpu_quota} us", source, "Linux 5.14")


def _suppression(node: PlannedNode) -> Wish | None:
    if (own := node.config.own) is None or not own.suppression.use:
        return None
    said = (
        f"best-effort containers have {own.suppression.threshold} of the node less what others use"
    )
    return Wish.granted(said, setting("suppression.use"), "cgroups with cpu.idle, Linux 5.15")


def _pids(node: PlannedNode) -> Wish | None:
    if (most := node.config.pod_pids_limit) < 1:
        return None
    return Wish.granted(f"{most} processes a pod", setting("podPidsLimit"))


def _io_weight(container: PlacedContainer) -> Wish | None:
    own = container.node.config.own
    weight = None if own is None else own.io_weights.of(container.pod.qos)
    if weight is None:
        return None
    name = {QOSClass.BEST_EFFORT: "bestEffort"}.get(
        container.pod.qos, container.pod.qos.value.lower()
    )
    return Wish.granted(
        f"{weight} (of its pod)",
        setting(f"ioWeights.{name}"),
        "cgroup v2 and a kernel that weighs I/O",
    )


FEATURES: Final[Sequence[Feature]] = (
    Feature(
        name="partition", runtimes=("process",), of_node=_partition, of_container=_partition_of
    ),
    Feature(name="confineSystem", of_node=_confine_system),
    Feature(name="ownerOffline", of_container=_owner_offline),
    Feature(name="scaleDownGracePeriod", of_container=_grace_period),
    Feature(name="irqs", of_container=_irqs),
    Feature(name="cache", of_container=_cache),
    Feature(name="memoryQoS", runtimes=("process", "cri"), of_container=_memory_qos),
    Feature(name="cpuBurst", runtimes=("process",), of_container=_cpu_burst),
    Feature(name="suppression", runtimes=("process",), of_node=_suppression),
    Feature(name="podPidsLimit", runtimes=("process",), of_node=_pids),
    Feature(name="ioWeight", runtimes=("process",), of_container=_io_weight),
    Feature(name="rebalance", of_node=_rebalances, of_container=_rebalance),
    Feature(name="parking", runtimes=("process", "cri"), of_node=parks),
    Feature(
        name="loadDriven",
        runtimes=("process", "cri"),
        of_node=gives_by_load,
        of_container=load_driven,
    ),
    Feature(name="lending", runtimes=("process",), of_node=lends, of_container=lent_by),
    Feature(name="borrow", runtimes=("process",), of_container=borrows),
)
"""The table, in the order in which it is told."""


def wishes_of_node(
    node: PlannedNode, features: Iterable[Feature] = FEATURES
) -> Iterator[tuple[str, Wish]]:
    """What is wished of a node, by the names of the features."""
    for feature in features:
        wish = feature.of_node and feature.of_node(node)
        if (answer := feature.answer(wish, node)) is not None:
            yield feature.name, answer


def wishes_of_container(
    container: PlacedContainer, features: Iterable[Feature] = FEATURES
) -> Iterator[tuple[str, Wish]]:
    """What is wished of a container, by the names of the features."""
    for feature in features:
        wish = feature.of_container and feature.of_container(container)
        if (answer := feature.answer(wish, container.node)) is not None:
            yield feature.name, answer

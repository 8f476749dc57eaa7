"""What a node does beyond a kubelet: our own options, by groups of the section ``pinfold``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field, to_builtins
from msgspec.structs import fields

from pinfold.core.cache.options import CacheOptions
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet, CPUSetError

DYNAMIC: Final = "dynamic"
OWN_POLICIES: Final = (DYNAMIC, "configurable")
"""Pinfold's names for policies that place exactly as ``static`` does.

``dynamic`` may change a container's CPUs while it runs; ``configurable`` is an alias, so that
others can tell a policy with options from a plain one.
"""


NEVER: Final = "never"
_MOST_USED: Final = 0.9
_UNITS: Final[Mapping[str, int]] = MappingProxyType({"s": 1, "m": 60, "h": 3600})


class _Options(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A group of options, named as in the section ``pinfold`` of a configuration file."""


class DynamicOptions(_Options, frozen=True):
    """What the policy ``dynamic`` may do by itself: nothing, unless it is told to."""

    rebalance_period: Annotated[
        str,
        Meta(
            pattern="^(never|[1-9][0-9]{0,4}[smh])$",
            description="never, or seconds, minutes or hours such as 5m",
        ),
    ] = "never"
    """How often containers are moved to fewer NUMA nodes, where that is possible: ``never``, or
    seconds, minutes or hours such as ``5m``."""
    make_room: bool = False
    """Whether others are moved for a pod that is rejected although enough CPUs are free."""
    moves_per_hour: Annotated[int, Meta(ge=0, le=3600)] = 12
    """How many containers may be moved within an hour, where nobody asks for it."""
    most_moved: Annotated[int, Meta(ge=1, le=100)] = 4
    """How many containers may be moved at once, where nobody asks for it."""
    opt_in: bool = False
    """Whether only those containers are moved whose pods ask for it (annotation ``rebalance``)."""

    @property
    def period_seconds(self) -> float:
        """The period in seconds; 0 for never."""
        if self.rebalance_period == NEVER:
            return 0.0
        return float(self.rebalance_period[:-1]) * _UNITS[self.rebalance_period[-1]]


class IsolatedCPUs(_Options, frozen=True):
    """The CPUs that the kernel was booted to isolate."""

    use: Literal["never", "prefer", "require"] = "never"
    """Whether exclusive CPUs are isolated ones; ``never`` ignores isolation, as a kubelet does."""


class SMTIsolate(_Options, frozen=True):
    """One thread of each core for exclusive use; its siblings stay idle."""

    use: bool = False
    """Whether containers with exclusive CPUs are alone on their cores, where they do not say."""


_Percent = Annotated[
    str, Meta(pattern="^([1-9]?[0-9]|100)%$", description="0% to 100%, such as 70%")
]
_Seconds = Annotated[
    str, Meta(pattern="^[1-9][0-9]{0,3}[smh]$", description="seconds, minutes or hours such as 30s")
]
_ShortTime = Annotated[
    str,
    Meta(
        pattern="^([1-9][0-9]{0,3}[smh]|[1-9][0-9]{0,4}ms)$",
        description="milliseconds, seconds, minutes or hours such as 500ms or 30s",
    ),
]
_PerSecond = Annotated[
    str,
    Meta(
        pattern="^[1-9][0-9]{0,4}ms$",
        description="milliseconds in each second, such as 200ms",
    ),
]


def percent(text: str) -> float:
    """A share, 0 to 1, from ``70%``."""
    return float(text.removesuffix("%")) / 100


def _expect_some(name: str, share: str, why: str) -> None:
    """See that a share is not 0%, as nothing could be decided with that; raises ValueError."""
    if not percent(share):
        raise ValueError(f"{name} must be more than 0%: {why}")


def seconds(text: str) -> float:
    """Seconds from ``200ms``, ``30s``, ``5m`` or ``2h``."""
    if text.endswith("ms"):
        return float(text[:-2]) / 1000
    return float(text[:-1]) * _UNITS[text[-1]]


class LoadDrivenOptions(_Options, frozen=True):
    """Exclusive CPUs that come and go with the load, for pods that ask for it."""

    use: bool = False
    """Whether containers with the annotation ``load-driven`` start in the shared pool, and get
    CPUs of their own while their load asks for it; policy ``dynamic`` only."""
    promote_usage: _Percent = "70%"
    """The share of its CPU request from which on a container gets CPUs of its own."""
    demote_usage: _Percent = "30%"
    """The share of its CPU request below which it gives them back; less than ``promoteUsage``."""
    promote_pressure: _Percent = "20%"
    """The share of the time for which some thread waits for a CPU, from which on it gets CPUs of
    its own; where waits are told by ``cpu.pressure`` (cgroup v2)."""
    promote_wait: _PerSecond = "200ms"
    """The same where they are told by ``schedstat`` (cgroup v1): the sum of its threads' waits."""
    promote_throttled: _Percent = "20%"
    """The share of its quota periods that ended early, from which on it gets CPUs of its own."""
    promote_after: _Seconds = "3s"
    """For how long one of these has to be so, without a break."""
    demote_after: _Seconds = "30s"
    """For how long its usage has to be low, without a break."""
    min_shared: _Seconds = "10s"
    """How long it stays in the shared pool at least."""
    min_exclusive: _Seconds = "1m"
    """How long it keeps CPUs of its own at least."""
    most_cpus_per_pod: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """How many CPUs the containers of a pod may be given so; 0: no bound."""
    most_cpus: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """How many CPUs of the node may be given so; 0: no bound."""

    def __post_init__(self) -> None:
        """See that there is a dead band, and a way to and fro; raises ValueError."""
        _expect_some("demoteUsage", self.demote_usage, "nobody would give CPUs back")
        _expect_some("promotePressure", self.promote_pressure, "whoever runs would get CPUs")
        if percent(self.demote_usage) >= percent(self.promote_usage):
            raise ValueError(
                f"demoteUsage {self.demote_usage} must be less than promoteUsage "
                f"{self.promote_usage}: between them nothing moves"
            )


class LendingOptions(_Options, frozen=True):
    """Idle CPUs of owners, lent to best-effort containers; only of pods that allow it."""

    use: bool = False
    """Whether CPUs are lent of containers with the annotation ``lend-cpus``; best-effort containers
    are in a group of their own then, which everybody else pushes aside at once."""
    most_cpus: Annotated[int, Meta(ge=1, le=100_000)] = field(default=100_000, name="mostCPUs")
    """How many CPUs of one container are lent at most, whatever it allows."""
    lend_below: _Percent = "70%"
    """How much of one CPU a container may use of all those together that are lent."""
    return_above: _Percent = "90%"
    """From how much on they are taken back; more than ``lendBelow``, and 90% at most."""
    siblings_below: _Percent = "10%"
    """The same as ``lendBelow`` where a core has several threads: nobody can be pushed aside on
    the sibling of a CPU, and a core is lent as a whole."""
    idle_for: _ShortTime = "1s"
    """For how long a CPU has to be that idle, without a break, before it is lent."""
    pause: _ShortTime = "500ms"
    """For how long nothing of a container is lent after its CPUs were taken back; twice as long
    each time that they had been lent for less than this, up to 32 times."""
    max_pressure: _Percent = "10%"
    """The share of the time for which some thread of the container waits for a CPU, above which its
    CPUs are taken back; where waits are told by ``cpu.pressure`` (cgroup v2).  What it waits for by
    itself, while nothing is lent, is added, up to as much again."""
    max_wait: _PerSecond = "100ms"
    """The same where they are told by ``schedstat`` (cgroup v1): the sum of its threads' waits."""
    look_rate: Annotated[
        str, Meta(pattern="^(2[0-9]|3[0-9]|4[0-9]|50)Hz$", description="20Hz to 50Hz")
    ] = "40Hz"
    """How often it is looked whether CPUs are to be taken back, while any are lent."""

    def __post_init__(self) -> None:
        """See that there is a dead band; raises ValueError."""
        _expect_some("lendBelow", self.lend_below, "hardly anything would be lent")
        if percent(self.siblings_below) > percent(self.lend_below):
            raise ValueError(
                f"siblingsBelow {self.siblings_below} must not be more than lendBelow "
                f"{self.lend_below}: a sibling is disturbed earlier, and would be given back later"
            )
        if percent(self.lend_below) >= percent(self.return_above):
            raise ValueError(
                f"lendBelow {self.lend_below} must be less than returnAbove {self.return_above}: "
                "between them CPUs stay where they are"
            )
        # At 20 looks in a second, more would be noticed later than 100 ms after it has begun.
        if percent(self.return_above) > _MOST_USED:
            raise ValueError(
                f"returnAbove {self.return_above} must not be more than {_MOST_USED:.0%}: what is "
                "used is known to a few percent"
            )

    @property
    def look_period(self) -> float:
        """Seconds between two looks while CPUs are lent."""
        return 1.0 / float(self.look_rate.removesuffix("Hz"))


class InterruptOptions(_Options, frozen=True):
    """Interrupts of devices, and exclusive CPUs."""

    use: bool = False
    """Whether they are kept off the exclusive CPUs of containers that do not say."""
    housekeeping: Annotated[
        str, Meta(pattern="^[0-9,-]*$", description='CPUs such as 0-1,32, or "" for the pool')
    ] = ""
    """Where they go, such as ``0-1,32``; empty: the shared pool and the reserved CPUs."""

    def __post_init__(self) -> None:
        """See that these are CPUs; raises ValueError."""
        try:
            CPUSet.parse(self.housekeeping)
        except CPUSetError as error:
            raise ValueError(f"housekeeping must be CPUs such as 0-1,32: {error}") from None

    @property
    def housekeeping_cpus(self) -> CPUSet:
        """The CPUs; empty: the shared pool and the reserved ones."""
        return CPUSet.parse(self.housekeeping)


class SuppressionOptions(_Options, frozen=True):
    """Best-effort containers have what the others leave of a part of the node."""

    use: bool = False
    """Whether BestEffort pods' containers together are capped, by what the others use."""
    threshold: _Percent = "65%"
    """The part of the node's CPU time that is for all; what the others and the system use of it is
    not for BestEffort pods."""
    margin: _Percent = "3%"
    """How far below that, in parts of the node, the cap goes when it goes down; a load that wavers
    by less moves nothing."""
    hold: _Seconds = "5s"
    """For how long more has to be allowed before the cap goes up."""
    step_up: _Percent = "10%"
    """By how much of the node the cap goes up at most, at most once in a second."""
    least_cpus: Annotated[int, Meta(ge=1, le=1024)] = field(default=1, name="leastCPUs")
    """CPUs' worth of time that BestEffort pods keep, whatever the others use."""

    def __post_init__(self) -> None:
        """See that a cap can go up, and be more than the least; raises ValueError."""
        _expect_some("stepUp", self.step_up, "a cap that has gone down would never go up")
        if percent(self.margin) >= percent(self.threshold):
            raise ValueError(
                f"margin {self.margin} must be less than threshold {self.threshold}: BestEffort "
                "pods would never have more than leastCPUs"
            )


_Weight = Annotated[int, Meta(ge=0, le=1000)]


class IOWeights(_Options, frozen=True):
    """The weights of pods where they compete for a block device; 0 leaves the kernel's, 100."""

    guaranteed: _Weight = 0
    """Of Guaranteed pods: 1 to 1000; 0 is not set."""
    burstable: _Weight = 0
    """Of Burstable pods."""
    best_effort: _Weight = 0
    """Of BestEffort pods."""

    def of(self, qos: QOSClass) -> int | None:
        """The weight of a pod of this class; None: the kernel's."""
        weights = {
            QOSClass.GUARANTEED: self.guaranteed,
            QOSClass.BURSTABLE: self.burstable,
            QOSClass.BEST_EFFORT: self.best_effort,
        }
        return weights[qos] or None


class ParkingOptions(_Options, frozen=True):
    """Work gathered on few sockets while there is little of it, so that the others idle."""

    use: bool = False
    """Whether owners are moved to fewer sockets, where they are as well off there, and the shared
    pool leaves the others; policy ``dynamic`` only."""
    park_below: _Percent = "40%"
    """The share of the shared pool's CPU time that is used, below which work is gathered."""
    park_after: _Seconds = "5m"
    """For how long that has to be so, without a break, and between two tries."""
    unpark_from: _Percent = "70%"
    """The share of the CPU time of what is left of the pool from which on it may be everywhere
    again, at once; more than ``parkBelow``."""
    keep_requests: bool = True
    """Whether the pool keeps as many CPUs as its containers request, however little they use."""
    least_pool: Annotated[int, Meta(ge=1, le=100_000)] = 2
    """How many CPUs the pool keeps at least."""

    def __post_init__(self) -> None:
        """See that there is a dead band; raises ValueError."""
        _expect_some("parkBelow", self.park_below, "nothing would ever be gathered")
        if percent(self.unpark_from) <= percent(self.park_below):
            raise ValueError(
                f"unparkFrom {self.unpark_from} must be more than parkBelow {self.park_below}: "
                "between them nothing is changed"
            )


class OwnPolicies(_Options, frozen=True):
    """What a node does beyond a kubelet, by groups."""

    dynamic: DynamicOptions = DynamicOptions()
    """What the policy ``dynamic`` may do by itself."""
    isolated_cpus: IsolatedCPUs = field(default=IsolatedCPUs(), name="isolatedCPUs")
    """The CPUs that the kernel was booted to isolate."""
    smt_isolate: SMTIsolate = SMTIsolate()
    """One thread of each core for exclusive use; its siblings stay idle."""
    load_driven: LoadDrivenOptions = LoadDrivenOptions()
    """Exclusive CPUs that come and go with the load."""
    suppression: SuppressionOptions = SuppressionOptions()
    """Best-effort containers have what the others leave of a part of the node."""
    io_weights: IOWeights = field(default=IOWeights(), name="ioWeights")
    """The weights of pods where they compete for a block device."""
    lending: LendingOptions = LendingOptions()
    """Idle CPUs of owners, lent to best-effort containers."""
    irqs: InterruptOptions = InterruptOptions()
    """Interrupts of devices, and exclusive CPUs."""
    cache: CacheOptions = CacheOptions()
    """Parts of the caches, and of the memory bandwidth, for owners of CPUs."""

    parking: ParkingOptions = ParkingOptions()
    """Work gathered on few sockets while there is little of it."""

    @property
    def needs_figures(self) -> bool:
        """Whether anything is decided by what containers and CPUs do, so that it is observed."""
        used = (self.load_driven, self.parking, self.lending, self.suppression)
        return any(group.use for group in used)

    @property
    def need_idle_side(self) -> bool:
        """Whether best-effort containers are to be where they can borrow, and be capped."""
        return self.lending.use or self.suppression.use

    @property
    def by_group(self) -> dict[str, dict[str, Any]]:
        """All options as a file has them, by group."""
        return {group.encode_name: to_builtins(getattr(self, group.name)) for group in fields(self)}

    @property
    def options(self) -> dict[str, str]:
        """All options in one list, such as ``isolatedCPUs.use: prefer``."""
        return {
            f"{group}.{name}": in_words(value)
            for group, options in self.by_group.items()
            for name, value in options.items()
        }


def in_words(value: object, between: str = ", ") -> str:
    """The value of an option, in one list with others; of things by name, their names."""
    if isinstance(value, Mapping):
        return between.join(value)
    return value if isinstance(value, str) else str(value).lower()

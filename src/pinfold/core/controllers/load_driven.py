"""CPUs of one's own while the load asks for them: who is promoted, who is demoted, and why.

A container is promoted once its usage, its waiting or its throttling has been high for a while, and
demoted once its usage has been low for a while.  What makes the two thresholds a dead band although
waiting and throttling vanish with the promotion: it is demoted only below half of the usage with
which it was promoted.  So under a steady load nobody moves twice.

The usage at the promotion is remembered by whoever carries it out, and shown in each look.  Where
nobody knows it, as of a container that an older program promoted, it is taken for the least with
which it could have been promoted until more is seen, and from then on for the most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.controllers.seen import Seen, SeenContainer
from pinfold.core.kubelet.own_policies import LoadDrivenOptions, percent, seconds
from pinfold.core.moves.owners import Owner
from pinfold.core.observation.rates import Load

_FELL: Final = 0.5
"""The part of the usage at its promotion below which a container may be demoted."""

_AT_WORK: Final = 0.02
"""The share of its request that a container has to use, for its waiting to count: who hardly runs
would otherwise be at rest and in need at once."""

_MEAN: Final = 60.0
"""Seconds whose mean counts as a usage that was seen."""

CPU: Final = "cpu"


class Promote(Proposal, frozen=True, kw_only=True):
    """A container is to get ``count`` CPUs of its own; which ones is open.

    ``used`` are those that it uses now, which is to be remembered for as long as it has them.
    """

    count: int
    used: float | None = None


class Demote(Proposal, frozen=True, kw_only=True):
    """A container is to give its CPUs back, and to go to the shared pool."""


class Watch(Struct, frozen=True):
    """What is remembered of a container.

    Times are summed up from look to look, so that no jump of a clock makes them longer.

    Attributes:
        at: the last look.
        is_exclusive: whether it has CPUs of its own.
        spent: seconds since that is so.
        lasted: seconds for which its load has asked for the other, without a break.
        work: CPU seconds that it used in these.
        most: the most CPUs that it was seen to use on its own ones; None before that.
        learnt: seconds of the mean that it was not yet compared with.
        learnt_work: CPU seconds that it used in these.
        why: what its load asks for, and what that waits for; "" where it is as it should be.
    """

    at: float
    is_exclusive: bool
    spent: float = 0.0
    lasted: float = 0.0
    work: float = 0.0
    most: float | None = None
    learnt: float = 0.0
    learnt_work: float = 0.0
    why: str = ""


Watches: TypeAlias = Mapping[Owner, Watch]
"""The memory of :class:`LoadDriven`; it may begin with none."""


class LoadDriven(Struct, frozen=True):
    """The controller."""

    options: LoadDrivenOptions

    def step(self, memory: Watches, seen: Seen) -> tuple[Watches, tuple[Proposal, ...]]:
        """See :class:`~.seen.Controller`."""
        kept: dict[Owner, Watch] = {}
        ready: list[tuple[float, Owner, str]] = []
        for owner, one in seen.containers.items():
            if not one.load_driven:
                continue
            watch, asks = self._watch(memory.get(owner), one, seen)
            if asks:
                held_up = self._held_up(watch)
                kept[owner] = replace(watch, why=asks + (f"; {held_up}" if held_up else ""))
                if not held_up and owner not in seen.busy:
                    ready.append((-watch.lasted, owner, asks))
            else:
                kept[owner] = watch
        ready.sort()
        proposals: list[Proposal] = [
            Demote(
                rank=Rank.LOAD_DRIVEN,
                why=asks,
                owners=frozenset({owner}),
                cpus=seen.containers[owner].cpus,
                moves=1,
            )
            for _, owner, asks in ready
            if kept[owner].is_exclusive
        ]
        given = _given(seen)
        for _, owner, asks in ready:
            if kept[owner].is_exclusive:
                continue
            count = seen.containers[owner].load_driven
            if bound := self._bound(owner, count, given):
                kept[owner] = replace(kept[owner], why=f"{asks}; {bound}")
                continue
            given[owner] = count
            proposals.append(
                Promote(
                    rank=Rank.LOAD_DRIVEN,
                    why=asks,
                    owners=frozenset({owner}),
                    moves=1,
                    count=count,
                    used=_mean(kept[owner], count),
                )
            )
        return kept, tuple(proposals)

    def _watch(self, before: Watch | None, one: SeenContainer, seen: Seen) -> tuple[Watch, str]:
        """What is to be remembered of a container, and what its load asks for."""
        is_exclusive = bool(one.cpus)
        if before is None or before.is_exclusive != is_exclusive:
            return Watch(seen.at, is_exclusive, one.settled if before is None else 0.0), ""
        passed = seen.since(before.at)
        is_unbroken = passed is not None
        step = passed or 0.0
        load = one.load
        learns = is_exclusive and one.promoted_with is None
        watch = _learn(before, load, step) if learns else before
        watch = replace(watch, at=seen.at, spent=before.spent + step, why="")
        asks = "" if load is None else self._asks(watch, one, load)
        if not asks or load is None or not is_unbroken:
            return replace(watch, lasted=0.0, work=0.0), asks
        work = before.work + (load.usage or 0.0) * step
        return replace(watch, lasted=before.lasted + step, work=work), asks

    def _asks(self, watch: Watch, one: SeenContainer, load: Load) -> str:
        """Why a container should be on the other side; "" where it should not."""
        options, usage, count = self.options, load.usage, one.load_driven
        if usage is None:
            return ""
        used = f"it uses {usage:.2f} of {count} CPUs ({usage / count:.0%})"
        if watch.is_exclusive:
            if usage >= percent(options.demote_usage) * count:
                return ""
            reference, how = one.promoted_with, "with which it was promoted"
            if reference is None:
                reference, how = max(watch.most or 0.0, _AT_WORK * count), "that it was seen to use"
            if usage >= reference * _FELL:
                return ""
            return (
                f"{used}, less than demoteUsage {options.demote_usage} and than half of the "
                f"{reference:.2f} {how}"
            )
        if usage >= percent(options.promote_usage) * count:
            return f"{used}, promoteUsage is {options.promote_usage}"
        if usage < _AT_WORK * count:
            return ""
        pressure = load.pressure.get(CPU)
        if pressure is not None:
            if pressure.some >= percent(options.promote_pressure):
                return (
                    f"some thread of it waits for a CPU {pressure.some:.0%} of the time, "
                    f"promotePressure is {options.promote_pressure}; {used}"
                )
        elif load.wait is not None and load.wait >= seconds(options.promote_wait):
            return (
                f"its threads wait for a CPU {load.wait * 1000:.0f}ms in each second, promoteWait "
                f"is {options.promote_wait}; {used}"
            )
        throttled = load.throttled_periods
        if throttled is not None and throttled >= percent(options.promote_throttled) > 0:
            return (
                f"its quota stops it in {throttled:.0%} of the periods, promoteThrottled is "
                f"{options.promote_throttled}; {used}"
            )
        return ""

    def promoted_at(self, count: int, wait_source: str) -> str:
        """When a container of ``count`` CPUs that shares gets its own, in the options' words.

        ``wait_source`` is where waits are from, see :class:`~.seen.Seen`.
        """
        options = self.options
        usage = percent(options.promote_usage) * count
        used = f"uses {usage:.2f} of its {count} CPUs (promoteUsage {options.promote_usage})"
        causes = [used]
        if wait_source == "cpu.pressure":
            causes.append(
                "some thread of it waits for a CPU that share of the time "
                f"(promotePressure {options.promote_pressure})"
            )
        elif wait_source:
            causes.append(
                "its threads wait for a CPU so long in each second "
                f"(promoteWait {options.promote_wait})"
            )
        if percent(options.promote_throttled):
            causes.append(
                "its quota stops it in that share of the periods "
                f"(promoteThrottled {options.promote_throttled})"
            )
        bounds = {"mostCpusPerPod": options.most_cpus_per_pod, "mostCpus": options.most_cpus}
        within = " and ".join(f"{name} {most}" for name, most in bounds.items() if most)
        return (
            f"CPUs of its own once it {', or '.join(causes)}, for promoteAfter "
            f"{options.promote_after} and after minShared {options.min_shared}"
            + (f", within {within}" if within else "")
        )

    def demoted_at(self, count: int, promoted_with: float | None) -> str:
        """When a container gives its ``count`` CPUs back, in the options' words."""
        options = self.options
        least = percent(options.demote_usage) * count
        half = "half of what it was seen to use"
        if promoted_with is not None:
            half = f"half of the {promoted_with:.2f} with which it was promoted"
            least = min(least, promoted_with * _FELL)
        return (
            f"the shared pool once it uses less than {least:.2f} of its {count} CPUs (demoteUsage "
            f"{options.demote_usage}, and {half}), for demoteAfter {options.demote_after} and "
            f"after minExclusive {options.min_exclusive}"
        )

    def _held_up(self, watch: Watch) -> str:
        """What a container that should be on the other side still waits for."""
        options = self.options
        after = options.demote_after if watch.is_exclusive else options.promote_after
        least = options.min_exclusive if watch.is_exclusive else options.min_shared
        name = "demoteAfter" if watch.is_exclusive else "promoteAfter"
        if watch.lasted < seconds(after):
            return f"for {watch.lasted:.0f}s of {name} {after}"
        if watch.spent < seconds(least):
            name = "minExclusive" if watch.is_exclusive else "minShared"
            return f"it is there for {watch.spent:.0f}s of {name} {least}"
        return ""

    def _bound(self, owner: Owner, count: int, given: Mapping[Owner, int]) -> str:
        """Why a container gets no CPUs of its own, however high its load is."""
        pod = sum(cpus for other, cpus in given.items() if other.pod_uid == owner.pod_uid)
        most, node = self.options.most_cpus_per_pod, sum(given.values())
        if most and pod + count > most:
            return f"its pod has {pod} CPUs so, and mostCpusPerPod is {most}"
        if (most := self.options.most_cpus) and node + count > most:
            return f"the node has given {node} CPUs so, and mostCpus is {most}"
        return ""


def _mean(watch: Watch, most: int) -> float | None:
    """The CPUs that a container used for as long as its load has asked for the other side."""
    return min(watch.work / watch.lasted, most) if watch.lasted > 0 else None


def _learn(watch: Watch, load: Load | None, step: float) -> Watch:
    """The same with what a container has used since, whose usage at its promotion is not known."""
    if load is None or load.usage is None:
        return watch
    learnt, work = watch.learnt + step, watch.learnt_work + load.usage * step
    if learnt < _MEAN:
        return replace(watch, learnt=learnt, learnt_work=work)
    return replace(watch, most=max(watch.most or 0.0, work / learnt), learnt=0.0, learnt_work=0.0)


def _given(seen: Seen) -> dict[Owner, int]:
    """How many CPUs load-driven containers own now."""
    return {
        owner: len(one.cpus)
        for owner, one in seen.containers.items()
        if one.load_driven and one.cpus
    }

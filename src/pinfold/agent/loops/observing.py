"""Watching what containers and CPUs do, where the configuration asks for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace

from pinfold.adapters.observation import CgroupMeters, ProcCPUMeter
from pinfold.agent.loops.runnables import Runnable
from pinfold.config.agent import AgentConfig
from pinfold.core.observation.history import History
from pinfold.core.observation.rates import Counters, Stalls
from pinfold.documents.status import CgroupTree
from pinfold.linux.pressure import PRESSURES
from pinfold.node.books import Books
from pinfold.node.observation.observer import Observation
from pinfold.node.view import Reader
from pinfold.ports.figures import Figure
from pinfold.ports.observation import Located

USUAL: Final = 1.0
"""Seconds between two readings."""

_SECONDS: Final = 1e-6
_ALL: Final = Counters(0, 0, 0, 0, 0, 0, dict.fromkeys(PRESSURES, Stalls(0, 0)))
_K = TypeVar("_K")
_T = TypeVar("_T")


def observation(books: Books, config: AgentConfig, tree: CgroupTree) -> Observation | None:
    """What reads containers and CPUs, where that is configured; ``tree`` is the cgroups' kind.

    It is each second where something is decided by it, and nobody has said how often.
    """
    own = config.node.own
    usual = USUAL if own is not None and own.needs_figures else 0.0
    period = config.own.observation.period_seconds or usual
    if not period:
        return None
    cgroups, meters = books.containers.cgroups, None
    if isinstance(cgroups, Located) and tree.version:
        meters = CgroupMeters(tree.version, cgroups)
    return Observation(
        books,
        meters,
        ProcCPUMeter(),
        now=time.monotonic,
        spent=time.thread_time,
        period=period,
    )


def observes(observing: Observation | None, books: Reader) -> list[Runnable]:
    """Goes on reading, and tells the metrics what was read last."""
    if observing is None:
        return []
    tell = partial(figures, observing, books)
    return [Runnable("observation", observing.go_on, figures=tell, close=observing.close)]


def figures(observing: Observation, books: Reader) -> Iterator[Figure]:
    """The counters as cAdvisor names them; what a kernel does not tell is left out."""
    # Also what is not told here is known by name.
    for known in (*_of_container(_ALL, {}, "schedstat"), *_of_node({0: 0}, _ALL.pressure)):
        yield replace(known, value=None)
    names = {uid: pod.name for uid, pod in books.view.pods.active.items()}
    for key, history in observing.containers.items():
        if history.newest is None or key.pod_uid not in names:
            continue
        namespace, _, pod = names[key.pod_uid].partition("/")
        labels = {"namespace": namespace, "pod": pod, "container": key.name}
        yield from _of_container(history.newest.value, labels, observing.wait_source)
    yield from _of_node(_newest(observing.idle), _newest(observing.pressure))
    yield Figure("pinfold_observations", "Readings of all counters.", observing.readings)
    cost = observing.cost.newest
    yield Figure(
        "pinfold_observation_cpu_seconds",
        "CPU time that they have taken.",
        0.0 if cost is None else cost.value * _SECONDS,
    )


def _newest(histories: Mapping[_K, History[_T]]) -> dict[_K, _T]:
    return {one: h.newest.value for one, h in histories.items() if h.newest is not None}


def _of_node(idle: Mapping[int, int], pressure: Mapping[str, Stalls]) -> Iterator[Figure]:
    for cpu, microseconds in sorted(idle.items()):
        yield Figure(
            "pinfold_cpu_idle_seconds",
            "Time for which a CPU had nothing to do.",
            microseconds * _SECONDS,
            {"cpu": str(cpu)},
        )
    for what, stalls in pressure.items():
        yield from _stalled("node", what, stalls, {})


def _of_container(
    counters: Counters, labels: Mapping[str, str], wait_source: str
) -> Iterator[Figure]:
    for name, meaning, microseconds in (
        ("usage", "CPU time that a container has used.", counters.usage),
        (
            "cfs_throttled",
            "Time for which a container's quota has kept it from running.",
            counters.throttled,
        ),
        (
            "schedstat_runqueue",
            "Time that the threads of a container have waited for a CPU, as far as they were seen.",
            counters.wait if wait_source == "schedstat" else None,
        ),
    ):
        if microseconds is not None:
            whole = f"pinfold_container_cpu_{name}_seconds"
            yield Figure(whole, meaning, microseconds * _SECONDS, labels)
    for name, meaning, count in (
        ("cfs_periods", "Quota periods in which a container wanted to run.", counters.periods),
        (
            "cfs_throttled_periods",
            "Those of them in which its quota was used up.",
            counters.throttled_periods,
        ),
    ):
        if count is not None:
            yield Figure(f"pinfold_container_cpu_{name}", meaning, count, labels)
    for what, stalls in counters.pressure.items():
        yield from _stalled("container", what, stalls, labels)


def _stalled(who: str, what: str, stalls: Stalls, labels: Mapping[str, str]) -> Iterator[Figure]:
    for kind, word, microseconds in (
        ("waiting", "some", stalls.some),
        ("stalled", "all", stalls.full),
    ):
        if microseconds is not None:
            yield Figure(
                f"pinfold_{who}_pressure_{what}_{kind}_seconds",
                f"Time for which {word} tasks of a {who} were stalled for want of {what}.",
                microseconds * _SECONDS,
                labels,
            )

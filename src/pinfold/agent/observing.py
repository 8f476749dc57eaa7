"""Watching what containers and CPUs do, where the configuration asks for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from pinfold.adapters.observation import CgroupMeters, ProcCPUMeter
from pinfold.agent.runnables import Runnable
from pinfold.config.section import ObservationSettings
from pinfold.core.observation.rates import Counters, Stalls
from pinfold.documents.status import CgroupTree
from pinfold.node.books import Books
from pinfold.node.observation.observer import Observation
from pinfold.node.view import Reader
from pinfold.ports.figures import Figure
from pinfold.ports.observation import Located

_SECONDS: Final = 1e-6


def observation(
    books: Books, settings: ObservationSettings, tree: CgroupTree
) -> Observation | None:
    """What reads containers and CPUs, where that is configured; ``tree`` is the cgroups' kind."""
    if not (period := settings.period_seconds):
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
    names = {uid: pod.name for uid, pod in books.view.pods.active.items()}
    for key, history in observing.containers.items():
        if history.newest is None or key.pod_uid not in names:
            continue
        namespace, _, pod = names[key.pod_uid].partition("/")
        labels = {"namespace": namespace, "pod": pod, "container": key.name}
        yield from _of_container(history.newest.value, labels, observing.wait_source)
    for cpu, idle in sorted(observing.idle.items()):
        if idle.newest is not None:
            yield Figure(
                "pinfold_cpu_idle_seconds",
                "Time for which a CPU had nothing to do.",
                idle.newest.value * _SECONDS,
                {"cpu": str(cpu)},
            )
    for what, stalls in sorted(observing.pressure.items()):
        if stalls.newest is not None:
            yield from _stalled("node", what, stalls.newest.value, {})
    yield Figure("pinfold_observations", "Readings of all counters.", observing.readings)
    cost = observing.cost.newest
    yield Figure(
        "pinfold_observation_cpu_seconds",
        "CPU time that they have taken.",
        0.0 if cost is None else cost.value * _SECONDS,
    )


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

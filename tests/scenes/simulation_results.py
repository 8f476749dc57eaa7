"""Results of simulations, made up of plausible numbers: what a report is drawn of."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from pinfold.documents.simulation.results import (
    Averages,
    Fates,
    Fit,
    Moves,
    Needed,
    Replayed,
    Run,
    Simulation,
    Spread,
    WorstDecision,
)

HOSTILE_NAMES = (
    "<script>alert(1)</script>",
    "a \"quoted\" 'name' & more -->",
    "emoji 🦀 and 汉字",
    "\u202eturned \u05e9\u05dc\u05d5\u05dd",
    "</style></svg><img src=x onerror=alert(2)>",
    "x" * 80,
    "control \x1b[31m \x00 \n newline",
    "{{ 7 * 7 }} ${datum.key} var(--bg)",
)
"""What a name may hold."""

LONG_NAMES = tuple(
    f"static full-pcpus-only={full} distribute-cpus-across-numa={spread} topology={scope} nodes=1.1"
    for full in ("true", "false")
    for spread in ("true", "false")
    for scope in ("container", "pod")
)
"""As a sweep makes them: alike at their beginnings and at their ends."""

_REASONS = (
    "Unschedulable",
    "TopologyAffinityError",
    "SMTAlignmentError",
    "UnexpectedAdmissionError",
)


def simulation(
    names: Sequence[str] = ("none", "static", "static-restricted"),
    seeds: int = 1,
    *,
    needed: bool = True,
    warm_up: float = 0.0,
) -> Simulation:
    """A whole one."""
    runs = tuple(
        run(name, seed, place, warm_up)
        for place, name in enumerate(names)
        for seed in _seeds(seeds)
    )
    return Simulation(
        name="two weeks of arrivals",
        experiment={
            "apiVersion": "pinfold.dev/v1alpha1",
            "kind": "Experiment",
            "metadata": {"name": "two weeks of arrivals"},
            "spec": {
                "nodes": [{"machine": "2s16c2t", "count": 100}],
                "configurations": [{"name": name} for name in names],
                "arrivals": {"trace": {"form": "azure2017"}},
                "seeds": list(_seeds(seeds)),
            },
        },
        configurations=tuple(names),
        runs=runs,
        needed=tuple(
            _needed(name, seed, place) for place, name in enumerate(names) for seed in _seeds(seeds)
        )
        if needed
        else UNSET,
        notes=("2 columns of the trace were passed over: priority, region.",),
    )


def interrupted(seeds: int = 2) -> Simulation:
    """One run ended early, and one did not begin."""
    whole = simulation(seeds=seeds)
    *done, last, _ = whole.runs
    cut = replace(
        last,
        complete=False,
        until=last.until / 3,
        series={name: column[:80] for name, column in last.series.items()},
    )
    return replace(
        whole,
        runs=(*done, cut),
        missing=((whole.runs[-1].configuration, whole.runs[-1].seed),),
        needed=(),
    )


def empty() -> Simulation:
    """No run was begun."""
    return replace(
        simulation(needed=False), runs=(), missing=(("none", 1), ("static", 1)), notes=()
    )


def without_pods() -> Simulation:
    """Runs in which nothing came."""
    whole = simulation(needed=False)
    return replace(whole, runs=tuple(_idle(one) for one in whole.runs))


def run(name: str, seed: int, place: int, warm_up: float = 0.0) -> Run:
    """A run; ``place`` makes it differ from others, and so does the seed."""
    day = 86400.0
    until = 14 * day
    wobble = math.sin(seed * 12.9898 + place) * 0.1
    arrived = 40_000 + 100 * seed
    share = (0.002 + 0.011 * (place % 7)) * (1 + wobble)
    by_reason = (
        {}
        if place == 0
        else {
            reason: round(arrived * share * weight)
            for reason, weight in zip(_REASONS, (0.2, 0.5, 0.2, 0.1), strict=True)
        }
    )
    rejected = sum(by_reason.values())
    running, waiting = 900, 3
    placed = arrived - rejected - waiting
    later = round(placed * share)
    times = [until * step / 240 for step in range(1, 241)]
    wave = [math.sin(2 * math.pi * at / day) for at in times]
    load = [
        0.5 + 0.2 * up + 0.03 * math.sin(at / 9000 + seed)
        for at, up in zip(times, wave, strict=True)
    ]
    exclusive = [float(round(6000 * one * (1 - 0.04 * place))) for one in load]
    series: dict[str, list[float]] = {
        "time": times,
        "runningPods": [round(1800 * one) for one in load],
        "requestedCPUs": [round(6200 * one, 1) for one in load],
        "exclusiveCPUs": exclusive,
        "freeCPUs": [6200.0 - one for one in exclusive],
        "strandedCPUs": [round((6200 - one) * 0.02 * place) for one in exclusive],
        "idleSockets": [round(200 * (1 - one) / 4) for one in load],
        "busyNodes": [min(100, round(160 * one)) for one in load],
        "splitContainers": [float(round(12 * place * one)) for one in load],
        "arrived": [round(arrived * at / until) for at in times],
        "placed": [round(placed * at / until) for at in times],
        "refused": [round(3 * rejected * at / until) for at in times],
        "rejected": [round(rejected * (at / until) ** 2) for at in times],
        "ended": [round((placed - running) * at / until) for at in times],
        "moved": [0.0 for _ in times],
    }
    return Run(
        configuration=name,
        seed=seed,
        nodes={"node": 100},
        complete=True,
        until=until,
        counted_from=warm_up,
        fates=Fates(
            arrived=arrived,
            running=running,
            ended=placed - running,
            rejected=rejected,
            waiting=waiting,
            placed_at={"1": placed - later, "2": later * 2 // 3, "3": later - later * 2 // 3},
            rejected_by=by_reason,
            refusals={reason: 4 * count for reason, count in by_reason.items()},
        ),
        averages=Averages(
            allocatable_cpus=6200.0,
            requested_cpus=3100.0 + 10 * seed,
            exclusive_cpus=2900.0 - 100 * (place % 8) + 10 * seed,
            free_cpus=3300.0 + 100 * (place % 8) - 10 * seed,
            stranded_cpus=60.0 * (place % 9) + seed,
            idle_sockets=20.0 + place + wobble,
            busy_nodes=90.0 - place,
            split_containers=12.0 * place,
        ),
        spread=Spread(
            numa_nodes={"1": placed // 2, "2": placed // 5 + place * 100, "4": placed // 20},
            sockets={"1": placed // 2 + placed // 5 + place * 100, "2": placed // 20},
            caches={"1": placed // 3, "2": placed // 5, "3": 50, "7": 20 * place, "12": 4},
            beyond={"numaNodes": 30 * place, "sockets": 0, "caches": 200 * place, "cores": 0},
        ),
        fits=[
            Fit(cpus=size, free_cpus=60_000, usable_cpus=round(60_000 / (1 + 0.004 * size * place)))
            for size in (1, 2, 4, 8, 16, 32)
        ],
        moves=Moves(
            made_room=12 * place,
            rebalances=3 * place,
            containers=40 * place,
            cpus=160 * place,
            memory_bytes=place << 33,
        ),
        replayed=Replayed(decisions=400, different=0),
        series=series,
        worst=(
            WorstDecision(
                at=123_456.7,
                node="node-17",
                pod=f"pod-{seed}-4711",
                cpus=16,
                admitted=False,
                reason="TopologyAffinityError",
                free_cpus=40,
                why_here="rejected with the most CPUs free",
                explanation=("No NUMA node has 16 free CPUs.", "restricted wants as few as 1."),
            ),
        )
        if place
        else (),
    )


def _seeds(count: int) -> range:
    return range(1, count + 1)


def _needed(name: str, seed: int, place: int) -> Needed:
    if place == 2 and seed == 1:
        return Needed(
            configuration=name,
            seed=seed,
            acceptance=0.998,
            nodes=None,
            factor=None,
            tried=((1.0, 0.97), (2.0, 0.98), (4.0, 0.985)),
        )
    factor = 1 + 0.07 * (place % 6) + 0.01 * seed * bool(place)
    return Needed(
        configuration=name,
        seed=seed,
        acceptance=0.998,
        nodes={"node": round(100 * factor)},
        factor=factor,
        tried=((1.0, 0.998 - 0.01 * place), (factor, 0.9981), (2.0, 0.9999), (4.0, 1.0)),
    )


def _idle(one: Run) -> Run:
    fates = Fates(
        arrived=0,
        running=0,
        ended=0,
        rejected=0,
        waiting=0,
        placed_at={},
        rejected_by={},
        refusals={},
    )
    return replace(
        one,
        fates=fates,
        until=0.0,
        spread=Spread(numa_nodes={}, sockets={}, caches={}, beyond={}),
        fits=(),
        moves=Moves(made_room=0, rebalances=0, containers=0, cpus=0, memory_bytes=0),
        replayed=Replayed(decisions=0, different=0),
        series=dict.fromkeys(one.series, ()),
        worst=(),
    )

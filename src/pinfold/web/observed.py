"""Documents of what is observed: containers, CPUs, and what observing costs."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, UnsetType

from pinfold.core.observation.history import Sample
from pinfold.core.observation.rates import Counters, load_between, pressure_between
from pinfold.core.observation.rates import Load as Rates
from pinfold.core.observation.rates import Pressure as Stalled
from pinfold.documents import observation as form
from pinfold.node.observation.observer import Observation
from pinfold.node.view import Reader
from pinfold.ports.errors import ContainerKey

_TEN_SECONDS = 10.0
_MINUTE = 60.0
_MICROSECONDS = 1_000_000


def observed_document(observation: Observation) -> form.Observed:
    """The part of ``GET /v1/status`` about the node."""
    spans = {what: history.span() for what, history in observation.pressure.items()}
    return form.Observed(
        period=observation.period,
        wait_source=observation.wait_source,
        lacks=observation.lacks(),
        cost=_cost(observation),
        idle={str(cpu): share for cpu, share in observation.idle_shares().items()},
        pressure={
            what: _pressure(pressure_between(span[0].value, span[1].value, span[1].at - span[0].at))
            for what, span in spans.items()
            if span is not None
        },
    )


def observation_document(
    observation: Observation, books: Reader, *, history: bool
) -> form.Observation:
    """The document of ``GET /v1/observation``; with ``history``, every interval besides."""
    whole = observed_document(observation)
    last = observation.idle_shares()
    ten, minute = observation.idle_shares(_TEN_SECONDS), observation.idle_shares(_MINUTE)
    names = {uid: pod.name for uid, pod in books.view.pods.active.items()}
    return form.Observation(
        period=whole.period,
        wait_source=whole.wait_source,
        lacks=whole.lacks,
        cost=whole.cost,
        idle=whole.idle,
        pressure=whole.pressure,
        cpus=[
            form.CPULoad(cpu=cpu, last=share, ten_seconds=ten[cpu], minute=minute[cpu])
            for cpu, share in last.items()
        ],
        containers=[
            found
            for key in sorted(observation.containers)
            if (found := _container(observation, key, names, history=history)) is not None
        ],
    )


def _container(
    observation: Observation, key: ContainerKey, names: Mapping[str, str], *, history: bool
) -> form.ContainerLoad | None:
    last, ten = observation.load(key), observation.load(key, _TEN_SECONDS)
    minute = observation.load(key, _MINUTE)
    if last is None or ten is None or minute is None:
        return None
    steps = list(observation.containers[key].steps()) if history else []
    return form.ContainerLoad(
        pod_uid=key.pod_uid,
        pod=names.get(key.pod_uid, ""),
        container=key.name,
        last=load_document(last),
        ten_seconds=load_document(ten),
        minute=load_document(minute),
        history=[_interval(step, steps[-1][1].at) for step in steps] if history else UNSET,
    )


def _interval(step: tuple[Sample[Counters], Sample[Counters]], newest: float) -> form.Interval:
    return form.Interval(ago=newest - step[1].at, load=load_document(load_between(*step)))


def load_of(observation: Observation | None, key: ContainerKey) -> form.Load | UnsetType:
    """What a container did in the last interval, where that is known."""
    rates = None if observation is None else observation.load(key)
    return UNSET if rates is None else load_document(rates)


def load_document(rates: Rates) -> form.Load:
    """What a container did, as documents have it."""
    return form.Load(
        seconds=rates.seconds,
        usage=rates.usage,
        wait=rates.wait,
        throttled=rates.throttled,
        throttled_periods=rates.throttled_periods,
        pressure={what: _pressure(stalled) for what, stalled in rates.pressure.items()},
    )


def _pressure(stalled: Stalled) -> form.Pressure:
    return form.Pressure(some=stalled.some, full=stalled.full)


def _cost(observation: Observation) -> form.Cost:
    span = observation.cost.span(_MINUTE)
    share = None
    if span is not None:
        before, after = span
        share = (after.value - before.value) / _MICROSECONDS / (after.at - before.at)
    return form.Cost(readings=observation.readings, share=share)

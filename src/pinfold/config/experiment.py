"""Experiments: what ``pinfold simulate`` is to simulate, in YAML or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET

from pinfold.config.file_text import file_text
from pinfold.config.records import FieldError, as_record, below
from pinfold.config.sweep import no_such_field, written
from pinfold.config.values import ConfigError, show
from pinfold.core.kubelet.versions import KubeletVersionError, named_version
from pinfold.core.pod.api import PodError, quantity_from_api
from pinfold.core.pod.pod import CPU
from pinfold.core.values.duration import LONG_UNITS
from pinfold.core.values.resource_names import is_extended
from pinfold.documents.simulation.experiment import Experiment, NodeKind, Spec, Sweep, Synthetic
from pinfold.formats.json_or_yaml import DocumentError, read_documents

__all__ = ["ConfigError", "kind_names", "read_experiment", "seconds"]

KIND: Final = "Experiment"
VERSION: Final = "pinfold.dev/v1alpha1"
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_NODES: Final = 100_000
MAX_RUNS: Final = 10_000
_HEADER: Final = f"it starts with apiVersion: {VERSION} and kind: {KIND}"
_DURATION: Final = re.compile(r"([0-9]+)([a-z]+)\n?", re.ASCII)
_MOST_MILLI: Final = 10**9
_MOST_BYTES: Final = 2**60


def read_experiment(path: str) -> Experiment:
    """Read an experiment.

    Raises:
        ConfigError: no such file, no experiment, or what no simulation can be made of; the message
            names the file, the field by its path, and the remedy.
    """
    text = file_text(path, MAX_BYTES, f"an {KIND}")
    try:
        content = _only_document(text)
        experiment = as_record(content, Experiment)
        for wrong in _contradictions(experiment.spec):
            raise wrong
        _check_title(experiment.metadata.name, "metadata.name")
    except ConfigError as error:
        raise ConfigError(str(error), path) from None
    return experiment


def seconds(duration: str) -> float:
    """The seconds of a duration of an experiment, such as ``500ms`` or ``7d``."""
    found = _DURATION.fullmatch(duration)
    return 0.0 if found is None else int(found[1]) * LONG_UNITS[found[2]]


def kind_names(kinds: Sequence[NodeKind]) -> tuple[str, ...]:
    """How the kinds of nodes are called: as they say, else ``node``, or ``node1`` and so on."""
    only = len(kinds) == 1
    return tuple(
        (f"node{'' if only else place}" if kind.name is UNSET else kind.name)
        for place, kind in enumerate(kinds, start=1)
    )


def _only_document(text: str) -> Mapping[Any, Any]:
    try:
        documents = [document.content for document in read_documents(text)]
    except DocumentError as error:
        raise ConfigError(str(error)) from None
    if len(documents) != 1:
        raise ConfigError(f"must hold one {KIND}, not {len(documents) or 'nothing'}; {_HEADER}")
    content = documents[0]
    if not isinstance(content, dict):
        raise ConfigError(f"must be a mapping, not {show(content)}; {_HEADER}")
    kind, version = content.get("kind"), content.get("apiVersion")
    if kind != KIND or version != VERSION:
        raise ConfigError(
            f"no {KIND} of {VERSION} (kind: {show(kind)}, apiVersion: {show(version)}); {_HEADER}"
        )
    return content


def _contradictions(spec: Spec) -> Iterator[FieldError]:
    """What is wrong although each field by itself is none."""
    yield from _wrong_nodes(spec)
    yield from _wrong_configurations(spec)
    yield from _wrong_arrivals(spec)
    yield from _twice(spec.seeds, "spec.seeds")
    if spec.sweep is not UNSET:
        yield from _wrong_sweep(spec.sweep)
        if spec.sweep.nodes and spec.nodes_needed is not UNSET:
            yield FieldError(
                "spec.nodesNeeded", "looks for the fleet that spec.sweep.nodes names; leave one out"
            )
    yield from _too_many_runs(spec)
    stop = None if spec.stop.after is UNSET else seconds(spec.stop.after)
    if stop == 0:
        yield FieldError("spec.stop.after", "must be more than 0; leave it out to go on to the end")
    if stop is not None and seconds(spec.warm_up) >= stop:
        yield FieldError(
            "spec.warmUp",
            f"must be less than spec.stop.after ({spec.stop.after}): nothing would be counted",
        )


def _wrong_nodes(spec: Spec) -> Iterator[FieldError]:
    yield from _twice(kind_names(spec.nodes), "spec.nodes", ".name")
    for place, kind in enumerate(spec.nodes):
        if kind.name is not UNSET and kind.name.endswith("\n"):
            yield FieldError(f"spec.nodes[{place}].name", "must be one line")
    largest = max((1.0, *(() if spec.sweep is UNSET else spec.sweep.nodes)))
    if spec.nodes_needed is not UNSET:
        largest = max(largest, spec.nodes_needed.most)
    nodes = sum(kind.count for kind in spec.nodes) * largest
    if nodes > MAX_NODES:
        times = f" times {largest:g} (sweep.nodes, nodesNeeded.most)" if largest > 1 else ""
        yield FieldError(
            "spec.nodes", f"{nodes:,.0f} nodes{times} are more than {MAX_NODES:,}; make it fewer"
        )


def _wrong_configurations(spec: Spec) -> Iterator[FieldError]:
    for place, configuration in enumerate(spec.configurations):
        path = f"spec.configurations[{place}]"
        try:
            _check_title(configuration.name, f"{path}.name")
            if configuration.kubelet_version is not UNSET:
                named_version(configuration.kubelet_version)
        except FieldError as error:
            yield error
        except KubeletVersionError as error:
            yield FieldError(f"{path}.kubeletVersion", str(error))
    yield from _twice([one.name for one in spec.configurations], "spec.configurations", ".name")


def _check_title(name: str, path: str) -> None:
    if not name.isprintable() or not name.strip():
        raise FieldError(path, f"{show(name)} must be text on one line that can be printed")


def _wrong_arrivals(spec: Spec) -> Iterator[FieldError]:
    of = spec.arrivals
    forms = {"trace": of.trace, "csv": of.csv, "synthetic": of.synthetic}
    given = [name for name, form in forms.items() if form is not UNSET]
    if len(given) != 1:
        there = " and ".join(given) if given else "none"
        yield FieldError(
            "spec.arrivals", f"must have one of {', '.join(forms)}, and only one; there is {there}"
        )
    if of.trace is not UNSET and of.trace.form != "azure2017" and of.trace.part is not UNSET:
        yield FieldError("spec.arrivals.trace.part", f"{of.trace.form} has no parts; leave it out")
    if of.synthetic is not UNSET:
        yield from _wrong_process(of.synthetic, "spec.arrivals.synthetic")
        if spec.stop.after is UNSET and spec.stop.arrivals is UNSET:
            yield FieldError(
                "spec.stop",
                "synthetic arrivals never end; set spec.stop.after (such as 7d) or "
                "spec.stop.arrivals",
            )


def _wrong_process(process: Synthetic, path: str) -> Iterator[FieldError]:
    for place, size in enumerate(process.sizes):
        here = f"{path}.sizes[{place}]"
        for name, amount, most in (
            ("cpu", size.cpu, _MOST_MILLI),
            ("memory", size.memory, _MOST_BYTES),
        ):
            try:
                quantity = quantity_from_api(amount, f"{here}.{name}")
            except PodError as error:
                yield FieldError(error.path, error.problem)
                continue
            units = quantity.milli_value() if name == CPU else quantity.value()
            if not 0 <= units <= most:
                yield FieldError(f"{here}.{name}", f"{show(amount)} is no size of a pod")
        for name in size.devices:
            if not is_extended(name):
                yield FieldError(
                    f"{here}.devices",
                    f"{show(name)} is no extended resource; it is a domain, a slash and a name, "
                    "such as example.com/gpu",
                )
    lifetimes, path_of_shape = process.lifetimes, f"{path}.lifetimes.shape"
    if seconds(lifetimes.mean) == 0:
        yield FieldError(f"{path}.lifetimes.mean", "must be more than 0")
    if lifetimes.shape is not UNSET:
        if lifetimes.distribution not in {"lognormal", "pareto"}:
            yield FieldError(
                path_of_shape, f"{lifetimes.distribution} lifetimes have none; leave it out"
            )
        elif lifetimes.distribution == "pareto" and lifetimes.shape <= 1:
            yield FieldError(path_of_shape, "must be above 1 with pareto: else there is no mean")
    if process.wave is not UNSET and seconds(process.wave.period) == 0:
        yield FieldError(f"{path}.wave.period", "must be more than 0")


def _wrong_sweep(sweep: Sweep) -> Iterator[FieldError]:
    for name, values in sweep.fields.items():
        path = below("spec.sweep.fields", name)
        problem = no_such_field(name)
        if problem:
            yield FieldError(path, problem)
        yield from _twice([written(value) for value in values], path)
    yield from _twice(sweep.nodes, "spec.sweep.nodes")


def _too_many_runs(spec: Spec) -> Iterator[FieldError]:
    runs = len(spec.configurations) * len(spec.seeds)
    if spec.sweep is not UNSET:
        for values in (*spec.sweep.fields.values(), spec.sweep.nodes or (1,)):
            runs *= len(values)
    if runs > MAX_RUNS:
        yield FieldError(
            "spec",
            f"{runs:,} runs (configurations, times the points of the sweep, times the seeds) are "
            f"more than {MAX_RUNS:,}; make it several experiments",
        )


def _twice(values: Iterable[Any], path: str, field: str = "") -> Iterator[FieldError]:
    seen: dict[Any, int] = {}
    for place, value in enumerate(values):
        if value in seen:
            first = f"{path}[{seen[value]}]{field}"
            yield FieldError(f"{path}[{place}]{field}", f"{show(value)} is there already ({first})")
        seen.setdefault(value, place)

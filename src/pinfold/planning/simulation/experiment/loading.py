"""An experiment as the runs that it asks for: machines, configurations and arrivals as values.

All that can be refused before the first run is refused here, by the field of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from pinfold.adapters.machines.source import open_machine
from pinfold.adapters.traces.azure2017 import Azure2017
from pinfold.adapters.traces.openb import OpenB
from pinfold.adapters.traces.table import ArrivalTable
from pinfold.admission.model import NodeError
from pinfold.config.devices_file import load_devices
from pinfold.config.experiment import kind_names, read_experiment, seconds
from pinfold.config.kubelet import kubelet_config, told_by
from pinfold.config.sweep import point_names, with_field
from pinfold.config.values import ConfigError
from pinfold.config.written import WrittenConfig, held_config, read_config, with_drop_ins
from pinfold.core.devices.devices import DeviceInventory, devices_of_machine
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import VersionSource, named_version, told_version
from pinfold.core.machine.kernel import Kernel
from pinfold.core.machine.machine import Machine, MachineError
from pinfold.core.machine.short_form import looks_like_short_form, parse_short_form
from pinfold.core.pod.api import quantity_from_api
from pinfold.documents.simulation.experiment import (
    Arrivals,
    Configuration,
    Experiment,
    NodeKind,
    NodesNeeded,
    Spec,
    Synthetic,
    Trace,
)
from pinfold.formats.paths import StrPath, path_text
from pinfold.planning.machine_facts import MachineFacts, facts_of
from pinfold.planning.planner import Planner
from pinfold.planning.simulation.experiment.specification import (
    FleetKind,
    Guarantee,
    Retry,
    RunSpec,
    Scheduling,
    scaled,
)
from pinfold.planning.simulation.experiment.synthetic import (
    LifetimeLaw,
    RateWave,
    SyntheticArrivals,
    WeightedSize,
)
from pinfold.ports.arrivals import ArrivalSource, OfClasses, PodSize

_BY_LOAD: Final = {
    "lending": "lending",
    "suppression": "suppression",
    "load_driven": "loadDriven",
    "parking": "parking",
}
"""Groups of the section ``pinfold`` that decide by what containers use: attribute -> name."""


class LoadedExperiment(Struct, frozen=True):
    """What is to be run.

    Attributes:
        name: of the experiment.
        document: the experiment as it was read, with the defaults.
        configurations: their names, those of a sweep's points too, in the order of the runs.
        specs: the runs, by configuration, then by seed.
        nodes_needed: how to look for the smallest fleet; None: nobody asks.
        notes: what was passed over.
    """

    name: str
    document: Mapping[str, Any]
    configurations: tuple[str, ...]
    specs: tuple[RunSpec, ...]
    nodes_needed: NodesNeeded | None = None
    notes: tuple[str, ...] = ()


def load_experiment(
    path: StrPath, *, traces: StrPath | None = None, seeds: Sequence[int] = ()
) -> LoadedExperiment:
    """Read an experiment, and all files that it names, which are looked for beside it.

    Args:
        path: the file.
        traces: the folder of a trace that names none.
        seeds: in place of those of the file.

    Raises:
        ConfigError: anything in it that is wrong, by its field; also a configuration with which
            no kubelet would start on one of the machines.
        TypeError: a path that is neither a text nor a ``pathlib.Path``.
    """
    path, traces = path_text(path), None if traces is None else path_text(traces)
    experiment = read_experiment(path)
    if seeds:
        experiment = replace(experiment, spec=replace(experiment.spec, seeds=tuple(seeds)))
    return _Loading(path, experiment, traces).loaded()


class _Opened(Struct, frozen=True):
    """A kind of nodes with all that was read of it."""

    kind: FleetKind
    facts: MachineFacts


class _Point(Struct, frozen=True):
    """A configuration with the values of one point of the sweep."""

    name: str
    config: NodeConfig
    factor: float


class _Loading:
    """Loads one experiment; ``notes`` collects what was passed over."""

    def __init__(self, path: str, experiment: Experiment, traces: str | None) -> None:
        self.path = path
        self.experiment = experiment
        self.spec: Spec = experiment.spec
        self.traces = traces
        self.folder = Path(path).parent
        self.notes: list[str] = []

    def loaded(self) -> LoadedExperiment:
        opened = tuple(self._kinds())
        arrivals = self._arrivals()
        if self.spec.guaranteed.pods == "traced":
            self._check_classes(arrivals)
        points = [
            point
            for place, configuration in enumerate(self.spec.configurations)
            for point in self._points(place, configuration, opened)
        ]
        specs = tuple(
            self._run(point, opened, arrivals, seed) for point in points for seed in self.spec.seeds
        )
        needed = self.spec.nodes_needed
        return LoadedExperiment(
            name=self.experiment.metadata.name,
            document=msgspec.to_builtins(self.experiment),
            configurations=tuple(point.name for point in points),
            specs=specs,
            nodes_needed=None if needed is UNSET else needed,
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _run(
        self, point: _Point, opened: Sequence[_Opened], arrivals: ArrivalSource, seed: int
    ) -> RunSpec:
        spec = self.spec
        stop = spec.stop
        return RunSpec(
            configuration=point.name,
            config=point.config,
            kinds=scaled(_kinds_under(opened, point.config), point.factor),
            arrivals=arrivals,
            guarantee=Guarantee(
                spec.guaranteed.pods, spec.guaranteed.multiple_of, spec.guaranteed.share
            ),
            scheduling=Scheduling(spec.scheduler.scorer, spec.scheduler.candidates),
            retry=Retry(seconds(spec.retry.backoff), spec.retry.limit),
            seed=seed,
            warm_up=seconds(spec.warm_up),
            stop_after=inf if stop.after is UNSET else seconds(stop.after),
            stop_arrivals=None if stop.arrivals is UNSET else stop.arrivals,
        )

    @contextmanager
    def _at(self, field: str, *kinds: type[Exception]) -> Iterator[None]:
        """Tell errors with the file and the field."""
        try:
            yield
        except kinds as error:
            raise ConfigError(f"{field}: {error}", self.path) from None

    def _beside(self, name: str) -> str:
        """A file that the experiment names."""
        return str(self.folder / name)

    def _kinds(self) -> Iterator[_Opened]:
        machines: dict[str, tuple[Machine, MachineFacts]] = {}
        for place, (kind, name) in enumerate(
            zip(self.spec.nodes, kind_names(self.spec.nodes), strict=True)
        ):
            here = f"spec.nodes[{place}]"
            if kind.machine not in machines:
                with self._at(f"{here}.machine", MachineError):
                    machines[kind.machine] = self._machine(kind.machine)
            machine, facts = machines[kind.machine]
            devices = self._devices(kind, machine, f"{here}.devices")
            yield _Opened(FleetKind(name, machine, kind.count, devices, facts.kernel), facts)

    def _machine(self, source: str) -> tuple[Machine, MachineFacts]:
        file = self._beside(source)
        if looks_like_short_form(source) and not Path(file).exists():
            return parse_short_form(source), MachineFacts()
        return open_machine(file), facts_of(file)

    def _devices(self, kind: NodeKind, machine: Machine, field: str) -> DeviceInventory:
        if kind.devices is UNSET:
            return devices_of_machine(machine)
        file = self._beside(kind.devices)
        with self._at(field, ConfigError, MachineError):
            loaded = load_devices(file, machine)
        self.notes += (f"{file}: {note}" for note in loaded.notes)
        return loaded.inventory

    def _points(
        self, place: int, configuration: Configuration, opened: Sequence[_Opened]
    ) -> Iterator[_Point]:
        """The configuration with each combination of the sweep's values, and of its fleets."""
        where = f"{self.path}: spec.configurations[{place}].kubeletConfiguration"
        written = self._written(configuration, where)
        base = self._base(configuration, written.fields, opened, where)
        swept: Mapping[str, Sequence[Any]] = {}
        factors: Sequence[float] = (1.0,)
        if self.spec.sweep is not UNSET:
            swept, factors = self.spec.sweep.fields, self.spec.sweep.nodes or factors
        for values in product(*swept.values()):
            chosen = dict(zip(swept, values, strict=True))
            names = [configuration.name, *point_names(chosen)]
            changed, said = written, where
            if chosen:
                said = f"{where} with {', '.join(names[1:])}"
                fields = written.fields
                for name, value in chosen.items():
                    fields = with_field(fields, name, value)
                changed = written.changed(said, fields)
            config = self._config(changed, said, base)
            self._check_starts(config, said, opened)
            for factor in factors:
                title = [*names, f"nodes x{factor:g}"] if len(factors) > 1 else names
                yield _Point(", ".join(title), config, factor)

    def _written(self, configuration: Configuration, where: str) -> WrittenConfig:
        given, folder = configuration.kubelet_configuration, configuration.config_dir
        over = None if folder is UNSET else self._beside(folder)
        try:
            if isinstance(given, str):
                return replace(read_config(self._beside(given), over), sources=(where,))
            held = held_config({} if given is UNSET else given, where)
            return held if over is None else with_drop_ins(held, over)
        except ConfigError as error:
            if error.where == where:
                raise
            raise ConfigError(str(error), where) from None

    def _base(
        self,
        configuration: Configuration,
        fields: Mapping[Any, Any],
        opened: Sequence[_Opened],
        where: str,
    ) -> NodeConfig:
        """The version of the kubelet: as is said, else as the machines tell."""
        if configuration.kubelet_version is not UNSET:
            asked = named_version(configuration.kubelet_version)
            return NodeConfig().of_version(asked, VersionSource.FLAG)
        captured = {one.facts.kubelet_version for one in opened if one.facts.kubelet_version}
        if len({told_version(text).version for text in captured}) > 1:
            section = fields.get("pinfold")
            if not (isinstance(section, Mapping) and section.get("kubeletVersion")):
                raise ConfigError(
                    f"{where}: the machines tell of several kubelets "
                    f"({', '.join(sorted(captured))}); say which one with kubeletVersion beside it"
                )
        return told_by(None, min(captured, default=""))

    def _config(self, written: WrittenConfig, where: str, base: NodeConfig) -> NodeConfig:
        loaded = kubelet_config(written, base)
        config = loaded.config
        if config.kubelet_version_remark:
            self.notes.append(f"{where}: {config.kubelet_version_remark}")
        self.notes += loaded.notes
        if config.own is None:
            return config
        if config.own.smt_isolate.use:
            self.notes.append(
                f"{where}: pinfold.smtIsolate: the scheduler is not told of siblings that stay "
                "idle, so nodes refuse more pods than where an agent tells it"
            )
        for attribute, name in _BY_LOAD.items():
            if getattr(config.own, attribute).use:
                raise ConfigError(
                    f"{where}: pinfold.{name}.use: decides by what containers use, and arrivals "
                    "carry no load; leave it out, or set it to false"
                )
        return config

    def _check_starts(self, config: NodeConfig, where: str, opened: Sequence[_Opened]) -> None:
        """See that a kubelet would start so on each kind of node."""
        for kind in _kinds_under(opened, config):
            try:
                Planner(kind.machine, config, devices=kind.devices, kernel=kind.kernel)
            except (NodeError, MachineError) as error:
                raise ConfigError(
                    f"{where}: no kubelet would start so on {kind.name} ({kind.machine.name}): "
                    f"{error}"
                ) from None

    def _arrivals(self) -> ArrivalSource:
        of = self.spec.arrivals
        if self.traces is not None:
            self._check_traces(of)
        if of.csv is not UNSET:
            return ArrivalTable(self._beside(of.csv.file))
        if of.trace is not UNSET:
            return self._trace(of.trace)
        if of.synthetic is UNSET:
            raise TypeError("an experiment was read that has no arrivals")
        with self._at("spec.arrivals.synthetic", ValueError):
            return _process(of.synthetic)

    def _check_traces(self, of: Arrivals) -> None:
        """See that the folder is there, and that a trace is asked for; raises ConfigError."""
        if self.traces is not None and not Path(self.traces).is_dir():
            raise ConfigError(f"--traces {self.traces}: there is no such folder")
        if of.trace is UNSET:
            self.notes.append("--traces is of no use here: spec.arrivals is no trace")
        elif of.trace.folder is not UNSET:
            self.notes.append("--traces is of no use here: spec.arrivals.trace.folder says where")

    def _check_classes(self, arrivals: ArrivalSource) -> None:
        if not (isinstance(arrivals, OfClasses) and arrivals.tells_a_class()):
            self.notes.append(
                f"{self.path}: spec.guaranteed.pods: traced finds no Guaranteed pod, as the "
                "arrivals tell no class (qos); whole takes those that ask for whole CPUs"
            )

    def _trace(self, trace: Trace) -> ArrivalSource:
        if trace.folder is not UNSET:
            folder = self._beside(trace.folder)
        elif self.traces is not None:
            folder = self.traces
        else:
            raise ConfigError(
                f"{self.path}: spec.arrivals.trace.folder: is missing; say there where the files "
                "of the trace are, or with --traces FOLDER"
            )
        if trace.form == "openb":
            return OpenB(folder, trace.share)
        part = "test" if trace.part is UNSET else trace.part
        return Azure2017(folder, part, trace.share)


def _kinds_under(opened: Sequence[_Opened], config: NodeConfig) -> tuple[FleetKind, ...]:
    """The kinds as this configuration sees them: what a kernel isolates is not a kubelet's."""
    if config.own is not None:
        return tuple(one.kind for one in opened)
    return tuple(replace(one.kind, kernel=Kernel()) for one in opened)


def _process(process: Synthetic) -> SyntheticArrivals:
    sizes = []
    for size in process.sizes:
        cpu, memory = quantity_from_api(size.cpu, "cpu"), quantity_from_api(size.memory, "memory")
        extended = tuple(sorted(size.devices.items()))
        pod = PodSize(cpu.milli_value(), memory.value(), extended)
        sizes.append(WeightedSize(size.weight, pod))
    law = process.lifetimes
    shape = None if law.shape is UNSET else law.shape
    lifetimes = LifetimeLaw(law.distribution, seconds(law.mean), shape)
    wave = process.wave
    rises = None if wave is UNSET else RateWave(seconds(wave.period), wave.amplitude)
    return SyntheticArrivals(process.per_hour, tuple(sizes), lifetimes, rises)

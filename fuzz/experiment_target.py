"""The file that ``pinfold simulate`` reads, with all that it names, and what has to hold of it."""

from __future__ import annotations

import tempfile
from itertools import islice
from math import inf
from pathlib import Path
from typing import Final

import msgspec

from fuzz import seeds
from fuzz.engine import Target
from pinfold.config.values import ConfigError
from pinfold.planning.simulation.experiment.loading import load_experiment
from pinfold.planning.simulation.experiment.synthetic import SyntheticArrivals

_WORDS: Final = (
    b"apiVersion: pinfold.dev/v1alpha1",
    b"kind: Experiment",
    b"kubeletConfiguration",
    b"cpuManagerPolicy: static",
    b'reservedSystemCPUs: "0"',
    b"pinfold: {lending: {use: true}}",
    b"arrivals: {csv: {file: a.csv}}",
    b"trace: {form: openb, share: 0.5}",
    b"sweep: {fields: {maxPods: [1, 2]}, nodes: [1, 2]}",
    b"nodesNeeded: {acceptance: 0.9}",
    b"distribution: pareto",
    b"1e999",
    b"9" * 30,
    b"machine: 1s2c2t",
)
_LOOKED_AT: Final = 50


def run_experiment_file(data: bytes) -> None:
    """Files of kind Experiment."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.yaml"
        file.write_bytes(data)
        try:
            loaded = load_experiment(str(file), traces=folder)
        except ConfigError as error:
            _hold(str(error).startswith(str(file)), "an error that does not name the file")
            _hold(str(error).isprintable(), "an error that moves the cursor")
            return
        _hold(loaded.specs, "an experiment without a run")
        _hold(msgspec.json.encode(loaded.document), "a document that cannot be written")
        names = [(spec.configuration, spec.seed) for spec in loaded.specs]
        _hold(len(set(names)) == len(names), "two runs of one name")
        first = loaded.specs[0]
        _hold(0 <= first.warm_up < inf and first.stop_after > 0, "times that there are not")
        if isinstance(first.arrivals, SyntheticArrivals):
            now = 0.0
            for one in islice(first.arrivals.arrivals(1), _LOOKED_AT):
                _hold(now <= one.at < inf, "not in the order of time")
                _hold(one.lifetime >= 0, "a lifetime that is none")
                now = one.at


def _hold(fact: object, text: str) -> None:
    if not fact:
        raise AssertionError(text)


EXPERIMENT_TARGET: Final = Target(
    "experiment",
    run_experiment_file,
    lambda: seeds.files("examples/simulation/*.yaml"),
    _WORDS,
)

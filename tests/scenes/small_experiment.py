"""An experiment of a few seconds: a small fleet, pods by chance, and what may be said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from pinfold.planning.simulation.experiment.loading import LoadedExperiment, load_experiment

WHOLE_CORES: Final = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0,4",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
}


def experiment_file(folder: Path, *, after: str = "12h", **spec: object) -> Path:
    """Write the experiment into a folder; ``spec``: fields that are otherwise."""
    path = folder / "experiment.yaml"
    fields = {
        "nodes": [
            {"name": "small", "machine": "1s4c2t@16Gi", "count": 3},
            {"name": "big", "machine": "2s4c2t@64Gi", "count": 2},
        ],
        "configurations": [
            {"name": "none"},
            {"name": "whole cores", "kubeletConfiguration": WHOLE_CORES},
        ],
        "arrivals": {
            "synthetic": {
                "perHour": 60,
                "sizes": [
                    {"weight": 2, "cpu": "2", "memory": "1Gi"},
                    {"weight": 1, "cpu": "4", "memory": "2Gi"},
                ],
                "lifetimes": {"mean": "20m"},
            }
        },
        "retry": {"backoff": "30s", "limit": 1},
        "seeds": [1, 2],
        "stop": {"after": after},
        **spec,
    }
    document = {
        "apiVersion": "pinfold.dev/v1alpha1",
        "kind": "Experiment",
        "metadata": {"name": "small"},
        "spec": fields,
    }
    path.write_text(yaml.safe_dump(document))
    return path


def small_experiment(folder: Path, *, after: str = "12h", **spec: object) -> LoadedExperiment:
    """The same, loaded."""
    return load_experiment(str(experiment_file(folder, after=after, **spec)))

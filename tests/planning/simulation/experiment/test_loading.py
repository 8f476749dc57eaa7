"""Experiments as runs: what is opened, and what is refused before the first run."""

from __future__ import annotations

import copy
import json
from math import inf
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.traces.azure2017 import Azure2017
from pinfold.adapters.traces.openb import OpenB
from pinfold.adapters.traces.table import ArrivalTable
from pinfold.config.values import ConfigError
from pinfold.planning.simulation import engine
from pinfold.planning.simulation.experiment.loading import LoadedExperiment, load_experiment
from pinfold.planning.simulation.experiment.synthetic import SyntheticArrivals
from pinfold.ports.arrivals import TraceError

STATIC: dict[str, Any] = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
SMALL: dict[str, Any] = {
    "apiVersion": "pinfold.dev/v1alpha1",
    "kind": "Experiment",
    "metadata": {"name": "small"},
    "spec": {
        "nodes": [{"machine": "1s4c2t", "count": 3}],
        "configurations": [{"name": "none"}, {"name": "own", "kubeletConfiguration": STATIC}],
        "arrivals": {
            "synthetic": {
                "perHour": 10,
                "sizes": [{"weight": 1, "cpu": "1500m", "memory": "4Gi"}],
                "lifetimes": {"mean": "2h"},
            }
        },
        "stop": {"after": "1d"},
    },
}


def _load(tmp_path: Path, *, seeds: tuple[int, ...] = (), **changes: Any) -> LoadedExperiment:
    other = copy.deepcopy(SMALL)
    other["spec"] |= changes
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(other), encoding="utf-8")
    return load_experiment(str(file), seeds=seeds)


def _refused(tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        _load(tmp_path, **changes)
    return str(refused.value)


def _configured(**fields: Any) -> dict[str, Any]:
    return {"configurations": [{"name": "a", "kubeletConfiguration": fields}]}


def test_there_is_a_run_for_each_configuration_and_seed(tmp_path: Path) -> None:
    loaded = _load(tmp_path, seeds=(7, 8))
    assert loaded.configurations == ("none", "own")
    runs = [(spec.configuration, spec.seed) for spec in loaded.specs]
    assert runs == [("none", 7), ("none", 8), ("own", 7), ("own", 8)]
    assert loaded.document["spec"]["seeds"] == (7, 8)
    assert [spec.config.cpu_manager_policy for spec in loaded.specs][1:3] == ["none", "static"]


def test_times_are_seconds(tmp_path: Path) -> None:
    spec = _load(tmp_path, warmUp="2h", retry={"backoff": "500ms", "limit": 2}).specs[0]
    assert (spec.warm_up, spec.retry.backoff, spec.retry.limit) == (7200.0, 0.5, 2)
    assert (spec.stop_after, spec.stop_arrivals) == (86400.0, None)
    spec = _load(tmp_path, stop={"arrivals": 9}).specs[0]
    assert (spec.stop_after, spec.stop_arrivals) == (inf, 9)


def test_a_process_by_chance_has_the_sizes_in_units(tmp_path: Path) -> None:
    source = _load(tmp_path).specs[0].arrivals
    assert isinstance(source, SyntheticArrivals)
    size = source.sizes[0].size
    assert (size.cpu_milli, size.memory) == (1500, 4 * 2**30)


def test_files_are_looked_for_beside_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "kubelet.yaml").write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 17\n",
        encoding="utf-8",
    )
    (tmp_path / "pods.csv").write_text("at,lifetime,cpu,memory\n0,1,1,1\n", encoding="utf-8")
    (tmp_path / "gpus.yaml").write_text(
        "kind: Devices\nversion: 1\nresources: {example.com/gpu: 2}\n", encoding="utf-8"
    )
    # A file of that name goes before the short form, as with --machine.
    (tmp_path / "1s4c2t").write_text("# CPU,Core,Socket,Node\n0,0,0,0\n1,1,0,0\n", encoding="utf-8")
    loaded = _load(
        tmp_path,
        nodes=[{"machine": "1s4c2t", "count": 3, "devices": "gpus.yaml"}],
        configurations=[{"name": "file", "kubeletConfiguration": "kubelet.yaml"}],
        arrivals={"csv": {"file": "pods.csv"}},
        stop={},
    )
    spec = loaded.specs[0]
    assert spec.config.max_pods == 17
    assert spec.arrivals == ArrivalTable(str(tmp_path / "pods.csv"))
    assert len(spec.kinds[0].machine.cpus) == 2
    assert len(spec.kinds[0].devices["example.com/gpu"].devices) == 2


@pytest.mark.parametrize(
    ("trace", "traces", "source"),
    [
        ({"form": "azure2017"}, "/", Azure2017("/", "test", 1.0)),
        ({"form": "azure2017", "part": "dev", "share": 0.5}, "/", Azure2017("/", "dev", 0.5)),
        ({"form": "openb", "folder": "/elsewhere"}, "/", OpenB("/elsewhere", 1.0)),
    ],
)
def test_traces_are_where_the_file_says_else_the_caller(
    trace: dict[str, Any], traces: str, source: object, tmp_path: Path
) -> None:
    other = copy.deepcopy(SMALL)
    other["spec"] |= {"arrivals": {"trace": trace}}
    file = tmp_path / "experiment.json"
    file.write_text(json.dumps(other), encoding="utf-8")
    assert load_experiment(str(file), traces=traces).specs[0].arrivals == source


def test_a_sweep_is_a_grid_whose_points_are_named_by_what_differs(tmp_path: Path) -> None:
    loaded = _load(
        tmp_path,
        configurations=[{"name": "own", "kubeletConfiguration": STATIC}],
        sweep={
            "fields": {
                "cpuManagerPolicyOptions.full-pcpus-only": ["false", "true"],
                "topologyManagerPolicy": ["none", "restricted"],
            },
            "nodes": [1, 1.5],
        },
    )
    assert len(loaded.configurations) == 8
    assert loaded.configurations[:3] == (
        "own, full-pcpus-only=false, topologyManagerPolicy=none, nodes x1",
        "own, full-pcpus-only=false, topologyManagerPolicy=none, nodes x1.5",
        "own, full-pcpus-only=false, topologyManagerPolicy=restricted, nodes x1",
    )
    last = loaded.specs[-1]
    assert last.kinds[0].count == 5
    assert last.config.cpu_manager_policy_options == {"full-pcpus-only": "true"}
    assert last.config.topology_manager_policy == "restricted"


def test_fields_that_end_alike_are_told_apart(tmp_path: Path) -> None:
    fields = {"kubeReserved.cpu": ["1", "2"], "systemReserved.cpu": ["1"]}
    assert _load(
        tmp_path, configurations=[{"name": "a"}], sweep={"fields": fields}
    ).configurations == (
        "a, kubeReserved.cpu=1, systemReserved.cpu=1",
        "a, kubeReserved.cpu=2, systemReserved.cpu=1",
    )


def test_the_version_of_the_kubelet_is_the_one_asked_for(tmp_path: Path) -> None:
    loaded = _load(tmp_path, configurations=[{"name": "old", "kubeletVersion": "1.34"}])
    assert str(loaded.specs[0].config.kubelet_version) == "1.34"
    loaded = _load(tmp_path, configurations=[{"name": "new", "kubeletVersion": "1.37"}])
    assert any("read from proposals" in note for note in loaded.notes)


def test_unknown_fields_are_noted_with_their_place(tmp_path: Path) -> None:
    (note,) = _load(tmp_path, **_configured(maxPodz=1)).notes
    assert note.endswith(
        "experiment.yaml: spec.configurations[0].kubeletConfiguration: unknown field maxPodz (did "
        "you mean maxPods?), passed over"
    )


def test_a_scheduler_that_is_not_told_of_idle_siblings_is_noted(tmp_path: Path) -> None:
    own = {"pinfold": {"smtIsolate": {"use": True}}}
    (note,) = _load(tmp_path, **_configured(**own)).notes
    assert "pinfold.smtIsolate: the scheduler is not told of siblings that stay idle" in note


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"nodes": [{"machine": "2s8q", "count": 1}]}, "spec.nodes[0].machine: "),
    ({"nodes": [{"machine": "no/such", "count": 1}]}, "spec.nodes[0].machine: "),
    ({"nodes": [{"machine": "", "count": 1}]}, "spec.nodes[0].machine: "),
    ({"nodes": [{"machine": "a\0b", "count": 1}]}, "spec.nodes[0].machine: "),
    (
        {"nodes": [{"machine": "1s4c2t", "count": 1, "devices": "none.yaml"}]},
        "spec.nodes[0].devices: ",
    ),
    (_configured(cpuManagerPolicy="statik"), "kubeletConfiguration: cpuManagerPolicy: unknown"),
    (_configured(kind="Pod"), "kubeletConfiguration: no KubeletConfiguration (kind: 'Pod'"),
    (
        {"configurations": [{"name": "a", "kubeletConfiguration": "none.yaml"}]},
        "spec.configurations[0].kubeletConfiguration: ",
    ),
    (
        _configured(cpuManagerPolicy="static"),
        "kubeletConfiguration: no kubelet would start so on node (1s4c2t): ",
    ),
    (
        {
            **_configured(**STATIC),
            "sweep": {"fields": {"reservedSystemCPUs": ["0", "99"]}},
        },
        "with reservedSystemCPUs=99: no kubelet would start so on node",
    ),
    (
        {
            **_configured(**STATIC),
            "sweep": {"fields": {"cpuManagerPolicyOptions.full-pcpus-only": [True]}},
        },
        "cpuManagerPolicyOptions: full-pcpus-only: cannot unmarshal bool into a field of type",
    ),
    ({"arrivals": {"trace": {"form": "openb"}}}, "or with --traces FOLDER"),
    *(
        (
            _configured(
                cpuManagerPolicy="dynamic", reservedSystemCPUs="0", pinfold={group: {"use": True}}
            ),
            f"pinfold.{group}.use: decides by what containers use, and arrivals carry no load",
        )
        for group in ("lending", "suppression", "loadDriven", "parking")
    ),
]


@pytest.mark.parametrize(("changes", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_what_cannot_be_run_is_refused_by_its_field(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    text = _refused(tmp_path, **changes)
    assert text.startswith(f"{tmp_path / 'experiment.yaml'}: ")
    assert told in text


def test_arrivals_without_end_are_refused_and_those_that_are_read_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec, *_) = _load(tmp_path).specs
    asked: list[int] = []

    def go_on() -> bool:
        asked.append(1)
        return False

    with pytest.raises(engine.StoppedError):
        engine.Arrivals.of(spec, go_on)
    assert asked == [1]
    monkeypatch.setattr(engine, "_MOST_ARRIVALS", 100)
    with pytest.raises(TraceError, match=r"more than 100 pods come within .* stop earlier"):
        engine.Arrivals.of(spec)

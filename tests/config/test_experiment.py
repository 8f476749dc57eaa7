"""Experiments: what is read of a file, and what is said of one that is wrong."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.config.experiment import ConfigError, kind_names, read_experiment, seconds
from pinfold.config.kubelet import kubelet_config
from pinfold.config.sweep import point_names, with_field
from pinfold.config.written import held_config
from pinfold.documents.simulation.experiment import Experiment

SMALL: dict[str, Any] = {
    "apiVersion": "pinfold.dev/v1alpha1",
    "kind": "Experiment",
    "metadata": {"name": "small"},
    "spec": {
        "nodes": [{"machine": "2s8c2t@64Gi", "count": 3}],
        "configurations": [
            {"name": "none"},
            {"name": "static", "kubeletConfiguration": {"cpuManagerPolicy": "static"}},
        ],
        "arrivals": {
            "synthetic": {
                "perHour": 10,
                "sizes": [{"weight": 1, "cpu": 2, "memory": "4Gi"}],
                "lifetimes": {"mean": "2h"},
            }
        },
        "stop": {"after": "1d"},
    },
}


def _with(**changes: Any) -> dict[str, Any]:
    """The small experiment with other fields in its ``spec``; None: without one."""
    other = copy.deepcopy(SMALL)
    other["spec"] = {
        name: held for name, held in {**other["spec"], **changes}.items() if held is not None
    }
    return other


def _read(tmp_path: Path, content: object) -> Experiment:
    file = tmp_path / "experiment.yaml"
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_experiment(str(file))


def _refused(tmp_path: Path, content: object) -> str:
    with pytest.raises(ConfigError) as refused:
        _read(tmp_path, content)
    text = str(refused.value)
    assert text.startswith(f"{tmp_path / 'experiment.yaml'}: ")
    assert "\n" not in text
    return text.removeprefix(f"{tmp_path / 'experiment.yaml'}: ")


def _process(**changes: Any) -> dict[str, Any]:
    return {"synthetic": {**SMALL["spec"]["arrivals"]["synthetic"], **changes}}


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    spec = _read(tmp_path, SMALL).spec
    assert spec.nodes[0].count == 3
    assert (spec.retry.backoff, spec.retry.limit) == ("10s", 5)
    assert (spec.scheduler.scorer, spec.guaranteed.pods) == ("LeastAllocated", "whole")
    assert tuple(spec.seeds) == (1,)


def test_what_was_read_can_be_written_and_read_again(tmp_path: Path) -> None:
    first = _read(tmp_path, _with(seeds=[3, 4], sweep={"nodes": [1, 1.5]}))
    assert _read(tmp_path, msgspec.json.encode(first).decode()) == first


def test_yaml_and_json_mean_the_same(tmp_path: Path) -> None:
    text = """\
apiVersion: pinfold.dev/v1alpha1
kind: Experiment
metadata: {name: small}
spec:
  nodes: [{machine: 2s8c2t@64Gi, count: 3}]
  configurations:
    - name: none
    - name: static
      kubeletConfiguration: {cpuManagerPolicy: static}
  arrivals:
    synthetic:
      perHour: 10
      sizes: [{weight: 1, cpu: 2, memory: 4Gi}]
      lifetimes: {mean: 2h}
  stop: {after: 1d}
"""
    assert _read(tmp_path, text) == _read(tmp_path, SMALL)


@pytest.mark.parametrize(
    ("text", "told"),
    [("0", 0.0), ("500ms", 0.5), ("30s", 30.0), ("5m", 300.0), ("2h", 7200.0), ("7d", 604800.0)],
)
def test_durations_have_a_unit(text: str, told: float) -> None:
    assert seconds(text) == told


def test_kinds_of_nodes_without_a_name_are_numbered(tmp_path: Path) -> None:
    one, big = {"machine": "1s2c", "count": 1}, {"machine": "1s4c", "count": 1, "name": "big"}
    assert kind_names(_read(tmp_path, SMALL).spec.nodes) == ("node",)
    several = _read(tmp_path, _with(nodes=[one, big, one])).spec.nodes
    assert kind_names(several) == ("node1", "big", "node3")


NODE = SMALL["spec"]["nodes"][0]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"nods": []}, "spec: unknown field 'nods'; did you mean nodes?"),
    ({"nodes": []}, "spec.nodes: must not be empty"),
    ({"nodes": None}, "spec.nodes: is missing; it is a list"),
    ({"nodes": {}}, "spec.nodes: must be a list, not a mapping"),
    ({"nodes": [3]}, "spec.nodes[0]: must be a mapping (machine, count, name, devices), not 3"),
    (
        {"nodes": [NODE, NODE | {"count": "3"}]},
        "spec.nodes[1].count: must be a whole number from 1 to 100000, not '3'",
    ),
    (
        {"nodes": [NODE | {"count": 0}]},
        "spec.nodes[0].count: must be a whole number from 1 to 100000, not 0",
    ),
    ({"nodes": [NODE | {"count": True}]}, "spec.nodes[0].count: must be a whole number"),
    ({"nodes": [NODE | {"conut": 1}]}, "spec.nodes[0]: unknown field 'conut'; did you mean count?"),
    ({"nodes": [{"count": 1}]}, "spec.nodes[0].machine: is missing; it is a text"),
    ({"nodes": [NODE | {"name": "Big"}]}, "spec.nodes[0].name: must be a name such as"),
    ({"nodes": [NODE | {"name": "big\n"}]}, "spec.nodes[0].name: must be one line"),
    (
        {"nodes": [NODE | {"name": "a"}, NODE | {"name": "a"}]},
        "spec.nodes[1].name: 'a' is there already (spec.nodes[0].name)",
    ),
    ({"nodes": [NODE | {"count": 90_000}] * 2}, "spec.nodes: 180,000 nodes are more than 100,000"),
    (
        {"nodes": [NODE | {"count": 60_000}], "sweep": {"nodes": [1, 2]}},
        "spec.nodes: 120,000 nodes times 2",
    ),
    (
        {"configurations": [{"name": "a"}, {"name": "a"}]},
        "spec.configurations[1].name: 'a' is there already (spec.configurations[0].name)",
    ),
    ({"configurations": [{"name": "a\x1b[2J"}]}, "must be text on one line"),
    ({"configurations": [{"name": "a" * 81}]}, "must be a text of 1 to 80 characters"),
    (
        {"configurations": [{"name": "a", "kubeletVersion": 1.34}]},
        'must be a text, not 1.34; put it in quotes: "1.34"',
    ),
    (
        {"configurations": [{"name": "a", "kubeletVersion": "1.12"}]},
        "spec.configurations[0].kubeletVersion: kubelet 1.12 is older than all that are known",
    ),
    (
        {"configurations": [{"name": "a", "kubeletConfiguration": []}]},
        "spec.configurations[0].kubeletConfiguration: must be a mapping or a text, not a list",
    ),
    (
        {"arrivals": {}},
        "spec.arrivals: must have one of trace, csv, synthetic, and only one; there is none",
    ),
    (
        {"arrivals": {"csv": {"file": "a.csv"}, "trace": {"form": "openb"}}},
        "there is trace and csv",
    ),
    ({"arrivals": {"trace": {"form": "azure"}}}, "must be azure2017 or openb, not 'azure'"),
    ({"arrivals": {"trace": {"form": "openb", "part": "dev"}}}, "openb has no parts"),
    (
        {"arrivals": {"trace": {"form": "openb", "share": 0}}},
        "spec.arrivals.trace.share: must be a number above 0 and at most 1, not 0",
    ),
    ({"stop": None}, "spec.stop: synthetic arrivals never end; set spec.stop.after"),
    ({"stop": {"after": "0"}}, "spec.stop.after: must be more than 0"),
    ({"stop": {"after": "1 day"}}, "must be a whole number and its unit, such as 500ms"),
    ({"stop": {"after": "9999999999d"}}, "must be a whole number and its unit"),
    ({"warmUp": "1d"}, "spec.warmUp: must be less than spec.stop.after (1d)"),
    ({"arrivals": _process(perHour=0)}, "perHour: must be a number above 0 and at most"),
    ({"arrivals": _process(sizes=[])}, "spec.arrivals.synthetic.sizes: must not be empty"),
    (
        {"arrivals": _process(sizes=[{"weight": 1, "cpu": "2x", "memory": 0}])},
        "spec.arrivals.synthetic.sizes[0].cpu: Invalid value: '2x'",
    ),
    (
        {"arrivals": _process(sizes=[{"weight": 1, "cpu": "-2", "memory": 0}])},
        "sizes[0].cpu: '-2' is no size of a pod",
    ),
    (
        {"arrivals": _process(sizes=[{"weight": 1, "cpu": 1, "memory": 0, "devices": {"gpu": 1}}])},
        "sizes[0].devices: 'gpu' is no extended resource",
    ),
    ({"arrivals": _process(lifetimes={"mean": "0"})}, "lifetimes.mean: must be more than 0"),
    (
        {"arrivals": _process(lifetimes={"mean": "1h", "shape": 2})},
        "lifetimes.shape: exponential lifetimes have none; leave it out",
    ),
    (
        {"arrivals": _process(lifetimes={"mean": "1h", "distribution": "pareto", "shape": 1})},
        "lifetimes.shape: must be above 1 with pareto",
    ),
    ({"arrivals": _process(wave={"period": "0"})}, "wave.period: must be more than 0"),
    ({"seeds": [1, 1]}, "spec.seeds[1]: 1 is there already (spec.seeds[0])"),
    ({"seeds": [-1]}, "spec.seeds[0]: must be a whole number from 0 to 9007199254740991, not -1"),
    ({"seeds": [10**30]}, "spec.seeds[0]: must be at most"),
    (
        {"sweep": {"fields": {"cpuManagerPolice": ["static"]}}},
        "fields.cpuManagerPolice: no field of a KubeletConfiguration that decides placements; did",
    ),
    (
        {"sweep": {"fields": {"cpuManagerPolicy.static": ["true"]}}},
        "cpuManagerPolicy has no fields of its own",
    ),
    ({"sweep": {"fields": {"pinfold.dynamics.makeRoom": [True]}}}, "did you mean dynamic?"),
    ({"sweep": {"fields": {"maxPods": []}}}, "spec.sweep.fields.maxPods: must not be empty"),
    ({"sweep": {"fields": {"maxPods": [1, 1]}}}, "'1' is there already"),
    (
        {"sweep": {"nodes": [1, 2]}, "nodesNeeded": {}},
        "spec.nodesNeeded: looks for the fleet that spec.sweep.nodes names",
    ),
    ({"sweep": {"nodes": [0]}}, "spec.sweep.nodes[0]: must be a number above 0 and at most 100"),
    ({"seeds": list(range(1001)), "sweep": {"nodes": [1, 2, 3, 4, 5]}}, "10,010 runs"),
    ({"load": {}}, "spec: unknown field 'load'"),
]


@pytest.mark.parametrize(("changes", "told"), WRONG, ids=[told for _, told in WRONG])
def test_one_error_names_the_field_and_the_remedy(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    assert told in _refused(tmp_path, _with(**changes))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must hold one Experiment, not nothing; it starts with apiVersion"),
        ("a: 1\n---\nb: 2\n", "must hold one Experiment, not 2"),
        ("- 1\n", "must be a mapping, not a list"),
        ("kind: Pod\napiVersion: v1\n", "no Experiment of pinfold.dev/v1alpha1 (kind: 'Pod'"),
        ("kind: Experiment\napiVersion: pinfold.dev/v1\n", "apiVersion: 'pinfold.dev/v1'"),
        ("kind: Experiment\nkind: Experiment\n", "line 2, column 1: not YAML: key 'kind'"),
        ('{"kind": "Experiment", "kind": 1}', "line 1"),
        ("[" * 5000, "line 1"),
        ("a: &a [*a]", "line 1"),
    ],
)
def test_what_is_no_experiment_is_said_to_be_none(text: str, told: str, tmp_path: Path) -> None:
    assert told in _refused(tmp_path, text)


def test_values_that_json_does_not_have_are_refused(tmp_path: Path) -> None:
    text = json.dumps(_with(warmUp="7h"))
    assert "infinite" in _refused(tmp_path, text.replace('"7h"', "1e999"))
    settings = {"cpuManagerPolicy": "static", "evictionHard": {}}
    held = _with(configurations=[{"name": "a", "kubeletConfiguration": settings}])
    broken = json.dumps(held).replace('"evictionHard": {}', "? 1\n: 2")
    assert "the key 1 is no text; put it in quotes" in _refused(tmp_path, broken)


def test_files_that_cannot_be_read_are_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, told in (("missing", "No such file"), ("", "directory"), ("binary", "not UTF-8")):
        with pytest.raises(ConfigError, match=told):
            read_experiment(str(tmp_path / name))
    with pytest.raises(ConfigError, match="no name that a file can have"):
        read_experiment("a\0b")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
PLACES = [
    ("spec",),
    ("metadata",),
    ("spec", "nodes"),
    ("spec", "nodes", 0),
    ("spec", "nodes", 0, "count"),
    ("spec", "configurations", 1, "kubeletConfiguration"),
    ("spec", "arrivals", "synthetic", "sizes", 0, "cpu"),
    ("spec", "arrivals", "synthetic", "lifetimes", "mean"),
    ("spec", "stop"),
]


@given(JSON, st.sampled_from(PLACES))
def test_anything_anywhere_is_read_or_refused_with_one_line(
    tmp_path_factory: pytest.TempPathFactory, anything: object, place: tuple[str | int, ...]
) -> None:
    other = copy.deepcopy(SMALL)
    at: Any = other
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = anything
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(other), encoding="utf-8")
    try:
        experiment = read_experiment(str(file))
    except ConfigError as error:
        assert str(error).isprintable()  # noqa: PT017 - most are refused, and some are not
    else:
        assert msgspec.json.encode(experiment)


@pytest.mark.parametrize(
    ("name", "value", "fields"),
    [
        ("maxPods", 20, {"cpuManagerPolicyOptions": {"a": "b"}, "maxPods": 20}),
        (
            "cpuManagerPolicyOptions.full-pcpus-only",
            "true",
            {"cpuManagerPolicyOptions": {"a": "b", "full-pcpus-only": "true"}},
        ),
        ("cpuManagerPolicyOptions.a", None, {"cpuManagerPolicyOptions": {}}),
        ("cpuManagerPolicyOptions", None, {}),
        (
            "pinfold.dynamic.makeRoom",
            True,
            {"cpuManagerPolicyOptions": {"a": "b"}, "pinfold": {"dynamic": {"makeRoom": True}}},
        ),
        (
            "evictionHard.memory.available",
            "1Gi",
            {"cpuManagerPolicyOptions": {"a": "b"}, "evictionHard": {"memory.available": "1Gi"}},
        ),
    ],
)
def test_a_point_of_a_sweep_changes_one_field(
    name: str, value: object, fields: dict[str, Any]
) -> None:
    before = {"cpuManagerPolicyOptions": {"a": "b"}}
    assert with_field(before, name, value) == fields
    assert before == {"cpuManagerPolicyOptions": {"a": "b"}}


def test_a_point_of_a_sweep_is_named_by_what_differs() -> None:
    values = {
        "cpuManagerPolicyOptions.full-pcpus-only": "true",
        "topologyManagerPolicy": "restricted",
        "pinfold.dynamic.makeRoom": True,
        "maxPods": None,
        "evictionHard": {"memory.available": "1Gi"},
    }
    assert list(point_names(values)) == [
        "full-pcpus-only=true",
        "topologyManagerPolicy=restricted",
        "dynamic.makeRoom=true",
        "maxPods=unset",
        "evictionHard=memory.available=1Gi",
    ]


def test_a_configuration_inside_needs_no_header_and_has_no_other_one() -> None:
    loaded = kubelet_config(held_config({"maxPods": 7}, "here"))
    assert loaded.config.max_pods == 7
    assert loaded.notes == ()
    with pytest.raises(ConfigError, match="here: no KubeletConfiguration"):
        held_config({"kind": "Pod"}, "here")

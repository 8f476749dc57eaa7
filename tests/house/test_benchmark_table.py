"""The table of the benchmarks compares like with like; times themselves are never asserted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from benchmarks import allocation, kubelet_merge
from benchmarks.__main__ import workloads
from benchmarks.kubelet_merge import every_mask, short_lists
from benchmarks.kubelet_reference import ALONE, BESIDE, FIGURES, MS
from benchmarks.measure import Result
from benchmarks.report import as_json, here, legend, ratio, row

from pinfold.core.topology_manager.merge import common_preferred, gather_hints
from tests.roots import ROOT

PAGE = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")


def result(median_ns: float, min_ns: float, calibration_ms: float) -> Result:
    return Result(median_ns, min_ns, 100, 25, int(calibration_ms * MS))


def test_each_figure_is_compared_by_the_calibration_of_its_own_run() -> None:
    as_fast = result(9e6, 3.18e6, BESIDE.calibration_ns / MS)
    beside = ratio("allocate.packed.512", as_fast)
    assert beside is not None
    assert beside.value == pytest.approx(1)
    assert not beside.is_of_medians

    alone = ratio("allocate.packed.512.n1", result(1e9, 11.6e6, ALONE.calibration_ns / MS))
    assert alone is not None
    assert alone.value == pytest.approx(1)
    assert not alone.is_of_medians


def test_a_machine_that_is_half_as_fast_has_the_same_ratio() -> None:
    fast, slow = result(2000, 1000, 20), result(4000, 2000, 40)
    for name in FIGURES:
        assert ratio(name, fast) == ratio(name, slow), name


def test_medians_are_compared_where_the_fastest_is_not_on_record() -> None:
    found = ratio("merge.8x2.disagree", result(7e6, 1.0, BESIDE.calibration_ns / MS))
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert found.is_of_medians
    assert "medians" in row("merge.8x2.disagree", result(7e6, 1.0, 18.4))
    assert "medians" not in row("merge.8x2.short", result(7e6, 1.0, 18.4))


def test_what_no_kubelet_was_asked_has_no_ratio() -> None:
    plain = result(1000, 900, 20)
    assert ratio("merge.16x4", plain) is None
    assert row("merge.16x4", plain).split() == ["merge.16x4", "1.00", "us", "900", "ns"]
    assert "ratio" not in json.loads(as_json({"merge.16x4": plain}))["merge.16x4"]


def test_a_row_says_how_many_times_as_fast() -> None:
    line = row("merge.8x2.short", result(12_900, 7_300, BESIDE.calibration_ns / MS))
    assert line.split() == [
        *("merge.8x2.short", "12.9", "us", "7.30", "us"),
        *("129", "us", "73.0", "us", "0.1", "10.0", "beside"),
    ]


def test_the_kubelets_times_stand_as_measured() -> None:
    document = json.loads(as_json({"merge.8x2.short": result(12_900, 7_300, 36.8)}))
    assert document["merge.8x2.short"] == {
        "median_ns": 12_900,
        "min_ns": 7_300,
        "runs": 100,
        "batches": 25,
        "calibration_ns": 36_800_000,
        "kubelet_min_ns": 73_000,
        "kubelet_median_ns": 129_000,
        "kubelet_calibration_ns": 18_400_000,
        "ratio": pytest.approx(0.05),
        "ratio_of": "fastest",
    }
    assert here(FIGURES["merge.8x2.short"], 73_000, 36_800_000) == pytest.approx(146_000)


def test_the_legend_names_the_runs_of_its_rows_and_nothing_else() -> None:
    def said(*names: str) -> str:
        return "\n".join(legend(dict.fromkeys(names, result(1000, 900, 20))))

    assert "alone: Kubernetes 1.34" in said("policy.8")
    assert "beside:" not in said("policy.8")
    assert "beside: Kubernetes 1.36.2" in said("merge.8x2.short")
    assert "slow:" not in said("merge.8x2.short")
    assert "slow:" in said("merge.8x3.single")
    assert "alone:" not in said("merge.16x4")


def test_the_fastest_is_no_slower_than_the_median() -> None:
    for name, figure in FIGURES.items():
        assert figure.fastest_ns is not None or figure.median_ns is not None, name
        if figure.fastest_ns is not None and figure.median_ns is not None:
            assert figure.fastest_ns < figure.median_ns, name
        if figure.is_slow:
            assert figure.run is ALONE, name


def test_every_figure_of_the_kubelet_has_a_workload_and_a_place_on_the_page() -> None:
    assert set(FIGURES) <= set(workloads())
    assert [name for name in FIGURES if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("name", [*kubelet_merge.WORKLOADS, *allocation.WORKLOADS])
def test_a_workload_can_be_called(name: str) -> None:
    work = (kubelet_merge.WORKLOADS | allocation.WORKLOADS)[name]()
    work()
    work()


@pytest.mark.parametrize("name", allocation.OWN_CLOCK)
def test_what_measures_its_own_clock_can_be_called(name: str) -> None:
    assert allocation.OWN_CLOCK[name]()() > 0


@pytest.mark.parametrize(("nodes", "providers"), [(4, 4), (6, 3), (8, 2)])
def test_single_nodes_are_agreed_on_and_other_sizes_never(nodes: int, providers: int) -> None:
    machine = (1 << nodes) - 1
    same = every_mask(nodes, [1] * providers)
    other = every_mask(nodes, range(1, providers + 1))
    assert common_preferred([one.hints for one in gather_hints(same)], machine)
    assert not common_preferred([one.hints for one in gather_hints(other)], machine)


def test_short_lists_are_about_as_long_as_said() -> None:
    for nodes, providers, most in ((4, 3, 15), (8, 2, 43)):
        questions = short_lists(nodes, providers, most)
        combinations = 0
        for question in questions:
            product = 1
            for hints in gather_hints(question):
                product *= len(hints.hints)
            combinations += product
        assert len(questions) == 200
        assert 400 < combinations / len(questions) < 600


def test_free_sets_by_chance_hold_what_is_wanted() -> None:
    sets = allocation.random_free_sets(64)
    assert len(sets) == 200
    assert {n for _, n in sets} == set(range(1, 17))
    assert all(free.bit_count() >= n for free, n in sets)
    assert allocation.random_free_sets(64) == sets, "the same every time"


def test_a_slower_answer_has_the_greater_ratio() -> None:
    one = result(2000, 1000, 20)
    for name in FIGURES:
        fast, slow = ratio(name, one), ratio(name, replace(one, median_ns=4000, min_ns=3000))
        assert fast is not None
        assert slow is not None
        assert fast.value < slow.value

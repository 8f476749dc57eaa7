"""Scenes of pages: the same as text and pictures say, each CPU once, and fast."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from msgspec import UNSET
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.live.scene import Scene, SceneBox
from pinfold.render.boxes import CellState
from pinfold.render.explain_text import (
    ContainerExplanation,
    ExplainView,
    HintRow,
    ProviderHints,
    explain_lines,
    render_explain,
)
from pinfold.render.numa_panel import Gauge, NUMAGauges
from pinfold.render.palette import cell_paint, owner_symbol, state_symbol
from pinfold.render.plan_view import ContainerRow, PlanView, ResizeRow
from pinfold.render.svg_canvas import LIGHT, state_colors
from pinfold.render.terminal import Style
from pinfold.render.text import render_plan
from pinfold.views.scene import scene_of
from tests.scenes.contrast import AA, contrast
from tests.scenes.painted import painted
from tests.scenes.pictures import example, plans

WIDE = Style(width=100_000)


def cpus_of(box: SceneBox) -> Iterator[int]:
    for core in box.cores:
        yield from core.cpus
    for inside in box.boxes:
        yield from cpus_of(inside)


def words(text: str) -> str:
    """A text whose lines may be broken anywhere."""
    return "".join(text.split())


@settings(deadline=None)
@given(plans())
def test_each_cpu_belongs_to_one_owner_or_is_in_one_state(view: PlanView) -> None:
    scene = scene_of(view)
    told = [cpu for cpu, _ in painted(scene)]
    assert scene.root is not UNSET
    assert sorted(told) == sorted(cpus_of(scene.root))
    assert sorted(told) == sorted(cell.cpu for cell in view.node_map.cells())


@settings(deadline=None)
@given(plans())
def test_a_cell_is_painted_as_in_the_terminal(view: PlanView) -> None:
    found_of = dict(painted(scene_of(view)))
    for cell in view.node_map.cells():
        paint, found = cell_paint(view.node_map, cell), found_of[cell.cpu]
        if paint == "dim":
            assert (found.background, found.text) == (LIGHT["bg"], LIGHT["off"])
            assert found.outline
        else:
            assert (found.background, found.text) == (f"#{paint.background}", f"#{paint.text}")
        if cell.owner is None:
            assert found.mark == state_symbol(cell.state).strip()
        else:
            assert found.mark == owner_symbol(view.node_map.owners[cell.owner].index)


@settings(deadline=None)
@given(plans())
def test_its_words_are_those_of_the_text(view: PlanView) -> None:
    scene, text = scene_of(view), words(render_plan(replace(view, each=True), WIDE))
    told = [scene.title, scene.subtitle, *scene.notes]
    told += [fact for one in scene.facts for fact in (one.name, one.value, one.remark)]
    for pod in scene.pods:
        told += [f"{pod.namespace}/{pod.name}", *pod.whole, pod.reason or "", pod.message or ""]
        for container in pod.containers:
            told += [container.name, container.cpus, container.remark, *container.extras]
    for state in scene.states:
        if len(scene.states) + len(scene.owners) > 1 or state.state != CellState.ONLINE.value:
            told.append(f"{state.state} {len(CPUSet.parse(state.cpus))}")
    assert [one for one in told if words(one) not in text] == []


@settings(deadline=None)
@given(plans())
def test_it_is_a_document_that_can_be_read_again(view: PlanView) -> None:
    scene = scene_of(view, why={view.pods[0].full_name: ["line"]}, marked=CPUSet([1]))
    text = msgspec.json.encode(scene)
    assert msgspec.json.encode(msgspec.json.decode(text, type=Scene)) == text


def test_the_example() -> None:
    scene = scene_of(example(), at=1.5, live=True, why={"batch/odd": ["took CPU 3"]})
    assert scene.summary == "32 CPUs · 13 exclusive · 17 shared pool · 2 reserved"
    assert [(one.key, one.cpus, one.paint.mark) for one in scene.owners] == [
        ("web", "1-2,17-18", "a"),
        ("feed", "8-11,24-27", "b"),
        ("odd", "3", "c"),
    ]
    assert [(one.state, one.cpus, one.paint.mark) for one in scene.states] == [
        ("shared pool", "4-7,12-15,19-23,28-31", "·"),
        ("reserved", "0,16", "R"),
    ]
    refused = scene.pods[2]
    assert (refused.admitted, refused.reason) == (False, "SMTAlignmentError")
    assert [pod.why for pod in scene.pods if pod.why is not UNSET] == [("took CPU 3",)]
    assert (scene.at, scene.live) == (1.5, True)
    assert scene.notes[0] == "NUMA node 2 · memory only · 128 GiB"
    assert [fact.name for fact in scene.facts][:2] == ["Shared pool", "Reserved"]


def test_gauges_and_resizes_are_told() -> None:
    none = Gauge("example.com/gpu", 0, 0, in_bytes=False)
    gauges = (
        NUMAGauges(0, (Gauge("memory", 2**30, 2**32), none), (0, 1)),
        NUMAGauges(None, (Gauge("example.com/usb", None, 3, in_bytes=False),)),
    )
    resizes = (
        ResizeRow("default/web app", 6, CPUSet([1, 2]), CPUSet([1, 2, 3])),
        ResizeRow("batch/odd main", 64, CPUSet([3]), CPUSet([3]), None, "Infeasible", "no room"),
    )
    scene = scene_of(replace(example(), numa=gauges, resizes=resizes))
    assert [(zone.title, [(g.used, g.text) for g in zone.gauges]) for zone in scene.zones] == [
        ("NUMA node 0, together with 1", [(0.25, "1 of 4 GiB"), (None, "0 of 0")]),
        ("no NUMA node known", [(None, "3")]),
    ]
    assert [(fact.value, fact.remark) for fact in scene.facts if fact.name == "Resize"] == [
        ("default/web app  2 → 6 CPUs", "1-2 → 1-3"),
        ("batch/odd main  to 64 CPUs", "Infeasible: no room"),
    ]


@pytest.mark.parametrize("state", [one for one in CellState if one is not CellState.EXCLUSIVE])
def test_states_can_be_read_on_light_and_dark_pages(state: CellState) -> None:
    for background, text in state_colors(state):
        assert contrast(background, text) >= AA


def test_names_that_turn_the_page_are_made_harmless() -> None:
    view = example()
    row = replace(view.pods[0], containers=(ContainerRow("a\u202eb", CPUSet()),), message="\x1b[2J")
    text = msgspec.json.encode(scene_of(replace(view, pods=(row,)))).decode()
    assert "\u202e" not in text
    assert "\\u001b" not in text
    assert json.loads(text)["pods"][0]["containers"][0]["name"] == "a\N{REPLACEMENT CHARACTER}b"


def test_a_page_has_the_words_of_explain_and_nothing_of_options() -> None:
    hints = ProviderHints("cpu", "cpu", (HintRow((0,), preferred=True),))
    container = ContainerExplanation(
        "md", "4 CPUs", (hints,), constraint="x" * 200, cpus=CPUSet([8]), steps=("took core 8",)
    )
    view = ExplainView(
        "trading/feed", "Guaranteed", admitted=True, policy="policy", containers=(container,),
        notes=("a note",),
    )  # fmt: skip
    lines = explain_lines(view)
    assert any("x" * 200 in line for line in lines)
    assert not any("--hints" in line for line in lines)
    shown = render_explain(view, WIDE).splitlines()
    assert [line for line in shown if line not in lines] == [
        "✓ trading/feed",
        "  admitted  Guaranteed",
        "  policy",
        "--hints shows the hints of each provider",
    ]
    assert lines[:2] == ("Container md  4 CPUs", f"  decided by  {'x' * 200}")
    assert lines[-2:] == ("", "  Guaranteed · policy")


def test_a_page_is_told_first_why_a_pod_was_rejected() -> None:
    view = ExplainView(
        "trading/feed", "Guaranteed", admitted=False, policy="policy", reason="NoRoom",
        message="none", remedies=("fewer CPUs",),
    )  # fmt: skip
    assert explain_lines(view) == (
        "  rejected  Guaranteed",
        "  NoRoom: none",
        "",
        "What would admit it",
        "1. fewer CPUs",
        "",
        "  policy",
    )

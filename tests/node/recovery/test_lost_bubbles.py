"""Bubbles of a record that knows less than what runs, and as which kubelet it is gone on with."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from msgspec.structs import replace

from pinfold.admission.model import build_node, empty_state
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.recovery.asked import asking_for_its_claims
from pinfold.node.recovery.recovery import OnMismatch, restore
from pinfold.node.recovery.survivors import Loss, Survivor, as_seen, recall
from pinfold.ports.cgroups import ObservedContainer
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import NodeRecord, PodPhase, PodRecord, Record
from tests.scenes.manager_harness import manifest, parse
from tests.scenes.whole_pods import WHOLE, whole_pod

NONE: Final = CPUSet()


def on_record(pod: dict[str, Any], bubble: str = "", **cpus: str) -> PodRecord:
    name, text = pod["metadata"]["name"], json.dumps(pod)
    given = {container: CPUSet.parse(own) for container, own in cpus.items()}
    bubbled = CPUSet.parse(bubble)
    return PodRecord(
        f"uid-{name}", "default", name, text, PodPhase.RUNNING, assignments=given, bubble=bubbled
    )


def lives(pod: str, name: str, cpus: str) -> Survivor:
    key, on = ContainerKey(f"uid-{pod}", name), CPUSet.parse(cpus)
    return Survivor(key, None, ObservedContainer(key, exclusive=True, configured=on, effective=on))


APP: Final = on_record(whole_pod("app", "6", "2"), "2-7", c0="2-3", p0="4-7")


@pytest.mark.parametrize(("runs_on", "bubble"), [("2-3", "2-7"), ("3", "2-7"), ("9-10", "")])
def test_who_is_not_in_his_bubble_any_more_has_none(runs_on: str, bubble: str) -> None:
    seen = as_seen(APP, [lives("app", "c0", runs_on)], NONE)
    assert seen.assignments["c0"] == CPUSet.parse(runs_on)
    assert seen.bubble == CPUSet.parse(bubble)


@pytest.mark.parametrize(("others", "bubble"), [("6-7", ""), ("8-9", "2-7")])
def test_a_bubble_of_which_others_have_something_now_is_none(others: str, bubble: str) -> None:
    other = on_record(manifest("other", "2"), c0=others)
    active = {one.uid: (one, parse(one.manifest)) for one in (APP, other)}
    living = [lives("app", "c0", "2-3"), lives("other", "c0", others)]
    recalled = recall(active, Loss(1, 2, {}), living, parse, NONE)
    assert recalled.active["uid-other"][0].assignments == other.assignments
    assert recalled.active["uid-app"][0].bubble == CPUSet.parse(bubble)
    assert ("p0" in recalled.active["uid-app"][0].assignments) is bool(bubble)


def test_who_has_a_bubble_asks_for_what_he_was_given_it_for() -> None:
    less = replace(APP, assignments={**APP.assignments, "c0": CPUSet([2])})
    before = less, parse(less.manifest)
    assert asking_for_its_claims(*before) == before
    alone = on_record(manifest("alone", "2"), c0="2")
    assert asking_for_its_claims(alone, parse(alone.manifest)) != (alone, parse(alone.manifest))


@pytest.mark.parametrize(
    ("before", "is_lost", "said"),
    [
        ("", True, "decided as kubelet 1.36 from now on: as which kubelet before is lost"),
        ("", False, ""),
        ("1.36", True, ""),
        ("1.34", True, "decided as kubelet 1.36 from now on, and as kubelet 1.34 before"),
    ],
)
def test_it_is_said_as_which_kubelet_is_decided_when_a_record_is_lost(
    before: str, is_lost: bool, said: str
) -> None:
    node = build_node(parse_short_form("1s8c2t"), WHOLE, rules=SOUND)
    empty = empty_state(node, CPUSet(range(16)))
    limits = empty.ledger.limits
    was = NodeRecord("static", limits.pool, NONE, limits.machine, kubelet_version=before)
    restored = restore(
        Record(was if before else None),
        node,
        empty,
        parse=parse,
        on_mismatch=OnMismatch.REPAIR,
        kubelet_version="1.36",
        living=[lives("alone", "c0", "2-3")] if is_lost else (),
    )
    assert [text.startswith(said) for text in restored.configured] == ([True] if said else [])

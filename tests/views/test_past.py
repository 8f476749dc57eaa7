"""The past that is made of a history is what was told at that time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.kubelet.own_policies import DynamicOptions, OwnPolicies, SMTIsolate
from pinfold.core.moves.owners import MoveError
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.api import HistoryEntry
from pinfold.documents.live.event import Whole
from pinfold.node.moves.moving import BusyError
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.ports.errors import PortError
from pinfold.views.past import past
from pinfold.views.scene import SceneMaker
from pinfold.views.status import Hardware, status_view
from pinfold.web.documents import history_document
from tests.scenes.manager_harness import STATIC, Harness, manifest, run_virtually
from tests.scenes.random_pods import operate as operate_pods
from tests.scenes.told_node import told_node, whole_now

SAID = (PortError, NameTakenError, UnknownPodError, BusyError, MoveError)
PODS = st.integers(0, 4)
LIFE = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), PODS, st.sampled_from([("",), ("2",), ("1", "500m"), ("4",)])),
        st.tuples(st.just("alone"), PODS, st.sampled_from([("1",), ("2",), ("1", "1")])),
        st.tuples(st.just("release"), PODS, st.none()),
        st.tuples(st.just("init"), PODS, st.sampled_from(["", "2", "4"])),
        st.tuples(st.just("mixed"), PODS, st.sampled_from([("1500m",), ("2",)])),
        st.tuples(st.just("exit"), st.integers(0, 9), st.integers(0, 1)),
        st.tuples(st.just("resize"), PODS, st.integers(1, 6)),
        st.tuples(st.just("resize"), PODS, st.integers(1, 6)),
        st.tuples(st.just("rebalance"), st.none(), st.none()),
    ),
    min_size=4,
    max_size=20,
)
DYNAMIC = DynamicOptions(make_room=True, moves_per_hour=3600)
INIT = "when init containers gave their CPUs back is on no record"
ALLOCATABLE = "which CPUs were allocatable is on no record: those of now are told"


class Told(Struct, frozen=True):
    """What was told at a moment: who has what, and what is shared."""

    owners: dict[str, str]
    pods: dict[str, bool]
    shared: CPUSet
    pool: CPUSet


def told(whole: Whole) -> Told:
    view = status_view(whole.status, Hardware.told(msgspec.to_builtins(whole.machine)), whole.node)
    return Told(
        {key: str(owner.cpus) for key, owner in view.node_map.owners.items()},
        {pod.uid: pod.admitted for pod in view.pods if not pod.ended},
        view.shared,
        CPUSet.parse(whole.status.pool),
    )


async def operate(node: Harness, kind: str, what: Any, how: Any) -> None:
    if kind == "alone":
        pod = manifest(f"p{what}", *how)
        pod["metadata"]["annotations"] = {"smt-isolate.pinfold.dev/pod": "true"}
        await node.admit(pod)
    elif kind == "mixed":
        pod = manifest(f"p{what}", *how)
        pod["metadata"]["annotations"] = {"mixed-cpus.pinfold.dev/pod": "true"}
        await node.admit(pod)
    elif kind == "resize":
        owners = sorted(node.books.view.state.ledger.assignments) or [f"uid-p{what}"]
        await node.manager.resizing.resize(owners[what % len(owners)], "c0", how)
    elif kind == "rebalance":
        await node.manager.rebalancing.rebalance()
    else:
        await operate_pods(node, kind, what, how)


async def lived(
    node: Harness, operations: Sequence[tuple[str, Any, Any]]
) -> tuple[list[tuple[float, Whole]], list[HistoryEntry]]:
    """What was told after each operation, when that was, and the history."""
    await node.start()
    moments = []
    for operation in operations:
        with contextlib.suppress(*SAID):
            await asyncio.wait_for(operate(node, *operation), 600)
        await node.settle()
        moments.append((node.clock(), whole_now(node)))
    entries = history_document(await node.store.history(limit=1000)).entries
    await node.kill()
    return moments, msgspec.json.decode(msgspec.json.encode(entries), type=list[HistoryEntry])


@settings(max_examples=60, deadline=None)
@given(LIFE, st.booleans())
def test_the_past_is_what_was_told_then(
    operations: list[tuple[str, Any, Any]], alone: bool
) -> None:
    own = OwnPolicies(DYNAMIC, smt_isolate=SMTIsolate(use=alone))
    config = replace(STATIC, cpu_manager_policy="dynamic", own=own)
    node = told_node(machine="2s4c2t", config=config, dynamic=DYNAMIC)
    moments, entries = run_virtually(lived(node, operations))
    now = moments[-1][1]
    for at, then in moments:
        found = past(now, entries, at)
        if any(note.startswith(INIT) for note in found.notes):
            # Their CPUs are drawn as shared from the beginning on.
            assert told(found.whole).owners.items() <= told(then).owners.items()
        else:
            assert told(found.whole) == told(then), f"at {at}"
            assert set(found.notes) <= {ALLOCATABLE}
        if ALLOCATABLE in found.notes:
            assert alone
        else:
            assert found.whole.status.allocatable == then.status.allocatable
        scene = SceneMaker().past(now, entries, at)
        assert (scene.at, scene.live) == (at, False)


def test_what_is_on_no_record_is_said() -> None:
    node = told_node(machine="2s4c2t", config=STATIC)
    life = [("admit", 0, ("2",)), ("admit", 1, ("4",)), ("release", 0, None), ("release", 1, None)]
    moments, entries = run_virtually(lived(node, life))
    (_, first), (at, _), *_, (_, now) = moments
    assert past(now, entries, at).notes == ()
    reach = [entry for entry in entries if entry.at > at]
    found = past(now, reach, at)
    assert found.whole.status.pods == ()
    assert found.notes[0].startswith("the entries begin at ")
    assert found.notes[1] == "on no record is what these had: default/p0, default/p1"
    broken = [replace(one, document={"containers": 7}) for one in entries if one.kind == "admitted"]
    assert "entries that cannot be read: 2" in past(now, broken, at).notes
    came = next(one for one in entries if one.pod_uid == "uid-p0" and one.kind == "admitted")
    went = next(one for one in entries if one.pod_uid == "uid-p0" and one.kind == "released")
    twice = past(first, [replace(one, pod_uid="other") for one in (came, went)], at)
    assert {pod.uid for pod in twice.whole.status.pods} == {"uid-p0", "other"}
    assert len(told(twice.whole).owners) == 1, "no CPU in the hands of two"
    assert "on no record is what these had: default/p0" in twice.notes


def test_the_past_of_many_pods() -> None:
    node = told_node(machine="2s64c2t", config=STATIC)
    life = [("admit", pod, ("2",)) for pod in range(60)] + [("release", 3, None)]
    moments, entries = run_virtually(lived(node, life))
    found = past(moments[-1][1], entries, moments[30][0])
    assert told(found.whole) == told(moments[30][1])

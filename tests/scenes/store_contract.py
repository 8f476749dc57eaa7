"""What every store has to do, and batches to do it with."""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.adapters.store import SQLiteStore
from pinfold.adapters.store.schema import MIGRATIONS
from pinfold.core.memory.memory import Block
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.steps import (
    Announce,
    GiveBack,
    MigrateMemory,
    MovePlan,
    MoveState,
    Narrow,
    ShrinkPool,
    Wait,
    Widen,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import StoreError
from pinfold.ports.records import (
    Batch,
    ByLoad,
    DeviceGrant,
    HistoryEntry,
    NodeRecord,
    ObjectKey,
    ObjectRecord,
    PendingMove,
    PendingResize,
    PodPhase,
    PodRecord,
    Record,
)
from pinfold.ports.store import Store

NODE: Final = NodeRecord("static", CPUSet.parse("0-511"), CPUSet([0]), CPUSet.parse("0-511"))
FULL_NODE: Final = NodeRecord(
    "none", CPUSet(), CPUSet(), CPUSet.parse("0-30:2"), "Static", "cri", "/t", "1.36"
)


def pod(label: str, /, **fields: object) -> PodRecord:
    """A record with everything in it."""
    record = PodRecord(
        uid=f"uid-{label}",
        namespace="default",
        name=label,
        manifest='{"kind": "Pod"}',
        phase=PodPhase.RUNNING,
        source="api",
        admitted_at=1.5,
        assignments={"a": CPUSet.parse("2-3,8-511"), "ü": CPUSet([1])},
        restarts={"a": 3},
        exit_codes={"init": 0, "a": 137},
        memory={"a": (Block((0, 1), "memory", 2**40), Block((1,), "hugepages-2Mi", 2**21))},
        devices={"a": {"example.com/gpu": DeviceGrant(("gpu-1", "gpu-0"), b"\x00\xff")}},
        load_driven={"a": ByLoad(1.25, 12.5, 99.75, "boot"), "ü": ByLoad()},
        bubble=CPUSet.parse("1-3,8-600"),
        bubble_memory=(Block((0, 1), "memory", 2**41), Block((1,), "hugepages-2Mi", 2**21)),
    )
    return replace(record, **fields)


async def check_contract(store: Store) -> None:
    """Check a store that is empty, and was never written to."""
    await _check_pods(store)
    await _check_order(store)
    await _check_every_field(store)
    await _check_move(store)
    await _check_objects(store)
    await _check_history(store)


async def check_refusals(store: Store) -> None:
    """Check a store that has constraints: what does not fit changes nothing at all."""
    await store.commit(Batch(NODE, (pod("a"),), history=(_entry("first"),)))
    before, said = await store.load(), tuple(await store.history())
    for words, bad in (
        ("manifest is no JSON", Batch(put=(pod("b", manifest="not json"),))),
        ("manifest is no JSON object", Batch(put=(pod("b", manifest="[]"),))),
        ("manifest", Batch(put=(pod("b", manifest='{"a":' * 5000 + "1" + "}" * 5000),))),
        ("another active pod", Batch(put=(pod("b", name="a"),))),
        ("another active pod", Batch(put=(pod("b", name="c"), pod("c")))),
        ("constraint", Batch(put=(pod("b", uid=""),))),
        ("constraint", Batch(put=(pod("b", assignments={"a": CPUSet()}),))),
        ("NUMA nodes", Batch(put=(pod("b", bubble_memory=(Block((), "memory", 1),)),))),
        ("bytes", Batch(put=(pod("b", bubble_memory=(Block((0,), "memory", 2**63),)),))),
        ("constraint", Batch(put=(pod("b", bubble_memory=(Block((0,), "", 1),)),))),
        ("constraint", Batch(put=(pod("b", admitted_at=float("nan")),))),
        ("constraint", Batch(put=(pod("b", restarts={"a": -1}),))),
        ("constraint", Batch(put=(pod("b", load_driven={"": ByLoad()}),))),
        ("constraint", Batch(put=(pod("b", load_driven={"a": ByLoad(-1.0)}),))),
        ("constraint", Batch(put=(pod("b", load_driven={"a": ByLoad(at=math.nan)}),))),
        ("UTF-8", Batch(put=(pod("b", load_driven={"a": ByLoad(boot="\udcff")}),))),
        ("too large", Batch(put=(pod("b", exit_codes={"a": 2**63}),))),
        ("UTF-8", Batch(put=(pod("b", source="/\udcff"),))),
        ("NUMA nodes", Batch(put=(pod("b", memory={"a": (Block((), "memory", 1),)}),))),
        ("NUMA nodes", Batch(put=(pod("b", memory={"a": (Block((64,), "memory", 1),)}),))),
        ("bytes", Batch(put=(pod("b", memory={"a": (Block((0,), "memory", 2**63),)}),))),
        ("constraint", Batch(put=(pod("b", memory={"a": (Block((0,), "", 1),)}),))),
        ("no devices", Batch(put=(pod("b", devices={"a": {"r/d": DeviceGrant(())}}),))),
        ("constraint", Batch(put=(pod("b", devices={"a": {"": DeviceGrant(("d",))}}),))),
        ("UTF-8", Batch(drop=("\ud800",))),
        ("node.*constraint", Batch(replace(NODE, machine=CPUSet()))),
        ("node.*constraint", Batch(replace(NODE, policy_name=""))),
        ("node.*constraint", Batch(replace(NODE, memory_policy=""))),
        ("history.*constraint", Batch(history=(replace(_entry("e"), document="{"),))),
        ("history.*constraint", Batch(history=(_entry(""),))),
    ):
        # Something good before it and after it, which may not be left behind.
        whole = Batch(
            bad.node or FULL_NODE,
            (pod("good"), *bad.put, pod("fine")),
            ("uid-a", *bad.drop) if bad.drop else (),
            (_entry("good"), *bad.history, _entry("fine")),
        )
        with pytest.raises(StoreError, match=words) as caught:
            await store.commit(whole)
        str(caught.value).encode()
        assert await store.load() == before
        assert tuple(await store.history()) == said
    await store.commit(Batch(put=(pod("b"),), history=(_entry("second"),)))
    assert [e.kind for e in await store.history()] == ["second", "first"]


async def _check_pods(store: Store) -> None:
    """Batches are whole; unknown pods are passed over; what was read does not change."""
    empty = await store.load()
    assert empty.node is None
    assert dict(empty.pods) == {}
    assert tuple(await store.history()) == ()
    await store.commit(Batch())
    assert (await store.load()).node is None

    first, second = pod("first"), pod("second", namespace="späce", message="grün\n")
    await store.commit(Batch(NODE, (first, second)))
    loaded = await store.load()
    assert loaded.node == NODE
    assert list(loaded.pods.values()) == [first, second]

    changed = replace(first, phase=PodPhase.FAILED, assignments={}, reason="OutOfcpu")
    await store.commit(Batch(put=(changed,), drop=("uid-second", "unknown")))
    assert dict((await store.load()).pods) == {first.uid: changed}
    assert list(loaded.pods.values()) == [first, second]
    assert (await store.load()).node == NODE

    await store.commit(Batch(FULL_NODE, drop=(first.uid,)))
    assert await store.load() == replace(empty, node=FULL_NODE)


async def _check_order(store: Store) -> None:
    """Oldest first: a pod that is put again keeps its place, one that was dropped is new."""
    names = ["z", "a", "m"]
    # Commits are carried out in the order of the calls, also if nobody waits in between.
    await asyncio.gather(*(store.commit(Batch(put=(pod(name),))) for name in names))
    await store.commit(Batch(put=(pod("z", message="again"),)))
    assert [p.name for p in (await store.load()).pods.values()] == names
    await store.commit(Batch(put=(pod("z"),), drop=("uid-z",)))
    assert [p.name for p in (await store.load()).pods.values()] == ["a", "m", "z"]
    # Within a batch a name goes from one to the other, in whichever order they come.
    ended = pod("a", phase=PodPhase.SUCCEEDED)
    for new in (pod("a", uid="new1"), pod("a", uid="new2")):
        batch = Batch(put=(new, ended))
        await store.commit(batch)
        ended = replace(new, phase=PodPhase.FAILED)
    await store.commit(Batch(put=(pod("m", name="z"), pod("z", name="m"))))
    found = [(p.uid, p.name) for p in (await store.load()).pods.values()]
    assert found == [
        ("uid-a", "a"),
        ("uid-m", "z"),
        ("uid-z", "m"),
        ("new1", "a"),
        ("new2", "a"),
    ]
    await store.commit(Batch(drop=tuple(uid for uid, _ in found)))


async def _check_every_field(store: Store) -> None:
    nasty = "' \" ; -- \n\t \0 %s ? \u202e 名前 🐑"
    every = CPUSet(range(512))
    odd = CPUSet(range(1, 512, 2))
    written = [
        pod(f"p{phase.value}", phase=phase, assignments={"c": odd} if phase.is_active else {})
        for phase in PodPhase
    ]
    written += [
        PodRecord("bare", "", "", "{}", PodPhase.ADMITTED),
        pod("alone", idle={"a": CPUSet.parse("3,9-511"), "ü": CPUSet()}),
        PodRecord(
            uid=nasty,
            namespace=nasty,
            name=nasty,
            manifest=' {"metadata": {"name": "名前 \\ud800"}, "n": [1e400, null]}\n',
            phase=PodPhase.TERMINATING,
            source=nasty,
            reason=nasty,
            message=nasty,
            admitted_at=4102444800.123456,
            assignments={nasty: every, "": CPUSet([65535])},
            restarts={nasty: 2**63 - 1, "only restarts": 0},
            exit_codes={nasty: -(2**63), "only a code": 255},
            memory={nasty: (Block((63, 0), nasty, 0), Block((1,), nasty, 2**63 - 1))},
            devices={nasty: {nasty: DeviceGrant((nasty, "\ud800", ""), bytes(range(256)))}},
            baselines={nasty: odd, "": CPUSet()},
            load_driven={nasty: ByLoad(1e300, -1.0, 1e300, nasty)},
            bubble=CPUSet([65535]),
            bubble_memory=(Block((63, 0), nasty, 2**63 - 1), Block((0,), nasty, 0)),
        ),
        pod("empty texts", reason="", message="", admitted_at=-1.0),
    ]
    await store.commit(Batch(put=tuple(written)))
    assert list((await store.load()).pods.values()) == written
    await store.commit(Batch(drop=tuple(p.uid for p in written)))


async def _check_move(store: Store) -> None:
    """The plan in flight: it stays until it is said that there is none."""
    one, two = Owner("uid-a", "c"), Owner("uid-b")
    start = MoveState(
        claims={one: CPUSet([1, 2]), two: CPUSet([3])},
        placed={one: CPUSet([1, 2]), two: CPUSet([3])},
        pool=CPUSet([0, 4, 5]),
        mems={two: CPUSet([0])},
        coming={one: CPUSet([2])},
    )
    steps = (
        ShrinkPool({two: CPUSet([4])}),
        Widen(two, CPUSet([3]), CPUSet([3, 4]), CPUSet([0]), CPUSet([0, 1])),
        Announce(one, CPUSet([1, 2]), CPUSet([1]), 2.5),
        Wait(one, 2.5),
        Narrow(one, CPUSet([1, 2]), CPUSet([1])),
        MigrateMemory(two, CPUSet([0, 1]), CPUSet([1])),
        GiveBack(CPUSet([2])),
    )
    plan = MovePlan(start, steps, frozenset({two}), {one: 2.5})
    resize = PendingResize(one, 2, 1)
    move = PendingMove(plan, "resize", 3, 12.5, {one: 99.75}, "boot", resize, "no", 3)
    assert (await store.load()).move is None
    await store.commit(Batch(move=move))
    assert (await store.load()).move == move
    back = replace(
        move, plan=replace(plan, back=True), why="rebalance", resize=None, written=7, made=7
    )
    await store.commit(Batch(move=back))
    await store.commit(Batch(put=(pod("other"),)))
    assert (await store.load()).move == back
    await store.commit(Batch(move=None, drop=("uid-other",)))
    assert (await store.load()).move is None


async def _check_objects(store: Store) -> None:
    """Objects are by kind, namespace and name; one in the place of another, or forgotten."""
    key = ObjectKey("ResourceQuota", "team", "cpus")
    named = {"kind": "ResourceQuota", "metadata": {"namespace": "team", "name": "cpus"}}
    one = ObjectRecord(key, json.dumps(named))
    other = ObjectRecord(key, json.dumps(named | {"spec": {"hard": {"pods": "2"}}}), "/folder")
    beside = ObjectRecord(ObjectKey("Other", "", "cpus"), '{"kind": "Other"}')
    await store.commit(Batch(objects={key: one, beside.key: beside}))
    assert (await store.load()).objects == {key: one, beside.key: beside}
    await store.commit(Batch(objects={key: one}).then(Batch(objects={key: other})))
    assert (await store.load()).objects == {key: other, beside.key: beside}
    await store.commit(Batch(objects={key: None, beside.key: None}))
    assert (await store.load()).objects == {}


async def _check_history(store: Store) -> None:
    """The newest first, by number and not by time; of one pod by its name or uid."""
    entries = [HistoryEntry(100.0 - n, "k", f"uid-{n % 2}", f"ns/{n % 2}", "{}") for n in range(6)]
    await store.commit(Batch(history=tuple(entries)))
    found = await store.history()
    assert [e.at for e in found] == [e.at for e in reversed(entries)]
    assert [replace(e, number=0) for e in found] == entries[::-1]
    assert [e.number for e in found] == sorted({e.number for e in found}, reverse=True)
    assert _times(await store.history(limit=2)) == [95.0, 96.0]
    assert _times(await store.history(limit=0)) == []
    for name in ("uid-1", "ns/1"):
        assert _times(await store.history(pod=name)) == [95.0, 97.0, 99.0]
        assert _times(await store.history(pod=name, limit=1)) == [95.0]
    assert _times(await store.history(pod="other")) == []
    assert len(await store.history(kinds=["other", "k"])) == 6
    assert _times(await store.history(kinds=["k"], pod="ns/1", limit=1)) == [95.0]
    assert _times(await store.history(kinds=["other"])) == []
    for namespace, count in (("ns", 6), ("n", 0), ("n_", 0), ("NS", 0), ("", 0)):
        assert len(await store.history(namespace=namespace)) == count
    assert _times(await store.history(namespace="ns", kinds=["k"], limit=1)) == [95.0]
    # The number that a caller makes up is of no account; the node's entries have no pod.
    await store.commit(Batch(history=(HistoryEntry(1.0, "node", None, None, "[]", number=-9),)))
    newest, second = await store.history(limit=2)
    assert (newest.kind, newest.pod, newest.pod_uid, newest.document) == ("node", None, None, "[]")
    assert newest.number > second.number


def _entry(kind: str) -> HistoryEntry:
    return HistoryEntry(1.0, kind, "uid", "ns/name", "{}")


def _times(entries: Sequence[HistoryEntry]) -> list[float]:
    return [entry.at for entry in entries]


NAMES: Final = st.sampled_from(["a", "b", "c", "d"])
CPUS: Final = st.sets(st.integers(0, 600), min_size=1, max_size=20).map(CPUSet)
RECORDS: Final = st.builds(
    pod,
    NAMES,
    name=NAMES,
    namespace=st.sampled_from(["x", "y"]),
    phase=st.sampled_from(PodPhase),
    reason=st.none() | st.text(max_size=20),
    admitted_at=st.floats(0, 4e9),
    assignments=st.dictionaries(st.text(max_size=8), CPUS, max_size=3),
    restarts=st.dictionaries(st.text(max_size=8), st.integers(0, 10**9), max_size=3),
    exit_codes=st.dictionaries(st.text(max_size=8), st.integers(-255, 255), max_size=3),
    memory=st.dictionaries(
        st.text(max_size=8),
        st.lists(
            st.builds(
                Block,
                st.lists(st.integers(0, 63), min_size=1, max_size=3).map(tuple),
                st.sampled_from(["memory", "hugepages-2Mi"]),
                st.integers(0, 2**63 - 1),
            ),
            min_size=1,
            max_size=2,
        ).map(tuple),
        max_size=2,
    ),
    devices=st.dictionaries(
        st.text(max_size=8),
        st.dictionaries(
            st.sampled_from(["example.com/gpu", "example.com/nic"]),
            st.builds(
                DeviceGrant,
                st.lists(st.text(max_size=8), min_size=1, max_size=3).map(tuple),
                st.binary(max_size=16),
            ),
            min_size=1,
            max_size=2,
        ),
        max_size=2,
    ),
)
"""Pods that may contend for a name."""
BATCHES: Final = st.builds(
    Batch,
    node=st.none() | st.sampled_from([NODE, FULL_NODE]),
    put=st.lists(RECORDS, max_size=3, unique_by=lambda record: record.uid).map(tuple),
    drop=st.lists(NAMES.map(lambda name: f"uid-{name}"), max_size=2).map(tuple),
    history=st.lists(
        st.builds(HistoryEntry, st.floats(0, 4e9), st.just("k"), NAMES, NAMES, st.just("{}")),
        max_size=3,
    ).map(tuple),
)


_T = TypeVar("_T")


def with_store(path: Path, work: Callable[[SQLiteStore], Awaitable[_T]], **options: int) -> _T:
    """Open, work, close."""

    async def whole() -> _T:
        store = SQLiteStore.open(path, **options)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(whole())


def load(path: Path) -> Record:
    return with_store(path, lambda store: store.load())


# A file of the first form, as its first release wrote it.  It never changes: whatever becomes of
# the tables, such a file is read.
FORM_1 = """
INSERT INTO node VALUES (1, 'static', '0-1', '0', '0-3');
INSERT INTO pods VALUES
    (3, 'u', 'ns', 'web', '{"kind": "Pod"}', 'Running', 'run', NULL, 'm', 12.5),
    (7, 'v', 'ns', 'old', '{}', 'Failed', 'api', 'OutOfcpu', NULL, 1.0);
INSERT INTO assignments VALUES (3, 'c', '2-3');
INSERT INTO containers VALUES (3, 'c', 2, NULL), (3, 'init', NULL, 0);
INSERT INTO history VALUES (41, 12.5, 'admitted', 'u', 'ns/web', '{"a": 1}');
"""


def form_1(path: Path) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript(MIGRATIONS[0] + FORM_1)
    database.execute(f"PRAGMA application_id = {0x70696E66}")
    database.execute("PRAGMA user_version = 1")
    database.close()
    path.chmod(0o600)

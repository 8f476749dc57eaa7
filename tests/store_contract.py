"""What every store has to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from pinfold.core.cpuset import CPUSet
from pinfold.node.ports import Store
from pinfold.node.records import Batch, HistoryEntry, NodeRecord, PodPhase, PodRecord

NODE = NodeRecord("static", CPUSet.parse("0-511"), CPUSet([0]), CPUSet.parse("0-511"))


def pod(name: str, **fields: object) -> PodRecord:
    """A record with everything in it."""
    record = PodRecord(
        uid=f"uid-{name}",
        namespace="default",
        name=name,
        manifest='{"kind": "Pod"}',
        phase=PodPhase.RUNNING,
        source="api",
        admitted_at=1.5,
        assignments={"a": CPUSet.parse("2-3,8-511"), "ü": CPUSet([1])},
        restarts={"a": 3},
        exit_codes={"init": 0, "a": 137},
    )
    return replace(record, **fields)  # type: ignore[arg-type] # the caller names fields


async def check_contract(store: Store) -> None:
    """Batches are whole; the newest history first; unknown pods are passed over."""
    empty = await store.load()
    assert empty.node is None
    assert dict(empty.pods) == {}

    first, second = pod("first"), pod("second", namespace="späce", message="grün\n")
    await store.commit(Batch(NODE, (first, second)))
    loaded = await store.load()
    assert loaded.node == NODE
    assert list(loaded.pods.values()) == [first, second]

    changed = replace(first, phase=PodPhase.FAILED, assignments={}, reason="OutOfcpu")
    await store.commit(Batch(put=(changed,), drop=("uid-second", "unknown")))
    assert dict((await store.load()).pods) == {first.uid: changed}

    entries = [HistoryEntry(100.0 - n, "k", f"uid-{n % 2}", f"ns/{n % 2}", "{}") for n in range(6)]
    await store.commit(Batch(history=tuple(entries)))
    await _check_history(store, entries)


async def _check_history(store: Store, entries: Sequence[HistoryEntry]) -> None:
    found = await store.history()
    assert [e.at for e in found] == [e.at for e in reversed(entries)]
    assert [e.number for e in found] == sorted((e.number for e in found), reverse=True)
    assert [e.at for e in await store.history(limit=2)] == [95.0, 96.0]
    for name in ("uid-1", "ns/1"):
        assert [e.at for e in await store.history(pod=name)] == [95.0, 97.0, 99.0]
    assert await store.history(pod="other") in ((), [])


NAMES = st.sampled_from(["a", "b", "c", "d"])
CPUS = st.sets(st.integers(0, 600), min_size=1, max_size=20).map(CPUSet)
RECORDS = st.builds(
    pod,
    NAMES,
    phase=st.sampled_from(PodPhase),
    reason=st.none() | st.text(max_size=20),
    admitted_at=st.floats(0, 4e9),
    assignments=st.dictionaries(st.text(max_size=8), CPUS, max_size=3),
    restarts=st.dictionaries(st.text(max_size=8), st.integers(0, 10**9), max_size=3),
    exit_codes=st.dictionaries(st.text(max_size=8), st.integers(-255, 255), max_size=3),
)
BATCHES = st.builds(
    Batch,
    node=st.none() | st.just(NODE),
    put=st.lists(RECORDS, max_size=3, unique_by=lambda record: record.uid).map(tuple),
    drop=st.lists(NAMES.map(lambda name: f"uid-{name}"), max_size=2).map(tuple),
    history=st.lists(
        st.builds(HistoryEntry, st.floats(0, 4e9), st.just("k"), NAMES, NAMES, st.just("{}")),
        max_size=3,
    ).map(tuple),
)

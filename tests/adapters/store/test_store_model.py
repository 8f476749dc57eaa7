"""The SQLite store against a dictionary and a list, opened anew at random moments."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pinfold.adapters.store import SQLiteStore
from pinfold.ports.errors import StoreError
from pinfold.ports.records import Batch, HistoryEntry, NodeRecord, PodRecord
from tests.scenes.store_contract import BATCHES, NAMES, pod

_T = TypeVar("_T")


class StoreMachine(RuleBasedStateMachine):
    """Does to a store and to a model the same things."""

    @initialize(limit=st.integers(0, 5))
    def start(self, limit: int) -> None:
        self.limit = limit
        self.runner = asyncio.Runner()
        # Durability is shown elsewhere; in memory there are many more steps in the same time.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - the name is random
        self.folder = tempfile.TemporaryDirectory(dir=memory)
        self.path = Path(self.folder.name) / "db"
        self.node: NodeRecord | None = None
        self.pods: dict[str, PodRecord] = {}
        self.entries: list[HistoryEntry] = []
        self.count = 0
        self.open()

    def open(self) -> None:
        self.store = SQLiteStore.open(self.path, history_limit=self.limit)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.runner.run(work)

    @rule(batch=BATCHES)
    def commit(self, batch: Batch) -> None:
        after = {uid: record for uid, record in self.pods.items() if uid not in batch.drop}
        after.update({record.uid: record for record in batch.put})
        active = [(p.namespace, p.name) for p in after.values() if p.phase.is_active]
        if len(set(active)) < len(active):
            with pytest.raises(StoreError, match="another active pod has that name"):
                self.run(self.store.commit(batch))
            return
        self.run(self.store.commit(batch))
        self.pods = after
        self.node = batch.node or self.node
        for entry in batch.history:
            self.count += 1
            self.entries.append(
                HistoryEntry(
                    entry.at, entry.kind, entry.pod_uid, entry.pod, entry.document, self.count
                )
            )
        if batch.history:
            self.entries = self.entries[len(self.entries) - min(self.limit, len(self.entries)) :]

    @rule(batch=BATCHES)
    def commit_with_a_fault(self, batch: Batch) -> None:
        bad = pod("bad", manifest="{")
        with pytest.raises(StoreError, match=r"manifest|another active pod"):
            self.run(self.store.commit(Batch(batch.node, (*batch.put, bad), batch.drop)))

    @rule(limit=st.integers(0, 5))
    def reopen(self, limit: int) -> None:
        self.run(self.store.close())
        self.limit = limit
        self.entries = self.entries[len(self.entries) - min(limit, len(self.entries)) :]
        self.open()

    @rule()
    def read_beside(self) -> None:
        reader = SQLiteStore.read_only(self.path)
        assert self.run(reader.load()) == self.run(self.store.load())
        self.run(reader.close())

    @rule(name=NAMES, limit=st.integers(0, 4))
    def look_up(self, name: str, limit: int) -> None:
        found = self.run(self.store.history(pod=name, limit=limit))
        which = [e for e in reversed(self.entries) if name in (e.pod, e.pod_uid)]
        assert list(found) == which[:limit]

    @invariant()
    def holds_the_same(self) -> None:
        if not hasattr(self, "store"):
            return
        record = self.run(self.store.load())
        assert record.node == self.node
        assert list(record.pods.items()) == list(self.pods.items())
        assert list(self.run(self.store.history())) == self.entries[::-1]

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        self.run(self.store.close())
        self.runner.close()
        self.folder.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

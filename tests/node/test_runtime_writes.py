"""Nobody takes CPUs while a runtime may write an older set of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.nri.kubelet_containers import KubeletContainers
from pinfold.node.recorded_cpusets import RecordedCpusets
from pinfold.node.runtime_writes import WRITTEN, RuntimeWrites
from pinfold.planning.fake_nri import FakeNode
from pinfold.planning.fake_runtime_cgroups import FakeRuntimeCgroups
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey, RuntimeFailedError
from pinfold.ports.nri import ContainerUpdate
from tests.scenes.lifecycle_harness import BEST_EFFORT, LifecycleHarness, guaranteed, story
from tests.scenes.manager_harness import run_virtually

DB, WEB = ContainerKey("uid-db", "main"), ContainerKey("uid-web", "main")


def entered(writes: RuntimeWrites, then: Callable[[], None], after: float = 1.0) -> float:
    """After how many seconds it is still for DB, where ``then`` happens ``after`` some."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        writes.begun(DB)
        loop.call_later(after, then)
        async with writes.still(lambda key: key == DB):
            assert writes.held
            return loop.time() - began

    return run_virtually(run())


def test_it_waits_for_the_word_that_all_is_written() -> None:
    writes = RuntimeWrites()
    assert entered(writes, lambda: writes.over(DB)) == 1.0
    assert not writes.held


def test_it_does_not_wait_for_ever_for_a_change_that_has_failed() -> None:
    assert entered(RuntimeWrites(), lambda: None) == pytest.approx(WRITTEN)


def test_an_answer_is_a_new_beginning() -> None:
    writes = RuntimeWrites()
    assert entered(writes, lambda: writes.begun(DB)) == pytest.approx(WRITTEN + 1)


def test_others_do_not_matter() -> None:
    async def run() -> None:
        writes = RuntimeWrites()
        writes.begun(WEB)
        async with asyncio.timeout(0.1), writes.still(lambda key: key == DB):
            pass

    run_virtually(run())


def test_what_an_answer_says_besides_is_written_before_the_next_question() -> None:
    writes = RuntimeWrites()

    def asked() -> None:
        writes.next_asked()

    async def run() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        writes.told_besides([DB])
        loop.call_later(0.5, asked)
        async with writes.still(lambda key: key == DB):
            return loop.time() - began

    assert run_virtually(run()) == 0.5


def test_who_waits_for_two_waits_until_both_are_still() -> None:
    """What is written of the first while the second is waited for counts, too."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        writes, began = RuntimeWrites(), loop.time()
        writes.begun(DB)
        loop.call_later(0.5, writes.begun, WEB)
        loop.call_later(1.0, writes.over, DB)
        loop.call_later(2.0, writes.over, WEB)
        async with writes.still(lambda key: key == WEB), writes.still(lambda key: key == DB):
            return loop.time() - began

    assert run_virtually(run()) == 2.0


def test_nobody_is_still_before_the_runtime_has_shown_what_there_is() -> None:
    async def run() -> None:
        on_record = some_on_record()
        table = KubeletContainers(FakeRuntimeCgroups(FakeNode(CPUSet(range(4)))), on_record)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60), table.still(None):
                pass
        table.shown.set()
        async with asyncio.timeout(1), table.still(None), table.still([DB]):
            pass

    run_virtually(run())


class SlowRecord:
    """A runtime that takes a second to write; ``fails`` after it has been told."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.at_work = False
        self.calls = 0

    async def update(self, updates: Sequence[ContainerUpdate]) -> Sequence[str]:
        del updates
        self.calls += 1
        self.at_work = True
        await asyncio.sleep(1)
        self.at_work = False
        if self.fails:
            raise RuntimeFailedError("no answer")
        return ()


def some_on_record() -> RecordedCpusets:
    cgroups = FakeRuntimeCgroups(FakeNode(CPUSet(range(4))))
    on_record = RecordedCpusets(cgroups, lambda *_: None, batch=4)
    on_record.put(WEB, "id-web", Placement(), "0-3")
    on_record.put(DB, "id-db", Placement(CPUSet([3])), "3")
    on_record.follow(CPUSet([0, 1, 2]))
    return on_record


@pytest.mark.parametrize("keys", [None, [DB]])
def test_nobody_is_told_anything_meanwhile(keys: list[ContainerKey] | None) -> None:
    async def run() -> None:
        on_record, record = some_on_record(), SlowRecord()
        telling = asyncio.create_task(on_record.run(record))
        await asyncio.sleep(0.1)
        async with on_record.still(keys):
            assert (record.calls, record.at_work, on_record.behind) == (1, False, 0)
            on_record.follow(CPUSet([0, 1]))
            assert on_record.answer() == ()
            await asyncio.sleep(10)
            assert record.calls == 1
        await asyncio.sleep(10)
        assert record.calls == 2
        telling.cancel()

    run_virtually(run())


def test_a_runtime_that_fails_may_still_be_at_it() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        on_record, record = some_on_record(), SlowRecord(fails=True)
        telling = asyncio.create_task(on_record.run(record))
        await asyncio.sleep(0.1)
        began = loop.time()
        async with on_record.still([DB]):
            assert loop.time() - began < WRITTEN, "of the owner it was told nothing"
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        async with on_record.still(None):
            assert loop.time() - began >= WRITTEN

    run_virtually(run())


@story
async def test_a_change_of_a_container_is_over_when_the_runtime_says_so(
    h: LifecycleHarness,
) -> None:
    web = await h.run(await h.pod("web", "burstable"), "main", BEST_EFFORT)
    db = await h.run(await h.pod("db"), "main", guaranteed(2))
    loop = asyncio.get_running_loop()
    h.node.slowness = 0.5
    for one, keys in ((web, None), (db, [DB])):
        change = asyncio.create_task(h.node.resize(one, one.seen.resources))
        await asyncio.sleep(0.1)
        began = loop.time()
        async with h.ledger.still(keys):
            assert loop.time() - began == pytest.approx(0.4)
        await change


@story
async def test_what_a_runtime_writes_too_late_is_made_right(h: LifecycleHarness) -> None:
    db = await h.run(await h.pod("db"), "main", guaranteed(2))
    assert h.node.plugin is not None
    db.cpuset = h.node.machine
    await h.node.plugin.post_update_container(db.pod, db.seen)
    assert db.kernel == CPUSet([2, 3])

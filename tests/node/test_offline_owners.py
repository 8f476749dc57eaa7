"""Owners whose CPUs go offline: on no other owner's CPUs, and back on their own."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.offline_owners import BUSY, told
from pinfold.node.reconciler import reconcile
from pinfold.node.settings import OwnerOffline
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey, PortError
from pinfold.ports.records import PodPhase
from pinfold.ports.runtime import ContainerSpec, ContainerState, ContainerStatus
from tests.scenes.manager_harness import manifest
from tests.scenes.offline_harness import EVERY, POLICIES, VERSIONS, Node, run


@VERSIONS
def test_a_displaced_owner_shares_and_gets_its_cpus_back(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("web", ""))
        await node.admit(manifest("db", "2"))
        await node.admit(manifest("other", "2"))
        assert node.cpus("db") == {"c0": "2-3"}
        await node.switch(EVERY - CPUSet([2, 3]))
        node.check()
        assert node.cpus("db") == node.cpus("web") == {"c0": "1,6-7"}
        await node.settle()
        assert json.loads(node.files.documents["uid-db"])["containers"] == {
            "c0": {"cpus": "1,6-7", "exclusive": False, "offline": "2-3"}
        }
        assert await reconcile(node.books) == []
        # Nobody else gets them, nor CPUs on which it still may run.
        assert (await node.admit(manifest("later", "2"))).phase is not PodPhase.REJECTED
        assert node.cpus("db") == node.cpus("web") == {"c0": "1"}
        await node.switch(EVERY)
        assert node.cpus("db") == {"c0": "2-3"}
        assert await reconcile(node.books) == []
        kinds = [entry.kind for entry in await node.store.history()]
        assert [kind for kind in kinds if kind in ("displaced", "returned")] == [
            "returned",
            "displaced",
        ]

    run(scenario, Node(version))


@VERSIONS
def test_an_owner_keeps_the_cpus_that_are_left(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("db", "2"))
        await node.switch(EVERY - CPUSet([3]))
        assert node.cpus("db") == {"c0": "2"}
        await node.settle()
        read = json.loads(node.files.documents["uid-db"])["containers"]["c0"]
        assert read == {"cpus": "2", "exclusive": True, "offline": "3"}
        ((_, _, where),) = node.books.view.affected()
        assert told(where) == "of its CPUs 2-3, 3 are offline; it runs on 2"
        assert [*node.books.offline_owners.problems()] == []
        await node.switch(EVERY)
        assert node.cpus("db") == {"c0": "2-3"}
        await node.settle()
        read = json.loads(node.files.documents["uid-db"])["containers"]["c0"]
        assert read == {"cpus": "2-3", "exclusive": True}
        assert [*node.books.view.affected()] == []

    run(scenario, Node(version))


@VERSIONS
def test_an_owner_is_frozen_where_that_is_asked_for(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("db", "2"))
        await node.switch(EVERY - CPUSet([2, 3]))
        assert node.cpus("db") == {"c0": ""}
        assert await reconcile(node.books) == []
        await node.switch(EVERY - CPUSet([2]))
        assert node.cpus("db") == {"c0": "3"}
        await node.switch(EVERY - CPUSet([2, 3]))
        # A container that ends meanwhile is started when its CPUs are back, and not before.
        (status,) = node.runtime.known()
        node.runtime.exit(status.id, 1)
        await node.settle()
        assert node.cpus("db") == {}
        await node.switch(EVERY)
        await node.settle()
        assert node.cpus("db") == {"c0": "2-3"}

    run(scenario, Node(version, OwnerOffline.FREEZE))


@VERSIONS
@POLICIES
def test_a_displaced_pod_is_deleted(version: int, policy: OwnerOffline) -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("db", "2", terminationGracePeriodSeconds=30))
        await node.switch(EVERY - CPUSet([2, 3]))
        seen: list[str] = []
        signal = node.runtime.signal

        async def signalled(container_id: str, number: int) -> None:
            (status,) = node.runtime.known()
            seen.append(str(node.cgroups.allowed(status.pid or 0)))
            await signal(container_id, number)

        node.runtime.signal = signalled  # type: ignore[method-assign,assignment] # looks on
        await node.manager.release("db")
        assert seen == ["1,4-7"], "it hears of its end"
        assert not node.runtime.known()
        assert node.books.view.state.ledger.default == EVERY
        await node.switch(EVERY)

    run(scenario, Node(version, policy))


@VERSIONS
@POLICIES
def test_a_displaced_pod_that_is_not_deleted_hears_of_its_end_too(
    version: int, policy: OwnerOffline
) -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("db", "2", terminationGracePeriodSeconds=30))
        await node.switch(EVERY - CPUSet([2, 3]))
        (status,) = node.runtime.known()
        node.runtime.ignores_sigterm.add(status.id)
        life = node.manager.lives["uid-db"]
        life.failure = "a device failed"
        node.manager.ended_by_itself(life, PodPhase.FAILED)
        await node.settle()
        assert node.cpus("db") == {"c0": "1,4-7"}, "whose record says that it runs"
        assert node.store.pods["uid-db"].phase is PodPhase.RUNNING
        assert await reconcile(node.books) == []
        node.runtime.exit(status.id, 0)
        await asyncio.wait_for(life.gone.wait(), 60)
        assert node.books.view.pods.ended["uid-db"].message == "a device failed"
        await node.switch(EVERY)

    run(scenario, Node(version, policy))


@VERSIONS
@POLICIES
def test_everybody_is_frozen_while_the_shared_pool_has_no_cpu(
    version: int, policy: OwnerOffline
) -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("web", ""))
        await node.admit(manifest("db", "2"))
        await node.admit(manifest("other", "2"))
        await node.switch(CPUSet([4, 5]))
        assert node.cpus("web") == node.cpus("db") == {"c0": ""}
        assert node.cpus("other") == {"c0": "4-5"}
        assert await reconcile(node.books) == []
        assert len([*node.books.offline_owners.problems()]) == 2
        await node.kill()
        await node.start()
        assert node.cpus("web") == node.cpus("db") == {"c0": ""}
        await node.switch(CPUSet([1, 4, 5]))
        assert node.cpus("web") == {"c0": "1"}
        frozen = policy is OwnerOffline.FREEZE
        assert node.cpus("db") == {"c0": "" if frozen else "1"}
        await node.switch(EVERY)
        assert node.cpus("db") == {"c0": "2-3"}
        assert node.cpus("web") == {"c0": "1,6-7"}
        assert await reconcile(node.books) == []

    run(scenario, Node(version, policy))


@VERSIONS
def test_a_new_owner_is_not_started_beside_one_that_has_just_lost_its_cpus(version: int) -> None:
    """The CPUs go offline, and before the agent has heard of it somebody asks for others."""

    async def scenario(node: Node) -> None:
        await node.admit(manifest("db", "2"))
        await node.switch(EVERY - CPUSet([2, 3]), tell=False)
        await node.admit(manifest("new", "2"))
        assert node.cpus("new") == {"c0": "4-5"}
        assert node.cpus("db") == {"c0": "1,6-7"}

    run(scenario, Node(version))


@VERSIONS
def test_cpus_that_go_while_room_is_made_displace_before_the_start(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("db", "2"))
        shrink = node.cgroups.set_shared

        async def shrunk(cpus: CPUSet) -> None:
            await shrink(cpus)
            node.cgroups.online = EVERY - CPUSet([2, 3, 4])

        node.cgroups.set_shared = shrunk  # type: ignore[method-assign] # a CPU fails meanwhile
        await node.admit(manifest("new", "2"))
        key, first = node.runtime.ran_on[-1]
        assert (key.pod_uid, str(first)) == ("uid-new", "5")
        assert node.cpus("db") == {"c0": "1,6-7"}

    run(scenario, Node(version))


def test_what_could_not_be_moved_is_said_and_tried_again() -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("db", "2"))
        node.cgroups.faults.fail_at = {node.cgroups.faults.calls + 1}
        await node.switch(EVERY - CPUSet([2, 3]))
        (problem,) = node.books.offline_owners.problems()
        assert "this could not be done" in problem
        assert node.books.counters.cgroup_failures == 1
        await asyncio.sleep(0.25)
        await node.books.settle()
        (problem,) = node.books.offline_owners.problems()
        assert "this could not be done" not in problem

    run(scenario, Node())


def test_who_cannot_be_brought_is_told_of_once_and_tried_more_and_more_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For five minutes nothing helps, and a look comes each 0.25 s."""
    node = Node()
    place = node.cgroups.place
    tries = 0

    async def refused(key: ContainerKey, placement: Placement) -> str:
        nonlocal tries
        if key.pod_uid == "uid-db":
            tries += 1
            raise CgroupError("processes fork faster than they can be moved")
        return await place(key, placement)

    async def scenario(_: Node) -> None:
        owners = node.books.offline_owners
        await node.admit(manifest("db", "2"))
        before, node.problems[:] = len(node.store.entries), []
        with monkeypatch.context() as patch:
            patch.setattr(node.cgroups, "place", refused)
            await node.switch(EVERY - CPUSet([2, 3]))
            for _look in range(1200):
                await node.books.settle()
                await asyncio.sleep(0.25)
        assert [entry.kind for entry in node.store.entries[before:]] == ["displaced"]
        assert len([text for text in node.problems if "fork faster" in text]) == 1
        assert 30 <= tries <= 40
        for _look in range(40):
            await node.books.settle()
            await asyncio.sleep(0.25)
        assert not owners.misplaced
        (entry,) = node.store.entries[before + 1 :]
        assert json.loads(entry.document)["problem"] == ""

    run(scenario, node)


@VERSIONS
def test_a_displaced_owner_shares_the_reserved_cpus_when_no_others_are_left(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("db", "1"))
        await node.admit(manifest("gone", "1"))
        await node.switch(CPUSet([0, 1]))
        assert node.books.offline_owners.misplaced == {}
        assert (node.cpus("db"), node.cpus("gone")) == ({"c0": "1"}, {"c0": "0"})

    run(scenario, Node(version))


@VERSIONS
@POLICIES
def test_an_owner_is_displaced_while_another_container_of_its_pod_is_started(
    version: int, policy: OwnerOffline
) -> None:
    """That may take as long as an image does."""

    async def scenario(node: Node) -> None:
        await node.admit(manifest("other", "2"))
        pulled, create = asyncio.Event(), node.runtime.create

        async def slow(spec: ContainerSpec) -> ContainerStatus:
            if spec.key == ContainerKey("uid-two", "c1"):
                await pulled.wait()
            return await create(spec)

        node.runtime.create = slow  # type: ignore[method-assign] # takes its time
        await node.admit(manifest("two", "2", "2"), wait=False)
        await node.settle()
        own = node.books.view.state.ledger.cpus_of("uid-two", "c0")
        assert own == CPUSet([4, 5])
        await node.switch(EVERY - own)
        displaced = {"c0": "1" if policy is OwnerOffline.SHARE else ""}
        assert node.cpus("two") == displaced
        assert node.books.offline_owners.misplaced == {}
        assert await reconcile(node.books) == []
        # What others do to it is put right, too.
        await node.cgroups.place(ContainerKey("uid-two", "c0"), Placement(CPUSet([2, 3])))
        (drift,) = await reconcile(node.books)
        assert drift.repaired
        assert node.cpus("two") == displaced
        pulled.set()

    run(scenario, Node(version, policy))


@VERSIONS
def test_who_could_not_be_displaced_while_it_was_started_is_afterwards(version: int) -> None:
    """It waits for the lock to write down that it was started again."""

    async def scenario(node: Node) -> None:
        await node.admit(manifest("other", "2"))
        await node.admit(manifest("db", "2"))
        start, waits, runs = node.runtime.start, [], asyncio.Event()
        holding = node.books.change()

        async def started(container_id: str) -> ContainerStatus:
            status = await start(container_id)
            await holding.__aenter__()
            node.cgroups.online = EVERY - CPUSet([4, 5])
            waits.append(asyncio.create_task(node.books.set_offline(CPUSet([4, 5]))))
            await asyncio.sleep(0)
            runs.set()
            return status

        node.runtime.start = started  # type: ignore[method-assign] # and its CPUs go
        (status,) = [one for one in node.runtime.known() if one.key.pod_uid == "uid-db"]
        node.runtime.exit(status.id, 1)
        await runs.wait()
        await node.settle()
        await holding.__aexit__(None, None, None)
        await waits[0]
        assert node.books.offline_owners.misplaced == {ContainerKey("uid-db", "c0"): BUSY}
        await node.settle()
        await node.books.settle()
        assert node.books.offline_owners.misplaced == {}
        assert node.cpus("db") == {"c0": "1,6-7"}

    run(scenario, Node(version))


@VERSIONS
def test_who_runs_and_could_not_be_displaced_at_once_is_no_failed_start(version: int) -> None:
    async def scenario(node: Node) -> None:
        start = node.runtime.start

        async def started(container_id: str) -> ContainerStatus:
            status = await start(container_id)
            await node.switch(EVERY - CPUSet([2, 3]))
            node.cgroups.faults.fail_at = {node.cgroups.faults.calls + 1}
            return status

        node.runtime.start = started  # type: ignore[method-assign] # and its CPUs go
        await node.admit(manifest("db", "2", restartPolicy="Never"))
        (status,) = node.runtime.known()
        assert status.state is ContainerState.RUNNING
        assert node.books.statuses[ContainerKey("uid-db", "c0")].id == status.id
        assert [*node.books.offline_owners.misplaced] == [ContainerKey("uid-db", "c0")]
        await node.settle()
        await node.books.settle()
        assert node.books.offline_owners.misplaced == {}

    run(scenario, Node(version))


def test_who_is_frozen_without_need_goes_on() -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("web", ""))
        key = ContainerKey("uid-web", "c0")
        placement = node.cgroups.groups[key].placement
        await node.cgroups.place(key, replace(placement, frozen=True))
        (drift,) = await reconcile(node.books)
        assert (drift.found, drift.repaired) == ("frozen", True)
        assert node.cpus("web") == {"c0": "1-7"}

    run(scenario, Node())


def test_an_owner_of_which_nothing_can_be_read_has_not_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unread(*_: object) -> bool:
        raise CgroupError("/proc/7: Too many open files")

    async def scenario(node: Node) -> None:
        await node.admit(manifest("db", "2"))
        with monkeypatch.context() as patch:
            patch.setattr(node.cgroups, "enter", unread)
            patch.setattr(node.cgroups, "lives", unread)
            await node.switch(EVERY - CPUSet([2, 3]))
        assert list(node.books.offline_owners.misplaced) == [ContainerKey("uid-db", "c0")]

    run(scenario, Node())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 5), st.sampled_from(["", "1", "2", "3"])),
        st.tuples(st.just("release"), st.integers(0, 5), st.just("")),
        st.tuples(st.just("exit"), st.integers(0, 5), st.just("")),
        st.tuples(st.just("switch"), st.integers(0, 255), st.sampled_from(["told", ""])),
        st.tuples(st.just("restart"), st.just(0), st.just("")),
        st.tuples(st.just("reconcile"), st.just(0), st.just("")),
    ),
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from([1, 2]), st.sampled_from([*OwnerOffline]))
def test_nobody_ever_runs_on_an_owners_cpus(
    steps: list[tuple[str, int, str]], version: int, policy: OwnerOffline
) -> None:
    async def scenario(node: Node) -> None:
        late = False
        for kind, number, what in steps:
            await step(node, kind, number, what)
            if late:  # the word of the kernel comes after something else was done
                await node.switch(node.cgroups.online)
                await reconcile(node.books)
            await node.settle()
            late = kind == "switch" and what != "told"
            if not late:
                node.check()
        await node.switch(EVERY)
        await node.settle()
        # What came back before the agent was told, cgroup v1 has forgotten.
        await reconcile(node.books)
        assert await reconcile(node.books) == []
        for pod in node.books.view.pods.active.values():
            for name, cpus in pod.record.assignments.items():
                # One that waits to be started again runs nowhere.
                assert node.cpus(pod.record.name).get(name, str(cpus)) == str(cpus)
        assert node.cgroups.shared == node.books.view.pool

    run(scenario, Node(version, policy))


async def step(node: Node, kind: str, number: int, what: str) -> None:
    name = f"p{number}"
    manager = node.manager
    match kind:
        case "admit" if f"uid-{name}" not in manager.books.view.pods.active:
            await node.admit(manifest(name, what), wait=False)
        case "release" if f"uid-{name}" in manager.books.view.pods.active:
            await asyncio.wait_for(manager.release(name), 5)
        case "exit":
            for status in node.runtime.known():
                if status.key.pod_uid == f"uid-{name}" and status.pid is not None:
                    node.runtime.exit(status.id, 1)
        case "switch":
            # CPU 0 is the first and stays.
            await node.switch(CPUSet.from_mask(number | 1), tell=what == "told")
        case "restart":
            await node.kill()
            await node.start()
        case "reconcile":
            try:
                await reconcile(manager.books)
            except PortError as error:
                raise AssertionError(str(error)) from None
        case _:
            pass

"""Starts while CPUs are offline, and repairs: whose CPUs they are, and who runs there."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.reconciler import reconcile
from pinfold.node.recovery.recovery import OnMismatch
from pinfold.node.settings import OwnerOffline
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey
from pinfold.ports.runtime import ContainerState, ContainerStatus
from tests.scenes.manager_harness import Copy, manifest
from tests.scenes.offline_harness import EVERY, POLICIES, VERSIONS, Node, run


@VERSIONS
@pytest.mark.parametrize("left", ["2", ""])
@pytest.mark.parametrize("lost", ["web", "db"])
def test_a_repair_leaves_an_owner_its_offline_cpus(version: int, left: str, lost: str) -> None:
    """Of which cgroup v1 has nothing in its cpuset any more."""

    async def scenario(node: Node) -> None:
        copies = {}
        for name in ("db", "web"):
            copies[name] = Copy(node)
            await node.admit(manifest(name, "2" if name == "db" else ""))
        await node.switch(EVERY - CPUSet([2, 3]) | CPUSet.parse(left), tell=left != "")
        await node.kill()
        copies[lost].put_back(node, promised=True)
        await node.start(OnMismatch.REPAIR)
        assert node.books.view.state.ledger.assignments == {"uid-db": {"c0": CPUSet([2, 3])}}
        await node.switch(EVERY)
        await node.settle()
        assert node.cpus("db") == {"c0": "2-3"}

    run(scenario, Node(version))


@VERSIONS
def test_who_was_created_and_loses_its_cpus_as_it_is_placed_is_made_anew(version: int) -> None:
    async def scenario(node: Node) -> None:
        start = node.runtime.start

        async def killed(container_id: str) -> ContainerStatus:
            await asyncio.Event().wait()
            return await start(container_id)

        async def kept(container_id: str) -> None:
            assert container_id, "and nobody is there to remove it"

        # The agent is killed in between.
        node.runtime.start, node.runtime.remove = killed, kept  # type: ignore[method-assign] # gone
        await node.admit(manifest("db", "2", restartPolicy="Never"), wait=False)
        await node.settle()
        await node.kill()
        (created,) = node.runtime.known()
        assert created.state is ContainerState.CREATED
        place = node.cgroups.place

        async def gone(key: ContainerKey, placement: Placement) -> str:
            node.cgroups.place = place  # type: ignore[method-assign] # once
            await node.switch(EVERY - CPUSet([2, 3]))
            return await place(key, placement)

        node.cgroups.place = gone  # type: ignore[method-assign] # as its CPUs go
        await node.start()
        await node.settle()
        assert node.cpus("db") == {"c0": "1,4-7"}
        assert "uid-db" in node.books.view.pods.active

    run(scenario, Node(version))


async def held(node: Node, pod: str) -> int:
    """Let the runtime lose a pod's container while no agent is there; its process."""
    (status,) = [one for one in node.runtime.known() if one.key.pod_uid == f"uid-{pod}"]
    await node.kill()
    node.runtime.forget(status.id)
    assert status.pid is not None
    return status.pid


@VERSIONS
@POLICIES
def test_what_the_runtime_does_not_know_is_displaced_as_all_others(
    version: int, policy: OwnerOffline
) -> None:
    """Its CPUs go offline before a start, come back and go again: nobody knows its process."""

    async def scenario(node: Node) -> None:
        displaced = "1,6-7" if policy is OwnerOffline.SHARE else ""
        await node.admit(manifest("db", "2"))
        await node.admit(manifest("other", "2"))
        pid = await held(node, "db")
        node.cgroups.online = EVERY - CPUSet([2, 3])
        await node.start()
        assert str(node.cgroups.allowed(pid)) == displaced
        assert await reconcile(node.books) == []
        await node.switch(EVERY)
        assert str(node.cgroups.allowed(pid)) == "2-3"
        node.cgroups.faults.fail_at = {node.cgroups.faults.calls + 1}
        await node.switch(EVERY - CPUSet([2, 3]))
        assert [*node.books.offline_owners.misplaced] == [ContainerKey("uid-db", "c0")]
        await asyncio.sleep(0.25)
        await node.books.settle()
        assert str(node.cgroups.allowed(pid)) == displaced
        # Others' writes are put right as well.
        await node.switch(EVERY)
        node.cgroups.groups[ContainerKey("uid-db", "c0")].cpus = EVERY
        (drift,) = await reconcile(node.books)
        assert drift.repaired
        assert str(node.cgroups.allowed(pid)) == "2-3"

    run(scenario, Node(version, policy))


@VERSIONS
def test_what_the_runtime_does_not_know_goes_where_a_repair_puts_it(version: int) -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("db", "2"))
        pid = await held(node, "db")
        node.config = replace(node.config, reserved_system_cpus=CPUSet([2]))
        await node.start(OnMismatch.REPAIR)
        own = node.books.view.state.ledger.cpus_of("uid-db", "c0")
        assert own is not None
        assert own != CPUSet([2, 3])
        assert node.cgroups.allowed(pid) == own
        assert await reconcile(node.books) == []

    run(scenario, Node(version))


@VERSIONS
@pytest.mark.parametrize("reserved", [CPUSet([0, 1, 2, 3]), CPUSet([2])], ids=["ended", "moved"])
def test_a_repair_gives_nobody_cpus_on_which_an_owner_still_runs(
    version: int, reserved: CPUSet
) -> None:
    """Who lost its CPUs has ended, or is elsewhere, before the pool has them."""

    async def scenario(node: Node) -> None:
        await node.admit(manifest("web", ""))
        await node.admit(manifest("db", "4"))
        await node.kill()
        node.config = replace(node.config, reserved_system_cpus=reserved)
        shared: list[CPUSet] = []
        set_shared, place = node.cgroups.set_shared, node.cgroups.place

        def look() -> None:
            observed = {
                status.key.pod_uid: node.cgroups.allowed(status.pid)
                for status in node.runtime.known()
                if status.pid in node.cgroups.processes
            }
            shared.append(observed["uid-web"] & observed.get("uid-db", CPUSet()))

        async def shrunk(cpus: CPUSet) -> None:
            await set_shared(cpus)
            look()

        async def placed(key: ContainerKey, placement: Placement) -> str:
            note = await place(key, placement)
            look()
            return note

        node.cgroups.set_shared, node.cgroups.place = shrunk, placed  # type: ignore[method-assign] # look on
        await node.start(OnMismatch.REPAIR)
        assert node.store.pods["uid-db"].assignments.get("c0") != CPUSet([2, 3, 4, 5])
        assert shared
        assert not any(shared)
        assert node.cgroups.shared == node.books.view.pool

    run(scenario, Node(version))

"""An agent that starts on the record of one with another runtime."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.recovery.recovery import MismatchError, OnMismatch
from pinfold.ports.records import NodeRecord
from tests.scenes.manager_harness import Harness, manifest, run


@pytest.mark.parametrize("on_mismatch", OnMismatch)
def test_pods_of_another_runtime_are_left_to_it(on_mismatch: OnMismatch) -> None:
    async def scenario(node: Harness) -> None:
        await node.kill()
        node.settings = replace(node.settings, runtime="cri")
        await node.start()
        for number in range(7):
            await node.admit(manifest(f"p{number}", "1"))
        await node.kill()
        before = await node.store.load()
        assert before.node is not None
        assert before.node.runtime == "cri"
        node.settings = replace(node.settings, runtime="process")
        words = (
            r"pods of runtime cri are recorded \(default/p0, .*, default/p4, 2 more\), and runtime "
            r"process does not see .*start with `runtime: cri` and delete them, or go back\)$"
        )
        with pytest.raises(MismatchError, match=words):
            await node.start(on_mismatch)
        assert await node.store.load() == before

        node.settings = replace(node.settings, runtime="cri")
        await node.start()
        for number in range(7):
            await node.manager.release(f"p{number}", grace=0)
        await node.kill()
        node.settings = replace(node.settings, runtime="process")
        await node.start()
        record = (await node.store.load()).node
        assert record is not None
        assert record.runtime == "process"

    run(scenario)


def test_the_record_tells_of_what_node_it_is() -> None:
    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        ledger = node.books.view.state.ledger
        assert len(ledger.exclusive) == 2
        assert (await node.store.load()).node == NodeRecord(
            policy_name="static",
            default=ledger.default,
            reserved=CPUSet([0]),
            machine=node.view.topology.cpus,
            memory_policy="None",
            runtime=node.settings.runtime,
            cgroups=node.settings.cgroups,
            kubelet_version=node.settings.kubelet_version.full,
        )

    run(scenario)


def test_a_record_that_does_not_tell_the_runtime_is_taken_over() -> None:
    """An older program wrote it."""

    async def scenario(node: Harness) -> None:
        await node.admit(manifest("db", "2"))
        await node.kill()
        node.settings = replace(node.settings, runtime="nri")
        await node.start()
        await node.kill()
        node.settings = replace(node.settings, runtime="process")
        with pytest.raises(MismatchError, match=r"default/db\).*nri` and let the kubelet end them"):
            await node.start(OnMismatch.REPAIR)
        node.settings = replace(node.settings, runtime="nri")
        await node.start()

    run(scenario)

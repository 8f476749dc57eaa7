"""Many pods on a large node: all fakes, the manager's own work."""

from __future__ import annotations

import random

from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.records import PodPhase
from tests.scenes.manager_harness import Harness, manifest, run_virtually

CONFIG = NodeConfig(
    cpu_manager_policy="static", reserved_system_cpus=CPUSet([0, 128]), max_pods=1000
)
SHAPES = (("",), ("2",), ("100m", ""), ("1", "500m"), ("4",))


def test_a_thousand_pods_come_and_go_on_256_cpus() -> None:
    async def scenario() -> tuple[int, int]:
        node = Harness(machine="2s64c2t@half", config=CONFIG)
        await node.start()
        chance = random.Random(3)  # noqa: S311 - pods, not secrets
        admitted = rejected = 0
        for number in range(1000):
            record = await node.admit(manifest(f"p{number}", *chance.choice(SHAPES)), wait=False)
            if record.phase is PodPhase.REJECTED:
                rejected += 1
            else:
                admitted += 1
            if number % 3 == 2 and node.books.view.pods.active:
                await node.manager.release(chance.choice(list(node.books.view.pods.active)))
            if number % 100 == 99:
                await node.settle()
                node.check()
        for uid in list(node.books.view.pods.active):
            await node.manager.release(uid)
        await node.settle()
        node.check()
        assert len(node.books.view.state.ledger.default) == 256
        assert node.runtime.known() == ()
        assert node.files.documents == {}
        await node.kill()
        return admitted, rejected

    admitted, rejected = run_virtually(scenario())
    assert admitted + rejected == 1000
    assert admitted > 400

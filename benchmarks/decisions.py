"""Workloads of a whole decision: what a node answers to a plain pod, as a simulation asks it.

Every container is Guaranteed with whole CPUs, and one pod stands for all that ask for the same.
The node is filled step by step, and asked anew at each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from pinfold.admission.admission import NodeState, decide
from pinfold.admission.settling import settle
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.planning.planner import Planner

Workload = Callable[[], Callable[[], object]]

_STEPS: Final = 20
_GIB: Final = 1 << 30


def _pod(cpus: int) -> Pod:
    amounts = {"cpu": Quantity(cpus), "memory": Quantity(cpus * 4 * _GIB)}
    return Pod("newcomer", "newcomer", containers=(Container("main", amounts, amounts),))


def _decisions(machine: str, topology_manager: str) -> Callable[[], object]:
    """Twenty decisions, each beside one more pod; a call makes the next one."""
    config = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet([0, 64]),
        topology_manager_policy=topology_manager,
    )
    planner = Planner(parse_short_form(machine), config)
    pods = [_pod(cpus) for cpus in (2, 4, 8, 1)]
    state, asked = planner.empty, list[tuple[NodeState, Pod]]()
    for step in range(_STEPS):
        pod = pods[step % len(pods)]
        asked.append((state, pod))
        state = settle(state, decide(planner.node, state, replace(pod, uid=str(step))))
    turn = 0

    def work() -> object:
        nonlocal turn
        turn = (turn + 1) % _STEPS
        return decide(planner.node, *asked[turn])

    return work


WORKLOADS: Final[dict[str, Workload]] = {
    "decide.static": partial(_decisions, "2s32c2t@1Ti", "none"),
    "decide.restricted.numa8": partial(_decisions, "2s4n32c2t@1Ti", "restricted"),
}

"""The planner: a machine, a kubelet's configuration and pods in; the kubelet's placement out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import Decision, Node, NodeState, decide, settle
from pinfold.admission.model import build_node, check_device_hints, empty_state
from pinfold.core.devices.devices import DeviceInventory
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.faults import KUBELET, AllocationRules
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.kubelet_view import KubeletView, kubelet_view
from pinfold.core.machine.machine import Machine
from pinfold.core.memory.memory import Block
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.pod.resource_names import is_extended
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Ledger

_NO_DEVICES: Final[Mapping[str, tuple[str, ...]]] = {}


class ContainerPlacement(Struct, frozen=True):
    """Where a container runs, on its own CPUs or the shared pool, and what else it was given.

    ``kind`` is "container", "init" or "sidecar"; ``memory`` are the blocks that the memory manager
    gave it, ``devices`` the ids by resource.
    """

    name: str
    cpus: CPUSet
    exclusive: bool
    kind: str
    memory: tuple[Block, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = _NO_DEVICES

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """The NUMA nodes that its memory may come from (``cpuset.mems``); empty for any."""
        return tuple(sorted({node for block in self.memory for node in block.numa_affinity or ()}))


class PodPlacement(Struct, frozen=True):
    """The answer to one pod, and where its containers ended up when all pods were in."""

    decision: Decision
    containers: tuple[ContainerPlacement, ...]

    @property
    def pod(self) -> Pod:
        """The pod."""
        return self.decision.pod

    @property
    def admitted(self) -> bool:
        """Whether it runs."""
        return self.decision.admitted


class Plan(Struct, frozen=True):
    """The placement of some pods on a node, in the order of admission.

    ``shared`` is the kubelet's default CPU set at the end, ``reserved`` what is never exclusive,
    ``allocatable`` what may be exclusive (nothing under policy none); ``state`` is that of the node
    with all pods that were admitted.
    """

    planner: Planner
    pods: tuple[PodPlacement, ...]
    shared: CPUSet
    reserved: CPUSet
    allocatable: CPUSet
    state: NodeState

    @property
    def ledger(self) -> Ledger:
        """Who has which CPUs."""
        return self.state.ledger

    @property
    def pool(self) -> CPUSet:
        """Where the containers of the shared pool run: that may leave isolated CPUs out."""
        return self.planner.pool(self.ledger, (one.pod for one in self.admitted))

    @property
    def admitted(self) -> tuple[PodPlacement, ...]:
        """The pods that run."""
        return tuple(pod for pod in self.pods if pod.admitted)

    @property
    def rejected(self) -> tuple[PodPlacement, ...]:
        """The pods that were refused."""
        return tuple(pod for pod in self.pods if not pod.admitted)


class Planner:
    """A configured node to try pods on.

    Args:
        machine: the hardware.
        config: the kubelet's settings.
        rules: the kubelet's allocation (the default), or the sound one.
        devices: what the device plugins list.  Whether they would rather give away other devices
            (GetPreferredAllocation) is not known to a plan.

    Raises:
        NodeError: a kubelet with this configuration would not start, or not serve, on the machine.
        MachineError: a kubelet would see no CPU.

    >>> from pinfold import parse_short_form
    >>> planner = Planner(
    ...     parse_short_form("1s4c2t"),
    ...     NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0])),
    ... )
    >>> planner.plan([]).shared
    CPUSet('0-7')
    """

    def __init__(
        self,
        machine: Machine,
        config: NodeConfig,
        *,
        rules: AllocationRules = KUBELET,
        devices: DeviceInventory | None = None,
    ) -> None:
        self.machine = machine
        self.config = config
        self.rules = rules
        self.view: KubeletView = kubelet_view(machine)
        self.node: Node = build_node(machine, config, view=self.view, rules=rules)
        if devices:
            check_device_hints(self.node, self.view)
        self.devices: DeviceInventory = {
            name: replace(resource, preferred_allocation=False)
            for name, resource in (devices or {}).items()
        }

    @property
    def empty(self) -> NodeState:
        """The node with nothing on it."""
        empty = empty_state(self.node, self.view.topology.cpus)
        return replace(empty, devices=DeviceState(self.devices)) if self.devices else empty

    def follow(self, machine: Machine, view: KubeletView, node: Node) -> None:
        """Go on with a machine that has changed, and with a node that has followed it."""
        self.machine, self.view = machine, view
        self.node = replace(
            self.node, allocatable=node.allocatable, memory_policy=node.memory_policy
        )

    def empty_with(self, offline: CPUSet) -> NodeState:
        """The node with nothing on it, and with some CPUs offline."""
        return replace(self.empty, offline=offline)

    def unknown_resources(self, pods: Iterable[Pod]) -> tuple[str, ...]:
        """Extended resources that pods request and no plugin lists, in the order of their names.

        The kubelet passes such requests over, and so does a plan.
        """
        asked = {
            name
            for pod in pods
            for container in pod.all_containers
            for name, quantity in container.requests.items()
            if quantity.sign > 0 and is_extended(name)
        }
        return tuple(sorted(asked - self.devices.keys()))

    def decisions(self, pods: Iterable[Pod]) -> Iterator[tuple[Decision, NodeState]]:
        """Decide about the pods one after the other; each with the state it was made in."""
        state = self.empty
        for pod in admission_order(pods):
            decision = decide(self.node, state, pod)
            yield decision, state
            state = settle(state, decision)

    def pool(self, ledger: Ledger, pods: Iterable[Pod]) -> CPUSet:
        """Where the containers of the shared pool run while these pods do."""
        isolation = self.node.isolation
        return ledger.default if isolation is None else isolation.shared(ledger.default, pods)

    def plan(self, pods: Iterable[Pod]) -> Plan:
        """Place the pods, oldest first, in the order given where they are equally old."""
        decisions = []
        state = self.empty
        for pod in admission_order(pods):
            decision = decide(self.node, state, pod)
            decisions.append(decision)
            state = settle(state, decision)
        ledger = state.ledger
        policy = self.node.cpu_policy
        pool = self.pool(ledger, (one.pod for one in decisions if one.admitted))
        return Plan(
            planner=self,
            pods=tuple(PodPlacement(d, _placements(d, pool)) for d in decisions),
            shared=ledger.default,
            reserved=self.config.reserved_system_cpus if policy is None else policy.reserved,
            allocatable=CPUSet() if policy is None else policy.assignable,
            state=state,
        )


def admission_order(pods: Iterable[Pod]) -> list[Pod]:
    """The order in which a kubelet that starts admits pods: by creation, else as given."""
    return sorted(pods, key=lambda pod: pod.creation_timestamp or "")


def _placements(decision: Decision, shared: CPUSet) -> tuple[ContainerPlacement, ...]:
    pod = decision.pod
    nowhere = CPUSet()

    def place(container: Container, kind: str) -> ContainerPlacement:
        allocation = decision.allocations.get(container.name)
        cpus = shared if decision.admitted else nowhere
        return ContainerPlacement(
            name=container.name,
            cpus=cpus if allocation is None else allocation.cpus,
            exclusive=allocation is not None,
            kind=kind,
            memory=decision.memory.get(container.name, ()),
            devices=decision.devices.get(container.name, _NO_DEVICES),
        )

    return tuple(
        place(c, "sidecar" if c.is_sidecar else "init") for c in pod.init_containers
    ) + tuple(place(c, "container") for c in pod.containers)

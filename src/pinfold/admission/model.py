"""Puts a node together from a machine and a kubelet's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState
from pinfold.admission.isolation import Isolation
from pinfold.admission.smt_isolation import SMTIsolation
from pinfold.core.cpu.choice import ReservationError
from pinfold.core.cpu.hints import MAX_HINT_NODES
from pinfold.core.cpu.static_policy import StaticPolicy
from pinfold.core.devices.devices import DeviceInventory
from pinfold.core.devices.policy import nodes_with_devices
from pinfold.core.devices.table import DeviceTable
from pinfold.core.kubelet.faults import KUBELET, AllocationRules
from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS, POD_LEVEL_RESOURCES
from pinfold.core.kubelet.node_allocatable import (
    PODS,
    AllocatableError,
    MachineCapacity,
    allocatable_reservation,
    check_allocatable,
    node_allocatable,
    reserved_cpu_count,
)
from pinfold.core.kubelet.node_config import STATIC, NodeConfig
from pinfold.core.kubelet.own_policies import OwnPolicies
from pinfold.core.kubelet.policy_options import (
    CPU_MANAGER_OPTIONS,
    TOPOLOGY_MANAGER_OPTIONS,
    PolicyOptionError,
    StaticPolicyOptions,
)
from pinfold.core.kubelet.version_rules import DEVICE_HINTS_BY_DEVICES
from pinfold.core.machine.kubelet_view import KubeletView, kubelet_view
from pinfold.core.machine.locality import Localities
from pinfold.core.machine.machine import Machine
from pinfold.core.memory.policy import StaticMemoryPolicy, create_memory_policy
from pinfold.core.memory.reservation import (
    MemoryPolicyError,
    MemoryReservationError,
)
from pinfold.core.pod.pod import CPU
from pinfold.core.topology_manager.hints import HintError, NUMAInfo
from pinfold.core.topology_manager.manager import TopologyManager, TopologyManagerError
from pinfold.core.topology_manager.policy import Policy, Scope
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.errors import PinfoldError
from pinfold.state.ledger import Bounds, Ledger

_REFUSALS: Final = (
    AllocatableError,
    HintError,
    MemoryPolicyError,
    PolicyOptionError,
    ReservationError,
    TopologyManagerError,
)


_KUBELET_VERDICT: Final = "the kubelet would not start"
_OWN_VERDICT: Final = "the configuration does not fit this machine"


class NodeError(PinfoldError, ValueError):
    """A configuration with which a kubelet would not start, or not serve, on this machine.

    ``problem`` is the kubelet's text where it has one, ``remedy`` what to do about it; ``verdict``
    is what it means for whoever asked, a plan of what a kubelet does or an agent.
    """

    def __init__(self, problem: str, remedy: str, *, verdict: str) -> None:
        super().__init__(f"{verdict}: {problem} ({remedy})")
        self.problem = problem
        self.remedy = remedy


def build_node(
    machine: Machine,
    config: NodeConfig,
    *,
    view: KubeletView | None = None,
    rules: AllocationRules = KUBELET,
) -> Node:
    """Check a configuration against a machine, in the kubelet's order and words.

    Raises:
        NodeError: a kubelet would refuse to start.
        MachineError: a kubelet would see no CPU.
    """
    view = view or kubelet_view(machine)
    try:
        managed = config.topology_manager_policy != "none"
        numa = NUMAInfo(view.numa_nodes, view.distances) if managed else NUMAInfo(())
        topology_manager = TopologyManager.create(
            numa,
            config.topology_manager_policy,
            config.topology_manager_scope,
            config.topology_manager_policy_options,
            config.feature_gates,
            config.kubelet_version,
        )
        policy = _cpu_policy(view, config, rules)
        capacity = capacity_of(machine, view)
        check_allocatable(_with_memory(capacity), config)
        allocatable = allocatable_amounts(capacity, config)
        memory_policy = _memory_policy(view, config, capacity, rules)
    except _REFUSALS as error:
        raise NodeError(str(error), _remedy(error, view, config), verdict=_verdict(rules)) from None
    if managed and policy is not None:
        _check_hints(len(view.topology.numa_nodes), "topologyManagerPolicy: none", " have CPUs")
    if memory_policy is not None:
        _check_hints(len(view.numa_nodes), "memoryManagerPolicy: None")
    pods = allocatable.pop(PODS)
    smt = _smt(machine, policy, config, rules)
    if smt is not None and smt.use and policy is not None and not smt.siblings:
        raise NodeError(
            "smtIsolate leaves no CPU that could be owned: each core has a reserved thread, or one "
            "that the kubelet does not see",
            "reserve whole cores: reservedSystemCPUs with all threads of a core",
            verdict=_OWN_VERDICT,
        )
    _check_housekeeping(view, config)
    return Node(
        cpu_policy=policy,
        memory_policy=memory_policy,
        # A kubelet knows no such wish, and its answers are what is asked for then.
        localities=None if rules == KUBELET else Localities.of(machine),
        isolation=_isolation(machine, view, config, rules),
        mixes=config.own is not None or rules != KUBELET,
        smt=smt,
        hints_by_devices=DEVICE_HINTS_BY_DEVICES.at(config.kubelet_version),
        load_driven=config.load_driven,
        pod_level=config.gate(POD_LEVEL_RESOURCE_MANAGERS),
        pod_resources=config.gate(POD_LEVEL_RESOURCES),
        rules=rules,
        topology_manager=topology_manager,
        allocatable=allocatable,
        max_pods=pods,
    )


def _isolation(
    machine: Machine, view: KubeletView, config: NodeConfig, rules: AllocationRules
) -> Isolation | None:
    own = config.own
    if own is None and rules == KUBELET:
        return None
    cpus = (machine.isolated | machine.nohz_full) & view.topology.cpus
    use = OwnPolicies().isolated_cpus.use if own is None else own.isolated_cpus.use
    return Isolation(cpus, machine.isolated, use)


def _smt(
    machine: Machine, policy: StaticPolicy | None, config: NodeConfig, rules: AllocationRules
) -> SMTIsolation | None:
    own = config.own
    if own is None and rules == KUBELET:
        return None
    return SMTIsolation.of(machine, policy, use=own is not None and own.smt_isolate.use)


def _verdict(rules: AllocationRules) -> str:
    # An agent keeps to other rules than a kubelet, and speaks for itself.
    return _KUBELET_VERDICT if rules == KUBELET else _OWN_VERDICT


def check_device_hints(node: Node, view: KubeletView, devices: DeviceInventory) -> None:
    """Make sure that these devices can be aligned on this machine; raises NodeError."""
    if node.topology_manager.policy is Policy.NONE:
        return
    for resource in devices.values():
        nodes: Sequence[int] = view.numa_nodes
        if node.hints_by_devices:
            nodes = nodes_with_devices(DeviceTable.of(resource), nodes)
        which = f" have devices {resource.name}" if node.hints_by_devices else ""
        _check_hints(len(nodes), "topologyManagerPolicy: none", which)


def _check_hints(count: int, setting: str, which: str = "") -> None:
    if count <= MAX_HINT_NODES:
        return
    raise NodeError(
        f"{count} NUMA nodes{which or ' are there'}, and all 2^{count} combinations of them would "
        "be tried for each container",
        f"set {setting}",
        verdict="an admission would hardly ever come to an end",
    )


def empty_state(node: Node, machine_cpus: CPUSet) -> NodeState:
    """The state of a node on which nothing runs."""
    policy = node.cpu_policy
    memory = None if node.memory_policy is None else node.memory_policy.empty_state
    if policy is None:
        return NodeState(Ledger.fresh("none", Bounds(machine_cpus)), memory=memory)
    bounds = Bounds(machine_cpus, policy.reserved, policy.options.strict_cpu_reservation)
    # Whatever the policy is called: it places as static does, and so do those who read the state.
    return NodeState(Ledger.fresh(STATIC, bounds), memory=memory)


def allocatable_amounts(capacity: MachineCapacity, config: NodeConfig) -> dict[str, int]:
    """What pods may request in total: milli-CPUs for ``cpu``, whole units for everything else.

    Raises:
        AllocatableError: a threshold that cannot be.
    """
    return {
        name: quantity.milli_value() if name == CPU else quantity.value()
        for name, quantity in node_allocatable(capacity, config).items()
    }


def capacity_of(machine: Machine, view: KubeletView) -> MachineCapacity:
    """What the kubelet counts: the CPUs it sees, all memory, the pages of all nodes."""
    pages: dict[int, int] = {size: pool.total for size, pool in machine.hugepages.items()}
    if not pages:
        for node in machine.numa_nodes:
            for size, pool in node.hugepages.items():
                pages[size] = pages.get(size, 0) + pool.total
    memory = view.memory_bytes
    if memory is None:
        memory = sum(node.memory_bytes or 0 for node in machine.numa_nodes)
    return MachineCapacity(view.topology.num_cpus, memory, pages)


def _with_memory(capacity: MachineCapacity) -> MachineCapacity:
    """Nothing is known to exceed the memory of a machine of which it was not told."""
    return capacity if capacity.memory_bytes else replace(capacity, memory_bytes=1 << 62)


def _cpu_policy(
    view: KubeletView, config: NodeConfig, rules: AllocationRules
) -> StaticPolicy | None:
    if config.cpu_manager_policy == "none":
        if config.cpu_manager_policy_options:
            given = " ".join(f"{k}:{v}" for k, v in config.cpu_manager_policy_options.items())
            raise NodeError(
                f"None policy: received unsupported options=map[{given}]",
                "drop cpuManagerPolicyOptions, or set cpuManagerPolicy: static",
                verdict=_verdict(rules),
            )
        return None
    if not config.gives_exclusive_cpus:
        raise NodeError(
            f'unknown policy: "{config.cpu_manager_policy}"',
            "cpuManagerPolicy is none or static",
            verdict=_verdict(rules),
        )
    count = reserved_cpu_count(config)
    options = StaticPolicyOptions.parse(
        config.cpu_manager_policy_options, config.feature_gates, config.kubelet_version
    )
    return StaticPolicy.create(
        view.topology,
        options,
        reserved_count=count,
        reserved_cpus=config.reserved_system_cpus,
        topology_manager_policy=config.topology_manager_policy,
        rules=rules,
        pod_level=config.gate(POD_LEVEL_RESOURCE_MANAGERS),
    )


def _memory_policy(
    view: KubeletView, config: NodeConfig, capacity: MachineCapacity, rules: AllocationRules
) -> StaticMemoryPolicy | None:
    return create_memory_policy(config, view, allocatable_reservation(capacity, config), rules)


def _check_housekeeping(view: KubeletView, config: NodeConfig) -> None:
    """Interrupts cannot go where there is no CPU."""
    wished = CPUSet() if config.own is None else config.own.irqs.housekeeping_cpus
    if beyond := wished - view.topology.cpus:
        raise NodeError(
            f"irqs.housekeeping is {wished}, and the machine has no CPUs {beyond}",
            f"name some of its CPUs {view.topology.cpus}, or none: the shared pool and the "
            "reserved CPUs",
            verdict=_OWN_VERDICT,
        )


def _remedy(error: ValueError, view: KubeletView, config: NodeConfig) -> str:
    if isinstance(error, AllocatableError):
        if "[cpumanager]" not in str(error):
            return "lower kubeReserved, systemReserved or evictionHard"
        return "reserve CPUs: reservedSystemCPUs (--reserved-cpus 0), or cpu in kubeReserved"
    if isinstance(error, MemoryReservationError) and not any(view.memory.values()):
        return (
            "the machine's source does not tell how much memory its NUMA nodes have: use the "
            "machine itself, a capture, or a short form such as 2s8c2t@64Gi"
        )
    if isinstance(error, MemoryReservationError):
        return _reservation_remedy(str(error), view)
    if isinstance(error, MemoryPolicyError):
        return "memoryManagerPolicy is None or Static"
    if isinstance(error, ReservationError):
        return (
            f"the machine has CPUs {view.topology.cpus}; "
            f"reservedSystemCPUs is {config.reserved_system_cpus or 'not set'}"
        )
    if isinstance(error, PolicyOptionError):
        families = (CPU_MANAGER_OPTIONS, TOPOLOGY_MANAGER_OPTIONS)
        return "; ".join(
            f"{family.manager} options: {', '.join(option.name for option in family.options)}"
            for family in families
        )
    policies = ", ".join(policy.value for policy in Policy)
    scopes = ", ".join(scope.value for scope in Scope)
    return f"topologyManagerPolicy is one of {policies}; topologyManagerScope one of {scopes}"


def _reservation_remedy(problem: str, view: KubeletView) -> str:
    """What to do about a ``reservedMemory`` that does not fit; the texts are upstream's."""
    if "references a NUMA node" in problem:
        nodes = CPUSet(view.numa_nodes)
        return f"numaNode in reservedMemory is the number of a NUMA node of this machine: {nodes}"
    if problem.startswith("reservedMemory keeps"):
        return (
            "spread it over the NUMA nodes, or lower it together with kubeReserved, "
            "systemReserved or evictionHard"
        )
    return (
        "for each resource the limits in reservedMemory must add up to kubeReserved plus "
        "systemReserved plus evictionHard"
    )

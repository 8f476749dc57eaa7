"""The nodes of a fleet, and what they decide.

What a node answers to a pod depends on what is free there, and on nothing else of the node.  So
each kind of node remembers its answers by what was free; every one of them was made by the
planner's own :func:`~pinfold.admission.admission.decide`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Final, TypeAlias

from msgspec.structs import replace

from pinfold.admission.admission import NodeState, decide
from pinfold.admission.capacity import PODS, amounts
from pinfold.admission.decision import Decision
from pinfold.admission.pod_level import owned_counts
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.memory.memory import MemoryState, remove_pod
from pinfold.core.moves.objective import CORES, NUMA_NODES, SOCKETS, UNCORE_CACHES, Objective
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.planner import Planner
from pinfold.planning.simulation.experiment.specification import FleetKind
from pinfold.planning.simulation.fleet.answer import Answer
from pinfold.planning.simulation.fleet.shapes import CONTAINER, PodShape

_MOST_REMEMBERED: Final = 100_000
"""Answers of one kind of node; then it begins anew."""


class FleetNode:
    """A node: what is free there, and who is placed.

    Attributes:
        number: counted from 0 over the fleet.
        model: its kind.
        free: bitmask of the CPUs that nobody has: the kubelet's default CPU set.
        memory, devices: who has them; None where nobody gives out any.
        rest: what is free of these two, as a key; None where there are none.
        sharing: how many pods without CPUs of their own run on it.
        pods: number of the pod -> what it was given.
        idle_sockets, stranded: as they were counted last.
    """

    __slots__ = (
        "devices",
        "free",
        "idle_sockets",
        "memory",
        "model",
        "number",
        "pods",
        "rest",
        "sharing",
        "stranded",
    )

    def __init__(self, number: int, model: NodeModel) -> None:
        self.number = number
        self.model = model
        self.free = model.empty.ledger.default.mask
        self.memory: MemoryState | None = model.empty.memory
        self.devices: DeviceState | None = model.empty.devices if model.has_devices else None
        self.rest = model.rest_of(self.memory, self.devices)
        self.sharing = 0
        self.pods: dict[int, Answer] = {}
        self.idle_sockets = model.idle_sockets(self)
        self.stranded = model.stranded(self.free)

    @property
    def name(self) -> str:
        """Its name in the fleet."""
        return f"{self.model.kind.name}-{self.number - self.model.first}"

    def take(self, pod: int, answer: Answer) -> None:
        """Let a pod in, as was decided."""
        self.pods[pod] = answer
        if answer.claim:
            self.free &= ~answer.claim
        else:
            self.sharing += 1
        if self.rest is not None:
            self._take_rest(str(pod), answer)

    def give(self, pod: int) -> Answer:
        """Let a pod go; what it had been given."""
        answer = self.pods.pop(pod)
        if answer.claim:
            self.free |= answer.claim
        else:
            self.sharing -= 1
        if self.rest is not None:
            uid = str(pod)
            if self.memory is not None:
                self.memory = remove_pod(self.memory, uid)
            if self.devices is not None:
                self.devices = self.devices.without(uid)
            self.rest = self.model.rest_of(self.memory, self.devices)
        return answer

    def copied(self) -> FleetNode:
        """Another node that is as this one is now, to try things on."""
        other = copy(self)
        other.pods = dict(self.pods)
        return other

    def move(self, pod: int, claim: int) -> None:
        """Have a pod run on other CPUs (a bitmask); several may move one after the other."""
        before = self.pods[pod]
        self.pods[pod] = before.moved(claim, self.model.objective)

    def settle_moves(self) -> None:
        """Count anew what is free, once all that moved have moved."""
        free = self.model.empty.ledger.default.mask
        for answer in self.pods.values():
            free &= ~answer.claim
        self.free = free

    def state(self) -> NodeState:
        """The whole state of the node, as the planner has it; a pod's uid is its number."""
        state = self.model.empty
        ledger = state.ledger
        requested: dict[str, int] = {}
        for pod, answer in self.pods.items():
            if answer.claim:
                apart = answer.idle
                idle = None if apart is None else {CONTAINER: CPUSet.from_mask(apart)}
                claims = {CONTAINER: CPUSet.from_mask(answer.claim)}
                ledger = ledger.with_pod(str(pod), claims, idle)
            for name, amount in amounts(answer.shape.pod).items():
                requested[name] = requested.get(name, 0) + amount
        return replace(
            state,
            ledger=ledger,
            memory=self.memory,
            devices=self.devices or state.devices,
            requested=requested,
            pods=len(self.pods),
        )

    def _take_rest(self, uid: str, answer: Answer) -> None:
        if self.memory is not None and answer.blocks and answer.memory is not None:
            assignments = {**self.memory.assignments, uid: {CONTAINER: answer.blocks}}
            self.memory = MemoryState(answer.memory, assignments)
        if self.devices is not None and answer.devices:
            self.devices = self.devices.with_pod(uid, {CONTAINER: answer.devices})
        self.rest = self.model.rest_of(self.memory, self.devices)


RefusedBy: TypeAlias = tuple[FleetNode, Answer]
"""The node that refused a pod, and its answer."""


class NodeModel:
    """Nodes of one kind under one configuration: what they have, and what they answer.

    ``asked`` counts the questions, ``decided`` those that were not remembered.

    Args:
        kind: the machines.
        config: the kubelet's settings.
        first: the number of the first node of the kind.

    Raises:
        NodeError: a kubelet with this configuration would not start on the machine.
        MachineError: a kubelet would see no CPU.
    """

    def __init__(self, kind: FleetKind, config: NodeConfig, first: int = 0) -> None:
        self.kind = kind
        self.config = config
        self.first = first
        self.planner = Planner(kind.machine, config, devices=kind.devices, kernel=kind.kernel)
        self.node, self.empty = self.planner.node, self.planner.empty
        self.has_devices = bool(self.planner.devices)
        topology = self.planner.view.topology
        self.objective = Objective(topology, (NUMA_NODES, SOCKETS, UNCORE_CACHES, CORES))
        policy = self.node.cpu_policy
        self.assignable = 0 if policy is None else policy.assignable.mask
        self._sockets = tuple(mask & self.assignable for mask in topology.sockets.values())
        whole = policy is not None and policy.options.full_pcpus_only
        self._in_whole_cores = policy.group_size if policy is not None and whole else 1
        reserved = policy.reserved_cores if policy is not None and whole else CPUSet()
        self._usable = self.assignable & ~reserved.mask
        smt = self.node.smt
        self._remembers = smt is None or not smt.use
        self._answers: dict[object, Answer] = {}
        self._same_everywhere: dict[int, bool] = {}
        self.asked = self.decided = 0

    def allocatable(self) -> Mapping[str, int]:
        """What the scheduler is told: milli-CPUs, bytes, devices, ``pods``."""
        devices = self.empty.devices.allocatable()
        return {**self.node.allocatable, **devices, PODS: self.node.max_pods}

    def answer(self, node: FleetNode, shape: PodShape) -> Answer:
        """What a node of this kind answers to a pod of this shape."""
        self.asked += 1
        number = shape.number
        same = self._same_everywhere.get(number)
        if same is None:
            same = self._same_everywhere[number] = self._is_same_everywhere(shape)
        key = number if same else (number, node.free, node.rest)
        found = self._answers.get(key)
        if found is not None:
            return found
        self.decided += 1
        if not self._remembers:
            return self._judged(shape, self.decide_anew(node, shape))
        if len(self._answers) >= _MOST_REMEMBERED:
            self._answers.clear()
        found = self._judged(shape, decide(self.node, self._what_is_free(node), shape.pod))
        self._answers[key] = found
        return found

    def decide_anew(self, node: FleetNode, shape: PodShape) -> Decision:
        """The planner's answer, from the whole state of the node, and nothing is remembered."""
        return decide(self.node, node.state(), shape.pod)

    def is_as_decided(self, node: FleetNode, shape: PodShape, answer: Answer) -> bool:
        """Whether the planner answers so, asked anew with the whole state of the node."""
        anew = self._judged(shape, self.decide_anew(node, shape))
        return all(
            getattr(anew, name) == getattr(answer, name)
            for name in ("admitted", "reason", "claim", "idle", "blocks", "devices")
        )

    def free_cpus(self, free: int) -> int:
        """How many CPUs nobody owns that somebody could."""
        return (free & self.assignable).bit_count()

    def stranded(self, free: int) -> int:
        """How many of the free CPUs nobody can be given, whatever he asks for.

        With ``full-pcpus-only`` those beside a reserved thread, and what is less than a core.
        """
        unit = self._in_whole_cores
        if unit == 1:
            return 0
        usable = (free & self._usable).bit_count()
        return (free & self.assignable).bit_count() - usable // unit * unit

    def idle_sockets(self, node: FleetNode) -> int:
        """Sockets on which nothing runs: no CPU is owned there, and no pod of the node shares."""
        if not node.pods:
            return len(self._sockets)
        if node.sharing:
            return 0
        free = node.free
        return sum(free & socket == socket for socket in self._sockets)

    def rest_of(self, memory: MemoryState | None, devices: DeviceState | None) -> object:
        """What is free besides CPUs, as a key; None where nothing is given out besides."""
        if memory is None and devices is None:
            return None
        cells: tuple[object, ...] = ()
        if memory is not None:
            cells = tuple(
                (
                    node.number_of_assignments,
                    node.cells,
                    tuple(table.free for table in (node.memory_map or {}).values() if table),
                )
                for node in memory.machine.values()
            )
        used: tuple[object, ...] = ()
        if devices is not None:
            used = tuple(frozenset(devices.in_use(name)) for name in self.planner.devices)
        return cells, used

    def _what_is_free(self, node: FleetNode) -> NodeState:
        """As much of the node's state as decides about a newcomer."""
        empty = self.empty
        memory = None if node.memory is None else MemoryState(node.memory.machine)
        return replace(
            empty,
            ledger=replace(empty.ledger, default=CPUSet.from_mask(node.free)),
            memory=memory,
            devices=node.devices or empty.devices,
        )

    def _judged(self, shape: PodShape, decision: Decision) -> Answer:
        return Answer(shape, decision, self.objective)

    def _is_same_everywhere(self, shape: PodShape) -> bool:
        """Whether nothing is given out for which it matters what is free."""
        node = self.node
        if owned_counts(node.cpu_policy, shape.pod):
            return False
        if node.memory_policy is not None and shape.pod.qos is QOSClass.GUARANTEED:
            return False
        return not any(name in self.planner.devices for name, _ in shape.size.extended)

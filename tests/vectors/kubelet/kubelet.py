"""One kubelet: it starts on its state files, admits, forgets, and starts again."""

from __future__ import annotations

from collections.abc import Mapping

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.memory.memory import MemoryState
from pinfold.core.moves.kubelet_resize import infeasible_resize
from pinfold.core.pod.pod import Pod
from pinfold.core.topology_manager.hints import TopologyHint
from pinfold.core.topology_manager.manager import NO_AFFINITY, Admission
from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.layouts import CPU_STATE, MEMORY_STATE
from pinfold.state.ledger import Ledger
from pinfold.state.memory_manager_state import checkpoint_of, state_of
from pinfold.state.memory_restore import restore_memory
from pinfold.state.memory_startup import MemoryStartError, start_memory_policy
from pinfold.state.restore import RestoreError, restore, to_checkpoint
from pinfold.state.startup import StartError, start_policy
from tests.vectors import Case
from tests.vectors.kubelet.managers import CPUs, Devices, Managers, Memory
from tests.vectors.kubelet.node import Policies, StartFailedError, policies
from tests.vectors.kubelet.pods import recorded_pod


class Files:
    """The state files of a node, None where there is none."""

    def __init__(self, cpu: bytes | None = None, memory: bytes | None = None) -> None:
        self.cpu = cpu
        self.memory = memory


class Kubelet:
    """A kubelet on one node.  ``active`` are its pods by uid."""

    def __init__(self, case: Case, topology: CPUTopology) -> None:
        given = {name: text.encode() for name, text in (case.get("files") or {}).items()}
        self.case = case
        self.topology = topology
        self.files = Files(given.get("cpu_manager_state"), given.get("memory_manager_state"))
        self.active: dict[str, Pod] = {}
        self.affinity: dict[tuple[str, str], TopologyHint] = {}
        self.policies: Policies
        self.managers: Managers
        self.pods = dict(case["pods"])
        self.fault: str | None = None
        self.gates: Mapping[str, bool] = case["gates"]

    def start(self, gates: Mapping[str, bool]) -> None:
        """Start on the files that are there; raises StartFailedError."""
        self.affinity.clear()
        self.gates = gates
        self.policies = policies(self.case, self.topology, gates)
        self.active.update({uid: self.told(self.pods[uid]) for uid in self.active})
        cpus = CPUs(self.policies.cpus, self._ledger(), self.active, self._write_cpus)
        memory = None
        if self.policies.memory is not None:
            memory = Memory(
                self.policies.memory, self._memory_state(), self.active, self._write_memory
            )
        devices = None
        if self.policies.devices is not None:
            nodes = self.policies.topology_manager.numa.nodes
            devices = Devices(self.policies.devices, nodes, self.active)
        self.managers = Managers(cpus, memory, devices)

    def activate(self, uid: str) -> Pod:
        """From now on the pod is one of the active ones."""
        return self.active.setdefault(uid, self.told(self.pods[uid]))

    def told(self, fields: Case) -> Pod:
        """A recorded pod as this kubelet sees it."""
        return self.policies.told(recorded_pod(fields))

    def admit(self, pod: Pod) -> Admission:
        """The topology manager's admission of an active pod, which is inactive if rejected."""
        admission = self.decide(pod)
        if not admission.admitted:
            del self.active[pod.uid]
        return admission

    def decide(self, pod: Pod) -> Admission:
        """The topology manager's admission; what it stores is kept."""
        admission = self.policies.topology_manager.admit(
            pod,
            pod.all_containers,
            self.managers.providers,
            pod_level=self.policies.pod_level and pod.has_pod_level_resources,
        )
        for name, hint in admission.affinity.items():
            self.affinity[pod.uid, name] = hint
        return admission

    def resize(self, uid: str, spec: Case) -> tuple[str | None, Admission | None]:
        """A changed spec of a pod that runs: what the handler says against it, then who admits.

        When neither refuses it, the spec is the pod's from now on.
        """
        changed = self.told(spec)
        problem = infeasible_resize(
            self.told(self.pods[uid]),
            changed,
            self.policies.config,
        )
        if problem is not None:
            return problem, None
        admission = self.decide(changed)
        if admission.admitted:
            self.pods[uid] = spec
            if uid in self.active:
                self.active[uid] = changed
        return None, admission

    def affinity_of(self, pod: Pod) -> dict[str, TopologyHint]:
        """What is stored for each container."""
        return {
            one.name: self.affinity.get((pod.uid, one.name), NO_AFFINITY)
            for one in pod.all_containers
        }

    def forget(self, uid: str) -> None:
        """The pod is no more; what it had is swept away."""
        self.active.pop(uid, None)
        for key in [key for key in self.affinity if key[0] == uid]:
            del self.affinity[key]
        for manager in self.managers.providers:
            manager.sweep()

    def remove(self, uid: str, container: str) -> None:
        """One container is released in both managers."""
        self.managers.cpus.remove(uid, container)
        if self.managers.memory is not None:
            self.managers.memory.remove(uid, container)

    def start_container(self, pod: Pod, container: str) -> None:
        """A container of the pod starts."""
        if self.managers.memory is not None:
            self.managers.memory.started(pod, container)

    def _ledger(self) -> Ledger:
        config, policy = self.policies.config, self.policies.cpus
        try:
            restored = restore(
                self.files.cpu,
                config.cpu_manager_policy,
                path="DIR/cpu_manager_state",
                form=CPU_STATE.of(config),
            )
        except RestoreError as error:
            raise StartFailedError("cpu_restore", error) from None
        if self.files.cpu is None:
            self._write_cpus(restored)
        if policy is None:
            return restored
        try:
            started = start_policy(restored, self.topology, policy.reserved, policy.options)
        except StartError as error:
            raise StartFailedError("cpu_start", error) from None
        if started.default != restored.default:
            self._write_cpus(started)
        return started

    def _memory_state(self) -> MemoryState:
        assert self.policies.memory is not None
        form = MEMORY_STATE.of(self.policies.config)
        try:
            if self.files.memory is None:
                restored = checkpoint_of("Static", MemoryState(), form.writes)
            else:
                restored = restore_memory(
                    self.files.memory, "Static", path="DIR/memory_manager_state", form=form
                )
        except CheckpointError as error:
            raise StartFailedError("memory_restore", error) from None
        try:
            started = start_memory_policy(restored, self.policies.memory.nodes)
        except MemoryStartError as error:
            raise StartFailedError("memory_start", error) from None
        state = state_of(started)
        if started != restored:
            self._write_memory(state)
        return state

    def _write_cpus(self, ledger: Ledger) -> None:
        layout = CPU_STATE.of(self.policies.config).writes
        self.files.cpu = to_checkpoint(ledger, layout).encode()

    def _write_memory(self, state: MemoryState) -> None:
        layout = MEMORY_STATE.of(self.policies.config).writes
        self.files.memory = checkpoint_of("Static", state, layout).encode()

"""The pods that a runtime shows: deciding about their containers one by one, and keeping the books.

What a decision leads to is drafted, complete; leaving it to the books makes it hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from pinfold.admission.admission import POOL_EMPTY, NodeState
from pinfold.admission.container import decide_container, decide_whole, keeps_memory
from pinfold.admission.decision import Decision
from pinfold.admission.settling import recount, release
from pinfold.core.cpu.static_policy import CPUAllocation
from pinfold.core.memory.memory import remove_container
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.resize import resized
from pinfold.core.pod.annotations import EXCLUSIVE_CPUS, annotation_problems
from pinfold.core.pod.pod import Pod, QOSClass
from pinfold.core.pod.workload import Workload
from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.held import as_held
from pinfold.node.moves.room import MadeRoom
from pinfold.node.nri.kubelet_specs import gives_whole, recorded_spec
from pinfold.node.nri.runtime_pod import NOTHING, RuntimePod, pod_manifest, qos_of
from pinfold.ports.errors import PortError
from pinfold.ports.nri import Container, PodSandbox, RefusedError
from pinfold.ports.podresources import NO_DEVICES, PodDevices
from pinfold.ports.records import PodPhase, PodRecord
from pinfold.state.ledger import Ledger

SOURCE: Final = "nri"
"""The source of pods that a runtime runs for a kubelet."""


class KubeletPods:
    """The pods of a runtime, by uid, and their part of the books.

    Args:
        books: the node's state.
        rooms: the room that others have made.
        parse: reads a manifest; raises ValueError.
    """

    def __init__(self, books: Books, rooms: MadeRoom, parse: Callable[[str], Workload]) -> None:
        self._books = books
        self._rooms = rooms
        # One creation asks for the same pod several times, and to read it is a third of the answer.
        self._parse = lru_cache(8)(parse)
        self.by_uid: dict[str, RuntimePod] = {}

    def show(self, sandboxes: Iterable[PodSandbox]) -> None:
        """Take note of all pods that there are; what is known of their containers stays."""
        sandboxes = list(sandboxes)
        self.learn(sandboxes)
        known, active = self.by_uid, self._books.view.pods.active
        self.by_uid = {
            one.uid: RuntimePod(
                one,
                known[one.uid].containers if one.uid in known.keys() & active.keys() else {},
                spec=known[one.uid].spec if one.uid in known else None,
            )
            for one in sandboxes
        }

    def learn(self, sandboxes: Iterable[PodSandbox]) -> None:
        """Take note of pods that are new, with what the books know of their specifications."""
        for one in sandboxes:
            runtime_pod = self.put(one)
            runtime_pod.spec = runtime_pod.spec or recorded_spec(self._books.view, one.uid)

    def lacks_spec(self, sandbox: PodSandbox) -> bool:
        """Whether it matters what a pod asks for as a whole, and nobody has said so."""
        runtime_pod = self.by_uid.get(sandbox.uid)
        spec = None if runtime_pod is None else runtime_pod.spec
        may_own = qos_of(sandbox) in (QOSClass.GUARANTEED, None)
        owns = may_own and EXCLUSIVE_CPUS.of(sandbox.annotations, "")
        return bool(owns and (spec is None or spec.problem)) and gives_whole(self._books.view.node)

    def bubble_of(self, uid: str) -> bool:
        """Whether a pod has CPUs or memory as a whole."""
        state = self._books.view.state
        return uid in state.ledger.bubbles or (
            state.memory is not None and uid in state.memory.bubbles
        )

    def _is_whole(self, pod: Pod) -> bool:
        """Whether a pod is decided about as a whole.

        Who has something so keeps it, whatever the gate and the scope are by now.
        """
        return self.bubble_of(pod.uid) or self._books.view.node.serves_whole(pod)

    def put(self, sandbox: PodSandbox) -> RuntimePod:
        """Take note of a pod's newest sandbox."""
        runtime_pod = self.by_uid.get(sandbox.uid)
        if runtime_pod is None:
            runtime_pod = self.by_uid[sandbox.uid] = RuntimePod(sandbox)
            for key, problem in annotation_problems(sandbox.annotations, None, SOURCE):
                self._books.observers.report(runtime_pod.name, f"annotation {key}: {problem}")
        runtime_pod.sandbox = sandbox
        return runtime_pod

    def decide(
        self,
        runtime_pod: RuntimePod,
        container: Container,
        devices: PodDevices = NO_DEVICES,
        *,
        keeps: bool = False,
        state: NodeState | None = None,
    ) -> Decision:
        """Decide about a container of a pod that has these devices; nothing is changed.

        It is decided as of this ``state``; None: as the books are.

        One that ``keeps`` the CPUs that it runs on is given no others, however many it asks for;
        so does one that is just being moved.
        """
        books, name = self._books, container.name
        pod = self._workload(runtime_pod.sandbox, {**runtime_pod.containers, name: container}).pod
        known = state = books.view.state if state is None else state
        if self.bubble_of(pod.uid):
            return self._keeps_bubble(pod, name)
        if runtime_pod.spec is not None and runtime_pod.spec.problem:
            return Decision(pod, admitted=True, notes=(runtime_pod.spec.problem,))
        state = self._rooms.seen_by(state, pod.uid)
        if self._is_whole(pod):
            return self._decide_whole(known, state, pod)
        moved = self._is_moved(pod.uid, name)
        has = self._runs_on(pod.uid, name) if keeps or moved else None
        if has and len(has) != self.asked(runtime_pod.sandbox, container):
            pod = resized(pod, name, len(has))
        if has and moved:
            state = replace(state, ledger=state.ledger.with_assignment(pod.uid, name, has))
        node = books.view.node
        if not EXCLUSIVE_CPUS.of(runtime_pod.sandbox.annotations, name):
            node = replace(
                node, cpu_policy=None, localities=None, isolation=None, smt=None, mixes=False
            )
        assigned = state.ledger.assignments.get(pod.uid, {})
        idle = {
            other: assigned.get(other, CPUSet())
            for other in {**assigned, **state.memory_of(pod.uid)}
            # What is just being moved is its plan's, whether it runs or not.
            if other != name and runtime_pod.has_ended(other) and not self._is_moved(pod.uid, other)
        }
        decision = decide_container(node, state, pod, name, idle, devices)
        if not decision.admitted:
            return decision
        ledger = self._ledger_after(known.ledger, runtime_pod, decision, name)
        after = replace(known, ledger=ledger)
        if books.view.leaves_nobody_without_cpus(decision, after, name):
            return decision
        return decision.refused(UNEXPECTED_ADMISSION_ERROR, POOL_EMPTY)

    def _keeps_bubble(self, pod: Pod, name: str) -> Decision:
        """The decision about a container whose pod has its bubble: it has what is its there."""
        view, decision = self._books.view, Decision(pod, admitted=True)
        if view.state.ledger.cpus_of(pod.uid, name) is not None or view.pool:
            return decision
        return decision.refused(UNEXPECTED_ADMISSION_ERROR, POOL_EMPTY)

    def _decide_whole(self, known: NodeState, state: NodeState, pod: Pod) -> Decision:
        """Decide about a pod that gets all that it has at once."""
        view = self._books.view
        decision = decide_whole(view.node, state, pod)
        if not decision.admitted or decision.bubble is None:
            return decision
        if view.leaves_nobody_without_cpus(decision, _with_bubble(known, decision)):
            return decision
        return decision.refused(UNEXPECTED_ADMISSION_ERROR, POOL_EMPTY)

    def asked(self, sandbox: PodSandbox, container: Container) -> int:
        """How many CPUs of its own a container is to have, by what it asks for.

        Of those in a bubble, or that share what is left there, it is what they have.
        """
        policy = self._books.view.node.cpu_policy
        owns = EXCLUSIVE_CPUS.of(sandbox.annotations, container.name)
        if self.bubble_of(sandbox.uid):
            return len(self._books.view.state.ledger.cpus_of(sandbox.uid, container.name) or ())
        if policy is None or not owns:
            return 0
        pod = self.alone(sandbox, container)
        one = next(one for one in pod.all_containers if one.name == container.name)
        return 0 if self._is_whole(pod) else policy.exclusive_cpus(pod, one)

    def alone(self, sandbox: PodSandbox, container: Container) -> Pod:
        """A pod as if this were its only container, where nobody says which others it has."""
        return self._workload(sandbox, {container.name: container}).pod

    def keeps_cpus(self, sandbox: PodSandbox, container: Container) -> CPUSet | None:
        """The CPUs that a container has, if they are as many as it is to own; None otherwise."""
        has = self._books.view.in_the_end(sandbox.uid, container.name) or CPUSet()
        return has if len(has) == self.asked(sandbox, container) else None

    def _is_moved(self, uid: str, name: str) -> bool:
        move = self._books.view.move
        return move is not None and Owner(uid, name) in move.plan.start.placed

    def _runs_on(self, uid: str, name: str) -> CPUSet | None:
        """The exclusive CPUs on which a container is to run now; of these it claims each."""
        move, ledger = self._books.view.move, self._books.view.state.ledger
        if move is not None and (own := move.holds.placed.get(Owner(uid, name))) is not None:
            return own
        return ledger.cpus_of(uid, name)

    def is_to_be_aligned(self, sandbox: PodSandbox, container: Container) -> bool:
        """Whether a container is to get CPUs or memory of NUMA nodes that it does not have yet."""
        runtime_pod = self.by_uid.get(sandbox.uid)
        spec = None if runtime_pod is None else runtime_pod.spec
        if qos_of(sandbox) not in (QOSClass.GUARANTEED, None) or self.bubble_of(sandbox.uid):
            return False
        if spec is not None and spec.problem:
            return False
        if self.keeps_cpus(sandbox, container) is None:
            return True
        memory = self._books.view.state.memory
        if memory is None:
            return False
        pod = self.alone(sandbox, container)
        one = next(one for one in pod.all_containers if one.name == container.name)
        return pod.qos is QOSClass.GUARANTEED and not keeps_memory(memory, pod, one)

    def _ledger_after(
        self, ledger: Ledger, runtime_pod: RuntimePod, decision: Decision, name: str
    ) -> Ledger:
        """The ledger after a decision; who has ended and lost some CPUs to ``name`` loses all.

        What is just being moved has what its plan says.
        """
        uid = runtime_pod.sandbox.uid
        if self._is_moved(uid, name):
            return ledger
        assigned = dict(ledger.assignments.get(uid, {}))
        assigned.pop(name, None)
        given = decision.allocations.get(name)
        if given is None:
            return ledger.with_pod(uid, assigned)
        assigned = {
            other: cpus
            for other, cpus in assigned.items()
            if cpus.isdisjoint(given.claim) or not runtime_pod.has_ended(other)
        }
        return ledger.with_pod(uid, assigned).with_assignment(uid, name, given.claim, given.idle)

    def take(
        self, draft: Draft, runtime_pod: RuntimePod, container: Container, decision: Decision
    ) -> None:
        """Draft what a decision leads to."""
        state, name = self._books.view.state, container.name
        if self._is_whole(decision.pod):
            state = state if decision.bubble is None else _with_bubble(state, decision)
            containers = {**runtime_pod.containers, name: container}
            return self._draft(draft, runtime_pod, containers, state)
        ledger = self._ledger_after(state.ledger, runtime_pod, decision, name)
        memory = decision.memory_state
        if memory is None and state.memory is not None:
            memory = remove_container(state.memory, runtime_pod.sandbox.uid, name)
        state = replace(state, ledger=ledger, memory=memory)
        return self._draft(draft, runtime_pod, {**runtime_pod.containers, name: container}, state)

    def drop(self, draft: Draft, runtime_pod: RuntimePod, name: str) -> None:
        """Draft that a container is forgotten; of a bubble it gives nothing back."""
        containers = {other: one for other, one in runtime_pod.containers.items() if other != name}
        state, uid = self._books.view.state, runtime_pod.sandbox.uid
        if not self.bubble_of(uid):
            memory = None if state.memory is None else remove_container(state.memory, uid, name)
            state = replace(state, ledger=state.ledger.without(uid, name), memory=memory)
        self._draft(draft, runtime_pod, containers, state)

    def _draft(
        self,
        draft: Draft,
        runtime_pod: RuntimePod,
        containers: Mapping[str, Container],
        after: NodeState,
    ) -> None:
        pods, uid = self._books.view.pods, runtime_pod.sandbox.uid
        active = draft.pod(uid)
        manifest = self._manifest(runtime_pod.sandbox, containers, runtime_pod.ran_shared)
        workload = self._parse(manifest)
        before = None if active is None else active.workload.pod
        state = recount(after, before, workload.pod)
        record = self._new_record(runtime_pod, containers) if active is None else active.record
        # Who is given others anew was admitted with those.
        record = replace(as_held(record, state), manifest=manifest)
        draft.state = state
        draft.forget(*pods.ended_namesakes(workload.pod))
        if active is None:
            draft.admit(workload, record)
        elif active.record != record:
            draft.put(active, record, workload)

    async def refuse(
        self,
        draft: Draft,
        runtime_pod: RuntimePod,
        decision: Decision,
        state: NodeState | None = None,
    ) -> None:
        """Write a refusal down, and tell whoever asked; see :meth:`note` for ``state``.

        Raises:
            RefusedError: always.
        """
        books = self._books
        text = f"{decision.reason}: {decision.message}"
        failed = replace(
            self._new_record(runtime_pod, {}),
            manifest=self._manifest(runtime_pod.sandbox, runtime_pod.containers),
            phase=PodPhase.REJECTED,
            reason=decision.reason,
            message=decision.message,
        )
        if failed.uid not in books.view.pods.active:
            draft.remember(failed)
        await self.note(draft, runtime_pod, "rejected", decision, state)
        try:
            await draft.write()
        except PortError as error:
            books.observers.report(runtime_pod.name, str(error))
        books.observers.report(runtime_pod.name, text)
        raise RefusedError(text)

    def forget(self, draft: Draft, active: AdmittedPod) -> None:
        """Draft that a pod is over: its CPUs go back to the shared pool, its memory to all."""
        draft.state = release(draft.state, active.workload.pod)
        draft.note("released", (active.uid, active.name))
        draft.end(active, None)

    async def note(
        self,
        draft: Draft,
        runtime_pod: RuntimePod,
        kind: str,
        decision: Decision,
        state: NodeState | None = None,
    ) -> None:
        """A decision for the history, with what the pod's other containers have.

        It was made from this ``state``; None: from what the books say.
        """
        books, uid = self._books, runtime_pod.sandbox.uid
        state = books.view.state if state is None else state
        ledger = state.ledger
        given = {
            name: CPUAllocation(cpus, CPUSet(), (), ledger.idle_of(uid, name))
            for name, cpus in ledger.used_by(uid).items()
        }
        whole = replace(decision, allocations={**given, **decision.allocations})
        document = await books.observers.describe(whole, state)
        draft.note(kind, (uid, runtime_pod.name), document)

    def _new_record(
        self, runtime_pod: RuntimePod, containers: Mapping[str, Container]
    ) -> PodRecord:
        return PodRecord(
            uid=runtime_pod.sandbox.uid,
            namespace=runtime_pod.sandbox.namespace,
            name=runtime_pod.sandbox.name,
            manifest=self._manifest(runtime_pod.sandbox, containers),
            phase=PodPhase.RUNNING,
            source=SOURCE,
            admitted_at=self._books.observers.clock(),
        )

    def _workload(self, sandbox: PodSandbox, containers: Mapping[str, Container]) -> Workload:
        return self._parse(self._manifest(sandbox, containers))

    def _manifest(
        self,
        sandbox: PodSandbox,
        containers: Mapping[str, Container],
        ran_shared: Mapping[str, float] = NOTHING,
    ) -> str:
        known = self.by_uid.get(sandbox.uid)
        spec = None if known is None else known.spec
        return json.dumps(pod_manifest(sandbox, containers.values(), ran_shared, spec))


def _with_bubble(state: NodeState, decision: Decision) -> NodeState:
    """The state once a pod has what was decided that it has as a whole."""
    memory = state.memory if decision.memory_state is None else decision.memory_state
    return replace(state, ledger=state.ledger.apply(decision.changes), memory=memory)

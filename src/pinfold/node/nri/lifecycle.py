"""The containers that a runtime shows: runtime, kernel and books kept together for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from pinfold.admission.decision import Decision
from pinfold.core.cpu.static_policy import CPUAllocation
from pinfold.core.moves.owners import Owner
from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.drafted import Unwritten
from pinfold.node.nri.inquiries import Inquiries
from pinfold.node.nri.kubelet_containers import KubeletContainers
from pinfold.node.nri.kubelet_pods import KubeletPods
from pinfold.node.nri.runtime_pod import RuntimePod, ran_shared
from pinfold.node.recorded_cpusets import NO_CAP, RecordedCpusets, is_uncapped
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey, PortError, StoreError
from pinfold.ports.nri import Container, ContainerState, PodSandbox, RefusedError, Resources
from pinfold.ports.podresources import NO_DEVICES, PodDevices, PodName


class ContainerLifecycle:
    """What is done about one container or one pod at a time.

    Args:
        books: the node's state.
        pods: the pods' part of it.
        table: what the runtime has told.
        on_record: what the runtime has on record.
        inquiries: what is asked of others about pods.
    """

    def __init__(
        self,
        books: Books,
        pods: KubeletPods,
        table: KubeletContainers,
        on_record: RecordedCpusets,
        inquiries: Inquiries,
    ) -> None:
        self.books = books
        self.pods = pods
        self.table = table
        self.on_record = on_record
        self.cgroups = table.cgroups
        self.inquiries = inquiries
        self._warned = False

    def placement(self, uid: str, name: str) -> Placement:
        """Where a container belongs; who has lost all of its CPUs shares, and is told so.

        Its first step is taken unfrozen, for that is waited for.
        """
        return replace(self.books.placement(ContainerKey(uid, name)), frozen=False)

    def _is_known(self, uid: str, name: str) -> bool:
        active = self.books.view.pods.active.get(uid)
        return active is not None and any(
            name == one.name for one in active.workload.pod.all_containers
        )

    def resources(self, uid: str, name: str) -> Resources:
        """What the runtime is to have on record for a container."""
        placement = self.placement(uid, name)
        return Resources(
            cpus=str(placement.within(self.books.view.pool)),
            mems=str(placement.mems or ""),
            cpu_quota=NO_CAP if self.on_record.uncaps and is_uncapped(placement) else None,
        )

    def note(
        self,
        runtime_pod: RuntimePod,
        container: Container,
        recorded: Resources,
        *,
        is_placed: bool = True,
    ) -> None:
        """Take note of a container, and of what the runtime has on record for it."""
        uid, name = runtime_pod.sandbox.uid, container.name
        key = ContainerKey(uid, name)
        runtime_pod.containers[name] = container
        self.table.put(key, container)
        self.cgroups.identify(key, container.id)
        self.record(key, container.id, recorded, is_placed=is_placed)

    async def settle(
        self, draft: Draft, runtime_pod: RuntimePod, container: Container, decision: Decision
    ) -> Resources:
        """Make a decision hold for a container, and see the kernel do it: others off first.

        Returns:
            What the container gets; the runtime will have it on record.

        Raises:
            RefusedError: it could not be done, and nothing was changed.
        """
        uid, name = runtime_pod.sandbox.uid, container.name
        self.pods.take(draft, runtime_pod, container, decision)

        def then(error: PortError | None) -> None:
            if error is None:
                self.note(runtime_pod, container, self.resources(uid, name))

        try:
            await draft.apply(move=partial(self.place, uid, name), then=then)
        except StoreError as error:
            raise RefusedError(f"{UNEXPECTED_ADMISSION_ERROR}: {error}") from error
        except CgroupError as error:
            raise RefusedError(
                f"{UNEXPECTED_ADMISSION_ERROR}: the CPUs could not be taken from the shared pool: "
                f"{error}"
            ) from error
        return self.resources(uid, name)

    def warn_of_kubelet(
        self, runtime_pod: RuntimePod, container: Container, given: Resources
    ) -> None:
        """Say once that the kubelet asks for memory of other NUMA nodes than a container gets."""
        asked = container.resources.mems
        if given.mems and asked not in {"", given.mems} and not self._warned:
            self._warned = True
            self.books.observers.report(
                runtime_pod.name,
                f"the kubelet asks for memory of NUMA nodes {asked} for container "
                f"{container.name}, which gets {given.mems}: two memory managers are on; set the "
                "kubelet's memoryManagerPolicy to None, or pinfold's",
            )

    def record(
        self,
        key: ContainerKey,
        container_id: str,
        recorded: Resources,
        *,
        is_placed: bool = True,
    ) -> None:
        """Take note of what the runtime has on record for a container; it follows who is placed."""
        placement = self.placement(key.pod_uid, key.name) if is_placed else None
        self.on_record.put(
            key,
            container_id,
            placement,
            recorded.cpus,
            recorded_mems=recorded.mems,
            capped=recorded.is_capped,
        )

    def change(self, pod: PodSandbox, container: Container, state: ContainerState) -> bool:
        """Take note of the state of a pod's newest container; whether it is that."""
        key = ContainerKey(pod.uid, container.name)
        is_newest = self.table.change(key, container.id, state, container.pid)
        if not is_newest or pod.uid not in self.books.view.pods.active:
            return False
        containers = self.pods.by_uid[pod.uid].containers
        containers[container.name] = replace(containers[container.name], state=state)
        return True

    def stop(self, pod: PodSandbox, container: Container) -> None:
        """Take note of a container's end."""
        if self.change(pod, container, ContainerState.STOPPED):
            self.books.counters.container_exits += 1
            self.on_record.forget(ContainerKey(pod.uid, container.name))

    async def place(self, uid: str, name: str) -> None:
        """Say where it belongs; its cgroup is written as soon as it is known.

        Raises:
            CgroupError: its CPUs are not in force.
        """
        key = ContainerKey(uid, name)
        if not self._is_known(uid, name):
            return await self.cgroups.remove(key)
        placement = self.placement(uid, name)
        self.on_record.move(key, placement)
        await self.cgroups.place(key, placement)
        return None

    async def find(self, key: ContainerKey, container: Container) -> None:
        """Look for its cgroup, by the path or by the process in it.

        Raises:
            CgroupError: its CPUs are not in force.
        """
        if not await self.cgroups.find(key, container.cgroups_path) and container.pid:
            await self.cgroups.enter(key, container.pid)

    async def forget(self, draft: Draft, active: AdmittedPod) -> None:
        """A pod is over."""

        async def after() -> None:
            await self.books.announcements.retract(active.uid, active.name)
            for container in active.workload.pod.all_containers:
                await self._drop(active, container.name)

        self.pods.forget(draft, active)
        await draft.write(Unwritten.OWED, after)

    async def forget_container(self, draft: Draft, active: AdmittedPod, name: str) -> None:
        """A container is over, and its pod is not."""
        self.pods.drop(draft, self.pods.by_uid[active.uid], name)
        await draft.write(Unwritten.OWED, partial(self._drop, active, name))

    async def _drop(self, active: AdmittedPod, name: str) -> None:
        key = ContainerKey(active.uid, name)
        if (runtime_pod := self.pods.by_uid.get(active.uid)) is not None:
            runtime_pod.containers.pop(name, None)
        self.table.seen.drop(key)
        self.on_record.forget(key)
        try:
            await self.cgroups.remove(key)
        except PortError as error:
            # What it had is free all the same.
            self.books.observers.report(active.name, f"container {name}: {error}")

    async def synchronize(
        self,
        draft: Draft,
        pods: Sequence[PodSandbox],
        containers: Sequence[Container],
        devices: Mapping[PodName, PodDevices],
    ) -> None:
        """Take over everything that exists.

        A pod that is not shown, or without containers, is over.  A container that is not shown and
        was known stays so until it is gone (:mod:`pinfold.node.nri.lost_removals`): its runtime
        shows none that has ended, nor one of which it cannot tell.

        Args:
            draft: the change of the books that this is.
            pods: all pods.
            containers: all containers.
            devices: what a kubelet has given to pods.

        Raises:
            StoreError: it could not be written down.
        """
        books = self.books
        by_sandbox = {pod.id: pod for pod in pods}
        self.pods.show(pods)
        told = [
            (self.pods.by_uid[sandbox.uid], one)
            for one in containers
            if (sandbox := by_sandbox.get(one.sandbox_id)) is not None
        ]
        shown = [item for item in told if item[1].state is not ContainerState.STOPPED]
        for runtime_pod, one in shown:
            # Of several sandboxes that a pod has had, the one with containers is the newest.
            runtime_pod.sandbox = by_sandbox[one.sandbox_id]
            if (active := books.view.pods.active.get(runtime_pod.sandbox.uid)) is not None:
                runtime_pod.ran_shared = ran_shared(active.workload.pod.annotations)
        there = {runtime_pod.sandbox.uid for runtime_pod, _ in shown}
        # A bubble goes with its sandbox, whether a container is there just now or not.
        there |= {uid for uid in self.pods.by_uid if self.pods.bubble_of(uid)}
        for uid in books.view.pods.active.keys() - there:
            await self.forget(draft, books.view.pods.active[uid])
        for runtime_pod, one in told:
            if one.state is ContainerState.STOPPED:
                self.stop(runtime_pod.sandbox, one)
        # Those who have their CPUs already come first.
        owners = books.view.state.ledger.assignments
        for runtime_pod, one in sorted(shown, key=lambda item: item[0].sandbox.uid not in owners):
            pod = (runtime_pod.sandbox.namespace, runtime_pod.sandbox.name)
            await self.adopt(draft, runtime_pod, one, devices.get(pod, NO_DEVICES))
        await self.locate(draft, *shown)
        await self.cgroups.settle()

    async def adopt(
        self, draft: Draft, runtime_pod: RuntimePod, one: Container, devices: PodDevices
    ) -> None:
        """Take over a container that is there; one that cannot have its CPUs is among the others.

        What it has it keeps, wherever its devices are.

        Raises:
            StoreError: it could not be written down.
        """
        known, uid, name = self.books.view.state, runtime_pod.sandbox.uid, one.name
        # How many it asks for is another question: it runs, so CPUs are not just taken from it.
        keeps = self.keeps(runtime_pod, one)
        if keeps or (devices and not self.pods.is_to_be_aligned(runtime_pod.sandbox, one)):
            devices = NO_DEVICES
        decision = self.pods.decide(runtime_pod, one, devices, keeps=keeps)
        if not decision.admitted:
            decision = self._without(runtime_pod, one, decision)
        own = decision.allocations.get(name)
        if own is not None and (one.resources.is_capped or not one.resources.cpus):
            self._tell_of_adoption(runtime_pod, one, own.cpus)
        self.pods.take(draft, runtime_pod, one, decision)
        same_cpus = draft.state.ledger.cpus_of(uid, name) == known.ledger.cpus_of(uid, name)
        same_memory = draft.state.memory_of(uid).get(name) == known.memory_of(uid).get(name)
        if not (same_cpus and same_memory):
            await self.pods.note(draft, runtime_pod, "adopted", decision)
        await draft.write()
        # Whoever is still on its CPUs leaves these before; see :meth:`locate`.
        self.note(runtime_pod, one, one.resources, is_placed=False)

    def keeps(self, runtime_pod: RuntimePod, container: Container) -> bool:
        """Whether a container owns CPUs, and is to own some."""
        uid = runtime_pod.sandbox.uid
        has = self.books.view.state.ledger.cpus_of(uid, container.name)
        return has is not None and self.pods.asked(runtime_pod.sandbox, container) > 0

    def _tell_of_adoption(self, runtime_pod: RuntimePod, one: Container, cpus: CPUSet) -> None:
        """Say of an owner that ran without its CPUs since when it has them."""
        try:
            age = (
                self.cgroups.age(one.pid)
                if one.pid and one.state is ContainerState.RUNNING
                else None
            )
        except CgroupError:
            return  # nobody knows
        if age is None:
            return  # it has not run yet, or no more
        runtime_pod.ran_shared[one.name] = age
        cap = ", without its CFS quota" if one.resources.is_capped else ""
        self.books.observers.report(
            runtime_pod.name,
            f"adopted container {one.name}: it was created while no agent answered, ran shared for "
            f"{age:.1f} s, and owns CPUs {cpus} from now on{cap}",
        )

    def _without(self, runtime_pod: RuntimePod, one: Container, refused: Decision) -> Decision:
        """What is done with a container that is there, and cannot have all that it asks for."""
        kept = self.pods.keeps_cpus(runtime_pod.sandbox, one)
        if self.keeps(runtime_pod, one):
            kept = self.books.view.state.ledger.cpus_of(runtime_pod.sandbox.uid, one.name)
        outcome = "was created while nobody answered, and shares its CPUs"
        if kept:
            outcome = "keeps its CPUs, and gets no memory of its own"
        problem = f"container {one.name} {outcome}: {refused.reason}: {refused.message}"
        self.books.observers.report(runtime_pod.name, problem)
        idle = self.books.view.state.ledger.idle_of(runtime_pod.sandbox.uid, one.name)
        allocations = {one.name: CPUAllocation(kept, CPUSet(), (), idle)} if kept else {}
        return replace(refused.refused("", ""), admitted=True, allocations=allocations)

    async def locate(self, draft: Draft, *shown: tuple[RuntimePod, Container]) -> None:
        """Bring those that were taken over to their CPUs, as far as their cgroups are there.

        The others leave these before; where that fails, owners stay where they are.
        """
        view = self.books.view
        owners = view.state.ledger.assignments
        owning = [one for one in shown if one[1].name in owners.get(one[0].sandbox.uid, ())]
        mixed = [one for one in owning if Owner(one[0].sandbox.uid, one[1].name) in view.mixed]
        last = [one for one in owning if one not in mixed]
        # Those who are mixed get their own CPUs from who shares, and leave the others' besides.
        first = [*(one for one in shown if one not in owning), *mixed]
        try:
            await draft.apply_pool()
        except CgroupError as error:
            self.books.counters.cgroup_failures += 1
            self.books.observers.report(
                None, f"who was taken over waits for its CPUs, as others may be on them: {error}"
            )
            last = []
        # Where all belong is said first: a cgroup above some of them has room for all.
        for work in (self._say_place, self._find):
            for runtime_pod, one in (*first, *last):
                try:
                    await work(runtime_pod, one)
                except CgroupError as error:
                    # It may have ended a moment ago; the reconciliation looks again.
                    self.books.observers.report(runtime_pod.name, str(error))

    async def _say_place(self, runtime_pod: RuntimePod, one: Container) -> None:
        await self.place(runtime_pod.sandbox.uid, one.name)

    async def _find(self, runtime_pod: RuntimePod, one: Container) -> None:
        await self.find(ContainerKey(runtime_pod.sandbox.uid, one.name), one)

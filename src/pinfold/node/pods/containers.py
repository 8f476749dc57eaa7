"""Starting and ending one container: the order of effects in which CPUs are never shared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from msgspec.structs import replace

from pinfold.core.devices.devices import DeviceRunOptions
from pinfold.core.pod.manifest.assigned_fields import Values, filled_process, nothing_assigned
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.pod.workload import (
    ASSIGNMENT_FOLDER,
    ASSIGNMENT_HIDDEN,
    ASSIGNMENT_VARIABLE,
    FACTS,
    HostPath,
    Process,
    VolumeMount,
    application_environment,
    assignment_mounts,
    environment_beside,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.exits import Exits
from pinfold.node.pod_table import PodTable
from pinfold.node.pods.device_grants import unseen_by_a_process
from pinfold.node.pods.limits import PodLimits
from pinfold.node.recovery.keepsake import Keepsake
from pinfold.node.seen_containers import SeenContainers
from pinfold.node.settings import NodeSettings
from pinfold.node.view import Whereabouts
from pinfold.ports.cgroups import Cgroups, Partition, Placement
from pinfold.ports.errors import ContainerKey, RuntimeFailedError
from pinfold.ports.held_process import HeldProcess
from pinfold.ports.logs import PodLogs
from pinfold.ports.runtime import (
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    ImageRuntime,
    PodRuntime,
    ProcessAdopter,
    Runtime,
    Watching,
)
from pinfold.ports.volumes import NOWHERE_BOUND, Volumes, with_volumes

NO_DEVICES: Final = DeviceRunOptions()


class PodContainers:
    """Drives runtime and cgroups for single containers.

    The CPUs of an owner have left the shared pool, confirmed, before :meth:`start` is called; they
    go back to it only after :meth:`end` has returned.  With an ``adopter``, containers are plain
    processes, which see the files of the host.
    """

    def __init__(  # noqa: PLR0913 - the ports, one each
        self,
        cgroups: Cgroups,
        runtime: Runtime,
        settings: NodeSettings,
        adopter: ProcessAdopter | None = None,
        *,
        volumes: Volumes | None = None,
        logs: PodLogs | None = None,
    ) -> None:
        self.cgroups = cgroups
        self.runtime = runtime
        self.settings = settings
        self.adopter = adopter
        self.volumes = volumes
        self.logs = logs
        self.exits = Exits()
        self.seen = SeenContainers()

    async def pull(self, pod: AdmittedPod, container: Container) -> str:
        """See that a container's image is there, which may take very long; raises PortError.

        Returns:
            What names it; "" where containers are made of none.
        """
        if not isinstance(self.runtime, ImageRuntime):
            return ""
        process = pod.workload.processes[container.name]
        return await self.runtime.pull(self._spec(pod, container, process))

    async def start(  # noqa: PLR0913 - who, where, and what it is told
        self,
        pod: AdmittedPod,
        container: Container,
        cpus: CPUSet | None,
        attempt: int,
        devices: DeviceRunOptions = NO_DEVICES,
        *,
        placement: Placement,
        shared: CPUSet | None = None,
        generation: int = 0,
        attached: HeldProcess | None = None,
        folder: str | None = None,
        values: Values = nothing_assigned,
        nodes: Mapping[str, CPUSet] = NOWHERE_BOUND,
        image: str = "",
    ) -> tuple[ContainerStatus, str]:
        """Create, place, then let go; the first instruction runs on the container's CPUs.

        ``cpus`` are its own, None where it has none, ``shared`` those that it may use besides, as
        they are now; ``attempt`` is how often it was started before, ``generation`` the record's,
        for its keepsake.  ``attached`` is the process that it takes over, ``folder`` where it is
        told its CPUs while it runs, ``values`` what is assigned to containers of its pod,
        ``nodes`` the NUMA nodes of its pod's volumes in memory, ``image`` what :meth:`pull`
        answered.

        Returns:
            The running container, and what was not granted to it ("" when nothing).

        Raises:
            PortError: it was not started; the runtime may have something of this attempt.
        """
        process = filled_process(pod.workload.processes[container.name], values)
        mounts, seen, hidden = process.volume_mounts, folder, ""
        if folder is not None and self.adopter is None:
            own = assignment_mounts(folder, [mount.mount_path for mount in mounts])
            seen, hidden = (ASSIGNMENT_FOLDER, "") if own else (None, ASSIGNMENT_HIDDEN)
            mounts += tuple(
                VolumeMount("", target, HostPath(source), read_only)
                for source, target, read_only in own or ()
            )
        told = application_environment(pod.name, pod.uid, container.name, cpus, shared)
        if seen is not None:
            told[ASSIGNMENT_VARIABLE] = seen
        env, passed_over = environment_beside(told, process.env, devices.envs)
        given = {name: value for name, value in process.env.items() if name not in FACTS}
        spec = replace(
            self._spec(pod, container, replace(process, env=given, volume_mounts=mounts)),
            attempt=attempt,
            env=env,
            oom_score_adj=PodLimits(pod.workload.pod, self.settings).oom_score_adj(container),
            placement=placement,
            keepsake=Keepsake(generation, pod.record).encode(),
            devices=devices,
            image=image,
        )
        if attached is not None:
            if self.adopter is None:
                raise RuntimeFailedError("this runtime cannot take over a process")
            status = await self.adopter.attach(spec, *attached)
        else:
            if self.volumes is not None:
                mounted = self.adopter is None
                spec = await with_volumes(spec, self.volumes, values, mounted=mounted, nodes=nodes)
            status = await self.create(spec)
        status, note = await self.resume(status, placement)
        if attempt == 0:
            unseen = "" if self.adopter is None else unseen_by_a_process(devices)
            note = "; ".join(part for part in (note, unseen, passed_over, hidden) if part)
        return status, note

    @staticmethod
    def _spec(pod: AdmittedPod, container: Container, process: Process) -> ContainerSpec:
        """What does not change from attempt to attempt."""
        return ContainerSpec(
            pod.key(container),
            pod.record.namespace,
            pod.record.name,
            process,
            sandbox=pod.workload.sandbox,
            grace_period=pod.workload.grace_period,
        )

    def check_room(self, pod: Pod, others: PodTable) -> None:
        """See that the runtime can watch one more pod beside the others, begun or not.

        Raises:
            RuntimeFailedError: it cannot.
        """
        if not isinstance(self.runtime, Watching):
            return
        promised = len(others.containers().keys() - self.seen.statuses.keys())
        if lack := self.runtime.lack(len(pod.all_containers) + promised):
            raise RuntimeFailedError(
                f"pod {pod.full_name} cannot be watched: {lack}",
                "raise LimitNOFILE (ulimit -n), or delete pods",
            )

    async def create(self, spec: ContainerSpec) -> ContainerStatus:
        """Have a container made whose main process has not executed its first instruction.

        Raises:
            RuntimeFailedError: it cannot be.
        """
        return await self.runtime.create(spec)

    async def resume(
        self, status: ContainerStatus, placement: Placement
    ) -> tuple[ContainerStatus, str]:
        """Place a created container and let it go; raises as :meth:`start`."""
        granted = await self.cgroups.place(status.key, placement)
        if status.pid is not None:
            await self.cgroups.enter(status.key, status.pid)
        if status.state is ContainerState.CREATED:
            status = await self.runtime.start(status.id)
        return status, granted

    async def adopt(self, status: ContainerStatus, placement: Placement) -> None:
        """Take over a container that runs: see it placed.

        Raises:
            CgroupError: it is not.
        """
        await self.cgroups.place(status.key, placement)
        if status.pid is not None:
            await self.cgroups.enter(status.key, status.pid)

    async def statuses(self) -> Sequence[ContainerStatus]:
        """See :class:`pinfold.node.node_containers.NodeContainers`."""
        return await self.runtime.containers()

    def still(self, keys: Collection[ContainerKey] | None) -> AbstractAsyncContextManager[None]:
        """See :class:`pinfold.node.node_containers.NodeContainers`; nobody else writes them."""
        del keys
        return nullcontext()

    async def end_pod(self, pod_uid: str) -> None:
        """Let the runtime forget what it keeps for a pod as a whole, and remove its volumes.

        Raises:
            PortError: something is left; it can be tried again.
        """
        if isinstance(self.runtime, PodRuntime):
            await self.runtime.remove_pod(pod_uid)
        if self.volumes is not None:
            await self.volumes.remove(pod_uid)

    async def end(self, key: ContainerKey) -> None:
        """End what is left of a container's processes, strays too, and remove its cgroup.

        Raises:
            CgroupError: something is still there.
        """
        await self.cgroups.kill(key)
        await self.cgroups.remove(key)

    def placement(self, pod: AdmittedPod, container: Container, where: Whereabouts) -> Placement:
        """What the kernel is told about a container that is to run there."""
        settings, exclusive = self.settings, where.is_exclusive
        limits = PodLimits(pod.workload.pod, settings)
        return Placement(
            cpus=where.cpus,
            idle=where.idle,
            mems=where.mems,
            limits=limits.of_container(container, exclusive=exclusive),
            pod_limits=limits.of_pod(exclusive=pod.is_uncapped),
            partition=(
                settings.partition_of(pod.workload.pod.annotations, container.name)
                if exclusive
                else Partition.MEMBER
            ),
            frozen=where.frozen,
            mixed=where.mixed,
            pooled=where.pooled,
        )

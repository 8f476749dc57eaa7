"""Containers are those of a kubelet, whose runtime asks the agent before each step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from pinfold.adapters.cri import CriClient, CriListing, CriRecord, read_endpoint
from pinfold.adapters.nri import NriPlugin, PluginSettings
from pinfold.adapters.podresources_client import PodResourcesClient
from pinfold.agent.cluster import ClusterEvents, open_cluster
from pinfold.agent.guarded_plugin import GuardedPlugin
from pinfold.agent.parts import CRI_BATCH, Claim, Companion, Parse, Ports, Report
from pinfold.agent.runtime_claim import RuntimeClaim
from pinfold.config.agent import AgentConfig
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.nri.container_lifecycle import ContainerLifecycle
from pinfold.node.nri.kubelet_devices import KubeletDevices
from pinfold.node.nri.lost_removals import LostRemovals
from pinfold.node.nri.seen_containers import SeenContainers
from pinfold.node.nri.seen_pods import SeenPods
from pinfold.node.nri.seen_runtime import SeenRuntime, SeenRuntimeContainers
from pinfold.node.pods.containers import Containers
from pinfold.node.pods.manager import Manager
from pinfold.node.recovery.recovery import Restored
from pinfold.node.recovery.resumption import load
from pinfold.node.runtime_ledger import RuntimeLedger
from pinfold.node.settings import ManagerSettings
from pinfold.ports.figures import Figure

if TYPE_CHECKING:
    from pinfold.adapters.cgroup.runtime_cgroups import RuntimeCgroups
    from pinfold.ports.cgroups import FoundCgroups

NRI_BATCH: Final = 256
"""Containers in one unsolicited update: containerd 1.7 may hang for good when one crosses with an
event, so there are few of them."""

QUIET: Final = 0.2
"""Seconds without an event before an unsolicited update, for the same reason."""


log = structlog.get_logger("pinfold")


class NriDriver:
    """Containers are those of a kubelet, whose runtime asks the agent before each step.

    ``lifecycle`` is who answers, once the manager has begun.
    """

    def __init__(self, config: AgentConfig, cgroups: RuntimeCgroups) -> None:
        self.claim: Claim | None = RuntimeClaim(Path(config.own.nri_socket))
        self.cgroups = cgroups
        self.runtime: SeenRuntime = SeenRuntime()
        self.describe_cgroups = cgroups.describe()
        self.lifecycle: ContainerLifecycle | None = None
        self._client: CriClient | None = None
        if (endpoint := config.own.runtime_endpoint) is not None:
            self._client = CriClient(read_endpoint(endpoint).address)
        self._kubelet: PodResourcesClient | None = None
        if socket := config.own.kubelet_pod_resources:
            self._kubelet = PodResourcesClient(Path(socket))
        self._config = config
        self._ledger: RuntimeLedger | None = None
        self._report: Report = lambda _pod, _problem: None

    def containers(self, ports: Ports, settings: ManagerSettings, report: Report) -> Containers:
        """See :class:`Driver`."""
        self._report = report
        if self._client is None:
            self._ledger = RuntimeLedger(ports.cgroups, report, batch=NRI_BATCH)
        else:
            # Told over the CRI, the runtime asks here before it writes: nothing can cross.
            self._ledger = RuntimeLedger(ports.cgroups, report, batch=CRI_BATCH, settled=0.0)
        return SeenRuntimeContainers(ports.cgroups, ports.runtime, settings, self._ledger)

    def pool_changed(self, pool: CPUSet) -> None:
        """See :class:`Driver`."""
        if self._ledger is not None:
            self._ledger.follow(pool)

    async def begin(
        self, manager: Manager, restored: Restored, *, parse: Parse
    ) -> Sequence[Companion]:
        """See :class:`Driver`."""
        await load(manager, restored)
        await manager.containers.cgroups.open(manager.pool)
        ledger = self._ledger
        assert ledger is not None  # noqa: S101 - the manager has asked for its containers
        cgroups = cast("FoundCgroups", manager.containers.cgroups)
        pods = SeenPods(manager, parse)
        devices = KubeletDevices(self._kubelet, self._report)
        containers = SeenContainers(
            manager, pods, cgroups=cgroups, runtime=self.runtime, ledger=ledger, devices=devices
        )
        lifecycle = ContainerLifecycle(containers)
        self.lifecycle = lifecycle
        own = self._config.own
        cluster = open_cluster(self._config, manager, self._report)
        events = lifecycle if cluster is None else ClusterEvents(lifecycle, pods, cluster)
        settings = PluginSettings(
            socket=Path(own.nri_socket), index=own.nri_plugin_index, pause=QUIET
        )

        def report(problem: str) -> None:
            self._report(None, problem)

        def stopped(problem: str) -> None:
            report(problem)
            if cluster is not None:
                cluster.node_problem(problem)

        async def serve(plugin: NriPlugin) -> None:
            record = plugin if self._client is None else CriRecord(self._client)
            async with asyncio.TaskGroup() as tasks:  # none goes on without the others
                for work in (plugin.run(), ledger.run(record), lost.run()):
                    tasks.create_task(work)

        guarded = GuardedPlugin(
            lambda: NriPlugin(events, settings, report=report, taken=_log_registration),
            serve,
            let_go=lambda: lifecycle.synchronize((), ()),
            report=stopped,
            state_file=Path(own.kubelet_state_file) if own.kubelet_state_file else None,
        )

        if cluster is not None:
            cluster.at_work = lambda: not guarded.problem

        lost = LostRemovals(
            lifecycle,
            containers,
            listing=None if self._client is None else CriListing(self._client),
            events=events,
            register_again=guarded.register_again,
        )

        async def follow(stop: asyncio.Event) -> None:
            del stop
            await guarded.run()

        async def close() -> None:
            for client in (self._client, self._kubelet):
                if client is not None:
                    await client.close()

        def problem() -> str:
            return guarded.problem

        def about() -> Mapping[str, Any]:
            return {
                "socket": own.nri_socket,
                **guarded.about(),
                "behind": ledger.behind,
                "gates": self.cgroups.gates(),
                "kubeletPodResources": {
                    "socket": own.kubelet_pod_resources,
                    **devices.about(),
                },
            }

        def figures() -> Iterable[Figure]:
            return (*guarded.figures(), *devices.figures())

        nri = Companion("nri", follow, problem=problem, about=about, figures=figures, close=close)
        return (nri,) if cluster is None else (nri, cluster.companion())


def _log_registration(runtime: str) -> None:
    """Say that all is well, also after what was said of a connection that was gone."""
    log.info("runtime", name=runtime, plugin="registered")

"""An agent for the containers of a kubelet, whose runtime asks it before each step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog

from pinfold.adapters.cgroup import remove_leftovers
from pinfold.adapters.cgroup.runtime.runtime_cgroups import RuntimeCgroups, gate_figures
from pinfold.adapters.cri import CriClient, CriListing, CriRecord, read_endpoint
from pinfold.adapters.hugetlb import KeptPages
from pinfold.adapters.nri import NriPlugin, PluginSettings
from pinfold.adapters.podfiles import PodFileFolder
from pinfold.adapters.podresources_client import PodResourcesClient
from pinfold.agent.claims import ClaimKeeper, RuntimeClaim
from pinfold.agent.cluster import open_cluster
from pinfold.agent.guarded_plugin import GuardedPlugin
from pinfold.agent.loops.hugepages import HugepageFollower
from pinfold.agent.loops.runnables import Runnable
from pinfold.agent.reports import report, report_of_node
from pinfold.agent.service import Agent
from pinfold.agent.start import CRI_BATCH, PODS, Start
from pinfold.agent.workloads import recorded_workload
from pinfold.documents.status import NRI, KubeletPodResources, PodSpecifications
from pinfold.node.loading import load
from pinfold.node.moves.mover import Mover
from pinfold.node.moves.rebalancing import Rebalancing
from pinfold.node.nri.events import PluginEvents
from pinfold.node.nri.inquiries import Inquiries
from pinfold.node.nri.kubelet_containers import KubeletContainers
from pinfold.node.nri.kubelet_devices import KubeletDevices
from pinfold.node.nri.kubelet_pods import KubeletPods
from pinfold.node.nri.kubelet_room import KubeletRoom
from pinfold.node.nri.kubelet_specs import KubeletSpecs, without_server
from pinfold.node.nri.lifecycle import ContainerLifecycle
from pinfold.node.nri.lost_removals import LostRemovals
from pinfold.node.nri.resizes import KubeletResizes, nobody
from pinfold.node.recorded_cpusets import SETTLED, RecordedCpusets
from pinfold.ports.figures import Figure

GATES: Final = "gates.json"
"""The file in the state directory with what a kubelet's cpusets had before they were used."""

NRI_BATCH: Final = 256
"""Containers in one unsolicited update: containerd 1.7 may hang for good when one crosses with an
event, so there are few of them."""

QUIET: Final = 0.2
"""Seconds without an event before an unsolicited update, for the same reason."""


log = structlog.get_logger("pinfold")


@asynccontextmanager
async def nri_agent(start: Start) -> AsyncIterator[Agent]:
    """An agent that knows what its record says, and can serve; raises what ``start_agent`` does."""
    config, own, front = start.config, start.config.own, start.front
    tree = RuntimeClaim(Path(own.kubelet.nri_socket))
    found = RuntimeCgroups(gates=start.state_dir / GATES, report=report_of_node)
    cgroups, described = front(found), found.describe()
    client = kubelet = None
    if own.containers.runtime_endpoint is not None:
        client = CriClient(read_endpoint(own.containers.runtime_endpoint).address)
    if kubelet_socket := own.kubelet.kubelet_pod_resources:
        kubelet = PodResourcesClient(Path(kubelet_socket))
    clients = [one for one in (client, kubelet) if one is not None]
    async with start.alone(tree, cgroups, *clients) as listener:
        store = start.open_record()
        files = front(PodFileFolder(start.state_dir / PODS))
        await start.confine_system()

        settings = start.settings("")
        restored = await start.restore(store, "")
        await remove_leftovers(own.cgroups.cgroup_parent, own.cgroups.cgroup_name)
        # Told over the CRI, the runtime asks here before it writes: nothing can cross.
        batch, settled = (NRI_BATCH, SETTLED) if client is None else (CRI_BATCH, 0.0)
        on_record = RecordedCpusets(
            cgroups, report, batch=batch, settled=settled, uncaps=settings.uncap_owners
        )
        table = KubeletContainers(cgroups, on_record)
        books = start.books(
            restored,
            table,
            store,
            files,
            settings,
            pool_changed=on_record.follow,
        )
        await load(books, restored)
        await books.open_cgroups(books.view.pool)
        files.retain(books.view.pods.active)
        await books.announcements.retain(books.view.pods.active)

        mover = Mover(books)
        rebalancing = Rebalancing(books, mover, config.node.dynamic)
        cluster, pods = (
            open_cluster(config, books, kubelet),
            KubeletPods(books, rebalancing.rooms, recorded_workload(books.view.node)),
        )
        inquiries = Inquiries(
            pods,
            KubeletDevices(kubelet, report),
            KubeletSpecs(None if cluster is None else cluster.client, report),
        )
        containers = ContainerLifecycle(books, pods, table, on_record, inquiries)
        resizes = KubeletResizes(containers, mover, nobody if cluster is None else cluster.refused)
        events = front(
            PluginEvents(containers, resizes, KubeletRoom(books, pods, rebalancing), cluster)
        )

        async def serve(plugin: NriPlugin) -> None:
            lost = LostRemovals(
                events,
                containers,
                listing=None if client is None else CriListing(client),
                register_again=plugin.register_again,
            )
            record = plugin if client is None else CriRecord(client)
            async with asyncio.TaskGroup() as tasks:  # none goes on without the others
                for work in (plugin.run(), on_record.run(record), lost.run(), resizes.run()):
                    tasks.create_task(work)

        def stopped(problem: str) -> None:
            report_of_node(problem)
            if cluster is not None:
                cluster.node_problem(problem)

        plugin_settings = PluginSettings(
            socket=Path(own.kubelet.nri_socket), index=own.kubelet.nri_plugin_index, pause=QUIET
        )
        guarded = GuardedPlugin(
            lambda: NriPlugin(
                events, plugin_settings, report=report_of_node, taken=_log_registration
            ),
            serve,
            let_go=lambda: events.synchronize((), ()),
            report=stopped,
            state_file=Path(file) if (file := own.kubelet.kubelet_state_file) else None,
        )

        def about() -> NRI:
            return NRI(
                socket=own.kubelet.nri_socket,
                connected=guarded.connected,
                runtime=guarded.runtime,
                kubelet_policy=guarded.verdict.policy.value,
                audits_only=not guarded.verdict.may_pin,
                problem=guarded.problem,
                behind=on_record.behind,
                gates=found.gates(),
                kubelet_pod_resources=KubeletPodResources(
                    socket=kubelet_socket,
                    asked=inquiries.devices.asked,
                    unanswered=inquiries.devices.unanswered,
                    problem=inquiries.devices.problem,
                ),
                pod_specifications=PodSpecifications(
                    server="" if cluster is None else cluster.client.server,
                    asked=inquiries.specs.asked,
                    unread=inquiries.specs.unread,
                    problem=inquiries.specs.problem
                    if cluster is not None
                    else without_server(books.view.node),
                ),
            )

        def figures() -> Iterable[Figure]:
            return (
                *guarded.figures(),
                *inquiries.devices.figures(),
                *inquiries.specs.figures(),
                *gate_figures(found.gates()),
            )

        runnables = [
            Runnable(
                "nri",
                guarded.run,
                problem=lambda: guarded.problem,
                about=about,
                figures=figures,
            ),
            *(() if cluster is None else (cluster.runnable(lambda: not guarded.problem),)),
            *start.served(books),
        ]
        claim = ClaimKeeper(books, tree)
        pages = HugepageFollower(start.planner, books, KeptPages().read)
        yield start.agent(
            books,
            listener,
            claim,
            pages,
            pods=None,
            rebalancing=rebalancing,
            runnables=runnables,
            cgroups=described,
        )


def _log_registration(runtime: str) -> None:
    """Say that all is well, also after what was said of a connection that was gone."""
    log.info("runtime", name=runtime, plugin="registered")

"""What an agent that runs pods itself does beside, whichever runtime it tells to."""

from __future__ import annotations

import socket
from typing import Protocol

from pinfold.adapters.hugetlb import KeptPages
from pinfold.adapters.podfiles import PodFileFolder
from pinfold.agent.claims import Claim, ClaimKeeper
from pinfold.agent.compute_resources import published_devices
from pinfold.agent.loops.hugepages import HugepageFollower
from pinfold.agent.loops.runnables import (
    Runnable,
    bounded_logs,
    container_exits,
    device_plugins,
)
from pinfold.agent.loops.static_pods import static_pods
from pinfold.agent.objects import Objects
from pinfold.agent.pods import Pods
from pinfold.agent.service import Agent
from pinfold.agent.start import Start
from pinfold.config.agent import device_plugin_dir
from pinfold.documents.status import CgroupTree
from pinfold.node.pods.manager import Manager
from pinfold.node.pods.resumption import take_over
from pinfold.node.recovery.recovery import Restored
from pinfold.ports.logs import BoundedLogs
from pinfold.ports.runtime import Runtime


class OwnRuntime(Runtime, BoundedLogs, Protocol):
    """A runtime that is told what to run."""


async def pods_agent(  # noqa: PLR0913 - the parts, one each
    start: Start,
    manager: Manager,
    runtime: OwnRuntime,
    restored: Restored,
    *more: Runnable,
    files: PodFileFolder,
    listener: socket.socket,
    tree: Claim | None,
    described: CgroupTree,
) -> Agent:
    """An agent that has taken over what the record knows; ``more`` goes on beside.

    Raises:
        PortError: the record cannot be written, the pool not be confined, or a kubeconfig not
            be used.
    """
    books, config = manager.books, start.config
    await take_over(manager, restored)
    files.retain(books.view.pods.active)
    await books.announcements.retain(books.view.pods.active)
    if config.static_pod_path is None:
        await Objects(books).follow(())
    claim = ClaimKeeper(books, tree)
    pages = HugepageFollower(start.planner, books, KeptPages().read)
    pods = Pods(config, manager, claim, pages)
    runnables = [
        container_exits(manager.containers.exits, runtime),
        *static_pods(config.static_pod_path, manager, pods.apply, claim, start.loops),
        *more,
        bounded_logs(runtime),
        *start.served(books),
        *published_devices(config, books),
    ]
    if manager.plugins is not None:
        folder = device_plugin_dir(config.own)
        runnables.append(device_plugins(manager, manager.plugins, folder))
    return start.agent(
        books,
        listener,
        claim,
        pages,
        pods=pods,
        rebalancing=manager.rebalancing,
        runnables=runnables,
        cgroups=described,
    )

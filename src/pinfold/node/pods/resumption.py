"""From a restored state to a manager that goes on where the last one left off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.books import Books
from pinfold.node.loading import load
from pinfold.node.node_containers import HELD
from pinfold.node.pods.containers import PodContainers
from pinfold.node.pods.manager import Manager
from pinfold.node.pods.pod_life import PodLife
from pinfold.node.recovery.recovery import Restored
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.runtime import ContainerState, ContainerStatus, MendingRuntime
from pinfold.ports.volumes import remove_leftovers


async def take_over(manager: Manager, restored: Restored) -> None:
    """Make record and kernel agree, adopt what runs, end what nobody knows, let pods go on.

    Raises:
        PortError: no cgroup can be written, or the record cannot.
    """
    books, containers = manager.books, manager.containers
    if isinstance(containers.runtime, MendingRuntime):
        restored.report += await containers.runtime.mended()
    await load(books, restored)
    await books.lease.open()
    # Who runs on CPUs that the record has given to others is gone before those have them.
    await books.open_cgroups(CPUSet())
    newest = await _end_foreign(books, containers)
    free = await _free(books)
    await books.open_cgroups(free)
    await _adopt(books, newest)
    await _hold(books, restored.held)
    if books.view.mixed:
        # Who uses the pool besides its own CPUs may have more of it than there is now.
        async with books.change() as draft:
            await draft.apply_pool()
    elif free != books.view.pool:
        async with books.change() as draft:
            await draft.grow_pool()
    if containers.volumes is not None:
        for problem in await remove_leftovers(containers.volumes, books.view.pods.active):
            books.observers.report(None, problem)
    if containers.logs is not None:
        for problem in await containers.logs.retain(books.view.pods.records()):
            books.observers.report(None, problem)
    await books.announcements.announce(books)
    for pod in list(books.view.pods.active.values()):
        life = manager.lives[pod.uid] = PodLife(pod.uid, pod.name)
        if pod.is_ending:
            manager.end_in_background(life)
        else:
            manager.begin(life)
    manager.mover.go_on()


async def _hold(books: Books, held: Iterable[ContainerKey]) -> None:
    """Take containers that the runtime does not know for running ones, as their cgroups show."""
    containers = books.view.pods.containers()
    for key in held:
        if key in containers:
            pod, container = containers[key]
            attempt = pod.record.restarts.get(container.name, 0)
            status = ContainerStatus(f"{HELD}{key}", key, attempt, ContainerState.RUNNING)
            books.containers.seen.put(status)
            books.observers.report(
                pod.name, f"container {container.name} runs, and its runtime knows nothing of it"
            )
            await _place(books, status)


async def _end_foreign(books: Books, driver: PodContainers) -> list[ContainerStatus]:
    """End what belongs to no pod; returns the containers of the pods, the latest attempt of each.

    Raises:
        PortError: something of it is left.
    """
    containers = books.view.pods.containers()
    ours = []
    for attempts in _attempts(await driver.statuses()).values():
        stale, newest = attempts, attempts[-1]
        if newest.key in containers:
            stale = attempts[:-1]
            ours.append(newest)
        else:
            await driver.end(newest.key)
        for status in stale:
            await driver.runtime.remove(status.id)
    observed = await driver.cgroups.observe()
    for key in observed.containers.keys() - containers.keys():
        await driver.end(key)
    return ours


async def _free(books: Books) -> CPUSet:
    """The CPUs of the pool without those that containers have to leave first."""
    observed, view = await books.containers.cgroups.observe(), books.view
    may_share = {(owner.pod_uid, owner.container) for owner in view.mixed}
    owned = CPUSet.union_of(
        (one.configured or one.effective)
        - (observed.shared if (key.pod_uid, key.name) in may_share else CPUSet())
        for key, one in observed.containers.items()
        if one.exclusive
    )
    # Those that are reserved are never anybody's own.
    reserved = view.state.ledger.limits.reserved - view.state.offline
    return view.pool - owned or reserved or view.pool


async def _adopt(books: Books, newest: Iterable[ContainerStatus]) -> None:
    """Attach containers to their pods and see them placed."""
    for status in newest:
        books.containers.seen.put(status)
        if status.state is ContainerState.RUNNING:
            await _place(books, status)


async def _place(books: Books, status: ContainerStatus) -> None:
    uid = status.key.pod_uid
    try:
        await books.containers.adopt(status, books.placement(status.key))
    except PortError as error:
        # It may have ended a moment ago; if not, it is tried again as all who are misplaced.
        books.observers.report(books.view.pods.active[uid].name, str(error))
        books.offline_owners.misplace(status.key, str(error))


def _attempts(statuses: Sequence[ContainerStatus]) -> dict[ContainerKey, list[ContainerStatus]]:
    """Containers by key, each with its attempts in order."""
    by_key: dict[ContainerKey, list[ContainerStatus]] = {}
    for status in statuses:
        by_key.setdefault(status.key, []).append(status)
    for attempts in by_key.values():
        attempts.sort(key=lambda status: status.attempt)
    return by_key

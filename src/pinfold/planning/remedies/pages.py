"""How many huge pages more would admit a refused pod; every answer is tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.core.kubelet.node_allocatable import AllocatableError
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import Machine
from pinfold.core.memory.hugepage_pools import size_text
from pinfold.core.pod.hugepages import page_size
from pinfold.core.pod.pod import Container, Pod, is_hugepages
from pinfold.node.hugepage_changes import follow_pages, pages_of, with_pages
from pinfold.planning.planner import Planner

_MOST_NODES = 8
"""Of more NUMA nodes the first ones are tried alone."""


def page_sizes(machine: Machine) -> tuple[int, ...]:
    """The huge page sizes of the kernel in bytes, also those of which it keeps no page."""
    sizes = {size for node in machine.numa_nodes for size in node.hugepages}
    return tuple(sorted(sizes | machine.hugepages.keys()))


def missing_size(machine: Machine, resource: str) -> str:
    """What to say of huge pages of a size that the machine has not; "" where it has it."""
    sizes = page_sizes(machine)
    if not is_hugepages(resource) or page_size(resource) in sizes:
        return ""
    if not sizes:
        return "no huge pages of any size are known here"
    return f"the huge pages here are of {' and '.join(map(size_text, sizes))}"


def more_pages(planner: Planner, node: Node, state: NodeState, pod: Pod) -> Iterator[str]:
    """Yield the smallest allocation of huge pages that admits a refused pod, if there is one."""
    wanted = _wanted(pod)
    if not wanted or not wanted.keys() <= set(page_sizes(planner.machine)):
        return
    trial = _Trial(planner, node, state, pod)
    found: list[tuple[int, int | None, dict[int, int]]] = []
    for place in (None, *trial.places[:_MOST_NODES]):
        pages = trial.fewest(place, wanted)
        if pages:
            found.append((sum(size * count for size, count in pages.items()), place, pages))
    if not found:
        return
    _, place, pages = min(found, key=lambda one: one[0])
    where = "" if place is None else f" --node {place}"
    commands = (
        f"`pinfold hugepages allocate {size_text(size)} {count}{where}`"
        for size, count in sorted(pages.items())
    )
    yield f"make more huge pages: {' and '.join(commands)}"


def _wanted(pod: Pod) -> dict[int, int]:
    """Page size -> the most pages that the pod can have at once."""
    found: dict[int, int] = {}

    def add(container: Container) -> None:
        for name, quantity in container.requests.items():
            size = page_size(name) if is_hugepages(name) else None
            if size and quantity.sign > 0:
                found[size] = found.get(size, 0) + -(-quantity.value() // size)

    for container in pod.all_containers:
        add(container)
    return found


class _Trial:
    """Decides about a pod on a machine with more huge pages."""

    def __init__(self, planner: Planner, node: Node, state: NodeState, pod: Pod) -> None:
        self._planner, self._node, self._state, self._pod = planner, node, state, pod
        nodes = [n.id for n in planner.machine.numa_nodes if n.hugepages]
        self._spread = nodes
        # Where nobody counts by NUMA node, it does not matter where they are.
        self.places = nodes if state.memory is not None and len(nodes) > 1 else []

    def fewest(self, place: int | None, wanted: Mapping[int, int]) -> dict[int, int]:
        """Page size -> pages to add at a place (None: evenly everywhere); empty for no way."""
        step = len(self.places) or 1 if place is None else 1
        units: dict[int, int] = dict(wanted)

        def admits(changed: Mapping[int, int]) -> bool:
            return self._admits(place, {size: n * step for size, n in changed.items()})

        if not admits(units):
            return {}
        for size, most in wanted.items():
            bad, good = -1, most
            while good - bad > 1:
                middle = (bad + good) // 2
                if admits({**units, size: middle}):
                    good = middle
                else:
                    bad = middle
            units[size] = good
        return {size: count * step for size, count in units.items() if count}

    def _admits(self, place: int | None, pages: Mapping[int, int]) -> bool:
        planner = self._planner
        machine = self._machine_with(place, pages)
        if machine is None:
            return False
        try:
            view = kubelet_view(machine)
            now = follow_pages(self._node, self._state, machine, view, planner.config)
        except AllocatableError:
            return False
        return not now.problem and decide(now.node, now.state, self._pod).admitted

    def _machine_with(self, place: int | None, pages: Mapping[int, int]) -> Machine | None:
        """The machine with more pages; None where its memory is too small for them."""
        machine = self._planner.machine
        counts = {at: dict(there) for at, there in pages_of(machine).items()}
        spread = self._spread if place is None else [place]
        for size, count in pages.items():
            for at, share in zip(spread, _shares(count, len(spread)), strict=True):
                counts[at][size] = counts[at].get(size, 0) + share
            if size in counts[None]:
                counts[None][size] += count
        for node in machine.numa_nodes:
            taken = sum(size * count for size, count in counts[node.id].items())
            if node.memory_bytes and taken > node.memory_bytes:
                return None
        return with_pages(machine, counts)


def _shares(count: int, nodes: int) -> list[int]:
    """``count`` in as many shares as there are nodes, as even as can be."""
    return [count // nodes + (at < count % nodes) for at in range(nodes)]

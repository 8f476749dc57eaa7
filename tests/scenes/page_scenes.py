"""Scenes of nodes of many kinds, as a page in a browser is shown them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.live.scene import (
    Paint,
    Scene,
    SceneBox,
    SceneContainer,
    SceneCore,
    SceneFact,
    SceneGauge,
    SceneOwner,
    ScenePage,
    ScenePod,
    SceneState,
    SceneZone,
)
from pinfold.render.boxes import CellState
from pinfold.render.palette import (
    STATES,
    owner_paint,
    owner_stripes,
    owner_symbol,
    state_symbol,
    stripe_color,
)
from pinfold.render.svg_canvas import LIGHT, STATES_IN_THE_DARK

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "a\u202eb\u2066\"'&amp;{}`${alert(3)}",
    "x" * 253,
    "постгрес 数据库 🦆",
)
HOST = "worker-7"
SUBTITLE = "kubelet 1.36 · CPU manager static (full-pcpus-only) · topology manager single-numa-node"


def machine(
    sockets: int, numa: int, cores: int, threads: int, *, caches: int = 1, memory: str = "64 GiB"
) -> SceneBox:
    """Sibling threads numbered one after the other; ``cores`` of each of a NUMA node's caches."""
    number, core = iter(range(9999)), iter(range(9999))

    def cache() -> tuple[SceneCore, ...]:
        return tuple(
            SceneCore(id=next(core), cpus=[next(number) for _ in range(threads)])
            for _ in range(cores)
        )

    def node(socket: int, index: int) -> SceneBox:
        title = f"NUMA node {socket * numa + index} · {memory}"
        if numa == 1:
            title = f"Socket {socket} · {title}"
        if caches == 1:
            return SceneBox(title=title, cores=cache())
        boxes = [SceneBox(title=f"L3 {(socket * numa + index) * caches + at}", cores=cache())
                 for at in range(caches)]  # fmt: skip
        return SceneBox(title=title, boxes=boxes)

    boxes = []
    for socket in range(sockets):
        nodes = [node(socket, index) for index in range(numa)]
        boxes += nodes if numa == 1 else [SceneBox(title=f"Socket {socket}", boxes=nodes)]
    return SceneBox(title="", boxes=boxes)


def cpus_of(box: SceneBox) -> CPUSet:
    """All CPUs in a box."""
    own = CPUSet(cpu for core in box.cores for cpu in core.cpus)
    return CPUSet.union_of([own, *(cpus_of(one) for one in box.boxes)])


def state_paint(state: CellState) -> Paint:
    """How CPUs of a state are painted."""
    mark = state_symbol(state)
    if state is CellState.OFFLINE:
        return Paint(mark=mark, background=LIGHT["bg"], text=LIGHT["off"], outline=True)
    paint = STATES[state]
    dark = STATES_IN_THE_DARK.get(state)
    return Paint(
        mark=mark,
        background=f"#{paint.background}",
        text=f"#{paint.text}",
        dark_background=dark[0] if dark else UNSET,
        dark_text=dark[1] if dark else UNSET,
    )


def paint_of(index: int) -> Paint:
    """How the CPUs of the owner with this index are painted."""
    paint, stripes = owner_paint(index), owner_stripes(index)
    return Paint(
        mark=owner_symbol(index),
        background=f"#{paint.background}",
        text=f"#{paint.text}",
        stripes=stripes,
        stripe=f"#{stripe_color(paint)}" if stripes else UNSET,
    )


class Node:
    """A node to which pods come; :meth:`scene` is how it is drawn."""

    def __init__(self, root: SceneBox, reserved: str = "", **states: str) -> None:
        self.root = root
        self.cpus = cpus_of(root)
        self.states = {CellState.RESERVED: CPUSet.parse(reserved)} | {
            CellState[name.upper()]: CPUSet.parse(cpus) for name, cpus in states.items()
        }
        self.free = self.cpus - CPUSet.union_of(self.states.values())
        self.owners: list[SceneOwner] = []
        self.pods: list[ScenePod] = []

    def take(self, count: int) -> CPUSet:
        """The next free CPUs."""
        taken = CPUSet(list(self.free)[:count])
        self.free -= taken
        return taken

    def pod(
        self,
        name: str,
        cpus: Mapping[str, int],
        *,
        word: str = "Guaranteed",
        extras: Sequence[str] = (),
        lent: int = 0,
        mixed: bool = False,
        workload: str | None = None,
        why: Sequence[str] = (),
        ended: bool = False,
    ) -> None:
        """A pod comes; ``cpus`` is how many each container has for itself, 0 on the shared pool."""
        namespace, _, short = name.partition("/")
        containers = []
        for container, count in cpus.items():
            own = self.take(count)
            key = f"{name}/{container}" if own else None
            if key:
                self.owners.append(
                    SceneOwner(
                        key=key,
                        label=f"{name} {container}{' and the shared pool' if mixed else ''}",
                        pod=name,
                        container=container,
                        cpus=str(own),
                        lent=str(CPUSet(list(own)[len(own) - lent :])) if lent else "",
                        mixed=mixed,
                        paint=paint_of(len(self.owners)),
                    )
                )
            containers.append(
                SceneContainer(
                    name=container,
                    cpus=str(own),
                    exclusive=bool(own),
                    owner=key,
                    remark="" if own else "shared pool",
                    extras=extras if own else (),
                )
            )
        self.pods.append(
            ScenePod(
                namespace=namespace,
                name=short,
                uid=f"uid-{len(self.pods)}",
                word=word,
                admitted=True,
                ended=ended,
                workload=workload,
                containers=containers,
                why=why or UNSET,
            )
        )

    def refused(self, name: str, reason: str, message: str) -> None:
        """A pod comes, and is sent away."""
        namespace, _, short = name.partition("/")
        self.pods.append(
            ScenePod(
                namespace=namespace,
                name=short,
                uid=f"uid-{len(self.pods)}",
                word="Guaranteed",
                admitted=False,
                reason=reason,
                message=message,
            )
        )

    def scene(
        self,
        title: str = "worker-7",
        *,
        at: float | None = 1_790_000_000.0,
        zones: Sequence[SceneZone] = (),
        notes: Sequence[str] = (),
        marked: str = "",
    ) -> Scene:
        """How it is drawn now."""
        everyone = CPUSet.union_of(CPUSet.parse(owner.cpus) for owner in self.owners)
        reserved = self.states[CellState.RESERVED]
        return Scene(
            title=title,
            subtitle=SUBTITLE,
            at=at,
            live=at is not None,
            summary=f"{len(self.cpus)} CPUs · {len(everyone)} exclusive · "
            f"{len(self.free)} shared · {len(reserved)} reserved",
            root=self.root,
            owners=tuple(self.owners),
            states=[*self._states()],
            pods=tuple(
                replace(pod, containers=[self._placed(one) for one in pod.containers])
                for pod in self.pods
            ),
            zones=zones,
            facts=[
                SceneFact(
                    name="Shared pool",
                    value=str(self.free | reserved),
                    remark=f"{len(self.free | reserved)} CPUs",
                ),
                SceneFact(
                    name="Allocatable",
                    value=str(self.cpus - reserved),
                    remark=f"{len(self.cpus - reserved)} CPUs",
                ),
            ],
            notes=notes,
            marked=marked,
        )

    def _placed(self, one: SceneContainer) -> SceneContainer:
        return one if one.exclusive else replace(one, cpus=str(self.free))

    def _states(self) -> Iterator[SceneState]:
        for state, cpus in {CellState.SHARED: self.free, **self.states}.items():
            if cpus:
                yield SceneState(
                    state=state.value,
                    cpus=str(cpus),
                    paint=state_paint(state),
                )


WHY = (
    "Container postgres  requests cpu 8, memory 16Gi",
    "  decided by  8 exclusive CPUs: Guaranteed pod with a whole cpu request",
    "    1. took 4 whole cores on NUMA node 0",
    "",
    "  Guaranteed · kubelet 1.36 · CPU manager static (full-pcpus-only)",
)


def small() -> Node:
    """2s8c2t with six pods, and one that was refused."""
    node = Node(machine(2, 1, 8, 2), reserved="0-1")
    node.pod("trading/feed-handler", {"feed": 4, "log-shipper": 0}, why=WHY)
    node.pod("trading/order-db-0", {"postgres": 8}, extras=["memory 16 GiB on NUMA node 0"],
             workload="statefulset/order-db", why=WHY)  # fmt: skip
    node.pod("default/web-0", {"nginx": 0}, word="Burstable", workload="deployment/web")
    node.pod("default/web-1", {"nginx": 0}, word="Burstable", workload="deployment/web")
    node.pod("default/report-0", {"report": 0}, word="BestEffort")
    node.pod("trading/risk-model", {"model": 10},
             extras=["huge pages 2 MiB: 1 GiB on NUMA node 1", "device nvidia.com/gpu: gpu-3"],
             why=WHY)  # fmt: skip
    node.refused("trading/backtest", "TopologyAffinityError",
                 "Resources cannot be allocated with Topology locality")  # fmt: skip
    return node


def example() -> Node:
    """A busy node with what the page is for: for pictures."""
    node = Node(machine(2, 1, 24, 2), reserved="0-3", isolated="94-95")
    node.pod("trading/feed-handler", {"feed": 8, "log-shipper": 0})
    node.pod(
        "trading/order-db-0",
        {"postgres": 16},
        workload="statefulset/order-db",
        extras=["memory 16 GiB on NUMA node 0", "huge pages 2 MiB: 1 GiB on NUMA node 0"],
    )
    node.pod("edge/packet-core", {"fastpath": 6, "control": 0}, mixed=True)
    node.pod("trading/risk-model", {"model": 14})
    node.pod("ml/trainer-3", {"train": 12, "metrics": 0}, lent=4, extras=["nvidia.com/gpu: gpu-3"])
    for index in range(17):
        name = f"shop/web-7c9f6d-{index:02}"
        node.pod(name, {"nginx": 0}, word="Burstable", workload="deployment/web")
    node.pod("batch/nightly-report", {"report": 0}, word="BestEffort")
    message = "Resources cannot be allocated with Topology locality"
    node.refused("trading/backtest", "TopologyAffinityError", message)
    return node


def zones() -> list[SceneZone]:
    """Memory and devices of two NUMA nodes."""
    return [
        SceneZone(title="NUMA node 0", gauges=[
            SceneGauge(name="memory", used=0.28, text="17.5 of 62.9 GiB"),
            SceneGauge(name="hugepages-2Mi", used=0.0, text="0 of 4 GiB"),
            SceneGauge(name="nvidia.com/gpu", used=0.5, text="1 of 2, 1 unhealthy")]),
        SceneZone(title="NUMA node 1", gauges=[
            SceneGauge(name="memory", used=0.93, text="58.5 of 62.9 GiB"),
            SceneGauge(name="hugepages-2Mi", used=0.25, text="1 of 4 GiB")]),
    ]  # fmt: skip


def large(pods: int = 250) -> Node:
    """512 CPUs: two sockets with four NUMA nodes each, 8 caches of 4 cores in each; 250 pods."""
    node = Node(machine(2, 4, 4, 2, caches=8, memory="192 GiB"), reserved="0-7")
    for index in range(pods * 15 // 100):
        node.pod(f"team-{index % 5}/engine-{index}", {"main": (2, 4, 8, 16)[index % 4], "proxy": 0},
                 workload=f"statefulset/engine-{index % 7}", why=WHY)  # fmt: skip
    for index in range(pods * 60 // 100):
        node.pod(f"shop/web-6f7d9c8b5-{index:04x}", {"nginx": 0}, word="Burstable",
                 workload="deployment/web")  # fmt: skip
    for index in range(pods - len(node.pods) - 3):
        node.pod(f"batch/job-{index}", {"work": 0}, word="BestEffort", ended=index % 9 == 0)
    for index in range(3):
        node.refused(f"team-1/late-{index}", "UnexpectedAdmissionError",
                     "Allocate failed due to not enough cpus available to satisfy request: "
                     "requested=64, available=54, which is unexpected")  # fmt: skip
    return node


def mixed() -> Node:
    """Every state that a CPU may have: lent, idle, isolated, offline, unseen; a mixed owner."""
    node = Node(machine(2, 1, 12, 2), reserved="0-1", idle="5,7", isolated="40-43",
                offline="44-45", unseen="46-47")  # fmt: skip
    node.pod("default/lender", {"main": 8}, lent=3)
    node.pod("default/mixed", {"main": 4}, mixed=True)
    node.pod("default/web", {"nginx": 0}, word="Burstable")
    return node


def hybrid() -> Node:
    """Cores of two kinds: with two threads, and with one."""
    fast = tuple(SceneCore(id=at, cpus=[2 * at, 2 * at + 1]) for at in range(6))
    slow = tuple(SceneCore(id=6 + at, cpus=[12 + at]) for at in range(8))
    boxes = [SceneBox(title="Performance cores", cores=fast),
             SceneBox(title="Efficiency cores", cores=slow)]  # fmt: skip
    socket = SceneBox(title="Socket 0 · NUMA node 0 · 32 GiB · L3 0", boxes=boxes,
                      devices=["enp3s0 · 10 Gbit/s"])  # fmt: skip
    root = SceneBox(title="", boxes=[socket])
    node = Node(root, reserved="0")
    node.pod("home/encoder", {"ffmpeg": 4})
    return node


def many_owners() -> Node:
    """A hundred owners: every colour with every kind of stripes."""
    node = Node(machine(1, 2, 32, 2))
    for index in range(100):
        node.pod(f"default/one-{index}", {"main": 1})
    return node


def hostile() -> Node:
    """Names that are no names."""
    node = Node(machine(1, 1, 8, 1))
    for text in HOSTILE:
        node.pod(f"{text}/{text}", {text: 1}, extras=[text], workload=text, why=[text])
    node.refused(f"{HOSTILE[0]}/x", HOSTILE[0], HOSTILE[1])
    return node


def compared() -> ScenePage:
    """Two configurations beside each other."""
    before, after = small(), Node(machine(2, 1, 8, 2), reserved="0-1")
    after.pod("trading/feed-handler", {"feed": 4, "log-shipper": 0})
    after.pod("trading/order-db-0", {"postgres": 8})
    why = ("Container backtest  requests cpu 8", "  decided by  8 exclusive CPUs")
    after.pod("trading/backtest", {"backtest": 8}, why=why)
    after.refused("trading/risk-model", "UnexpectedAdmissionError", "not enough cpus")
    return ScenePage(
        title="2s8c2t, two configurations",
        scenes=[
            before.scene("kubelet.yaml", at=None, marked="14-29", zones=zones()),
            after.scene("kubelet-new.yaml", at=None, marked="14-29"),
        ],
        changes=[
            "trading/backtest: rejected → CPUs 14-21",
            "trading/risk-model: CPUs 14-23 → rejected, UnexpectedAdmissionError",
        ],
        details={"The command": "pinfold plan --compare kubelet-new.yaml", "Quotas": "none"},
    )


def empty() -> Node:
    """A node to which no pod has come."""
    return Node(machine(2, 1, 8, 2), reserved="0")


def one_cpu() -> Node:
    """As small as a machine can be."""
    return Node(machine(1, 1, 1, 1))


NODES: Mapping[str, Callable[[], Node]] = {
    "small": small,
    "large": large,
    "mixed": mixed,
    "hybrid": hybrid,
    "many owners": many_owners,
    "hostile": hostile,
    "empty": empty,
    "one CPU": one_cpu,
}
"""Nodes by what is special about them."""


def page_of(node: Node, *, at: float | None = None) -> ScenePage:
    """A page that shows this node alone."""
    return ScenePage(title="worker-7", scenes=[node.scene(at=at, zones=zones(), notes=["A note."])])

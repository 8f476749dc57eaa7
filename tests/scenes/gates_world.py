"""A life of containers in a kubelet's tree, in which each write to a cpuset is looked at."""

from __future__ import annotations

import random
from pathlib import Path

from pinfold.adapters.cgroup.runtime.container_cpusets import ContainerCpusets
from pinfold.adapters.cgroup.runtime.gates import gate_of
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_nri import FakeContainer, FakeNode
from pinfold.planning.fake_runtime_cgroups import FakeCpusets, MemoryGateRecord
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey
from pinfold.ports.nri import ContainerState, PodSandbox, Resources

MACHINE = CPUSet(range(8))
OPEN = {CPUSet(), MACHINE}
"""What a gate has that holds nobody."""
PARENTS = ("/kubepods", "/kubepods", "/kubepods/burstable", "/kubepods/besteffort")
BURSTABLE = Path("/kubepods/burstable")


class KilledError(Exception):
    """The agent is killed after a write."""


class World:
    """An agent's cpusets, its books and the kernel; ``granted`` is what nobody else may use."""

    def __init__(
        self, seed: int, version: int = 2, kernel: type[FakeCpusets] = FakeCpusets
    ) -> None:
        self.choice = random.Random(seed)  # noqa: S311 - reproducible
        self.node = FakeNode(MACHINE, version)
        self.kernel = kernel(self.node)
        self.node.wrote = self.wrote
        self.record = MemoryGateRecord()
        self.pool = MACHINE
        self.own: dict[ContainerKey, CPUSet] = {}
        self.mixed: set[ContainerKey] = set()
        self.granted: dict[ContainerKey, CPUSet] = {}
        self.containers: dict[ContainerKey, FakeContainer] = {}
        self.writes = 0
        self.dies_at: int | None = None
        self.is_stale = False
        self._begin()

    def _begin(self) -> None:
        self.cpusets = ContainerCpusets(self.kernel, self.record)
        self.cpusets.open(self.pool)

    def wrote(self) -> None:
        self.check()
        self.writes += 1
        if self.writes == self.dies_at:
            raise KilledError

    def check(self) -> None:
        if self.is_stale:
            return
        for key, one in self.containers.items():
            for owner, cpus in self.granted.items():
                shared = (one.kernel or CPUSet()) & cpus
                assert owner == key or not shared, f"{key} is on {shared} of {owner}"

    # ------------------------------------------------------------------------- what happens

    async def pod(self, parent: str | None = None) -> PodSandbox:
        number = len(self.node.pods)
        parent = parent or self.choice.choice(PARENTS)
        return await self.node.run_pod(f"uid-{number}", f"p{number}", f"{parent}/pod{number}")

    def placement(self, key: ContainerKey) -> Placement:
        return Placement(cpus=self.own.get(key), mixed=key in self.mixed)

    async def create(
        self, pod: PodSandbox, own: CPUSet | None, *, mixed: bool = False
    ) -> ContainerKey:
        """As the runtime does, with what the books say or, as an old record has it, with all."""
        name = f"c{len(self.containers)}-{self.choice.randrange(1 << 30)}"
        key = ContainerKey(pod.uid, name)
        if own is not None:
            self.own[key] = own
            self.mixed |= {key} if mixed else set()
            self.pool -= own
            await self.cpusets.set_shared(self.pool)
            self.granted[key] = own
        known = self.cpusets.place(key, self.placement(key))
        await self.cpusets.pin(known)
        cpus = known.within(self.pool)
        one = await self.node.create(pod, name, Resources(cpus=str(cpus)))
        one.cpuset = cpus
        self.containers[key] = one
        self.wrote()
        one.seen = type(one.seen)(
            one.seen.id, pod.id, name, ContainerState.RUNNING, cgroups_path=one.seen.cgroups_path
        )
        await self.find(key)
        return key

    async def find(self, key: ContainerKey) -> None:
        known = self.cpusets.place(key, self.placement(key))
        self.cpusets.locate(known, Path(self.containers[key].seen.cgroups_path))
        await self.cpusets.pin(known)

    async def end(self, key: ContainerKey) -> None:
        one = self.containers.pop(key)
        self.granted.pop(key, None)
        del self.node.containers[one.seen.id]
        freed = self.own.pop(key, CPUSet())
        self.mixed.discard(key)
        self.pool |= freed
        await self.cpusets.forget(key)
        await self.cpusets.set_shared(self.pool)

    async def move(self, key: ContainerKey, new: CPUSet) -> None:
        """An owner gets other CPUs, as a resize in place does it."""
        before, old = self.pool, self.own[key]
        self.own[key] = new
        self.pool = (before | old) - new
        await self.cpusets.set_shared(before & self.pool)
        self.granted[key] = old | new
        await self.find(key)
        self.granted[key] = new
        await self.cpusets.set_shared(self.pool)

    def rewrite(self, key: ContainerKey) -> None:
        """A runtime writes what it had on record long ago; only a gate can hold that."""
        one = self.containers[key]
        gate = gate_of(Path(one.seen.cgroups_path))
        cpus = self.placement(key).within(self.pool)
        if gate is not None and not self.cpusets.gates.written.get(gate, MACHINE) - cpus:
            one.cpuset = MACHINE
            self.wrote()

    def wipe(self) -> None:
        """As others do; until it is noticed, it is as if there were no gate."""
        held = self.cpusets.gates.written.items()
        if gates := [gate for gate, cpus in held if cpus not in OPEN]:
            gate = self.choice.choice(gates)
            self.is_stale = True
            self.node.gates[gate] = MACHINE
            assert self.cpusets.gates.mend(gate)
            assert not self.cpusets.gates.mend(gate)
            self.is_stale = False
            self.check()

    async def begin_again(self) -> None:
        """Another agent takes over what the books say and the runtime shows."""
        self.dies_at = None
        for key in self.own.keys() - self.containers.keys():
            self.pool |= self.own.pop(key)
            self.granted.pop(key, None)
            self.mixed.discard(key)
        # What the one before was just about to give is had when this one is through.
        self.granted = {key: cpus & self.own[key] for key, cpus in self.granted.items()}
        self._begin()
        await self.cpusets.set_shared(self.pool)
        for key in self.containers:
            await self.cpusets.pin(self.cpusets.place(key, self.placement(key)))
        for key in sorted(
            self.containers, key=lambda one: (one in self.own, one not in self.mixed)
        ):
            await self.find(key)
        await self.cpusets.settle()
        self.granted = dict(self.own)

    def check_all(self) -> None:
        """All are exactly where they belong, and the gates that are not needed are as before."""
        self.check()
        for key, one in self.containers.items():
            assert one.kernel == self.placement(key).within(self.pool), key
        assert self.record.before.keys() == self.cpusets.gates.written.keys()
        held = {gate for gate, cpus in self.node.gates.items() if cpus not in OPEN}
        written = self.cpusets.gates.written
        assert held == {gate for gate, cpus in written.items() if cpus not in OPEN}

    async def step(self) -> None:
        pods = list(self.node.pods.values())
        owners = [key for key in self.own if key in self.containers]
        sharers = [key for key in self.containers if self.placement(key).shares]
        what = self.choice.choice(("share", "share", "own", "own", "end", "move", "old", "wipe"))
        free = sorted(self.pool - CPUSet([0]))
        wanted = CPUSet(self.choice.sample(free, min(len(free), self.choice.choice((1, 2)))))
        pod = self.choice.choice(pods) if len(pods) > 4 else await self.pod()
        if what == "share":
            await self.create(pod, None)
        elif what == "own" and wanted and pod.cgroup_parent.startswith("/kubepods/pod"):
            await self.create(pod, wanted, mixed=self.choice.random() < 0.5)
        elif what == "end" and self.containers:
            await self.end(self.choice.choice(list(self.containers)))
        elif what == "move" and owners and wanted:
            await self.move(self.choice.choice(owners), wanted)
        elif what == "old" and sharers:
            self.rewrite(self.choice.choice(sharers))
        elif what == "wipe":
            self.wipe()

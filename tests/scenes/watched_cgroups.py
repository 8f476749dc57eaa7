"""A kernel that looks at itself after each effect: does anybody run where another one does?"""

from __future__ import annotations

from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_cgroups import FakeCgroups
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey


class WatchedCgroups(FakeCgroups):
    """It knows nothing of records and plans: only processes, and where they may run."""

    def __init__(self, machine: CPUSet, version: int = 2) -> None:
        super().__init__(machine, version)
        self.effects: list[tuple[str, str]] = []
        """What was written, in its order."""
        self.shared_by_two: list[str] = []
        """What was seen and may not be, whoever has caught the error."""
        self.lenders: set[str] = set()
        """The uids of the pods of which CPUs may be lent."""

    async def set_shared(self, cpus: CPUSet) -> None:
        await super().set_shared(cpus)
        self._look("shared", str(cpus))

    async def lend(self, cpus: CPUSet) -> None:
        await super().lend(cpus)
        self._look("lent", str(cpus))

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        granted = await super().place(key, placement)
        self._look(key.name, str(placement.cpus))
        return granted

    async def enter(self, key: ContainerKey, pid: int, *, start: int | None = None) -> None:
        await super().enter(key, pid, start=start)
        self._look(f"enter {key.name}", str(pid))

    def _look(self, what: str, value: str) -> None:
        self.effects.append((what, value))
        try:
            self._check()
        except AssertionError as error:
            self.shared_by_two.append(str(error))
            raise

    def _check(self) -> None:
        owners: dict[int, ContainerKey] = {}
        everybody = {
            pid: key
            for pid, key in self.processes.items()
            if key is not None and self._has_place(key)
        }
        exclusive = {
            pid: key
            for pid, key in everybody.items()
            if self.groups[key].placement.cpus is not None
        }
        for pid, key in exclusive.items():
            placement, own = self.groups[key].placement, self.allowed(pid)
            # Of a mixed one the rest is the pool's.
            for cpu in own & (placement.cpus or own) if placement.mixed else own:
                other = owners.setdefault(cpu, key)
                assert other.pod_uid == key.pod_uid, f"{key} and {other} on {cpu}: {self.effects}"
        for pid, key in everybody.items():
            if pid not in exclusive or self.groups[key].placement.mixed:
                borrows = self.groups[key].placement.borrows
                for cpu in self.allowed(pid):
                    other = owners.get(cpu, key)
                    may = other.pod_uid == key.pod_uid or (
                        borrows and other.pod_uid in self.lenders
                    )
                    assert may, f"{key} runs on {cpu} of {other}: {self.effects}"

    def _has_place(self, key: ContainerKey) -> bool:
        """Whether the kernel keeps it on its CPUs, and has not moved it as they are all offline."""
        own = self.groups[key].placement.cpus
        return own is None or bool(own & self.online)

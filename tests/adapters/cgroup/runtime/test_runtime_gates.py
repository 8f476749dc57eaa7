"""A kubelet's cpusets above containers, on this kernel: needs root, cgroup v2 and two CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.cgroup.files import read_cpus, write
from pinfold.adapters.cgroup.runtime.runtime_cgroups import RuntimeCgroups
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import FoundCgroups
from pinfold.ports.errors import CgroupError
from tests.scenes.gates_contract import GatesContract
from tests.scenes.runtime_place import Place


def cgroupfs(pod: str, name: str) -> list[str]:
    """Where a kubelet with the cgroup driver cgroupfs has a container."""
    return ["kubepods", *pod.split("/"), name]


def systemd(pod: str, name: str) -> list[str]:
    """The same with the driver systemd."""
    parts = ["kubepods"]
    for part in pod.split("/"):
        parts.append(f"{parts[-1]}-{part}")
    return [*(f"{part}.slice" for part in parts), f"cri-containerd-{name}.scope"]


class KernelWorld:
    """See :class:`tests.scenes.gates_contract.GatedWorld`."""

    def __init__(self, place: Place, record: Path, driver: str) -> None:
        self._place = place
        self._record = record
        self._names = systemd if driver == "systemd" else cgroupfs
        self._pids: dict[str, int] = {}
        self.cpus = place.cpus

    def agent(self) -> FoundCgroups:
        return RuntimeCgroups(gates=self._record)

    async def container(self, pod: str, name: str) -> str:
        path, self._pids[path] = self._place.container(*self._names(pod, name))
        return path

    def allowed(self, path: str) -> CPUSet:
        return self._place.allowed(self._pids[path])

    def own(self, path: str) -> CPUSet:
        return read_cpus(self._folder(path) / "cpuset.cpus")

    def write(self, path: str, cpus: CPUSet) -> None:
        write(self._folder(path) / "cpuset.cpus", str(cpus))

    def above(self, path: str, levels: int) -> str:
        return str(Path(path).parents[levels - 1])

    def _folder(self, path: str) -> Path:
        return self._place.root.parent / path.lstrip("/")


class TestKernelGates(GatesContract):
    @pytest.fixture(autouse=True, params=["cgroupfs", "systemd"])
    def _world(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
        if os.geteuid() != 0:
            pytest.skip("needs root")
        if len(os.sched_getaffinity(0)) < 2:
            pytest.skip("needs two CPUs")
        try:
            place = Place()
        except (CgroupError, OSError) as error:
            pytest.skip(f"no cgroup tree that can be written: {error}")
        try:
            if place.version == 1:
                pytest.skip("needs cgroup v2")
            self.world = KernelWorld(place, tmp_path / "gates.json", request.param)
            yield
            assert not list(tmp_path.iterdir()), "nothing is left on record"
        finally:
            place.clean()

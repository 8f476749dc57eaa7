"""The kernel's counters, read from cgroups of this machine: v1's, and v2's where it is mounted."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pinfold.adapters.cgroup.hierarchy import find_hierarchies
from pinfold.adapters.observation import CgroupMeters, ProcCPUMeter
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.descriptors import open_files
from pinfold.ports.errors import ContainerKey, PortError
from tests.scenes.meters_contract import BUSY, check_container_meters, check_cpu_meter
from tests.scenes.waiting import wait_until

SPIN = "while True: pass"
THREADS = """
import threading
for _ in range(2):
    threading.Thread(target=lambda: exec('while True: pass')).start()
"""


class Place:
    """A cgroup of its own in each hierarchy, with a process that spins."""

    def __init__(self, version: int) -> None:
        found = find_hierarchies()
        self.name = f"pinfold-test-{secrets.token_hex(4)}"
        self.folders: dict[str, Path] = {}
        if version == 1:
            for controller in ("cpu", "cpuacct", "pids"):
                if controller in found.v1:
                    self.folders[controller] = found.v1[controller].point / self.name
        elif found.unified is not None:
            self.folders[""] = found.unified.point / self.name
        if not self.folders or os.geteuid() != 0:
            pytest.skip(f"needs root and a mounted hierarchy of cgroup v{version}")
        self.version = version
        self.processes: list[subprocess.Popen[bytes]] = []
        self.meters = CgroupMeters(version, self)
        self.make()

    def folder_of(self, key: ContainerKey, controller: str) -> Path | None:
        if key != BUSY:
            return None
        return self.folders.get(controller if self.version == 1 else "")

    def make(self) -> None:
        for folder in self.folders.values():
            folder.mkdir()
        self.run(SPIN)

    def run(self, program: str, below: str = "") -> None:
        process = subprocess.Popen([sys.executable, "-c", program])
        self.processes.append(process)
        for folder in self.folders.values():
            (folder / below).mkdir(exist_ok=True)
            (folder / below / "cgroup.procs").write_text(str(process.pid))

    def remove(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes = []
        for folder in self.folders.values():
            for one in (folder / "inner", folder):
                wait_until(partial(_removed, one))

    def make_anew(self) -> None:
        self.remove()
        self.make()


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # a process that was ended holds it for a moment
    return True


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(request.param)
    try:
        yield made
    finally:
        made.remove()


def test_meters_keep_the_contract(place: Place) -> None:
    before = open_files()
    check_container_meters(place)
    assert open_files() == before


def test_who_waits_for_one_cpu_is_seen_to_wait(place: Place) -> None:
    """Several that spin on one CPU: threads of a process, in a cgroup below the container's."""
    if not place.meters.wait_source:
        pytest.skip("this kernel tells of no waits")
    cpu = min(os.sched_getaffinity(0))
    place.run(THREADS, "inner")
    for process in place.processes:
        with suppress(ProcessLookupError):
            for tid in os.listdir(f"/proc/{process.pid}/task"):
                os.sched_setaffinity(int(tid), {cpu})

    def waited() -> bool:
        return (place.meters.read([BUSY])[BUSY].wait or 0) >= 100_000

    wait_until(waited)


def test_a_quota_is_seen_to_throttle(place: Place) -> None:
    if place.version == 2 and "cpu" not in (
        (place.folders[""].parent / "cgroup.controllers").read_text().split()
    ):
        pytest.skip("the controller cpu is not in this hierarchy")
    if place.version == 1:
        (place.folders["cpu"] / "cpu.cfs_quota_us").write_text("2000")
    else:
        (place.folders[""].parent / "cgroup.subtree_control").write_text("+cpu")
        (place.folders[""] / "cpu.max").write_text("2000 100000")

    def throttled() -> bool:
        found = place.meters.read([BUSY])[BUSY]
        return (found.throttled_periods or 0) > 0 and (found.throttled or 0) > 0

    wait_until(throttled)
    assert (place.meters.read([BUSY])[BUSY].periods or 0) > 0


def test_a_container_at_rest_tells_the_same_again(place: Place) -> None:
    for process in place.processes:
        process.send_signal(signal.SIGSTOP)
    settled: list[object] = []

    def rests() -> bool:
        settled.append(place.meters.read([BUSY])[BUSY].usage)
        return len(settled) > 1 and settled[-1] == settled[-2]

    wait_until(rests)
    assert place.meters.read([BUSY])[BUSY].usage == settled[-1]


def test_the_cpu_meter_keeps_the_contract() -> None:
    online = CPUSet.parse(Path("/sys/devices/system/cpu/online").read_text().strip())
    check_cpu_meter(ProcCPUMeter(), online)


def test_a_proc_without_pressure_or_without_stat(tmp_path: Path) -> None:
    meter = ProcCPUMeter(tmp_path)
    assert meter.pressure() == {}
    with pytest.raises(PortError, match="mount /proc"):
        meter.idle()
    many = "".join(f"cpu{n} 1 2 3 {n} 5 6 7 8 9 10\n" for n in range(0, 9000, 3))
    (tmp_path / "stat").write_text(f"cpu  1 2 3 4 5 6 7 8 9 10\n{many}intr 1 2 3\nctxt 4\n")
    idle = meter.idle()
    assert len(idle) == 3000  # far more than one read; those that are missing are offline
    assert idle[2997] == (2997 + 5) * 1_000_000 // os.sysconf("SC_CLK_TCK")
    meter.close()


def test_a_kernel_that_tells_of_no_wait_is_said_to(tmp_path: Path, place: Place) -> None:
    """Neither file: it is said, once; zeros in schedstat are none."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "schedstat").write_text("0 0 0\n")
    meters = CgroupMeters(place.version, place, tmp_path)
    assert meters.wait_source == ""
    assert "schedstat" in meters.lacks()[0]
    found = meters.read([BUSY])[BUSY]
    assert found.wait is None
    assert found.usage is not None
    meters.close()

"""Record what real programs do, by the agent's own meters, for simulations with recorded load.

``python -m benchmarks.record_load OUT.jsonl.xz`` as root; ``--program NAME=COMMAND`` (as often as
is wanted) records others than those of the sample.  Each program is in cgroups of its own, on which
nothing is set.  The first line of the file says of which kernel and programs it is; each other one
is a second: counters are differences in microseconds, ``wait`` is what the kernel has (v2: the
total of ``cpu.pressure``, v1: the sum of the threads' ``schedstat``), and ``fine`` is CPU time
between readings that are ``times`` apart.
"""

from __future__ import annotations

import argparse
import lzma
import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.recorded_programs import Program, programs
from pinfold.adapters.observation.containers import CgroupMeters
from pinfold.core.observation.rates import Counters
from pinfold.linux.cgroup_mounts import cgroup_mounts
from pinfold.linux.mounts import mounts
from pinfold.ports.errors import ContainerKey

PERIOD: Final = 1.0
FINE: Final = 0.05
_CONTROLLERS: Final = ("cpu", "cpuacct", "pids")


class _Groups:
    """A cgroup of each program, in all hierarchies that are read."""

    def __init__(self) -> None:
        unified, found = cgroup_mounts(mounts())
        self.version = 1 if "cpuacct" in found else 2
        roots = {name: one for name, one in found.items() if name in _CONTROLLERS}
        if self.version == 2:
            roots = dict.fromkeys(_CONTROLLERS, unified) if unified else {}
        top = f"pinfold-record-{os.getpid()}"
        self._tops = {name: one.point / top for name, one in roots.items() if one}

    def folder_of(self, key: ContainerKey, controller: str) -> Path | None:
        """See :class:`pinfold.ports.observation.Located`."""
        top = self._tops.get(controller)
        return None if top is None else top / key.name

    def make(self, name: str) -> list[Path]:
        """The cgroups of a program, in which whatever writes its pid is."""
        folders = list(dict.fromkeys(top / name for top in self._tops.values()))
        for folder in folders:
            folder.mkdir(parents=True)
        return folders

    def remove(self, names: list[str]) -> None:
        """End all that is in them, and remove them."""
        for top in dict.fromkeys(self._tops.values()):
            for folder in (*(top / name for name in names), top):
                while (procs := folder / "cgroup.procs").exists() and (pids := procs.read_text()):
                    for pid in pids.split():
                        os.kill(int(pid), signal.SIGKILL)
                    time.sleep(0.05)
                if folder.exists():
                    folder.rmdir()


@contextmanager
def _running(groups: _Groups, chosen: Mapping[str, Program]) -> Iterator[None]:
    beside = []
    try:
        for name, program in chosen.items():
            enter = "".join(f"echo $$ >{one}/cgroup.procs; " for one in groups.make(name))
            subprocess.Popen(["/bin/sh", "-c", enter + program.command], stderr=subprocess.DEVNULL)
            if program.beside:
                beside.append(subprocess.Popen(["/bin/sh", "-c", program.beside]))
        yield
    finally:
        for one in beside:
            one.kill()
        groups.remove(list(chosen))


def record(out: Path, chosen: Mapping[str, Program], seconds: int) -> None:
    """Run these programs for so long, and write what they did."""
    groups = _Groups()
    meters = CgroupMeters(groups.version, groups)
    keys = {name: ContainerKey("recorded", name) for name in chosen}
    encode = msgspec.json.encode
    with lzma.open(out, "wb") as file, _running(groups, chosen):
        head = {
            "kernel": ".".join(platform.release().split(".")[:2]),
            "cgroup": groups.version,
            "wait_source": meters.wait_source,
            "cpus": os.cpu_count(),
            "programs": {name: one.about for name, one in chosen.items()},
        }
        file.write(encode(head) + b"\n")
        before, due = _counters(meters, keys), time.monotonic()
        used, at = _used(before), time.monotonic()
        for _ in range(seconds):
            times: list[int] = []
            fine: dict[str, list[int]] = {name: [] for name in chosen}
            for _ in range(round(PERIOD / FINE)):
                due += FINE
                time.sleep(max(0.0, due - time.monotonic()))
                now = time.monotonic()
                found = {key.name: one for key, one in meters.used(keys.values()).items()}
                times.append(round((now - at) * 1e6))
                for name in chosen:
                    fine[name].append(found.get(name, 0) - used.get(name, 0))
                used, at = found, now
            after = _counters(meters, keys)
            wait = {name: _wait(before.get(name), after.get(name)) for name in chosen}
            before = after
            file.write(encode({"times": times, "fine": fine, "wait": wait}) + b"\n")
    meters.close()


def _counters(meters: CgroupMeters, keys: Mapping[str, ContainerKey]) -> dict[str, Counters]:
    return {key.name: one for key, one in meters.read(keys.values()).items()}


def _used(counters: Mapping[str, Counters]) -> dict[str, int]:
    return {name: one.usage or 0 for name, one in counters.items()}


def _wait(before: Counters | None, after: Counters | None) -> int | None:
    """What was waited in between; None where the kernel does not tell."""
    if before is None or after is None or before.wait is None or after.wait is None:
        return None
    return max(0, after.wait - before.wait)


def main() -> None:
    """Read the arguments, and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--program", action="append", metavar="NAME=COMMAND", default=[])
    parser.add_argument("--port", type=int, default=18_097)
    args = parser.parse_args()
    own = dict(one.split("=", 1) for one in args.program)
    chosen = {name: Program(command, command) for name, command in own.items()}
    record(args.out, chosen or programs(args.port), args.seconds)


if __name__ == "__main__":
    main()

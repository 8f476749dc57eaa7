"""How idle each CPU is, and what the machine's tasks wait for, read again and again.

Source: proc_stat(5): the times of ``/proc/stat`` are in ticks of which there are, on most machines,
100 in a second.  What a hypervisor has taken (steal) is neither idle nor used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pinfold.core.observation.rates import Stalls
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.descriptors import NO_ROOM, gone_or_raise, no_room
from pinfold.linux.kept_file import KeptFile
from pinfold.linux.pressure import PRESSURES, parse_pressure
from pinfold.linux.processes import PROC
from pinfold.ports.errors import PortError

_STAT_BYTES: Final = 65536
_MICROSECONDS: Final = 1_000_000
_IDLE, _IOWAIT = 4, 5


class ProcCPUMeter:
    """The :class:`pinfold.ports.observation.CPUMeter` of the running kernel."""

    def __init__(self, proc: Path = PROC) -> None:
        self._path = proc / "stat"
        self._stat = KeptFile(self._path, _STAT_BYTES)
        self._pressures = {name: KeptFile(proc / "pressure" / name) for name in PRESSURES}
        self._tick = _MICROSECONDS // os.sysconf("SC_CLK_TCK")

    def idle(self, cpus: CPUSet | None = None) -> Mapping[int, int]:
        """See :class:`pinfold.ports.observation.CPUMeter`."""
        try:
            data = self._stat.read()
        except OSError as error:
            if error.errno in NO_ROOM:
                raise no_room(self._path, error) from None
            raise PortError(f"{self._path}: {error.strerror}", "mount /proc") from None
        wanted = None if cpus is None else frozenset(cpus)
        found = {}
        # The lines of CPUs come first, and the sum of all before them.
        for line in data[: data.find(b"\nintr")].split(b"\n")[1:]:
            name, _, rest = line.partition(b" ")
            cpu = int(name.removeprefix(b"cpu"))
            if wanted is None or cpu in wanted:
                words = rest.split(None, _IOWAIT)
                idle = int(words[_IDLE - 1]) + int(words[_IOWAIT - 1])
                found[cpu] = idle * self._tick
        return found

    def pressure(self) -> Mapping[str, Stalls]:
        """See :class:`pinfold.ports.observation.CPUMeter`."""
        found = {}
        for name, file in list(self._pressures.items()):
            try:
                found[name] = parse_pressure(file.read())
            except OSError as error:
                gone_or_raise(name, error)
                del self._pressures[name]  # the kernel is without, or psi=0
        return found

    def close(self) -> None:
        """See :class:`pinfold.ports.observation.CPUMeter`."""
        for file in (self._stat, *self._pressures.values()):
            file.close()

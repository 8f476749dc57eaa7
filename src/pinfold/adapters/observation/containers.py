"""What the kernel counts for containers, from files of their cgroups that stay open.

Cgroup v2 has it all in one folder (``cpu.stat``, ``*.pressure``), and tells how long a container
had somebody waiting for a CPU.  Cgroup v1 has CPU time in ``cpuacct.usage`` and throttling in
``cpu.stat``, no pressure, and no waits but those of each thread, which are summed up.  Source: the
kernel's ``cgroup-v2.rst``, ``cgroup-v1/cpuacct.rst``, ``scheduler/sched-bwc.rst``, ``psi.rst``.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from pinfold.adapters.observation.thread_waits import ThreadWaits, schedstat_works
from pinfold.adapters.observation.threads import MEMBERS, MemberWaits
from pinfold.core.observation.rates import Counters, Stalls
from pinfold.linux.descriptors import gone_or_raise
from pinfold.linux.kept_file import KeptFile
from pinfold.linux.pressure import PRESSURES, parse_pressure
from pinfold.linux.processes import PROC
from pinfold.ports.errors import ContainerKey
from pinfold.ports.observation import Located

_CPU: Final = "cpu"
_CPUACCT: Final = "cpuacct"
_PIDS: Final = "pids"
_NANO: Final = 1000
_T = TypeVar("_T")


class CgroupMeters:
    """The :class:`pinfold.ports.observation.ContainerMeters` of cgroups.

    Args:
        version: of cgroups.
        cgroups: where the containers are; asked again when a cgroup is gone.
        proc: where proc is mounted, as the host's processes are seen there.
    """

    def __init__(self, version: int, cgroups: Located, proc: Path = PROC) -> None:
        self._version = version
        self._cgroups = cgroups
        self._proc = proc
        self._has_pressure = version == 2 and (proc / "pressure" / "cpu").exists()
        self._has_schedstat = not self._has_pressure and schedstat_works(proc)
        self._open: dict[ContainerKey, _Meter] = {}
        self._lacks_usage = False

    @property
    def wait_source(self) -> str:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        if self._has_pressure:
            return "cpu.pressure"
        return "schedstat" if self._has_schedstat else ""

    def lacks(self) -> Sequence[str]:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        found = []
        if not self.wait_source:
            found.append(
                "how long containers wait for a CPU: this kernel has neither cpu.pressure (cgroup "
                "v2 and psi=1) nor /proc/PID/schedstat"
            )
        if not self._has_pressure:
            why = "cgroup v1 has none" if self._version == 1 else "this kernel needs psi=1"
            found.append(f"the pressure (PSI) of containers: {why}")
        if self._lacks_usage:
            found.append("the CPU time of containers: the hierarchy of cpuacct is not mounted")
        if unseen := sum(one.unseen for one in self._open.values()):
            found.append(
                f"the waits of {unseen} threads: no more files stay open, raise LimitNOFILE"
            )
        return found

    def read(self, keys: Iterable[ContainerKey]) -> Mapping[ContainerKey, Counters]:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        found = {}
        for key in keys:
            # Once more where a cgroup is gone: there may be another one by now.
            counters = self._read(key) or self._read(key)
            if counters is not None:
                found[key] = counters
                self._lacks_usage = counters.usage is None
        return found

    def used(self, keys: Iterable[ContainerKey]) -> Mapping[ContainerKey, int]:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        found = {}
        for key in keys:
            used = self._ask(key, _used)
            used = self._ask(key, _used) if used is None else used
            if used is not None:
                found[key] = used
        return found

    def _read(self, key: ContainerKey) -> Counters | None:
        return self._ask(key, _counters)

    def _ask(self, key: ContainerKey, question: Callable[[_Meter], _T | None]) -> _T | None:
        """What a container's files say; None where they are not there, or do not say it."""
        meter = self._open.get(key) or self._found(key)
        if meter is None:
            return None
        try:
            return question(meter)
        except OSError as error:
            self._open.pop(key).close()
            gone_or_raise(key, error)
            return None

    def _found(self, key: ContainerKey) -> _Meter | None:
        if (folder := self._cgroups.folder_of(key, _CPU)) is None:
            return None
        waits = self._waits(key, folder) if self._has_schedstat else None
        if self._version == 1:
            account = self._cgroups.folder_of(key, _CPUACCT) or folder
            meter: _Meter = _MeterV1(folder, waits, KeptFile(account / "cpuacct.usage"))
        else:
            meter = _MeterV2(folder, waits, has_pressure=self._has_pressure)
        self._open[key] = meter
        return meter

    def _waits(self, key: ContainerKey, folder: Path) -> MemberWaits:
        counting = self._cgroups.folder_of(key, _PIDS)
        number = None if counting is None else KeptFile(counting / "pids.current")
        return MemberWaits(folder, MEMBERS[self._version], number, ThreadWaits(self._proc))

    def retain(self, keys: Collection[ContainerKey]) -> None:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        for key in self._open.keys() - keys:
            self._open.pop(key).close()

    def close(self) -> None:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        self.retain(())


class _Meter(ABC):
    """The files of one container."""

    def __init__(self, folder: Path, waits: MemberWaits | None) -> None:
        self._waits = waits
        self._stat = KeptFile(folder / "cpu.stat")

    @property
    def unseen(self) -> int:
        """Threads whose waits were not followed."""
        return 0 if self._waits is None else self._waits.unseen

    @abstractmethod
    def read(self) -> Counters:
        """What they say now; raises OSError once the cgroup is gone."""

    @abstractmethod
    def used(self) -> int | None:
        """Microseconds of CPU time; raises as :meth:`read`."""

    def _wait(self) -> int | None:
        return None if self._waits is None else self._waits.look() // _NANO

    def close(self) -> None:
        self._stat.close()
        if self._waits is not None:
            self._waits.close()


class _MeterV1(_Meter):
    def __init__(self, folder: Path, waits: MemberWaits | None, usage: KeptFile) -> None:
        super().__init__(folder, waits)
        self._usage: KeptFile | None = usage
        self._last: Counters | None = None
        self._said = b""
        self._throttling: tuple[int | None, int | None, int | None] = None, None, None

    def read(self) -> Counters:
        used = self.used()
        if used is not None and self._last is not None and used == self._last.usage:
            # Nobody in it has run since, and only who gets to run has a wait that is counted.
            return self._last
        # Most have no quota, and say the same for ever.
        if (said := self._stat.read()) != self._said:
            stat = _numbers(said)
            throttled = stat.get(b"throttled_time")
            self._throttling = (
                stat.get(b"nr_periods"),
                stat.get(b"nr_throttled"),
                None if throttled is None else throttled // _NANO,
            )
            self._said = said
        self._last = Counters(self._stat.inode, used, self._wait(), *self._throttling)
        return self._last

    def used(self) -> int | None:
        if self._usage is None:
            return None
        try:
            return int(self._usage.read()) // _NANO
        except FileNotFoundError:
            self._usage = None
            return None

    def close(self) -> None:
        super().close()
        if self._usage is not None:
            self._usage.close()


class _MeterV2(_Meter):
    def __init__(self, folder: Path, waits: MemberWaits | None, *, has_pressure: bool) -> None:
        super().__init__(folder, waits)
        names = PRESSURES if has_pressure else ()
        self._pressures = {name: KeptFile(folder / f"{name}.pressure") for name in names}

    def read(self) -> Counters:
        stat = _numbers(self._stat.read())
        pressure = self._pressure()
        waited = pressure[_CPU].some if _CPU in pressure else self._wait()
        return Counters(
            incarnation=self._stat.inode,
            usage=stat.get(b"usage_usec"),
            wait=waited,
            periods=stat.get(b"nr_periods"),
            throttled_periods=stat.get(b"nr_throttled"),
            throttled=stat.get(b"throttled_usec"),
            pressure=pressure,
        )

    def used(self) -> int | None:
        return _numbers(self._stat.read()).get(b"usage_usec")

    def _pressure(self) -> dict[str, Stalls]:
        found = {}
        for name, file in self._pressures.items():
            try:
                found[name] = parse_pressure(file.read())
            except OSError as error:
                # Somebody has switched it off for this cgroup, or the controller is not there.
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOENT):
                    raise
        return found

    def close(self) -> None:
        super().close()
        for file in self._pressures.values():
            file.close()


def _counters(meter: _Meter) -> Counters:
    return meter.read()


def _used(meter: _Meter) -> int | None:
    return meter.used()


def _numbers(data: bytes) -> dict[bytes, int]:
    words = data.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))

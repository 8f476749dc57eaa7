"""Limits of CPU time, memory and huge pages, as the files of cgroup v1 and v2 have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from pinfold.adapters.cgroup.files import put, read
from pinfold.core.memory.protection import MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, PAGE
from pinfold.core.pod.cgroup_values import shares_to_weight
from pinfold.core.pod.hugepages import HugePagesError, unit_name
from pinfold.documents.status import WrittenLimits
from pinfold.ports.cgroups import Limits, OtherLimit
from pinfold.ports.errors import CgroupError, ContainerKey

_PERIOD: Final = 100_000
_WEIGHT: Final = "100"
_SHARES: Final = "1024"
_V1_QUOTA: Final = "cpu.cfs_quota_us"
_V1_PERIOD: Final = "cpu.cfs_period_us"
_LEAST_QUOTA: Final = 1000
"""Microseconds: less is refused by the kernel."""
_BURSTS: Final = {"cpu.max": "cpu.max.burst", _V1_QUOTA: "cpu.cfs_burst_us"}
_V2: Final = "cgroup v2"
_LOOK: Final = 256
"""How many files are compared each time: some milliseconds."""
IO_WEIGHTS: Final = ("io.weight", "io.bfq.weight")
WEIGHING: Final = "a kernel that weighs I/O (BLK_CGROUP_IOCOST, or the scheduler bfq)"


class Setting(NamedTuple):
    """One file; ``wished`` is False for the kernel's default, which takes a former value away.

    ``needs`` is what has to be there for the file to be, beside its controller; ``also`` other
    names that it has, of which one is enough.  Without a ``controller`` no kernel has it here.
    """

    controller: str
    file: str
    value: str
    wished: bool
    needs: str = ""
    also: tuple[str, ...] = ()


def v2_settings(limits: Limits) -> Iterator[Setting]:
    """What is written for cgroup v2."""
    shares, quota, memory = limits.cpu_shares, _quota(limits), limits.memory
    weight = _WEIGHT if shares is None else str(shares_to_weight(shares))
    yield Setting("cpu", "cpu.weight", weight, shares is not None)
    capped = f"{'max' if quota is None else quota} {limits.cpu_period or _PERIOD}"
    yield Setting("cpu", "cpu.max", capped, quota is not None)
    yield _burst(limits, "cpu.max.burst")
    yield Setting("memory", "memory.max", str(memory or "max"), bool(memory))
    yield from v2_protection(limits)
    yield _pids(limits)
    weight = str(limits.io_weight or _WEIGHT)
    wished = limits.io_weight is not None
    yield Setting("io", IO_WEIGHTS[0], weight, wished, WEIGHING, IO_WEIGHTS[1:])
    yield from _hugetlb(limits, "max")


def v1_settings(limits: Limits) -> Iterator[Setting]:
    """What is written for cgroup v1."""
    shares, quota, memory = limits.cpu_shares, _quota(limits), limits.memory
    yield Setting("cpu", "cpu.shares", str(shares or _SHARES), shares is not None)
    yield Setting("cpu", _V1_PERIOD, str(limits.cpu_period or _PERIOD), wished=False)
    yield Setting("cpu", _V1_QUOTA, str(quota or -1), quota is not None)
    yield _burst(limits, "cpu.cfs_burst_us")
    yield Setting("memory", "memory.limit_in_bytes", str(memory or -1), bool(memory))
    yield from v1_protection(limits)
    yield _pids(limits)
    if limits.io_weight is not None:
        yield Setting("", "io.weight", str(limits.io_weight), wished=True, needs=_V2)
    yield from _hugetlb(limits, "limit_in_bytes")


def v2_protection(limits: Limits) -> Iterator[Setting]:
    """What is written of memory's protection for cgroup v2."""
    for file, amount, unset in _protection(limits):
        yield Setting("memory", file, str(unset if amount is None else amount), bool(amount))


def v1_protection(limits: Limits) -> Iterator[Setting]:
    """What cgroup v1 lacks of it."""
    for file, amount, _ in _protection(limits):
        if amount:
            yield Setting("", file, str(amount), wished=True, needs=_V2)


def _burst(limits: Limits, file: str) -> Setting:
    """What may be saved of a quota; the kernel has no burst without one, and none above it."""
    burst = min(limits.cpu_burst or 0, _quota(limits) or 0)
    return Setting("cpu", file, str(burst), burst > 0, "Linux 5.14")


def _protection(limits: Limits) -> Iterator[tuple[str, int | None, str]]:
    """Each file, its value, and the kernel's default."""
    wished = limits.protection
    yield MEMORY_MIN, wished.min, "0"
    yield MEMORY_LOW, wished.low, "0"
    yield MEMORY_HIGH, wished.high, "max"


def _pids(limits: Limits) -> Setting:
    return Setting("pids", "pids.max", str(limits.pids or "max"), bool(limits.pids))


def _hugetlb(limits: Limits, file: str) -> Iterator[Setting]:
    """Limits of the pages that are in use, and of those that a mapping is promised.

    With the second a program is refused when it maps too much, and not killed when it touches it.
    Older kernels (before 5.7) have only the first.  A limit of nothing is not missed where there is
    no controller.
    """
    for size, amount in limits.hugepages.items():
        try:
            unit = unit_name(size)
        except HugePagesError:
            unit = f"{size}B"  # of which no kernel has a file
        yield Setting("hugetlb", f"hugetlb.{unit}.{file}", str(amount), wished=amount > 0)
        yield Setting("hugetlb", f"hugetlb.{unit}.rsvd.{file}", str(amount), wished=False)


def _quota(limits: Limits) -> int | None:
    quota = limits.cpu_quota
    return quota if quota is not None and quota > 0 else None


Folder = Callable[[str], Path | None]
"""Where the settings of a controller go, None where there is no such controller."""


def apply(settings: Iterable[Setting], folder: Folder) -> list[str]:
    """Write settings; what cannot be in force here, as texts; raises CgroupError."""
    missing = []
    for setting in settings:
        place = folder(setting.controller)
        names = () if place is None else (setting.file, *setting.also)
        found = [name for name in names if place is not None and (place / name).exists()]
        for name in found:
            if place is not None:
                _put(place, name, setting.value)
        if not setting.wished:
            continue
        if not found:
            controlled = place is not None or not setting.controller
            lack = f"needs {setting.needs}" if controlled and setting.needs else _lack(setting)
            missing.append(f"{setting.file} {setting.value} is not in force: {lack}")
        for name in found:
            missing += [] if place is None else other(place, name, setting.value)
    return missing


def _lack(setting: Setting) -> str:
    return f"no {setting.controller} controller here"


def other(place: Path, file: str, value: str) -> list[str]:
    """What the kernel has made of a value, where that is another; whole pages are no other one."""
    has = read(place / file)
    first = shown(has)
    digits = first.isdigit() and value.isdigit()
    if value == first or file.startswith("hugetlb.") or (digits and _in_pages(first, value)):
        return []
    return [f"{file} {value} is not in force: it is {has[:60]}"]


def shown(text: str) -> str:
    """What a file says: a weight is "default 100", and devices with their own below."""
    return text.partition("\n")[0].removeprefix("default ")


def _in_pages(has: str, value: str) -> bool:
    return 0 <= int(value) - int(has) < PAGE


def apply_nested(
    whole: Sequence[Setting], outer: Folder, own: Sequence[Setting], inner: Folder
) -> list[str]:
    """Write a pod's settings and those of a container in it; what is missing for both, said once.

    On cgroup v1 a part may not have more than its whole, so larger ones begin with the whole, and
    smaller ones with the part.

    Raises:
        CgroupError: the kernel does not take one, either way round.
    """
    try:
        missing = apply(whole, outer) + apply(own, inner)
    except CgroupError:
        parts = apply(own, inner)
        missing = apply(whole, outer) + parts
    return list(dict.fromkeys(missing))


class _Kept(NamedTuple):
    value: str
    wished: bool


class WrittenFiles:
    """The limits that were written, see :class:`pinfold.ports.cgroups.KeptLimits`.

    What is kept of each file is what the kernel showed when it was written.

    Args:
        besides: what is limited and belongs to no container.
    """

    def __init__(self, besides: Callable[[], Iterator[WrittenLimits]] = lambda: iter(())) -> None:
        self._besides = besides
        self._kept: dict[Path, _Kept] = {}
        # By pod, its own cgroup's and those of its containers; whose turn it is comes first.
        self._turns: dict[ContainerKey, tuple[frozenset[Path], frozenset[Path]]] = {}

    def apply(
        self,
        key: ContainerKey,
        whole: Sequence[Setting],
        outer: Folder,
        own: Sequence[Setting],
        inner: Folder,
    ) -> list[str]:
        """Write the limits of a container and its pod, and keep them; see :func:`apply_nested`."""
        self.forget(key)
        missing = apply_nested(whole, outer, own, inner)
        self._turns[key] = self._keep(whole, outer), self._keep(own, inner)
        return missing

    def _keep(self, settings: Iterable[Setting], folder: Folder) -> frozenset[Path]:
        files = set()
        for setting in settings:
            if (place := folder(setting.controller)) is None:
                continue
            for file in (place / name for name in (setting.file, *setting.also)):
                if file.exists():
                    self._kept[file] = _Kept(shown(read(file)), setting.wished)
                    files.add(file)
        return frozenset(files)

    def forget(self, key: ContainerKey) -> None:
        """Keep nothing of a container, nor of its pod where it was the only one."""
        outer, inner = self._turns.pop(key, (frozenset(), frozenset()))
        others = (one[0] for other, one in self._turns.items() if other.pod_uid == key.pod_uid)
        for file in inner | outer.difference(*others):
            self._kept.pop(file, None)

    def written(self) -> Iterator[WrittenLimits]:
        """See :class:`pinfold.ports.cgroups.KeptLimits`."""
        told: dict[Path, tuple[ContainerKey, str, dict[str, str]]] = {}
        for key, (outer, inner) in self._turns.items():
            for name, files in (("", outer), (key.name, inner)):
                for file in sorted(files):
                    _, _, found = told.setdefault(file.parent, (key, name, {}))
                    if self._kept[file].wished:
                        found[file.name] = self._kept[file].value
        yield from self._besides()
        for folder, (key, name, found) in told.items():
            yield WrittenLimits(
                pod_uid=key.pod_uid, container=name, folder=str(folder), files=found
            )

    def look(self, at_most: int = _LOOK) -> dict[ContainerKey, list[OtherLimit]]:
        """See :class:`pinfold.ports.cgroups.KeptLimits`."""
        changed: dict[ContainerKey, list[OtherLimit]] = {}
        for key in list(self._turns):
            if at_most <= 0:
                break
            files = self._turns[key] = self._turns.pop(key)
            for file in sorted(files[0] | files[1]):
                at_most -= 1
                with suppress(CgroupError):  # a cgroup that is gone is found by who looks for it
                    if (found := shown(read(file))) != (wanted := self._kept[file].value):
                        changed.setdefault(key, []).append(OtherLimit(str(file), wanted, found))
        return changed


class Quotas:
    """The cap of CPU time of a cgroup whose weight nobody may write, as one that is idle."""

    def __init__(
        self, file: str, uncapped: str, settings: Callable[[Limits], Iterable[Setting]]
    ) -> None:
        self.file = file
        self.uncapped = uncapped
        """The first word of the file where there is no cap."""
        self._settings = settings

    def put(self, place: Path, quota: float | None) -> None:
        """Cap it at so many CPUs' worth of time, or not at all; raises CgroupError."""
        for file, value in self.texts(quota):
            _put(place, file, value)

    def texts(self, quota: float | None) -> Iterator[tuple[str, str]]:
        """The files of such a cap, and what is in them."""
        wanted = None if quota is None else round(self.rounded(quota) * _PERIOD)
        for one in self._settings(Limits(cpu_quota=wanted, cpu_period=_PERIOD)):
            if one.file in self.files:
                yield one.file, one.value

    @property
    def files(self) -> tuple[str, str]:
        """The files of a cap, as far as there are such."""
        return self.file, _V1_PERIOD

    @staticmethod
    def rounded(quota: float) -> float:
        """The cap that the kernel makes of one."""
        return max(round(quota * _PERIOD), _LEAST_QUOTA) / _PERIOD

    def read(self, place: Path) -> float | None:
        """What it is capped at; raises CgroupError."""
        quota, *period = read(place / self.file).split()
        if quota == self.uncapped:
            return None
        return int(quota) / int(period[0] if period else read(place / _V1_PERIOD))


V1_QUOTAS: Final = Quotas(_V1_QUOTA, "-1", v1_settings)
V2_QUOTAS: Final = Quotas("cpu.max", "max", v2_settings)


def _put(place: Path, file: str, value: str) -> None:
    if file == _V1_PERIOD and read(place / file) != value:
        # The old quota in the new period could be more than the whole has.
        put(place / _V1_QUOTA, "-1")
    burst = place / _BURSTS.get(file, "")
    if file in _BURSTS and read(place / file) != value and burst.exists():
        # The kernel takes no quota that is less than what may be saved of it.
        put(burst, "0")
    put(place / file, value)

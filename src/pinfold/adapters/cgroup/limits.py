"""Limits of CPU time, memory and huge pages, as the files of cgroup v1 and v2 have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pinfold.adapters.cgroup.files import put, read
from pinfold.core.pod.cgroup_values import shares_to_weight
from pinfold.core.pod.hugepages import HugePagesError, unit_name
from pinfold.ports.cgroups import Limits
from pinfold.ports.errors import CgroupError

_PERIOD: Final = 100_000
_WEIGHT: Final = "100"
_SHARES: Final = "1024"
_V1_QUOTA: Final = "cpu.cfs_quota_us"
_V1_PERIOD: Final = "cpu.cfs_period_us"
_LEAST_QUOTA: Final = 1000
"""Microseconds: less is refused by the kernel."""


class Setting(NamedTuple):
    """One file; ``wished`` is False for the kernel's default, which takes a former value away."""

    controller: str
    file: str
    value: str
    wished: bool


def v2_settings(limits: Limits) -> Iterator[Setting]:
    """What is written for cgroup v2."""
    shares, quota, memory = limits.cpu_shares, _quota(limits), limits.memory
    weight = _WEIGHT if shares is None else str(shares_to_weight(shares))
    yield Setting("cpu", "cpu.weight", weight, shares is not None)
    capped = f"{'max' if quota is None else quota} {limits.cpu_period or _PERIOD}"
    yield Setting("cpu", "cpu.max", capped, quota is not None)
    yield Setting("memory", "memory.max", str(memory or "max"), bool(memory))
    yield from _hugetlb(limits, "max")


def v1_settings(limits: Limits) -> Iterator[Setting]:
    """What is written for cgroup v1."""
    shares, quota, memory = limits.cpu_shares, _quota(limits), limits.memory
    yield Setting("cpu", "cpu.shares", str(shares or _SHARES), shares is not None)
    yield Setting("cpu", _V1_PERIOD, str(limits.cpu_period or _PERIOD), wished=False)
    yield Setting("cpu", _V1_QUOTA, str(quota or -1), quota is not None)
    yield Setting("memory", "memory.limit_in_bytes", str(memory or -1), bool(memory))
    yield from _hugetlb(limits, "limit_in_bytes")


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
    for controller, file, value, wished in settings:
        place = folder(controller)
        if place is not None and (place / file).exists():
            _put(place, file, value)
        elif wished:
            missing.append(f"{file} {value} is not in force: no {controller} controller here")
    return missing


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
        wanted = None if quota is None else max(round(quota * _PERIOD), _LEAST_QUOTA)
        for one in self._settings(Limits(cpu_quota=wanted, cpu_period=_PERIOD)):
            if one.file in (self.file, _V1_PERIOD):
                _put(place, one.file, one.value)

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
    put(place / file, value)

"""Limits of CPU time, memory and huge pages, as the files of cgroup v1 and v2 have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pinfold.core.cgroup_values import shares_to_weight
from pinfold.core.node_allocatable import hugepages_name
from pinfold.core.pod import HUGEPAGES_PREFIX
from pinfold.node.ports import Limits

_PERIOD: Final = 100_000

Setting = tuple[str, str, str]
"""Controller, file, value."""


def v2_settings(limits: Limits) -> Iterator[Setting]:
    """What is written for cgroup v2, also where there is no limit: a former one is taken away."""
    if limits.cpu_shares is not None:
        yield "cpu", "cpu.weight", str(shares_to_weight(limits.cpu_shares))
    period = limits.cpu_period or _PERIOD
    quota = limits.cpu_quota
    yield "cpu", "cpu.max", f"{quota if quota and quota > 0 else 'max'} {period}"
    yield "memory", "memory.max", str(limits.memory) if limits.memory else "max"
    for size, amount in limits.hugepages.items():
        yield "hugetlb", f"hugetlb.{_page_size(size)}.max", str(amount)


def v1_settings(limits: Limits) -> Iterator[Setting]:
    """The same for cgroup v1."""
    if limits.cpu_shares is not None:
        yield "cpu", "cpu.shares", str(limits.cpu_shares)
    quota = limits.cpu_quota
    yield "cpu", "cpu.cfs_period_us", str(limits.cpu_period or _PERIOD)
    yield "cpu", "cpu.cfs_quota_us", str(quota if quota and quota > 0 else -1)
    yield "memory", "memory.limit_in_bytes", str(limits.memory or -1)
    for size, amount in limits.hugepages.items():
        yield "hugetlb", f"hugetlb.{_page_size(size)}.limit_in_bytes", str(amount)


def is_wish(setting: Setting) -> bool:
    """Whether it matters when the controller is not there: not for "no limit"."""
    return (
        setting[2] not in ("-1", "max")
        and not setting[2].startswith("max ")
        and (setting[1] != "cpu.cfs_period_us")
    )


def _page_size(size: int) -> str:
    """As the kernel names page sizes: ``2MB``, ``1GB``, ``64KB``."""
    return hugepages_name(size).removeprefix(HUGEPAGES_PREFIX).replace("i", "B")

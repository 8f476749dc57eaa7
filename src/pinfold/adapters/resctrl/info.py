"""What a machine offers: the folder ``info`` of resctrl, and the caches in sysfs.

Sources: the kernel's ``filesystems/resctrl.rst``, ``ABI/testing/sysfs-devices-system-cpu``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pinfold.core.cache.offers import BANDWIDTH, CODE, DATA, Bandwidth, Cache, Offer, Schemata
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.kernel_files import read_value
from pinfold.ports.cache_groups import CacheError, NoCacheGroupsError

CPUS: Final = Path("/sys/devices/system/cpu")
_NUMBERS: Final = {10: re.compile("[0-9]{1,16}"), 16: re.compile("(0x)?[0-9a-fA-F]{1,16}")}
_LEVELS: Final = (3, 2)


def read_offer(
    info: Path, default: Schemata, domains: Mapping[int, Mapping[int, CPUSet]], *, mbps: bool
) -> Offer:
    """What can be divided.

    Args:
        info: the folder.
        default: what the default group has; its lines and domains are those that there are.
        domains: the CPUs at each cache, by level and id.
        mbps: whether resctrl is mounted so that bandwidth is in MB/s.

    Raises:
        NoCacheGroupsError: neither caches nor bandwidth can be divided.
        CacheError: a file cannot be read, or is no number.
    """
    caches, ids = [], []
    for level in _LEVELS:
        name = f"L{level}"
        lines = tuple(line for line in (name, name + CODE, name + DATA) if line in default)
        if not lines:
            continue
        folder = info / lines[0]
        ids += [_number(info / line / "num_closids", 10) for line in lines]
        caches.append(
            Cache(
                level,
                lines,
                _number(folder / "cbm_mask", 16),
                _number(folder / "min_cbm_bits", 10),
                _number(folder / "shareable_bits", 16),
                # A kernel before 6.7 does not say, and takes masks in one piece.
                sparse=(folder / "sparse_masks").exists()
                and bool(_number(folder / "sparse_masks", 10)),
                domains={
                    one: domains.get(level, {}).get(one, CPUSet()) for one in default[lines[0]]
                },
            )
        )
    bandwidth = None
    if BANDWIDTH in default:
        folder = info / BANDWIDTH
        ids.append(_number(folder / "num_closids", 10))
        step = _number(folder / "bandwidth_gran", 10)
        linear = bool(_number(folder / "delay_linear", 10))
        # Percentages are linear; AMD counts in eighths of a GB/s, and says that it is not.
        unit = "MBps" if mbps else "%" if linear else "GBps/8"
        bandwidth = Bandwidth(
            unit,
            step if mbps else _number(folder / "min_bandwidth", 10),
            step,
            {one: domains.get(3, {}).get(one, CPUSet()) for one in default[BANDWIDTH]},
        )
    if not ids:
        raise NoCacheGroupsError("resctrl divides nothing here that is known")
    return Offer(min(ids), tuple(caches), bandwidth)


def cache_domains(online: CPUSet, cpus: Path = CPUS) -> dict[int, dict[int, CPUSet]]:
    """The online CPUs at each cache, by level and id; raises CacheError."""
    found: dict[int, dict[int, CPUSet]] = {}
    for cpu in online:
        for index in sorted((cpus / f"cpu{cpu}/cache").glob("index[0-9]*")):
            level = _number(index / "level", 10)
            if level not in _LEVELS or not (index / "id").exists():
                continue
            one = found.setdefault(level, {})
            domain = _number(index / "id", 10)
            one[domain] = one.get(domain, CPUSet()) | CPUSet([cpu])
    return found


def _number(file: Path, base: int) -> int:
    try:
        text = read_value(file)
    except OSError as error:
        raise CacheError(f"{file}: {error.strerror or error}") from None
    if _NUMBERS[base].fullmatch(text) is None:
        raise CacheError(f"{file}: {text[:40]!r} is no number")
    return int(text, base)

"""The CPUs that are online now; cheap enough to be asked several times a second."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pinfold.core.values.cpuset import CPUSet

ONLINE: Final = Path("/sys/devices/system/cpu/online")


def online_cpus(file: Path = ONLINE) -> CPUSet:
    """Read the kernel's list.

    Raises:
        OSError: there is no such file.
        CPUSetError: it holds no list.
    """
    return CPUSet.parse(file.read_text(encoding="ascii").strip())

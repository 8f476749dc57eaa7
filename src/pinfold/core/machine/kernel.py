"""What a machine's kernel can do, so far as it is known, and what something needs of it."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

_NEEDS: Final = re.compile(r"cgroup v(2)|Linux (\d+)\.(\d+)")
_FILLERS: Final = re.compile(r"[\s,()]|\band\b")


class Kernel(Struct, frozen=True):
    """A kernel; None is not known.

    ``linux`` are the first two numbers of its release, ``cgroups`` the version of the hierarchy
    that has cpusets.
    """

    linux: tuple[int, int] | None = None
    cgroups: int | None = None


def lacks(needs: str, kernel: Kernel) -> str:
    """Why a kernel does not do; "" where it does, or where that is not known.

    ``needs`` is a text in which ``cgroup v2`` and ``Linux 6.7`` are understood, and nothing else.
    """
    for found in _NEEDS.finditer(needs):
        if found[1]:
            if kernel.cgroups == 1:
                return "the kernel's cpusets are on cgroup v1"
        elif kernel.linux is not None and kernel.linux < (int(found[2]), int(found[3])):
            return f"the kernel is older than {found[2]}.{found[3]}"
    return ""


def has_all(needs: str, kernel: Kernel) -> bool:
    """Whether a kernel is known to have everything that is named, and all of it is understood."""
    is_known = all(
        (kernel.cgroups if found[1] else kernel.linux) is not None
        for found in _NEEDS.finditer(needs)
    )
    rest = _FILLERS.sub("", _NEEDS.sub("", needs))
    return is_known and not rest and not lacks(needs, kernel)

"""Pressure stall information as the kernel writes it, of a cgroup or of the machine.

Source: the kernel's ``accounting/psi.rst``.
"""

from __future__ import annotations

from typing import Final

from pinfold.core.observation.rates import Stalls

PRESSURES: Final = ("cpu", "memory", "io")
"""What there may be too little of."""


def parse_pressure(data: bytes) -> Stalls:
    """The totals of a ``*.pressure`` file, in microseconds; raises ValueError."""
    totals: dict[bytes, int] = {}
    for line in data.splitlines():
        kind, _, rest = line.partition(b" ")
        totals[kind] = int(rest.rpartition(b"total=")[2])
    if b"some" not in totals:
        raise ValueError("no line some in a pressure file")
    return Stalls(totals[b"some"], totals.get(b"full"))

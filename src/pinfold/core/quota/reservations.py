"""What is charged for a pod that was let in and is not seen yet.

Between the answer to the API server and the pod's own object, only a reservation says that the pod
is coming.  Whoever is asked after us may refuse it, and then it never comes: a reservation ends by
itself.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from msgspec import Struct

from pinfold.core.pod.pod import Resources
from pinfold.core.quota.resource_list import add, maximum
from pinfold.core.values.quantity import Quantity

RESERVED_SECONDS: Final = 60.0
"""How long a pod may take to appear."""


class Reservation(Struct, frozen=True):
    """What the pod with this uid will use; ``since`` is in seconds since the epoch."""

    uid: str
    usage: Resources
    since: float


def counting(
    reservations: Iterable[Reservation], there: Container[str], now: float
) -> tuple[Reservation, ...]:
    """The reservations that count: of pods that are not ``there`` yet, and not too old.

    One of the future counts, too: it was written by a machine whose clock is ahead.
    """
    return tuple(
        one for one in reservations if one.uid not in there and now - one.since < RESERVED_SECONDS
    )


def reserved(reservations: Iterable[Reservation]) -> dict[str, Quantity]:
    """What reservations count for together; of two for the same pod, the larger."""
    of_pod: dict[str, Resources] = {}
    for one in reservations:
        of_pod[one.uid] = maximum(of_pod.get(one.uid, {}), one.usage)
    total: dict[str, Quantity] = {}
    for usage in of_pod.values():
        total = add(total, usage)
    return total

"""For how long an application is told before CPUs are taken from it."""

from __future__ import annotations

from pinfold.core.pod.annotations import SCALE_DOWN_GRACE_PERIOD
from pinfold.core.pod.pod import Pod


def grace_of(pod: Pod, container: str, node: float) -> float:
    """The seconds between telling a container what it will lose, and taking it.

    The pod's ``scaleDownGracePeriodSeconds`` (KEP-5554) counts.  Where it has none, as where an API
    server does not know the field, its annotation does, and without that what holds for the
    ``node``.
    """
    if pod.scale_down_grace_period is not None:
        return float(pod.scale_down_grace_period)
    said = SCALE_DOWN_GRACE_PERIOD.of(pod.annotations, container)
    return node if said is None else float(said)

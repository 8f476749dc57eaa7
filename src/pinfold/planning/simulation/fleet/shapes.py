"""What pods ask for: one pod stands for all that ask for the same."""

from __future__ import annotations

import random

from msgspec import Struct

from pinfold.core.pod.pod import CPU, MEMORY, Container, Pod, QOSClass, exclusive_requests
from pinfold.core.values.quantity import Format, Quantity
from pinfold.planning.simulation.experiment.specification import Guarantee
from pinfold.ports.arrivals import PodSize

NEWCOMER = "newcomer"
"""The uid of the pod that stands for all of its shape: nobody on a node has it."""
CONTAINER = "main"
"""The only container of each pod."""


class PodShape(Struct, frozen=True, eq=False):
    """Pods that ask for the same, and are of one class.

    Attributes:
        number: counted from 0 in the order in which they came first.
        size: what one asks for.
        guaranteed: whether limits equal requests.
        pod: one of them, which nobody has placed.
        cpus: the CPUs that it owns where the policy gives any.
    """

    number: int
    size: PodSize
    guaranteed: bool
    pod: Pod
    cpus: int

    @classmethod
    def of(cls, number: int, size: PodSize, *, guaranteed: bool) -> PodShape:
        """The shape of pods of this size."""
        pod = _pod(size, guaranteed=guaranteed)
        return cls(number, size, guaranteed, pod, sum(exclusive_requests(pod).values()))


def _pod(size: PodSize, *, guaranteed: bool) -> Pod:
    requests: dict[str, Quantity] = {}
    if size.cpu_milli:
        requests[CPU] = Quantity(size.cpu_milli, -3)
    if size.memory:
        requests[MEMORY] = Quantity(size.memory, 0, Format.BINARY_SI)
    extended = {name: Quantity(count) for name, count in size.extended}
    requests |= extended
    limits = requests if guaranteed else extended
    return Pod(NEWCOMER, NEWCOMER, containers=(Container(CONTAINER, requests, limits),))


class Shapes:
    """The shapes that came so far, and which pods are Guaranteed."""

    def __init__(self, guarantee: Guarantee, seed: int) -> None:
        self._guarantee = guarantee
        self._chance = random.Random(f"{seed}/guaranteed")  # noqa: S311 - the same every time
        self._known: dict[tuple[PodSize, bool], PodShape] = {}
        self.every: list[PodShape] = []

    def of(self, size: PodSize) -> PodShape:
        """The shape of the next pod of this size."""
        share = self._guarantee.share
        # Drawn for every pod, so that the draws of others are the same under another rule.
        drawn = share >= 1.0 or self._chance.random() < share
        key = size, drawn and self._may_be_guaranteed(size)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = PodShape.of(len(self.every), size, guaranteed=key[1])
            self.every.append(known)
        return known

    def _may_be_guaranteed(self, size: PodSize) -> bool:
        if not size.cpu_milli or not size.memory:
            return False
        unit = self._guarantee.multiple_of
        if unit > 1 and size.cpu_milli % (1000 * unit):
            return False
        match self._guarantee.pods:
            case "whole":
                return size.cpu_milli % 1000 == 0 and size.qos is not QOSClass.BEST_EFFORT
            case "traced":
                return size.qos is QOSClass.GUARANTEED
            case "all":
                return True
            case _:
                return False

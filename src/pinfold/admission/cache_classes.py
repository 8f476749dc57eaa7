"""Which part of the caches a container is to have, before anybody knows what is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pinfold.core.cache.offers import Offer
from pinfold.core.cache.options import NO_CLASS, CacheClass, CacheOptions
from pinfold.core.cache.plan import Now, Wish, plan_groups
from pinfold.core.pod.annotations import CACHE
from pinfold.core.pod.pod import Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Ledger


def class_of(
    annotations: Mapping[str, str], container: str, options: CacheOptions, *, owns: bool
) -> str:
    """The class of a container, of which it is known whether it owns CPUs; "" where it has none."""
    said = CACHE.of(annotations, container)
    if said is None:
        return options.exclusive if owns else ""
    return "" if said == NO_CLASS else said


def in_words(name: str, asks: CacheClass) -> str:
    """A class and what it asks for: ``fast (l3 4, memoryBandwidth 50%)``."""
    said = (
        (one, getattr(asks, field))
        for one, field in zip(asks.__struct_encode_fields__, asks.__struct_fields__, strict=True)
    )
    parts = ", ".join(
        f"{one} {amount}" for one, amount in said if isinstance(amount, str) and amount
    )
    return f"{name} ({parts or 'nothing of its own'})"


CACHE_CLASS_ERROR: Final = "CacheClassError"


class CacheRoom(Struct, frozen=True):
    """What is divided on a node that rejects pods for whose class nothing is left.

    ``offer`` and ``now`` are None where nothing can be divided, for ``problem``; ``wishes`` are
    those that were heeded when it was looked at last.
    """

    options: CacheOptions
    offer: Offer | None = None
    now: Now | None = None
    wishes: tuple[Wish, ...] = ()
    problem: str = ""

    def lack(
        self, ledger: Ledger, pod: Pod, claims: Mapping[str, CPUSet]
    ) -> tuple[str, str] | None:
        """Why a pod that would be given these CPUs cannot have its classes; None: it can.

        Returns:
            The reason and the message of its rejection.
        """
        asked: dict[str, Wish] = {}
        taken = CPUSet()
        # An init container's CPUs are used again by those after it.
        for container in reversed(pod.all_containers):
            name, cpus = container.name, claims.get(container.name, CPUSet()) - taken
            said = class_of(pod.annotations, name, self.options, owns=bool(cpus))
            if cpus and said:
                asked[name] = Wish(f"{pod.uid}/{name}", said, cpus)
                taken |= cpus
        if not asked:
            return None
        if self.offer is None or self.now is None:
            return CACHE_CLASS_ERROR, f"cache: {self.problem}"
        stay = [one for one in self.wishes if ledger.cpus_of(*_owner(one)) is not None]
        plan = plan_groups(self.offer, self.options.classes, [*stay, *asked.values()], self.now)
        for name, wish in asked.items():
            if (refusal := plan.refused.get(wish.owner)) is not None:
                message = f"cache: container {name}, class {wish.cache_class}: {refusal.message}"
                return CACHE_CLASS_ERROR, f"{message} ({refusal.why.value})"
        return None


def _owner(wish: Wish) -> tuple[str, str]:
    uid, _, name = wish.owner.rpartition("/")
    return uid, name

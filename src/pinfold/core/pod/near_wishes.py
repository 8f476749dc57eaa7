"""The wish to run near a device, as a pod's annotations ``near`` and ``near-policy`` have it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from pinfold.core.pod.annotation import CONTAINER, POD, AnnotationError
from pinfold.core.pod.annotations import NEAR, NEAR_POLICY, REQUIRED
from pinfold.core.pod.pod import Pod


class NearWish(Struct, frozen=True):
    """Devices to be near to, named as :mod:`pinfold.core.machine.locality` resolves them."""

    devices: tuple[str, ...]
    required: bool = False

    @property
    def resource(self) -> str:
        """What its hints are called in decisions: ``near/eth0,nvme0n1``."""
        return f"near/{','.join(self.devices)}"


class NearWishes(Struct, frozen=True):
    """The wishes of a pod: one for all its containers, and those of single ones, which win."""

    pod: NearWish | None = None
    containers: Mapping[str, NearWish] = field(default_factory=dict)

    def of(self, container: str) -> NearWish | None:
        """The wish of a container, by its name."""
        return self.containers.get(container, self.pod)

    def __iter__(self) -> Iterator[NearWish]:
        if self.pod is not None:
            yield self.pod
        yield from self.containers.values()

    def only_required(self) -> NearWishes:
        """Without those that are only preferred; what wins over a pod's wish still does."""
        none = NearWish(())
        return NearWishes(
            self.pod if self.pod is not None and self.pod.required else None,
            {name: wish if wish.required else none for name, wish in self.containers.items()},
        )


def wishes_of(pod: Pod, *, complete: bool = True) -> NearWishes | None:
    """Read the wishes of a pod's annotations; None if it has none.

    Where all containers are known (``complete``), others must not be named.

    Raises:
        AnnotationError: not a list of device names, an unknown key or policy, a policy without
            a wish, or a container that the pod does not have.
    """
    names = {container.name for container in pod.all_containers} if complete else None
    devices = NEAR.said(pod.annotations, names)
    policies = NEAR_POLICY.said(pod.annotations, names)
    for holder in policies:
        if holder not in devices and (holder == POD or POD not in devices):
            raise AnnotationError(
                NEAR_POLICY.key(holder),
                f"there is no {NEAR.key(holder)} that it is for; add it, or remove this one",
            )
    if not devices:
        return None
    of_all = policies.get(POD, NEAR_POLICY.default)
    wishes = {
        holder: NearWish(
            devices[holder if holder in devices else POD],
            policies.get(holder, of_all) == REQUIRED,
        )
        for holder in {**devices, **policies}
    }
    return NearWishes(
        wishes.get(POD),
        {holder.removeprefix(CONTAINER): wish for holder, wish in wishes.items() if holder != POD},
    )

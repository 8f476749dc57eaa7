"""The wish to run near a device, as a pod's annotations have it.

``near.pinfold.dev/pod: eth0`` or ``near.pinfold.dev/container.NAME: 0000:3b:00.0,eth1`` asks for
CPUs of the NUMA nodes that these devices are at; ``near-policy.pinfold.dev/...`` says whether that
is ``preferred`` (the default) or ``required``.  The keys have the form that annotations of NRI
plugins have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

from pinfold.core.pod.pod import Pod

NEAR: Final = "near.pinfold.dev/"
NEAR_POLICY: Final = "near-policy.pinfold.dev/"
POD: Final = "pod"
CONTAINER: Final = "container."
PREFERRED: Final = "preferred"
REQUIRED: Final = "required"

MAX_DEVICES: Final = 64

_DEVICE: Final = re.compile(r"[\w.\-@:!/]{1,128}", re.ASCII)


class AnnotationError(ValueError):
    """An annotation that is no wish; the message names it and what it may be."""


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

    Args:
        pod: the pod.
        complete: all its containers are known, so that others must not be named.

    Raises:
        AnnotationError: not a list of device names, an unknown key or policy, a policy without
            a wish, or a container that the pod does not have.
    """
    names = {container.name for container in pod.all_containers} if complete else None
    devices = {holder: _devices(key, value) for key, holder, value in _keys(pod, NEAR, names)}
    policies = {
        holder: _policy(key, value) for key, holder, value in _keys(pod, NEAR_POLICY, names)
    }
    for holder in policies:
        if holder not in devices and (holder == POD or POD not in devices):
            raise AnnotationError(
                f"annotation {NEAR_POLICY}{holder}: there is no {NEAR}{holder} that it is for; "
                "add it, or remove this one"
            )
    if not devices:
        return None
    of_all = policies.get(POD, False)
    wishes = {
        holder: NearWish(
            devices[holder if holder in devices else POD], policies.get(holder, of_all)
        )
        for holder in {**devices, **policies}
    }
    return NearWishes(
        wishes.get(POD),
        {holder.removeprefix(CONTAINER): wish for holder, wish in wishes.items() if holder != POD},
    )


def _keys(pod: Pod, prefix: str, names: set[str] | None) -> Iterator[tuple[str, str, Any]]:
    """Key, what it is for, and value of the annotations with a prefix."""
    for key, value in pod.annotations.items():
        if not key.startswith(prefix):
            continue
        holder = key.removeprefix(prefix)
        container = holder.removeprefix(CONTAINER)
        if holder != POD and (container in {"", holder}):
            raise AnnotationError(
                f"annotation {key[:120]}: must be {prefix}{POD} or {prefix}{CONTAINER}NAME"
            )
        if holder != POD and names is not None and container not in names:
            raise AnnotationError(
                f"annotation {key[:120]}: the pod has no container {container[:63]!r}; "
                f"it has {', '.join(sorted(names))}"
            )
        yield key, holder, value


def _devices(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise AnnotationError(f"annotation {key}: must be a string (quote it)")
    try:
        return device_names(value)
    except ValueError as error:
        raise AnnotationError(f"annotation {key}: {error}") from None


def device_names(text: str) -> tuple[str, ...]:
    """The names in a list such as ``eth0,0000:3b:00.0``, each once.

    Raises:
        ValueError: an empty or malformed name, or too many.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if len(names) > MAX_DEVICES:
        raise ValueError(f"{len(names)} devices are more than {MAX_DEVICES}")
    for name in names:
        if _DEVICE.fullmatch(name) is None:
            raise ValueError(
                f"{name[:40]!r} is no device name; give interfaces, disks or PCI addresses, "
                "separated by commas: eth0,0000:3b:00.0"
            )
    return names


def _policy(key: str, value: object) -> bool:
    if value not in (PREFERRED, REQUIRED):
        raise AnnotationError(
            f"annotation {key}: must be {PREFERRED} or {REQUIRED}, not {str(value)[:40]!r}"
        )
    return value == REQUIRED

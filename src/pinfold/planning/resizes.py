"""What ``pinfold plan --resize`` is asked: other numbers of CPUs for containers of a plan."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from pinfold.core.pod.pod import Container, Pod

_FORM: Final = "write pod/NAME[/CONTAINER]=N, such as pod/db/server=6"
_PODS: Final = ("pod", "pods")
_COUNT: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_SHOWN: Final = 10


class ResizeError(ValueError):
    """A resize that cannot be asked for; the message names it and what would do."""


class ResizeWish(Struct, frozen=True):
    """A container that is to have another number of CPUs.

    Attributes:
        pod: ``NAME``, or ``NAMESPACE/NAME`` where several pods have the name.
        container: its name; None for the pod's only one.
        cpus: how many exclusive CPUs it is to have, from 1.
    """

    pod: str
    container: str | None
    cpus: int

    @classmethod
    def parse(cls, text: str) -> ResizeWish:
        """Read ``pod/NAME[/CONTAINER]=N``; a namespace may stand before the name.

        Raises:
            ResizeError: it has another form, or N is no whole number from 1.

        >>> ResizeWish.parse("pod/db/server=6")
        ResizeWish(pod='db', container='server', cpus=6)
        """
        place, equals, number = text.rpartition("=")
        if not equals:
            raise ResizeError(f"{text!r} has no number of CPUs; {_FORM}")
        if not _COUNT.fullmatch(number) or int(number) < 1:
            raise ResizeError(
                f"{text!r}: {number!r} is no whole number of CPUs from 1 to 999999; {_FORM}"
            )
        words = place.split("/")
        of_pod = words[0] in _PODS and len(words) > 1
        names = words[1:] if of_pod else words
        if not all(names) or len(names) > 3:
            raise ResizeError(f"{text!r} names no container of a pod; {_FORM}")
        if len(names) == 2 and of_pod:
            return cls(names[0], names[1], int(number))
        container = names[2] if len(names) == 3 else None
        return cls("/".join(names[:2]), container, int(number))

    def pod_among(self, pods: Iterable[Pod]) -> Pod:
        """The pod that is meant.

        Raises:
            ResizeError: there is none, or more than one.
        """
        known = list(pods)
        found = [p for p in known if self.pod in (p.name, f"{p.namespace}/{p.name}")]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(f"{p.namespace}/{p.name}" for p in found[:_SHOWN])
            raise ResizeError(f"there are several pods {self.pod!r}; say which one: {names}")
        names = ", ".join(p.name for p in known[:_SHOWN]) or "none"
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        raise ResizeError(f"no pod {self.pod!r} in the manifests; there are {names}{more}")

    def container_of(self, pod: Pod) -> Container:
        """The container that is meant.

        Raises:
            ResizeError: the pod has no such container, or several and none is named.
        """
        names = ", ".join(container.name for container in pod.all_containers)
        if self.container is None:
            if len(pod.containers) == 1:
                return pod.containers[0]
            raise ResizeError(f"pod {self.pod!r} has several containers; name one of {names}")
        for container in pod.all_containers:
            if container.name == self.container:
                return container
        raise ResizeError(f"pod {self.pod!r} has no container {self.container!r}; it has {names}")

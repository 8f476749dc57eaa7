"""What ``pinfold resize`` and ``plan --resize`` are asked: another number of CPUs for whom.

``pod/NAME/CONTAINER`` names a container, as ``kubectl`` writes ``pod/NAME`` for a pod;
``NAMESPACE/NAME`` names a pod, and ``pod/NAMESPACE/NAME/CONTAINER`` says all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from pinfold.core.pod.named import UnknownPodError, pod_named
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.values.errors import PinfoldError, is_number, wrong_type

MOST_CPUS: Final = 999_999
"""Nobody asks for more."""

_FORM: Final = "write pod/NAME[/CONTAINER], such as pod/db/server"
_WISH: Final = "write pod/NAME[/CONTAINER]=N, such as pod/db/server=6"
_PODS: Final = ("pod", "pods")
_COUNT: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_NAME: Final = re.compile("[a-z0-9]([-a-z0-9_.]*[a-z0-9])?", re.ASCII | re.IGNORECASE)


class ResizeError(PinfoldError, ValueError):
    """A resize that cannot be asked for; the message names it and what would do."""


def cpu_count(text: str) -> int:
    """Read a number of CPUs.

    Raises:
        ResizeError: it is no whole number from 1.
    """
    if not _COUNT.fullmatch(text) or int(text) < 1:
        raise ResizeError(f"{text[:40]!r} is no whole number of CPUs from 1 to {MOST_CPUS}")
    return int(text)


def place_of(text: str) -> tuple[str, str | None]:
    """Read a pod, ``NAME`` or ``NAMESPACE/NAME``, and its container where it is named.

    Raises:
        ResizeError: it has another form.

    >>> place_of("pod/db/server"), place_of("trading/db")
    (('db', 'server'), ('trading/db', None))
    """
    words = text.split("/")
    of_pod = words[0] in _PODS and len(words) > 1
    names = words[1:] if of_pod else words
    if len(names) > 3 or not all(map(_NAME.fullmatch, names)):
        raise ResizeError(f"{text[:80]!r} names no container of a pod; {_FORM}")
    if len(names) == 2 and of_pod:
        return names[0], names[1]
    return "/".join(names[:2]), names[2] if len(names) == 3 else None


def other_place(pod: str, container: str | None) -> tuple[str, str] | None:
    """Where two names mean pod and container, those that mean namespace and pod, or back.

    Returns:
        What else may be meant, in words, and how it is written.
    """
    first, slash, second = pod.partition("/")
    if not slash and container is not None:
        return f"pod {container} of namespace {pod}", f"{pod}/{container}"
    if slash and container is None:
        return f"container {second} of pod {first}", f"pod/{first}/{second}"
    return None


class ResizeWish(Struct, frozen=True):
    """A container that is to have another number of CPUs.

    Attributes:
        pod: ``NAME``, or ``NAMESPACE/NAME`` where several pods have the name.
        container: its name; None for the pod's only one.
        cpus: how many exclusive CPUs it is to have, from 1.

    Raises:
        TypeError: a field of a wrong type.
        ResizeError: fewer CPUs than one, or more than anybody has.
    """

    pod: str
    container: str | None
    cpus: int

    def __post_init__(self) -> None:
        """Check types and number."""
        if not isinstance(self.pod, str):
            raise wrong_type("pod", "a name", self.pod)
        if not isinstance(self.container, str | None):
            raise wrong_type("container", "a name, or None", self.container)
        if not is_number(self.cpus, whole=True):
            raise wrong_type("cpus", "a whole number", self.cpus)
        if not 1 <= self.cpus <= MOST_CPUS:
            raise ResizeError(f"{self.cpus} is no number of CPUs from 1 to {MOST_CPUS}")

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
            raise ResizeError(f"{text!r} has no number of CPUs; {_WISH}")
        try:
            return cls(*place_of(place), cpu_count(number))
        except ResizeError as error:
            raise ResizeError(f"{text!r}: {error}; {_WISH}") from None

    def meant_among(self, pods: Iterable[Pod]) -> ResizeWish:
        """The same, where ``pod/A/B`` is pod B of a namespace A and no container of a pod A."""
        if self.container is None or "/" in self.pod:
            return self
        names = [(one.name, one.full_name) for one in pods]
        other = f"{self.pod}/{self.container}"
        if any(self.pod == name for name, _ in names) or all(other != full for _, full in names):
            return self
        return ResizeWish(other, None, self.cpus)

    def pod_among(self, pods: Iterable[Pod]) -> Pod:
        """The pod that is meant.

        Raises:
            ResizeError: there is none, or more than one.
        """
        other = other_place(self.pod, self.container)
        hint = "" if other is None else f"; {other[0]} is {other[1]}={self.cpus}"
        try:
            return pod_named(self.pod, pods, hint)
        except UnknownPodError as error:
            raise ResizeError(str(error)) from None

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

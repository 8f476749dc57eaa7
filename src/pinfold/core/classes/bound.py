"""What a pod of a cluster has for the classes that it asks for, as an annotation says it.

A kubelet gives devices by their raw name.  So a pod asks for both, and the annotation tells which
of its raw devices are for which class, and later of which compute resource they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

KEY_PREFIX: Final = "binding.pinfold.dev/container."
LONGEST_CONTAINER: Final = 53
"""Bytes of a container's name: with ``container.`` it is the name of an annotation, of 63."""

_ITEM: Final = re.compile(
    r"(?P<name>[^=,@]+)=(?P<resource>[^=,:@]+):(?P<count>[1-9][0-9]{0,17})(?:@(?P<of>[^=,:@]+))?",
    re.ASCII,
)


class Bound(Struct, frozen=True):
    """Devices of a container for one class.

    Attributes:
        class_name: the class.
        resource: the raw name by which the kubelet gives them.
        count: how many.
        compute_resource: the name of the one that has them; "" where there may be several.
    """

    class_name: str
    resource: str
    count: int
    compute_resource: str = ""

    def __str__(self) -> str:
        of = f"@{self.compute_resource}" if self.compute_resource else ""
        return f"{self.class_name}={self.resource}:{self.count}{of}"


def bound_key(container: str) -> str:
    """The key of a container's annotation.

    >>> bound_key("app")
    'binding.pinfold.dev/container.app'
    """
    return f"{KEY_PREFIX}{container}"


def bound_text(bound: Iterable[Bound]) -> str:
    """The annotation's value.

    >>> bound_text([Bound("gold", "x.y/gpu", 2, "n1-gpu"), Bound("nic", "x.y/nic", 1)])
    'gold=x.y/gpu:2@n1-gpu,nic=x.y/nic:1'
    """
    return ",".join(map(str, bound))


def parsed_bound(text: str) -> tuple[Bound, ...]:
    """What an annotation says; none for an empty one.

    Raises:
        ValueError: that is no such annotation, or it says a class twice.
    """
    found: dict[str, Bound] = {}
    for item in text.split(",") if text else ():
        match = _ITEM.fullmatch(item)
        if match is None or match["name"] in found:
            form = "CLASS=RESOURCE:COUNT, each class once, separated by commas"
            raise ValueError(f"{item[:120]!r}: must be {form}")
        found[match["name"]] = Bound(
            match["name"], match["resource"], int(match["count"]), match["of"] or ""
        )
    return tuple(found.values())
